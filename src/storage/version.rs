//! A file's state of content as an opaque value: equal exactly when all that is looked at is equal.
//!
//! Equality is a hint that nothing changed, never proof: a store through a shared mapping changes
//! content and no time stamp at once, and two writes within one clock tick may leave one ctime.

use super::status::Status;
use crate::manifest::Version;
use crate::units::Timestamp;

/// Size, mtime, ctime, inode and birth time, in this order, little-endian.
const PACKED_BYTES: usize = 8 + 12 + 12 + 8 + 12;

/// The version of a file with this status. The device number is left out: it changes when a file
/// system is mounted again, the file does not.
pub fn version_of(status: &Status) -> Version {
    let mut packed = [0; PACKED_BYTES];
    packed[..8].copy_from_slice(&status.len.to_le_bytes());
    packed[8..20].copy_from_slice(&time(status.mtime));
    packed[20..32].copy_from_slice(&time(status.ctime));
    packed[32..40].copy_from_slice(&status.inode.to_le_bytes());
    packed[40..].copy_from_slice(&time(status.btime));
    Version(*blake3::hash(&packed).as_bytes())
}

fn time(stamp: Timestamp) -> [u8; 12] {
    let mut packed = [0; 12];
    packed[..8].copy_from_slice(&stamp.seconds.to_le_bytes());
    packed[8..].copy_from_slice(&stamp.nanoseconds.to_le_bytes());
    packed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fact_counts() {
        let file = tempfile::tempfile().unwrap();
        let base = Status::of(&file).unwrap();
        let stamp = |seconds| Timestamp {
            seconds,
            nanoseconds: 1,
        };
        let others = [
            Status {
                len: base.len + 1,
                ..base
            },
            Status {
                mtime: stamp(1),
                ..base
            },
            Status {
                ctime: stamp(1),
                ..base
            },
            Status {
                btime: stamp(1),
                ..base
            },
            Status {
                inode: base.inode ^ 1,
                ..base
            },
        ];
        for other in others {
            assert_ne!(version_of(&base), version_of(&other));
        }
        let same = Status {
            mode: base.mode ^ 1,
            device: base.device ^ 1,
            ..base
        };
        assert_eq!(version_of(&base), version_of(&same));
    }
}
