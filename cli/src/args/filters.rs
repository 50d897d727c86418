//! `--exclude`, `--include`, `--filter-from`: three options of which one order is kept.
//!
//! Words of a command line come in, and rules in the order in which they were written come out. clap
//! keeps each option's values apart, so the places of all are asked for and put together. A file of
//! rules is read when the rules are asked for, as the copy begins.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use clap::builder::ValueParser;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, ValueHint};
use rdcp::options::FilterRule;
use rdcp::{Error, ErrorKind};

use super::SELECTION;
use crate::escape;

const INCLUDE: &str = "include";
const EXCLUDE: &str = "exclude";
const FROM: &str = "filter_from";

/// What was written of filters, in its order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct FilterArgs(Vec<FilterWord>);

#[derive(Clone, Debug, PartialEq)]
enum FilterWord {
    Rule(FilterRule),
    File(PathBuf),
}

impl FilterArgs {
    /// The rules, those of files among them.
    pub(crate) fn rules(&self) -> Result<Vec<FilterRule>, Error> {
        let mut rules = Vec::new();
        for word in &self.0 {
            match word {
                FilterWord::Rule(rule) => rules.push(rule.clone()),
                FilterWord::File(path) => rules.extend(read(path)?),
            }
        }
        FilterRule::check(&rules)?;
        Ok(rules)
    }
}

fn read(path: &Path) -> Result<Vec<FilterRule>, Error> {
    let shown = escape::path(path.as_os_str().as_encoded_bytes());
    let bytes = std::fs::read(path).map_err(|error| {
        Error::new(ErrorKind::Usage, format!("can't read filters from {shown}")).with_source(error)
    })?;
    let mut rules = Vec::new();
    for (number, line) in (1u32..).zip(bytes.split(|&byte| byte == b'\n')) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.trim_ascii().is_empty() || line.starts_with(b"#") {
            continue;
        }
        let (include, pattern) = match line {
            [b'+', b' ', pattern @ ..] => (true, pattern),
            [b'-', b' ', pattern @ ..] => (false, pattern),
            _ => {
                let message = format!("{shown}, line {number}: this is no filter");
                return Err(Error::new(ErrorKind::Usage, message).with_hint(
                    "a line is '+ PATTERN' or '- PATTERN'; one that begins with # is a comment",
                ));
            }
        };
        let pattern = pattern.to_vec();
        let rule = FilterRule { include, pattern };
        FilterRule::check(std::slice::from_ref(&rule)).map_err(|error| {
            Error::new(ErrorKind::Usage, format!("{shown}, line {number}: {error}"))
        })?;
        rules.push(rule);
    }
    Ok(rules)
}

impl Args for FilterArgs {
    fn augment_args(command: Command) -> Command {
        let option = |id: &'static str, long: &'static str, value: &'static str| {
            Arg::new(id)
                .long(long)
                .value_name(value)
                .action(ArgAction::Append)
                .value_parser(ValueParser::os_string())
                .allow_hyphen_values(true)
                .help_heading(SELECTION)
        };
        command
            .arg(
                option(EXCLUDE, "exclude", "PATTERN")
                    .value_hint(ValueHint::Other)
                    .help("Leave out what matches, and all below a directory that does")
                    .long_help(
                        "Leave out what matches, and all below a directory that does\n\n\
                         A PATTERN without a slash is of names, wherever they are; with one it is of \
                         paths below the source, whose own name is no part of them: 'a/b' and '/a' \
                         begin there. * is anything but a slash, ** anything, **/ any directories or \
                         none, ? one character, [a-z] one of those, [!a-z] any other; a backslash \
                         takes the meaning off what follows. With a slash at its end it matches \
                         directories only. Of --exclude, --include and the lines of --filter-from the \
                         first that matches decides, in the order in which they are written; what \
                         none matches is copied. What is named as a source is always copied. With \
                         --delete, what is left out stays at the destination.",
                    ),
            )
            .arg(
                option(INCLUDE, "include", "PATTERN")
                    .value_hint(ValueHint::Other)
                    .help("Copy what matches, though a later --exclude matches it too")
                    .long_help(
                        "Copy what matches, though a later --exclude matches it too\n\n\
                         To copy only some files: --include '*/' --include '*.rs' --exclude '*'. A \
                         file below a directory that is left out is not looked at.",
                    ),
            )
            .arg(
                option(FROM, "filter-from", "FILE")
                    .value_hint(ValueHint::FilePath)
                    .help("Read filters from FILE: lines '+ PATTERN' or '- PATTERN', # for comments"),
            )
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for FilterArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let rule = |include| {
            move |word: OsString| {
                let pattern = word.into_vec();
                FilterWord::Rule(FilterRule { include, pattern })
            }
        };
        let mut words = Vec::new();
        gather(matches, INCLUDE, &mut words, rule(true));
        gather(matches, EXCLUDE, &mut words, rule(false));
        gather(matches, FROM, &mut words, |word| {
            FilterWord::File(word.into())
        });
        words.sort_by_key(|(index, _)| *index);
        Ok(Self(words.into_iter().map(|(_, word)| word).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The values of one option with their places among all words.
fn gather(
    matches: &ArgMatches,
    id: &str,
    words: &mut Vec<(usize, FilterWord)>,
    word: impl Fn(OsString) -> FilterWord,
) {
    let places = matches.indices_of(id).into_iter().flatten();
    let values = matches.get_many::<OsString>(id).into_iter().flatten();
    words.extend(places.zip(values.cloned().map(word)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command as Commands};
    use clap::Parser;
    use std::io::Write as _;

    fn filters(words: &[&str]) -> FilterArgs {
        let words = ["rdcp", "pull"].iter().chain(words).chain(&["h:/e", "."]);
        match Cli::try_parse_from(words).unwrap().command {
            Commands::Pull(args) => args.transfer.filters,
            other => panic!("{other:?}"),
        }
    }

    fn shown(rules: &[FilterRule]) -> Vec<String> {
        let sign = |rule: &FilterRule| if rule.include { '+' } else { '-' };
        rules
            .iter()
            .map(|rule| format!("{} {}", sign(rule), rule.pattern.escape_ascii()))
            .collect()
    }

    #[test]
    fn the_order_of_the_command_line_is_kept_across_options() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"# a comment\n+ x y\n\n- \xff#\r\n")
            .unwrap();
        let path = file.path().to_str().unwrap();
        let words = [
            "--exclude",
            "a",
            "--include=b",
            "-r",
            "--filter-from",
            path,
            "--exclude",
            "-c",
        ];
        let rules = filters(&words).rules().unwrap();
        assert_eq!(shown(&rules), ["- a", "+ b", "+ x y", "- \\xff#", "- -c"]);
        assert_eq!(filters(&["-r"]), FilterArgs::default());
    }

    #[test]
    fn what_is_no_filter_is_a_usage_error_that_names_its_line() {
        for (text, expected) in [
            (&b"+ a\nb\n"[..], "line 2"),
            (b"+ a\n- [x\n", "line 2"),
            (b"+a\n", "line 1"),
        ] {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(text).unwrap();
            let words = ["--filter-from", file.path().to_str().unwrap()];
            let error = filters(&words).rules().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage);
            assert!(error.to_string().contains(expected), "{error}");
        }
        for words in [
            ["--exclude", "[a"],
            ["--include", ""],
            ["--filter-from", "/nowhere/x"],
        ] {
            let error = filters(&words).rules().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
        }
    }
}
