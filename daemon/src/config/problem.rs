//! What is wrong with a configuration: where it stands, what it is, what to write instead.

use std::fmt;
use std::path::{Path, PathBuf};

/// Where a value was said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// Nobody said it.
    Default,
    /// An environment variable did.
    Environment(&'static str),
    /// The command line did, with this option.
    CommandLine(&'static str),
    /// A configuration file did.
    File { path: PathBuf, line: usize },
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Environment(name) => write!(f, "${name}"),
            Self::CommandLine(option) => f.write_str(option),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
        }
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    source: Source,
    what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            // Nobody said anything that could be pointed at.
            Source::Default => {}
            source => write!(f, "{source}: ")?,
        }
        // What is quoted from the file goes to a terminal, whoever wrote it.
        for letter in self.what.chars() {
            match letter {
                '\'' | '"' | '\\' => write!(f, "{letter}")?,
                _ => write!(f, "{}", letter.escape_debug())?,
            }
        }
        Ok(())
    }
}

/// Everything that is wrong, so that it can be mended in one go.
#[derive(Clone, Debug, Default)]
pub(crate) struct Problems(Vec<Problem>);

impl Problems {
    /// Notes a problem; `what` ends with what to write.
    pub(crate) fn add(&mut self, source: &Source, what: impl Into<String>) {
        self.0.push(Problem {
            source: source.clone(),
            what: what.into(),
        });
    }

    /// Whether something is wrong at this place.
    pub(crate) fn are_about(&self, source: &Source) -> bool {
        self.0.iter().any(|problem| problem.source == *source)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.0.iter()
    }

    /// The value if nothing is wrong.
    pub(crate) fn into_result<T>(self, value: T) -> Result<T, Self> {
        if self.is_empty() {
            Ok(value)
        } else {
            Err(self)
        }
    }
}

/// Turns byte positions in a configuration text into places.
pub(crate) struct Places<'t> {
    path: &'t Path,
    text: &'t str,
}

impl<'t> Places<'t> {
    pub(crate) fn new(path: &'t Path, text: &'t str) -> Self {
        Self { path, text }
    }

    /// The line, counted from 1, that holds the byte at `offset`.
    pub(crate) fn at(&self, offset: usize) -> Source {
        let before = &self.text.as_bytes()[..offset.min(self.text.len())];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        Source::File {
            path: self.path.to_owned(),
            line,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Found by fuzzing: an address in `listen` was quoted as it stood there.
    #[test]
    fn what_a_file_says_is_harmless_at_a_terminal() {
        let mut problems = Problems::default();
        let source = Source::CommandLine("--listen");
        problems.add(&source, "`\u{1b}[2J\n\u{202e}` is \"no\" address: it's \\");
        let told = problems.iter().next().map(ToString::to_string);
        let shown = "--listen: `\\u{1b}[2J\\n\\u{202e}` is \"no\" address: it's \\";
        assert_eq!(told.as_deref(), Some(shown));
    }
}
