//! Feature levels: what two releases can say to each other.
//!
//! A level is a set of messages and fields that both ends know. The client tells the lowest and
//! the highest that it speaks, the server picks the highest that both do. Releases of one major
//! version keep the lowest level of that version, so they always share one.

/// The lowest level that this release speaks.
pub const LEVEL_MIN: u16 = 1;
/// The highest level that this release speaks. Level 1: pull, push, list, stat, sum, remove, make
/// directory; tcp. Level 2: the messages that make rails, and so rdma. Level 3: Bench, and the
/// server's status. Level 4: clean.
pub const LEVEL_MAX: u16 = 4;
/// The lowest level at which rails can be spoken of.
pub const LEVEL_RAILS: u16 = 2;
/// The lowest level at which memory can be asked for to measure with.
pub const LEVEL_BENCH: u16 = 3;
/// The lowest level at which a server can be asked for its status.
pub const LEVEL_STATUS: u16 = 3;
/// The lowest level at which a server can be asked to remove what copies left behind.
pub const LEVEL_CLEAN: u16 = 4;

const _: () = assert!(LEVEL_MIN <= LEVEL_MAX);
const _: () = assert!(LEVEL_RAILS <= LEVEL_MAX);
const _: () = assert!(LEVEL_BENCH <= LEVEL_MAX && LEVEL_STATUS <= LEVEL_MAX);
const _: () = assert!(LEVEL_CLEAN <= LEVEL_MAX);

/// The highest level in both this release and the peer's `min..=max`.
pub fn negotiate(min: u16, max: u16) -> Option<u16> {
    let level = max.min(LEVEL_MAX);
    (level >= LEVEL_MIN && level >= min).then_some(level)
}

/// Whether this release speaks `level`.
pub fn is_spoken(level: u16) -> bool {
    (LEVEL_MIN..=LEVEL_MAX).contains(&level)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_common_level_is_taken() {
        assert_eq!(negotiate(LEVEL_MIN, LEVEL_MAX), Some(LEVEL_MAX));
        assert_eq!(negotiate(0, u16::MAX), Some(LEVEL_MAX));
        assert_eq!(negotiate(LEVEL_MAX + 1, u16::MAX), None);
        assert_eq!(negotiate(0, LEVEL_MIN - 1), None);
    }
}
