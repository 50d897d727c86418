//! Whether what is there already stays.
//!
//! In: what the manifest tells of a file, what stands at its name, the user's rule. Out: the
//! decision. Nothing here touches files.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::storage::status::Status;
use crate::units::Timestamp;
use crate::wire::message::Overwrite;

/// A file changed within so many seconds may change again without a new time stamp: clocks of file
/// systems tick coarsely, some every two seconds.
const DOUBT_SECONDS: i64 = 2;

/// What becomes of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The source's is put there.
    Replace,
    /// What is there stays and is the source's, as far as can be told without reading it.
    Same,
    /// What is there stays because the user said so.
    Keep,
    /// That anything is there is an error.
    Exists,
}

/// The content that a source has, as far as its manifest tells.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offered {
    pub(crate) len: u64,
    pub(crate) mtime: Timestamp,
}

/// Decides about a file. `there` is no directory. With `by_content` only its content can say that it
/// stays.
pub(crate) fn file(
    offered: Offered,
    there: &Status,
    overwrite: Overwrite,
    by_content: bool,
    now: Timestamp,
) -> Decision {
    let same = !by_content
        && there.is_file()
        && there.len == offered.len
        && is_same_time(there.mtime, offered.mtime)
        && !is_in_doubt(there.mtime, now);
    decide(same, offered, there, overwrite)
}

/// Decides about a symlink. `there` is no directory.
pub(crate) fn symlink(
    same_target: bool,
    mtime: Timestamp,
    there: &Status,
    overwrite: Overwrite,
) -> Decision {
    decide(
        same_target,
        Offered {
            len: there.len,
            mtime,
        },
        there,
        overwrite,
    )
}

fn decide(same: bool, offered: Offered, there: &Status, overwrite: Overwrite) -> Decision {
    match overwrite {
        Overwrite::Error => Decision::Exists,
        Overwrite::Never => Decision::Keep,
        _ if same => Decision::Same,
        // As rsync -u: newer ones stay; at the same time, one of another size was cut short.
        Overwrite::Older if there.mtime > offered.mtime => Decision::Keep,
        Overwrite::Older | Overwrite::IfDifferent => Decision::Replace,
    }
}

/// Equal, or equal in seconds where a file system has cut the rest off.
pub(crate) fn is_same_time(one: Timestamp, other: Timestamp) -> bool {
    one.seconds == other.seconds
        && (one.nanoseconds == other.nanoseconds || one.nanoseconds == 0 || other.nanoseconds == 0)
}

fn is_in_doubt(mtime: Timestamp, now: Timestamp) -> bool {
    mtime.seconds.abs_diff(now.seconds) <= DOUBT_SECONDS.unsigned_abs()
}

/// The time of day.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp {
        seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        nanoseconds: since.subsec_nanos(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::FileType;

    fn at(seconds: i64, nanoseconds: u32) -> Timestamp {
        Timestamp {
            seconds,
            nanoseconds,
        }
    }

    fn there(len: u64, mtime: Timestamp) -> Status {
        let any = Status::of(std::fs::File::open("/").unwrap()).unwrap();
        Status {
            kind: FileType::RegularFile,
            len,
            mtime,
            ..any
        }
    }

    #[test]
    fn same_size_and_time_stays() {
        let offered = Offered {
            len: 5,
            mtime: at(1000, 7),
        };
        let now = at(9000, 0);
        let table = [
            (there(5, at(1000, 7)), Decision::Same),
            (there(5, at(1000, 0)), Decision::Same),
            (there(5, at(1000, 8)), Decision::Replace),
            (there(5, at(1001, 7)), Decision::Replace),
            (there(6, at(1000, 7)), Decision::Replace),
            (
                Status {
                    kind: FileType::Symlink,
                    ..there(5, at(1000, 7))
                },
                Decision::Replace,
            ),
        ];
        for (there, decision) in table {
            assert_eq!(
                file(offered, &there, Overwrite::IfDifferent, false, now),
                decision,
                "{there:?}"
            );
        }
    }

    #[test]
    fn times_of_a_moment_ago_are_not_trusted() {
        let offered = Offered {
            len: 5,
            mtime: at(1000, 7),
        };
        for now in [at(1000, 9), at(1002, 0), at(998, 0)] {
            let decision = file(
                offered,
                &there(5, at(1000, 7)),
                Overwrite::IfDifferent,
                false,
                now,
            );
            assert_eq!(decision, Decision::Replace);
        }
    }

    #[test]
    fn by_content_no_times_are_trusted_and_the_users_rule_still_holds() {
        let offered = Offered {
            len: 5,
            mtime: at(1000, 7),
        };
        let there = there(5, at(1000, 7));
        for (overwrite, decision) in [
            (Overwrite::IfDifferent, Decision::Replace),
            (Overwrite::Older, Decision::Replace),
            (Overwrite::Never, Decision::Keep),
            (Overwrite::Error, Decision::Exists),
        ] {
            assert_eq!(
                file(offered, &there, overwrite, true, at(9000, 0)),
                decision
            );
        }
    }

    #[test]
    fn the_users_rule_decides_about_different_files() {
        let offered = Offered {
            len: 5,
            mtime: at(1000, 7),
        };
        let now = at(9000, 0);
        let table = [
            (Overwrite::Older, there(6, at(999, 0)), Decision::Replace),
            (Overwrite::Older, there(6, at(1001, 0)), Decision::Keep),
            (Overwrite::Older, there(6, at(1000, 7)), Decision::Replace),
            (Overwrite::Never, there(6, at(1, 0)), Decision::Keep),
            (Overwrite::Error, there(5, at(1000, 7)), Decision::Exists),
        ];
        for (overwrite, there, decision) in table {
            assert_eq!(
                file(offered, &there, overwrite, false, now),
                decision,
                "{overwrite:?}"
            );
        }
    }
}
