//! Which entries of a tree take part: the user's rules, by name or path.
//!
//! In: rules in the order they were written, then names and paths as a walk finds them. Out: whether
//! an entry is left out. The first rule that matches decides; what none matches takes part. Pure: no
//! file is looked at. Names are bytes, so patterns are too; a character of UTF-8 counts as one.
//!
//! ```text
//! name      an entry of that name, wherever it is      *     anything, but no /
//! a/b, /a   the entry at that path below the source    **    anything
//! x/        directories only                           **/   no directories, or any
//! [a-z] [!x] ? \x                                      one of these, any but, any, x itself
//! ```
//!
//! Rules come from peers as well. What a match costs is bounded by the bytes of all rules times those
//! of the path: states of the pattern are stepped through together, and nothing is tried again.

use std::ops::RangeInclusive;

use crate::limits::{FILTER_BYTES_MAX, FILTERS_BYTES_MAX, FILTERS_MAX};
use crate::wire::message::FilterRule;

/// What stands for a byte that is no part of a character: beyond all of those.
const STRAY: u32 = 0x11_0000;
const SLASH: u32 = b'/' as u32;

/// Why a rule can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// Too many, or too long together.
    #[error(
        "there are more than {} filters, or they have more than {} bytes",
        FILTERS_MAX,
        FILTERS_BYTES_MAX
    )]
    TooMany,
    /// This one is not a pattern.
    #[error("the pattern '{}' {why}", .pattern.escape_ascii())]
    Malformed {
        /// As it was written.
        pattern: Vec<u8>,
        /// What is wrong with it.
        why: &'static str,
    },
}

/// Rules that can be applied. The default has none, and leaves nothing out.
#[derive(Clone, Debug, Default)]
pub struct Filters(Vec<Filter>);

#[derive(Clone, Debug)]
struct Filter {
    include: bool,
    directories_only: bool,
    /// It is about paths below the source, else about names.
    is_path: bool,
    tokens: Vec<Token>,
}

/// A place in a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    /// This character.
    One(u32),
    /// One of these, or none of these.
    Class {
        negated: bool,
        ranges: Vec<RangeInclusive<u32>>,
    },
    /// Any character but a slash.
    Any,
    /// Any number of those.
    Run,
    /// Any number of any characters.
    Deep,
    /// Nothing, or what comes next and then a slash.
    Directories,
    /// The characters before that slash: always behind [`Token::Directories`].
    InDirectories,
}

impl Filters {
    /// Takes rules in their order.
    ///
    /// # Errors
    /// The first one that is no pattern, or that there are too many.
    pub fn new(rules: &[FilterRule]) -> Result<Self, FilterError> {
        let bytes: usize = rules.iter().map(|rule| rule.pattern.len()).sum();
        if rules.len() > FILTERS_MAX || bytes > FILTERS_BYTES_MAX {
            return Err(FilterError::TooMany);
        }
        rules
            .iter()
            .map(Filter::new)
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Whether an entry is left out. `path` gives its path below the source, without a slash in front.
    pub(super) fn leaves_out(
        &self,
        name: &[u8],
        is_directory: bool,
        path: impl Fn() -> Vec<u8>,
    ) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let name = characters(name);
        // Made once, and only if a rule speaks of paths.
        let mut whole: Option<Vec<u32>> = None;
        for filter in &self.0 {
            if filter.directories_only && !is_directory {
                continue;
            }
            let text = match filter.is_path {
                true => &*whole.get_or_insert_with(|| characters(&path())),
                false => &name,
            };
            if filter.matches(text) {
                return !filter.include;
            }
        }
        false
    }
}

impl Filter {
    fn new(rule: &FilterRule) -> Result<Self, FilterError> {
        let malformed = |why| FilterError::Malformed {
            pattern: rule.pattern.clone(),
            why,
        };
        let pattern = rule.pattern.as_slice();
        if pattern.len() > FILTER_BYTES_MAX {
            return Err(malformed("is too long"));
        }
        let (pattern, directories_only) = match pattern.strip_suffix(b"/") {
            Some(rest) => (rest, true),
            None => (pattern, false),
        };
        let is_path = pattern.contains(&b'/');
        let pattern = pattern.strip_prefix(b"/").unwrap_or(pattern);
        if pattern.is_empty() {
            return Err(malformed("names nothing"));
        }
        if pattern.contains(&0) {
            return Err(malformed("holds a NUL byte, which no name has"));
        }
        Ok(Self {
            include: rule.include,
            directories_only,
            is_path,
            tokens: tokens(&characters(pattern)).map_err(malformed)?,
        })
    }

    fn matches(&self, text: &[u32]) -> bool {
        let mut now = States::new(self.tokens.len());
        let mut next = States::new(self.tokens.len());
        self.enter(&mut now, 0);
        for &character in text {
            if now.reached.is_empty() {
                return false;
            }
            next.clear();
            for at in std::mem::take(&mut now.reached) {
                self.step(&mut next, at, character);
            }
            std::mem::swap(&mut now, &mut next);
        }
        now.reached.contains(&self.tokens.len())
    }

    /// One character more, from this place.
    fn step(&self, next: &mut States, at: usize, character: u32) {
        match self.tokens.get(at) {
            Some(Token::One(one)) if *one == character => self.enter(next, at + 1),
            Some(Token::Class { negated, ranges })
                if character != SLASH
                    && ranges.iter().any(|range| range.contains(&character)) != *negated =>
            {
                self.enter(next, at + 1);
            }
            Some(Token::Any) if character != SLASH => self.enter(next, at + 1),
            Some(Token::Run) if character != SLASH => self.enter(next, at),
            Some(Token::Deep) => self.enter(next, at),
            Some(Token::InDirectories) => {
                self.enter(next, at);
                if character == SLASH {
                    self.enter(next, at + 1);
                }
            }
            _ => {}
        }
    }

    /// Reaches a place, and those behind what may be nothing.
    fn enter(&self, states: &mut States, at: usize) {
        let mut at = at;
        while states.reach(at) {
            match self.tokens.get(at) {
                Some(Token::Run | Token::Deep) => at += 1,
                Some(Token::Directories) => {
                    states.reach(at + 1);
                    at += 2;
                }
                _ => return,
            }
        }
    }
}

/// Places of a pattern that a text has come to.
struct States {
    reached: Vec<usize>,
    is_reached: Vec<bool>,
}

impl States {
    fn new(tokens: usize) -> Self {
        Self {
            reached: Vec::new(),
            is_reached: vec![false; tokens + 1],
        }
    }

    /// Whether it was not reached before.
    fn reach(&mut self, at: usize) -> bool {
        let is_new = !std::mem::replace(&mut self.is_reached[at], true);
        if is_new {
            self.reached.push(at);
        }
        is_new
    }

    fn clear(&mut self) {
        self.reached.clear();
        self.is_reached.fill(false);
    }
}

/// Characters, and bytes that belong to none.
fn characters(bytes: &[u8]) -> Vec<u32> {
    let mut all = Vec::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        all.extend(chunk.valid().chars().map(u32::from));
        all.extend(chunk.invalid().iter().map(|&byte| STRAY + u32::from(byte)));
    }
    all
}

fn tokens(pattern: &[u32]) -> Result<Vec<Token>, &'static str> {
    let is = |at: usize, byte: u8| pattern.get(at) == Some(&u32::from(byte));
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(&character) = pattern.get(at) {
        at += 1;
        let byte = u8::try_from(character).unwrap_or(0);
        let token = match byte {
            b'*' if is(at, b'*') => {
                let begins = at == 1 || is(at - 2, b'/');
                while is(at, b'*') {
                    at += 1;
                }
                if begins && is(at, b'/') {
                    at += 1;
                    tokens.push(Token::Directories);
                    Token::InDirectories
                } else {
                    Token::Deep
                }
            }
            b'*' => Token::Run,
            b'?' => Token::Any,
            b'[' => {
                let (class, end) = class(pattern, at)?;
                at = end;
                class
            }
            b'\\' => {
                let escaped = pattern.get(at).ok_or("ends in a backslash")?;
                at += 1;
                Token::One(*escaped)
            }
            _ => Token::One(character),
        };
        tokens.push(token);
    }
    Ok(tokens)
}

/// The class whose bracket was opened before `at`, and where it ends.
fn class(pattern: &[u32], mut at: usize) -> Result<(Token, usize), &'static str> {
    let is = |at: usize, byte: u8| pattern.get(at) == Some(&u32::from(byte));
    let member = |mut at: usize| {
        at += usize::from(is(at, b'\\'));
        let one = pattern.get(at).copied();
        one.map(|one| (one, at + 1)).ok_or("has a [ without its ]")
    };
    let negated = is(at, b'!') || is(at, b'^');
    at += usize::from(negated);
    let first = at;
    let mut ranges = Vec::new();
    // One that comes first is one of them.
    while at == first || !is(at, b']') {
        let (from, mut end) = member(at)?;
        let mut to = from;
        if is(end, b'-') && !is(end + 1, b']') {
            (to, end) = member(end + 1)?;
        }
        if to < from {
            return Err("has a range that runs backwards");
        }
        ranges.push(from..=to);
        at = end;
    }
    Ok((Token::Class { negated, ranges }, at + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(include: bool, pattern: &[u8]) -> FilterRule {
        let pattern = pattern.to_vec();
        FilterRule { include, pattern }
    }

    /// Whether this pattern alone leaves this path out.
    fn hits(pattern: &[u8], path: &[u8]) -> bool {
        let (path, is_directory) = match path.strip_suffix(b"/") {
            Some(path) => (path, true),
            None => (path, false),
        };
        leaves_out(&[rule(false, pattern)], path, is_directory)
    }

    fn leaves_out(rules: &[FilterRule], path: &[u8], is_directory: bool) -> bool {
        let filters = Filters::new(rules).unwrap();
        let name = path.rsplit(|&byte| byte == b'/').next().unwrap();
        filters.leaves_out(name, is_directory, || path.to_vec())
    }

    #[test]
    fn patterns_match_names_or_paths() {
        let table: &[(&[u8], &[u8], bool)] = &[
            (b"*.o", b"a.o", true),
            (b"*.o", b"x/y/a.o", true),
            (b"*.o", b"a.o.c", false),
            (b"*.o", b".o", true),
            (b"a?c", b"abc", true),
            (b"a?c", b"ac", false),
            (b"?", "ä".as_bytes(), true),
            (b"?", b"\xff", true),
            (b"??", "ä".as_bytes(), false),
            (b"\xff*", b"\xff\xfe", true),
            (b"\xff*", "ÿ".as_bytes(), false),
            (b"x/*", b"x/a", true),
            (b"x/*", b"x/a/b", false),
            (b"x/**", b"x/a/b", true),
            (b"/x", b"x", true),
            (b"/x", b"y/x", false),
            (b"x/y", b"z/x/y", false),
            (b"**/y", b"y", true),
            (b"**/y", b"a/b/y", true),
            (b"**/y", b"a/by", false),
            (b"a/**/z", b"a/z", true),
            (b"a/**/z", b"a/b/c/z", true),
            (b"a/**/z", b"a/bz", false),
            (b"a**z", b"a/b/z", false),
            (b"a**z", b"abz", true),
            (b"/a**z", b"a/b/z", true),
            (b"d/", b"d/", true),
            (b"d/", b"d", false),
            (b"d/", b"x/d/", true),
            (b"[a-c]x", b"bx", true),
            (b"[!a-c]x", b"bx", false),
            (b"[^a-c]x", b"dx", true),
            (b"[]]", b"]", true),
            (b"[a-]", b"-", true),
            (b"[\\]a]", b"]", true),
            ("[ä-ü]".as_bytes(), "ö".as_bytes(), true),
            (b"x[!a]y/z", b"x/y/z", false),
            (b"\\*", b"*", true),
            (b"\\*", b"a", false),
            (b"new\nline*", b"new\nline 2", true),
            (b"***", b"anything", true),
            (b"*", b"", true),
        ];
        for (pattern, path, expected) in table {
            let shown = (pattern.escape_ascii(), path.escape_ascii());
            assert_eq!(hits(pattern, path), *expected, "{} {}", shown.0, shown.1);
        }
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let rules = [
            rule(true, b"keep.tmp"),
            rule(false, b"*.tmp"),
            rule(true, b"*/"),
            rule(true, b"*.rs"),
            rule(false, b"*"),
        ];
        for (path, is_directory, out) in [
            (&b"a/keep.tmp"[..], false, false),
            (b"a/b.tmp", false, true),
            (b"c.tmp", true, true),
            (b"a", true, false),
            (b"a/x.rs", false, false),
            (b"a/x.c", false, true),
        ] {
            let shown = path.escape_ascii();
            assert_eq!(leaves_out(&rules, path, is_directory), out, "{shown}");
        }
        assert!(!leaves_out(&[], b"anything", false));
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for pattern in [
            &b""[..],
            b"/",
            b"[a",
            b"[",
            b"[!",
            b"a\\",
            b"[z-a]",
            b"[a-",
            b"x\0y",
            b"[\\",
        ] {
            let error = Filters::new(&[rule(false, pattern)]).unwrap_err();
            assert!(matches!(error, FilterError::Malformed { .. }), "{error}");
        }
        let long = vec![b'a'; FILTER_BYTES_MAX + 1];
        assert!(Filters::new(&[rule(false, &long)]).is_err());
        let many = vec![rule(false, b"a"); FILTERS_MAX + 1];
        assert_eq!(Filters::new(&many).unwrap_err(), FilterError::TooMany);
        let wide = vec![
            rule(false, &vec![b'a'; FILTER_BYTES_MAX]);
            FILTERS_BYTES_MAX / FILTER_BYTES_MAX + 1
        ];
        assert_eq!(Filters::new(&wide).unwrap_err(), FilterError::TooMany);
    }

    #[test]
    fn a_match_steps_no_more_often_than_pattern_times_text() {
        // What ruins matchers that try again: this ends at once, or the test never does.
        let pattern = b"*a".repeat(FILTER_BYTES_MAX / 2);
        let deep = [b"/".to_vec(), b"**a".repeat(300)].concat();
        let text = vec![b'a'; 4000];
        let mut almost = text.clone();
        almost.push(b'b');
        assert!(!hits(&pattern, &almost));
        assert!(!hits(&deep, &almost));
        assert!(hits(&deep, &text));
    }
}
