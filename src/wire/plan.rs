//! What a dry run says of an entry: what would be done about it, and why.
//!
//! A receiver that only looks answers each entry with one of these. Each has a number on the wire, the
//! action that it stands for, a word for programs and words for people.

use super::WireError;
use super::codec::{Reader, Writer};

/// What would become of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// It would be made, or put in the place of what is there.
    Copy,
    /// Its mode, owner, attributes or times would be brought up to date.
    Update,
    /// What is there would stay as it is.
    Keep,
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $action:ident, $word:literal, $words:literal;)*) => {
        /// Why an entry would be copied, brought up to date or left.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Reason { $($(#[$doc])* $name,)* }

        impl Reason {
            /// Every reason, for tables and tests.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// What would be done.
            pub const fn action(self) -> Action {
                match self { $(Self::$name => Action::$action,)* }
            }

            /// A word for programs; it does not change.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $word,)* }
            }

            /// Words for people.
            pub const fn words(self) -> &'static str {
                match self { $(Self::$name => $words,)* }
            }

            const fn to_wire(self) -> u8 {
                match self { $(Self::$name => $value,)* }
            }

            const fn from_wire(value: u8) -> Option<Self> {
                match value { $($value => Some(Self::$name),)* _ => None }
            }
        }
    };
}

reasons! {
    /// Nothing has its name.
    New = 1, Copy, "new", "new";
    /// Another size.
    SizeDiffers = 2, Copy, "size_differs", "size differs";
    /// The source was modified later.
    Newer = 3, Copy, "newer", "the source is newer";
    /// The source was modified earlier.
    Older = 4, Copy, "older", "the source is older";
    /// Size and time are the same, and the time is too young to mean anything.
    Doubtful = 5, Copy, "changed_a_moment_ago", "same size and time, but changed a moment ago";
    /// A thing of another kind has its name.
    KindDiffers = 6, Copy, "type_differs", "type differs";
    /// A symbolic link that leads elsewhere.
    TargetDiffers = 7, Copy, "target_differs", "the link leads elsewhere";
    /// It is not another name of the file that it is another name of at the source.
    NotLinked = 8, Copy, "not_linked", "not linked to the same file";
    /// Content is the same, as far as can be told without reading it.
    MetadataDiffers = 9, Update, "metadata_differs", "mode, owner, attributes or times differ";
    /// Size and time are the same.
    Same = 10, Keep, "same_size_and_time", "same size and time";
    /// A directory, link or other name that is as at the source.
    There = 11, Keep, "there", "there already";
    /// Nothing that exists is replaced.
    KeptNever = 12, Keep, "overwrite_never", "kept: --overwrite never";
    /// It is newer than the source, and only what is older is replaced.
    KeptNewer = 13, Keep, "overwrite_older", "kept: newer than the source";
    /// The same size; contents, which a dry run does not read, would decide.
    ByContent = 14, Copy, "content_compared", "same size: copied if the content differs";
}

pub(super) fn write(w: &mut Writer<'_>, reason: Reason) {
    w.u8(reason.to_wire());
}

pub(super) fn read(r: &mut Reader<'_>) -> Result<Reason, WireError> {
    let value = r.u8()?;
    Reason::from_wire(value).ok_or_else(|| r.invalid("reason"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_a_number_and_a_word_of_its_own() {
        let mut seen = Vec::new();
        for &reason in Reason::ALL {
            assert_eq!(Reason::from_wire(reason.to_wire()), Some(reason));
            assert!(!seen.contains(&reason.name()), "{reason:?}");
            seen.push(reason.name());
        }
        assert_eq!(Reason::from_wire(0), None);
    }
}
