//! What earlier attempts of a run have told and settled, for one that goes on in a new session.
//!
//! In: where the walk of an attempt came to, which of its entries were not settled when it was lost,
//! what was said of failures. Out: of each entry that is told again, whether it is news. A walk has one
//! order, so a place in it and the few entries that were open before that place say it all: memory does
//! not grow with the tree, and a run that is never interrupted pays nothing. A tree that is changed
//! between two attempts is told as it is then. It decides nothing about what is copied.

use std::collections::{HashMap, HashSet};

use crate::wire::FaultCode;

/// Where an entry stands in a walk: keys are ordered as the walk is. Made by
/// [`Names`](super::names::Names).
pub(crate) type Key = Vec<u8>;

/// Stands for a key, whatever its length.
type Mark = [u8; 16];

/// Failures, and omissions, that are remembered so that none is told twice. Beyond them some are.
const SAID_MAX: usize = 64 << 10;

/// See the module's first paragraph.
#[derive(Debug, Default)]
pub(crate) struct Earlier {
    /// The last entry that an earlier attempt has told.
    told: Option<Key>,
    /// Those up to there that were not settled; whether data of each was about to move.
    open: HashMap<Mark, bool>,
    /// What was said of places that are no entries.
    said: HashSet<Mark>,
    /// Entries that failed.
    failed: HashMap<Mark, FaultCode>,
}

/// What earlier attempts made of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Before {
    /// They did not come to it.
    #[default]
    New,
    /// It was told and came to its end.
    Settled,
    /// It was told. `started`: its data was about to move.
    Open { started: bool },
}

impl Earlier {
    /// Whether there was an earlier attempt that told anything.
    pub(crate) fn is_any(&self) -> bool {
        self.told.is_some()
    }

    /// What became of the entry with this key.
    pub(crate) fn of(&self, key: &[u8]) -> Before {
        match &self.told {
            Some(told) if key <= told.as_slice() => match self.open.get(&mark(key)) {
                Some(&started) => Before::Open { started },
                None => Before::Settled,
            },
            _ => Before::New,
        }
    }

    /// An entry that was open is settled now.
    pub(crate) fn settle(&mut self, key: &[u8]) {
        self.open.remove(&mark(key));
    }

    /// Remembers that something was said of a place. `false`: it was said before.
    pub(crate) fn say(&mut self, key: &[u8], what: &str) -> bool {
        let mark = mark(&[key, b"\0\0", what.as_bytes()].concat());
        if self.said.len() >= SAID_MAX {
            return !self.said.contains(&mark);
        }
        self.said.insert(mark)
    }

    /// An entry failed. `false`: it had before, and that was told.
    pub(crate) fn fail(&mut self, key: &[u8], code: FaultCode) -> bool {
        let mark = mark(key);
        if self.failed.len() >= SAID_MAX {
            return !self.failed.contains_key(&mark);
        }
        self.failed.insert(mark, code).is_none()
    }

    /// An entry is there. How it failed, if it had before.
    pub(crate) fn mend(&mut self, key: &[u8]) -> Option<FaultCode> {
        self.failed.remove(&mark(key))
    }

    /// An attempt is over that has told entries up to `told`, and leaves these open: their keys, what
    /// they were before it, and whether their data was about to move.
    pub(crate) fn leave(
        &mut self,
        told: Option<Key>,
        open: impl Iterator<Item = (Key, Before, bool)>,
    ) {
        for (key, before, started) in open {
            let started = match before {
                Before::Settled => continue,
                Before::Open { started: earlier } => earlier || started,
                Before::New => started,
            };
            self.open.insert(mark(&key), started);
        }
        self.told = std::mem::take(&mut self.told).max(told);
    }
}

fn mark(key: &[u8]) -> Mark {
    let hash = blake3::hash(key);
    let mut mark = Mark::default();
    mark.copy_from_slice(&hash.as_bytes()[..16]);
    mark
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        text.as_bytes().to_vec()
    }

    #[test]
    fn what_was_told_is_settled_unless_it_was_left_open() {
        let mut earlier = Earlier::default();
        assert!(!earlier.is_any());
        assert_eq!(earlier.of(b"a"), Before::New);
        let open = [
            (key("b"), Before::New, true),
            (key("c"), Before::New, false),
        ];
        earlier.leave(Some(key("d")), open.into_iter());
        assert_eq!(earlier.of(b"a"), Before::Settled);
        assert_eq!(earlier.of(b"b"), Before::Open { started: true });
        assert_eq!(earlier.of(b"c"), Before::Open { started: false });
        assert_eq!(earlier.of(b"e"), Before::New);
    }

    #[test]
    fn an_attempt_that_does_not_come_as_far_takes_nothing_back() {
        let mut earlier = Earlier::default();
        let open = [(key("b"), Before::New, true), (key("c"), Before::New, true)];
        earlier.leave(Some(key("d")), open.into_iter());
        // The second tells a and b, settles b, and is lost while it looks at a again.
        earlier.settle(b"b");
        let open = [(key("a"), Before::Settled, false)];
        earlier.leave(Some(key("b")), open.into_iter());
        assert_eq!(earlier.of(b"a"), Before::Settled);
        assert_eq!(earlier.of(b"b"), Before::Settled);
        assert_eq!(earlier.of(b"c"), Before::Open { started: true });
        assert_eq!(earlier.of(b"d"), Before::Settled);
        // That data of it was about to move stays true.
        let open = [(key("c"), Before::Open { started: true }, false)];
        earlier.leave(Some(key("d")), open.into_iter());
        assert_eq!(earlier.of(b"c"), Before::Open { started: true });
    }

    #[test]
    fn things_are_said_once() {
        let mut earlier = Earlier::default();
        assert!(earlier.say(b"a", "a socket"));
        assert!(!earlier.say(b"a", "a socket"));
        assert!(earlier.say(b"a", "unreadable"));
        assert!(earlier.say(b"b", "a socket"));
        assert!(earlier.fail(b"a", FaultCode::Denied));
        assert!(!earlier.fail(b"a", FaultCode::Denied));
        assert_eq!(earlier.mend(b"a"), Some(FaultCode::Denied));
        assert_eq!(earlier.mend(b"a"), None);
    }
}
