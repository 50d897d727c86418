//! Two streams of files with digests, matched by path as they come.
//!
//! Both sides are walked in the same order, so what waits for its twin is little, whatever the size
//! of the trees; but nothing here depends on the order.

use std::collections::{BTreeMap, BTreeSet};

use crate::output::Difference;

/// Which stream something came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    /// This host.
    Here,
    /// The server.
    There,
}

/// What is compared of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// A file with this digest.
    File([u8; 32]),
    /// A file that could not be read; told elsewhere, so it is no difference.
    Unreadable,
    /// A directory, or something that may be one, that could not be listed: told elsewhere, and
    /// nothing below it can be said to be missing.
    Unlisted,
    /// Something that has no content.
    Other,
}

/// Entries that wait for their twin, and the score.
#[derive(Debug, Default)]
pub(crate) struct Comparison {
    waiting: BTreeMap<Vec<u8>, (Side, Content)>,
    /// What could not be listed, on which side. Only failures are kept.
    unlisted: BTreeSet<(Side, Vec<u8>)>,
    same: u64,
    different: u64,
}

impl Comparison {
    /// Takes an entry; tells if it differs from its twin.
    pub(crate) fn add(
        &mut self,
        side: Side,
        path: Vec<u8>,
        content: Content,
    ) -> Option<(Vec<u8>, Difference)> {
        if content == Content::Unlisted {
            self.unlisted.insert((side, path.clone()));
        }
        match self.waiting.remove(&path) {
            Some((other, twin)) if other != side => self.judge(path, content, twin),
            _ => {
                self.waiting.insert(path, (side, content));
                None
            }
        }
    }

    fn judge(
        &mut self,
        path: Vec<u8>,
        one: Content,
        other: Content,
    ) -> Option<(Vec<u8>, Difference)> {
        let difference = match (one, other) {
            (Content::Unreadable | Content::Unlisted, _)
            | (_, Content::Unreadable | Content::Unlisted) => return None,
            (Content::File(one), Content::File(other)) if one == other => None,
            (Content::File(_), Content::File(_)) => Some(Difference::Content),
            (Content::Other, Content::Other) => None,
            _ => Some(Difference::Kind),
        };
        match difference {
            None => self.same += u64::from(matches!(one, Content::File(_))),
            Some(_) => self.different += 1,
        }
        difference.map(|difference| (path, difference))
    }

    /// Both streams ended: what still waits has no twin. A side whose listing is not complete can't
    /// be said to miss anything.
    pub(crate) fn end(
        &mut self,
        here_complete: bool,
        there_complete: bool,
    ) -> Vec<(Vec<u8>, Difference)> {
        let waiting = std::mem::take(&mut self.waiting);
        let mut missing = Vec::new();
        for (path, (side, content)) in waiting {
            let difference = match side {
                Side::Here if there_complete => Difference::MissingThere,
                Side::There if here_complete => Difference::MissingHere,
                _ => continue,
            };
            let twin = match side {
                Side::Here => Side::There,
                Side::There => Side::Here,
            };
            if matches!(content, Content::File(_)) && !self.is_unlisted(twin, &path) {
                self.different += 1;
                missing.push((path, difference));
            }
        }
        missing
    }

    /// Whether a directory above could not be listed on that side.
    fn is_unlisted(&self, side: Side, path: &[u8]) -> bool {
        !self.unlisted.is_empty()
            && path
                .iter()
                .enumerate()
                .filter(|(_, byte)| **byte == b'/')
                .any(|(end, _)| self.unlisted.contains(&(side, path[..end].to_vec())))
    }

    /// Files that are the same on both sides.
    pub(crate) fn same(&self) -> u64 {
        self.same
    }

    /// Entries that are not.
    pub(crate) fn different(&self) -> u64 {
        self.different
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Content = Content::File([1; 32]);
    const B: Content = Content::File([2; 32]);

    #[test]
    fn twins_are_found_in_any_order() {
        let mut comparison = Comparison::default();
        let mut found = Vec::new();
        for (side, path, content) in [
            (Side::Here, "same", A),
            (Side::There, "changed", A),
            (Side::There, "same", A),
            (Side::Here, "changed", B),
            (Side::Here, "kind", A),
            (Side::There, "kind", Content::Other),
            (Side::Here, "only here", A),
            (Side::There, "only there", A),
            (Side::There, "unreadable", Content::Unreadable),
            (Side::Here, "unreadable", A),
            (Side::Here, "directory", Content::Other),
        ] {
            found.extend(comparison.add(side, path.into(), content));
        }
        found.extend(comparison.end(true, true));
        let expected = [
            ("changed", Difference::Content),
            ("kind", Difference::Kind),
            ("only here", Difference::MissingThere),
            ("only there", Difference::MissingHere),
        ];
        assert_eq!(
            found,
            expected.map(|(path, difference)| (path.into(), difference))
        );
        assert_eq!((comparison.same(), comparison.different()), (1, 4));
    }

    #[test]
    fn an_incomplete_side_misses_nothing() {
        let mut comparison = Comparison::default();
        comparison.add(Side::Here, b"a".to_vec(), A);
        comparison.add(Side::There, b"b".to_vec(), A);
        assert_eq!(
            comparison.end(true, false),
            [(b"b".to_vec(), Difference::MissingHere)]
        );
        assert_eq!(comparison.different(), 1);
    }

    #[test]
    fn what_could_not_be_listed_misses_nothing() {
        let mut comparison = Comparison::default();
        comparison.add(Side::There, b"closed".to_vec(), Content::Unlisted);
        for path in ["closed/a", "closed/b/c", "closedx", "closed.d/a"] {
            comparison.add(Side::Here, path.into(), A);
        }
        comparison.add(Side::There, b"open/a".to_vec(), A);
        let found = comparison.end(true, true);
        let names: Vec<_> = found.iter().map(|(path, _)| path.as_slice()).collect();
        assert_eq!(names, [&b"closed.d/a"[..], b"closedx", b"open/a"]);
        assert_eq!(comparison.different(), 3);
    }

    #[test]
    fn what_waits_is_little_when_both_sides_keep_the_order() {
        let mut comparison = Comparison::default();
        for number in 0..1000u32 {
            let path = number.to_be_bytes().to_vec();
            comparison.add(Side::Here, path.clone(), A);
            comparison.add(Side::There, path, A);
            assert!(comparison.waiting.is_empty());
        }
    }
}
