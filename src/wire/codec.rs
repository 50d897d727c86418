//! Fields in a body: little-endian, fixed width, bounded.
//!
//! [`Writer`] appends fields to a buffer; [`Reader`] takes them off a slice that came from a peer.
//! There is no recursion, and nothing is allocated before the bytes that justify it are at hand: a
//! list's count is held against the bytes that remain before a vector is made. Neither knows a
//! message; each field names its maximum.

use crate::limits::{NAME_BYTES_MAX, PATH_BYTES_MAX, TEXT_BYTES_MAX};
use crate::wire::{EncodeError, WireError};

/// Takes fields off the front of a body.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
    message: &'static str,
}

impl<'a> Reader<'a> {
    /// Reads `body`, naming `message` in errors.
    pub(super) fn new(body: &'a [u8], message: &'static str) -> Self {
        Self {
            rest: body,
            message,
        }
    }

    /// An error that names `field`.
    pub(super) fn invalid(&self, field: &'static str) -> WireError {
        WireError::Invalid {
            message: self.message,
            field,
        }
    }

    /// The value, or an error that names `field`.
    pub(super) fn require(&self, holds: bool, field: &'static str) -> Result<(), WireError> {
        if holds {
            Ok(())
        } else {
            Err(self.invalid(field))
        }
    }

    /// Whether nothing is left: an optional field at the end of a body is not there.
    pub(super) fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], WireError> {
        let truncated = WireError::Truncated {
            message: self.message,
        };
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    /// Exactly `N` bytes.
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let truncated = WireError::Truncated {
            message: self.message,
        };
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(truncated)?;
        self.rest = rest;
        Ok(*taken)
    }

    pub(super) fn u8(&mut self) -> Result<u8, WireError> {
        self.array().map(u8::from_le_bytes)
    }

    pub(super) fn u16(&mut self) -> Result<u16, WireError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, WireError> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn i64(&mut self) -> Result<i64, WireError> {
        self.array().map(i64::from_le_bytes)
    }

    /// A set of bits of which only `known` may be set: a bit with a meaning that this end does not
    /// know must not be acted upon in part.
    pub(super) fn bits8(&mut self, known: u8, field: &'static str) -> Result<u8, WireError> {
        let bits = self.u8()?;
        self.require(bits & !known == 0, field)?;
        Ok(bits)
    }

    /// As [`Self::bits8`], 16 wide.
    pub(super) fn bits16(&mut self, known: u16, field: &'static str) -> Result<u16, WireError> {
        let bits = self.u16()?;
        self.require(bits & !known == 0, field)?;
        Ok(bits)
    }

    /// A byte that is 0 or 1.
    pub(super) fn boolean(&mut self, field: &'static str) -> Result<bool, WireError> {
        Ok(self.bits8(1, field)? == 1)
    }

    fn bounded(&self, count: usize, max: usize, field: &'static str) -> Result<usize, WireError> {
        if count <= max {
            return Ok(count);
        }
        Err(WireError::TooMany {
            message: self.message,
            field,
            count,
            max,
        })
    }

    /// Bytes behind an 8-bit length.
    pub(super) fn bytes8(&mut self, field: &'static str) -> Result<&'a [u8], WireError> {
        let len = usize::from(self.u8()?);
        let len = self.bounded(len, NAME_BYTES_MAX, field)?;
        self.take(len)
    }

    /// At most `max` bytes behind a 16-bit length.
    pub(super) fn bytes16(
        &mut self,
        max: usize,
        field: &'static str,
    ) -> Result<&'a [u8], WireError> {
        let len = usize::from(self.u16()?);
        let len = self.bounded(len, max, field)?;
        self.take(len)
    }

    /// At most `max` bytes behind a 32-bit length.
    pub(super) fn bytes32(
        &mut self,
        max: usize,
        field: &'static str,
    ) -> Result<&'a [u8], WireError> {
        let len = usize::try_from(self.u32()?).unwrap_or(usize::MAX);
        let len = self.bounded(len, max, field)?;
        self.take(len)
    }

    /// A path or link target: bytes without NUL.
    pub(super) fn path(&mut self, field: &'static str) -> Result<Vec<u8>, WireError> {
        let bytes = self.bytes16(PATH_BYTES_MAX, field)?;
        self.require(!bytes.contains(&0), field)?;
        Ok(bytes.to_vec())
    }

    /// Words for a person. What is not UTF-8 is replaced, not refused: a text decides nothing.
    pub(super) fn text(&mut self, field: &'static str) -> Result<String, WireError> {
        let bytes = self.bytes16(TEXT_BYTES_MAX, field)?;
        let text = String::from_utf8_lossy(bytes);
        // A replacement is three bytes wide, so the text may have grown past the maximum.
        Ok(cut(&text, TEXT_BYTES_MAX).to_owned())
    }

    /// A name that is compared: it must be UTF-8 as it stands.
    pub(super) fn identifier(&mut self, field: &'static str) -> Result<String, WireError> {
        let bytes = self.bytes8(field)?;
        let text = std::str::from_utf8(bytes).map_err(|_| self.invalid(field))?;
        Ok(text.to_owned())
    }

    /// A list behind a 16-bit count, at most `max` items of at least `item_bytes_min` bytes.
    pub(super) fn list<T>(
        &mut self,
        max: usize,
        item_bytes_min: usize,
        field: &'static str,
        item: impl FnMut(&mut Self) -> Result<T, WireError>,
    ) -> Result<Vec<T>, WireError> {
        let count = usize::from(self.u16()?);
        self.items(count, max, item_bytes_min, field, item)
    }

    /// As [`Self::list`], behind an 8-bit count.
    pub(super) fn short_list<T>(
        &mut self,
        max: usize,
        item_bytes_min: usize,
        field: &'static str,
        item: impl FnMut(&mut Self) -> Result<T, WireError>,
    ) -> Result<Vec<T>, WireError> {
        let count = usize::from(self.u8()?);
        self.items(count, max, item_bytes_min, field, item)
    }

    fn items<T>(
        &mut self,
        count: usize,
        max: usize,
        item_bytes_min: usize,
        field: &'static str,
        mut item: impl FnMut(&mut Self) -> Result<T, WireError>,
    ) -> Result<Vec<T>, WireError> {
        let count = self.bounded(count, max, field)?;
        if count * item_bytes_min > self.rest.len() {
            return Err(WireError::Truncated {
                message: self.message,
            });
        }
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            items.push(item(self)?);
        }
        Ok(items)
    }
}

/// Appends fields. The first field that does not fit is kept as the error, and told at the end, so
/// that the writers of messages are plain lists of fields.
pub(super) struct Writer<'a> {
    out: &'a mut Vec<u8>,
    error: Option<EncodeError>,
}

impl<'a> Writer<'a> {
    /// Appends to `out`.
    pub(super) fn new(out: &'a mut Vec<u8>) -> Self {
        Self { out, error: None }
    }

    /// Whether every field fitted.
    pub(super) fn finish(self) -> Result<(), EncodeError> {
        self.error.map_or(Ok(()), Err)
    }

    pub(super) fn array(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    pub(super) fn u8(&mut self, value: u8) {
        self.out.push(value);
    }

    pub(super) fn u16(&mut self, value: u16) {
        self.array(&value.to_le_bytes());
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.array(&value.to_le_bytes());
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.array(&value.to_le_bytes());
    }

    pub(super) fn i64(&mut self, value: i64) {
        self.array(&value.to_le_bytes());
    }

    pub(super) fn boolean(&mut self, value: bool) {
        self.u8(u8::from(value));
    }

    /// Keeps an error if `count` is above `max`, so that no list is written cut.
    pub(super) fn bound(&mut self, count: usize, max: usize, field: &'static str) {
        if count > max {
            self.error
                .get_or_insert(EncodeError::TooMany { field, count, max });
        }
    }

    /// The count as `C`. A count that does not fit is above its maximum, which is an error already.
    fn count<C: TryFrom<usize> + Default>(
        &mut self,
        count: usize,
        max: usize,
        field: &'static str,
    ) -> C {
        self.bound(count, max, field);
        C::try_from(count).unwrap_or_default()
    }

    /// Bytes behind an 8-bit length.
    pub(super) fn bytes8(&mut self, bytes: &[u8], field: &'static str) {
        let len = self.count(bytes.len(), NAME_BYTES_MAX, field);
        self.u8(len);
        self.array(bytes);
    }

    /// At most `max` bytes behind a 16-bit length.
    pub(super) fn bytes16(&mut self, bytes: &[u8], max: usize, field: &'static str) {
        let len = self.count(bytes.len(), max, field);
        self.u16(len);
        self.array(bytes);
    }

    /// At most `max` bytes behind a 32-bit length.
    pub(super) fn bytes32(&mut self, bytes: &[u8], max: usize, field: &'static str) {
        let len = self.count(bytes.len(), max, field);
        self.u32(len);
        self.array(bytes);
    }

    /// A path or link target.
    pub(super) fn path(&mut self, bytes: &[u8], field: &'static str) {
        self.bytes16(bytes, PATH_BYTES_MAX, field);
    }

    /// Words for a person, cut to what is allowed.
    pub(super) fn text(&mut self, text: &str) {
        self.bytes16(cut(text, TEXT_BYTES_MAX).as_bytes(), TEXT_BYTES_MAX, "text");
    }

    /// A list behind a 16-bit count.
    pub(super) fn list<T>(
        &mut self,
        items: &[T],
        max: usize,
        field: &'static str,
        mut item: impl FnMut(&mut Self, &T),
    ) {
        let count = self.count(items.len(), max, field);
        self.u16(count);
        items.iter().for_each(|each| item(self, each));
    }

    /// A list behind an 8-bit count.
    pub(super) fn short_list<T>(
        &mut self,
        items: &[T],
        max: usize,
        field: &'static str,
        mut item: impl FnMut(&mut Self, &T),
    ) {
        let count = self.count(items.len(), max, field);
        self.u8(count);
        items.iter().for_each(|each| item(self, each));
    }
}

/// The longest front of `text` with at most `max` bytes that ends between characters.
fn cut(text: &str, max: usize) -> &str {
    if text.len() <= max {
        return text;
    }
    let end = (0..=max)
        .rev()
        .find(|&at| text.is_char_boundary(at))
        .unwrap_or(0);
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_beyond_the_bytes_at_hand_is_refused_before_anything_is_made() {
        let body = [0xff, 0x01, 1, 2, 3];
        let mut reader = Reader::new(&body, "test");
        let items = reader.list(512, 8, "items", |_| -> Result<u64, WireError> {
            panic!("no item may be read")
        });
        assert_eq!(items, Err(WireError::Truncated { message: "test" }));
    }

    #[test]
    fn texts_are_cut_between_characters_and_repaired() {
        let long = "ä".repeat(TEXT_BYTES_MAX);
        let mut out = Vec::new();
        let mut writer = Writer::new(&mut out);
        writer.text(&long);
        writer.finish().unwrap();
        let text = Reader::new(&out, "test").text("text").unwrap();
        assert_eq!(text, "ä".repeat(TEXT_BYTES_MAX / 2));

        let text = Reader::new(&[3, 0, b'a', 0xff, b'b'], "test")
            .text("text")
            .unwrap();
        assert_eq!(text, "a\u{fffd}b");

        let mut garbage = vec![0xff; TEXT_BYTES_MAX + 2];
        garbage[..2].copy_from_slice(&1024_u16.to_le_bytes());
        let text = Reader::new(&garbage, "test").text("text").unwrap();
        assert!(text.len() <= TEXT_BYTES_MAX);
    }

    #[test]
    fn what_is_too_long_to_send_is_an_error_and_not_cut() {
        let mut out = Vec::new();
        let mut writer = Writer::new(&mut out);
        writer.bytes8(&[1; 300], "name");
        writer.path(&[1; 70_000], "path");
        let error = EncodeError::TooMany {
            field: "name",
            count: 300,
            max: 255,
        };
        assert_eq!(writer.finish(), Err(error));
    }
}
