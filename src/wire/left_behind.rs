//! What copies that died left behind: which of it a server is asked to remove, and what it tells of each.
//!
//! In: a client's wish, or a server's answer. Out: their bytes. Nothing here looks at files or decides;
//! the names that are told are shown and open nothing.

use super::codec::{Reader, Writer};
use super::{WireError, tag};

/// What is removed of what copies left behind. Never anything that a copy works on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cleaning {
    /// What the next copy into its directory would remove: what nobody goes on with, and what could be
    /// gone on with once nothing was recorded of it for seven days.
    #[default]
    Stale,
    /// What did not change for so many seconds, whether it could be gone on with or not.
    OlderThan {
        /// Seconds.
        age_s: u64,
    },
    /// All of it.
    All,
}

/// Something that a copy left behind, and what becomes of it. A part file and its journal are one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftBehind {
    /// What the file was to be called, if something of that name is in the directory; else empty.
    pub destination: Vec<u8>,
    /// Seconds since it changed last.
    pub age_s: u64,
    /// Bytes that it takes on disk.
    pub allocated: u64,
    /// It is a journal, or has one.
    pub journal: bool,
    /// What becomes of it.
    pub fate: Fate,
    /// Why.
    pub why: Why,
}

/// What becomes of something that a copy left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// It is gone.
    Removed,
    /// It would be, if this were no dry run.
    Would,
    /// It stays.
    Kept,
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $word:literal, $text:literal;)*) => {
        /// Why something that a copy left behind stays or goes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Why { $($(#[$doc])* $name,)* }

        impl Why {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// In a word, for programs.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $word,)* }
            }

            /// In words, for people.
            pub const fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            pub(super) const fn to_wire(self) -> u8 {
                match self { $(Self::$name => $value,)* }
            }

            pub(super) const fn from_wire(value: u8) -> Option<Self> {
                match value { $($value => Some(Self::$name),)* _ => None }
            }
        }
    };
}

reasons! {
    /// Nobody holds its lock, and there is no journal to go on by.
    Abandoned = 1, "abandoned", "no copy works on it, and none could go on with it";
    /// It could be gone on with, and nobody did for long enough.
    Expired = 2, "expired", "no copy went on with it in time";
    /// It was asked for.
    Asked = 3, "asked", "all was asked for, and no copy works on it";
    /// Somebody holds its lock.
    InUse = 4, "in_use", "a copy is writing it";
    /// The same copy again would go on with it.
    Resumable = 5, "resumable", "the same copy again goes on with it; --all removes it";
    /// It changed more recently than was asked for.
    Young = 6, "young", "it is younger than that";
    /// There are no locks here, so it can't be told whether somebody writes it.
    Doubtful = 7, "doubtful", "it can't be told whether a copy writes it; try again in an hour";
    /// It belongs to another user.
    Foreign = 8, "foreign", "it is another user's; that user can remove it";
    /// It is no regular file.
    NoFile = 9, "no_file", "it is no regular file, so no copy left it like this";
    /// It has more names than this.
    Linked = 10, "linked", "it has other names too, so it may be somebody's content";
}

pub(super) fn write_cleaning(w: &mut Writer<'_>, cleaning: Cleaning) {
    let (kind, age_s) = match cleaning {
        Cleaning::Stale => (tag::CLEAN_STALE, 0),
        Cleaning::OlderThan { age_s } => (tag::CLEAN_OLDER, age_s),
        Cleaning::All => (tag::CLEAN_ALL, 0),
    };
    w.u8(kind);
    w.u64(age_s);
}

pub(super) fn read_cleaning(r: &mut Reader<'_>) -> Result<Cleaning, WireError> {
    let (kind, age_s) = (r.u8()?, r.u64()?);
    let cleaning = match kind {
        tag::CLEAN_STALE => Cleaning::Stale,
        tag::CLEAN_OLDER => Cleaning::OlderThan { age_s },
        tag::CLEAN_ALL => Cleaning::All,
        _ => return Err(r.invalid("what is removed")),
    };
    r.require(kind == tag::CLEAN_OLDER || age_s == 0, "age")?;
    Ok(cleaning)
}

pub(super) fn write_left_behind(w: &mut Writer<'_>, left: &LeftBehind) {
    w.u64(left.age_s);
    w.u64(left.allocated);
    w.boolean(left.journal);
    w.u8(match left.fate {
        Fate::Removed => tag::LEFT_REMOVED,
        Fate::Would => tag::LEFT_WOULD,
        Fate::Kept => tag::LEFT_KEPT,
    });
    w.u8(left.why.to_wire());
    w.bytes8(&left.destination, "destination");
}

pub(super) fn read_left_behind(r: &mut Reader<'_>) -> Result<LeftBehind, WireError> {
    let (age_s, allocated) = (r.u64()?, r.u64()?);
    let journal = r.boolean("journal")?;
    let fate = match r.u8()? {
        tag::LEFT_REMOVED => Fate::Removed,
        tag::LEFT_WOULD => Fate::Would,
        tag::LEFT_KEPT => Fate::Kept,
        _ => return Err(r.invalid("fate")),
    };
    let why = Why::from_wire(r.u8()?).ok_or_else(|| r.invalid("reason"))?;
    let destination = r.bytes8("destination")?.to_vec();
    Ok(LeftBehind {
        destination,
        age_s,
        allocated,
        journal,
        fate,
        why,
    })
}
