//! Names of files in the making, and how they are told from a user's own.
//!
//! In: what a file is to be called in the end, or a number nobody else has. Out: a hidden name, and
//! later the proof that a name is one of those: half of its digits are a mark computed from the
//! other half, so that no name that anybody thought of, and no name of another program, is taken
//! for ours. That works on every file system and costs no call into the kernel. The mark is no
//! secret: it keeps accidents away, not those who may write into the directory anyway. Nothing here
//! touches files; whether one is still being written is [`super::leftover`]'s question.
//!
//! Beside a part file that takes long stands its journal, under the same digits.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::manifest::Name;

/// Every name that a run makes before the final one starts like this,
const PREFIX: &[u8] = b".rdcp-";
/// and ends like this; between them stand the stem and its mark.
const SUFFIX: &[u8] = b".part";
/// or, if it is the journal of the part file of that stem, like this.
const JOURNAL_SUFFIX: &[u8] = b".journal";
/// Hexadecimal digits of the stem, and again of the mark.
const DIGITS: usize = 16;
/// What marks are computed under.
const MARK_KEY: &[u8; 32] = b"rdcp: the name of a part file   ";

/// What identifies a final name in its part file's name.
pub(crate) fn stem_of(name: &Name) -> u64 {
    first_eight(&blake3::hash(name.as_bytes()))
}

/// `.rdcp-` stem mark `.part`. Always the same length, so that a final name of `NAME_MAX` bytes has
/// one too.
pub(crate) fn part_name(stem: u64) -> Name {
    marked(stem, SUFFIX)
}

/// `.rdcp-` stem mark `.journal`: where it is recorded what the part file of that stem holds.
pub(crate) fn journal_name(stem: u64) -> Name {
    marked(stem, JOURNAL_SUFFIX)
}

fn marked(stem: u64, suffix: &[u8]) -> Name {
    let mut bytes = Vec::with_capacity(PREFIX.len() + 2 * DIGITS + suffix.len());
    bytes.extend_from_slice(PREFIX);
    bytes.extend_from_slice(&digits(stem));
    bytes.extend_from_slice(&digits(mark_of(stem)));
    bytes.extend_from_slice(suffix);
    Name::new(bytes).expect("a short name of harmless letters is a name")
}

/// What a name of ours stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hidden {
    /// A file in the making.
    Part(u64),
    /// The journal of one.
    Journal(u64),
}

/// What a name is that [`part_name`] or [`journal_name`] makes; nothing for any other.
pub(crate) fn hidden(name: &[u8]) -> Option<Hidden> {
    let middle = name.strip_prefix(PREFIX)?;
    let (middle, kind): (_, fn(u64) -> Hidden) = match middle.strip_suffix(SUFFIX) {
        Some(middle) => (middle, Hidden::Part),
        None => (middle.strip_suffix(JOURNAL_SUFFIX)?, Hidden::Journal),
    };
    let (stem, mark) = middle.split_at_checked(DIGITS)?;
    let stem = number(stem)?;
    (digits(mark_of(stem)) == mark).then(|| kind(stem))
}

/// Whether a name is one that [`part_name`] or [`journal_name`] makes. Such names are not content:
/// no listing shows them and nothing is copied to or from them.
pub(crate) fn is_part_name(name: &[u8]) -> bool {
    hidden(name).is_some()
}

/// Names that no other run makes, for what is renamed at once: small files, symlinks, links.
#[derive(Debug)]
pub(crate) struct UniqueNames(AtomicU64);

impl UniqueNames {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(u64::from_ne_bytes(
            crate::sys::random_bytes(),
        )))
    }

    pub(crate) fn next(&self) -> Name {
        part_name(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

fn mark_of(stem: u64) -> u64 {
    first_eight(&blake3::keyed_hash(MARK_KEY, &stem.to_be_bytes()))
}

fn first_eight(hash: &blake3::Hash) -> u64 {
    let mut first = [0; 8];
    first.copy_from_slice(&hash.as_bytes()[..8]);
    u64::from_be_bytes(first)
}

fn digits(number: u64) -> [u8; DIGITS] {
    std::array::from_fn(|at| {
        let shift = 4 * (DIGITS - 1 - at);
        b"0123456789abcdef"[usize::try_from((number >> shift) & 0xf).unwrap_or(0)]
    })
}

/// Reads what [`digits`] wrote; `None` for anything else.
fn number(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0, |number, &digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some((number << 4) | u64::from(value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_names_are_short_and_known_again() {
        let longest = Name::new(vec![0xff; 255]).unwrap();
        for stem in [stem_of(&longest), 0, u64::MAX, 0x0123_4567_89ab_cdef] {
            let part = part_name(stem);
            assert_eq!(part.as_bytes().len(), 43);
            assert!(part.as_bytes().starts_with(b".rdcp-"));
            assert_eq!(hidden(part.as_bytes()), Some(Hidden::Part(stem)));
            let journal = journal_name(stem);
            assert_eq!(hidden(journal.as_bytes()), Some(Hidden::Journal(stem)));
        }
        assert!(part_name(0x0123_4567_89ab_cdef).as_bytes()[6..].starts_with(b"0123456789abcdef"));
    }

    #[test]
    fn names_of_others_are_not_ours() {
        let ours = part_name(7).as_bytes().to_vec();
        for ours in [&ours, &journal_name(7).as_bytes().to_vec()] {
            for at in 0..ours.len() {
                let mut other = ours.clone();
                other[at] ^= 1;
                assert!(!is_part_name(&other), "{}", other.escape_ascii());
            }
        }
        let capital = ours.to_ascii_uppercase();
        for name in [
            &b".rdcp-0123456789abcdef.part"[..],
            b".rdcp-01234567-89ab-cdef.journal",
            b".rdcp-.part",
            b".rdcp-.part.part",
            b".rdcp-",
            b"",
            &capital,
            &ours[..ours.len() - 1],
            &ours[1..],
        ] {
            assert!(!is_part_name(name), "{}", name.escape_ascii());
        }
    }

    #[test]
    fn unique_names_differ() {
        let names = UniqueNames::new();
        assert_ne!(names.next(), names.next());
    }
}
