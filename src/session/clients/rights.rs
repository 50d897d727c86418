//! What can be allowed one by one. Pure.

use std::fmt;
use std::str::FromStr;

/// One thing that a client may do in an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    /// See names, sizes, times.
    List,
    /// Read files: pull, sum, verify. Whoever may read sees names too.
    Read,
    /// Make files and directories that are not there.
    Create,
    /// Put another file in the place of one that is there.
    Overwrite,
    /// Remove.
    Delete,
}

impl Right {
    /// Every right.
    pub(crate) const ALL: [Self; 5] = [
        Self::List,
        Self::Read,
        Self::Create,
        Self::Overwrite,
        Self::Delete,
    ];

    fn word(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Read => "read",
            Self::Create => "create",
            Self::Overwrite => "overwrite",
            Self::Delete => "delete",
        }
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// A set of rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rights(u8);

impl Rights {
    /// All of them.
    pub(crate) const ALL: Self = Self((1 << Right::ALL.len()) - 1);

    /// Those that change nothing.
    pub(crate) const READING: Self = Self(bit(Right::List) | bit(Right::Read));

    /// Those that are in both.
    pub(crate) fn and(self, other: Self) -> Self {
        // Reading stands for listing, so who may list by either may list by both.
        let list = if self.has(Right::List) && other.has(Right::List) {
            bit(Right::List)
        } else {
            0
        };
        Self(self.0 & other.0 | list)
    }

    /// Whether `other` has all of them.
    pub(crate) fn are_in(self, other: Self) -> bool {
        Right::ALL
            .into_iter()
            .all(|right| !self.has(right) || other.has(right))
    }

    /// Whether something can be changed with one of them.
    pub(crate) fn change(self) -> bool {
        self.0 & !Self::READING.0 != 0
    }

    /// Whether one is in it. Reading shows names, so it stands for listing too.
    pub(crate) fn has(self, right: Right) -> bool {
        let wanted = match right {
            Right::List => bit(Right::List) | bit(Right::Read),
            other => bit(other),
        };
        self.0 & wanted != 0
    }
}

const fn bit(right: Right) -> u8 {
    1 << (right as u8)
}

impl fmt::Display for Rights {
    /// As it is written.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        for right in Right::ALL {
            if self.0 & bit(right) != 0 {
                write!(f, "{between}{right}")?;
                between = ",";
            }
        }
        Ok(())
    }
}

impl FromStr for Rights {
    type Err = String;

    /// Words with commas between them.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut bits = 0;
        for word in text.split(',') {
            let right = Right::ALL.into_iter().find(|right| right.word() == word);
            let Some(right) = right else {
                let known: Vec<_> = Right::ALL.iter().map(ToString::to_string).collect();
                let word = word.escape_debug();
                return Err(format!(
                    "`{word}` is no right: there are {}",
                    known.join(", ")
                ));
            };
            bits |= bit(right);
        }
        Ok(Self(bits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_what_it_was_written_with() {
        let set: Rights = "create,delete".parse().unwrap();
        let had: Vec<_> = Right::ALL.into_iter().filter(|r| set.has(*r)).collect();
        assert_eq!(had, [Right::Create, Right::Delete]);
        assert!(Right::ALL.into_iter().all(|right| Rights::ALL.has(right)));
    }

    #[test]
    fn who_reads_sees_names_and_who_lists_reads_nothing() {
        let read: Rights = "read".parse().unwrap();
        assert!(read.has(Right::List) && read.has(Right::Read) && !read.has(Right::Create));
        let list: Rights = "list".parse().unwrap();
        assert!(list.has(Right::List) && !list.has(Right::Read));
    }

    #[test]
    fn what_two_allow_is_what_both_allow() {
        let read: Rights = "read,create".parse().unwrap();
        let list: Rights = "list,create,delete".parse().unwrap();
        let both = read.and(list);
        assert_eq!(both.to_string(), "list,create");
        assert_eq!(both, list.and(read));
        assert!(both.change() && !Rights::READING.change());
        assert_eq!(Rights::ALL.and(read), read.and(Rights::ALL));
        assert!(Rights::ALL.and(read).has(Right::Read));
        assert_eq!(both.to_string().parse::<Rights>().unwrap(), both);
    }

    #[test]
    fn one_set_is_in_another_by_what_it_allows() {
        let set = |text: &str| text.parse::<Rights>().unwrap();
        assert!(set("list").are_in(set("read")) && !set("read").are_in(set("list")));
        assert!(set("read").are_in(set("list,read")) && set("list,read").are_in(set("read")));
        assert!(set("create").are_in(Rights::ALL) && !Rights::ALL.are_in(set("create")));
    }

    #[test]
    fn other_words_are_refused() {
        for text in ["", "write", "read,", "read, list", "READ"] {
            let error = text.parse::<Rights>().unwrap_err();
            assert!(error.contains("there are list, read"), "{error}");
        }
    }
}
