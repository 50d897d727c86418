//! Digests as people read them.

use std::fmt;

/// Shows a digest in the lower-case hexadecimal that `b3sum` and `sha256sum` print.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hex(pub [u8; 32]);

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [0; 64];
        for (pair, byte) in text.chunks_exact_mut(2).zip(self.0) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 15)];
        }
        // The table holds ASCII only, so this never takes the other way.
        f.pad(std::str::from_utf8(&text).unwrap_or_default())
    }
}

impl fmt::Debug for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::Hex;

    #[test]
    fn shows_what_the_tools_show() {
        let mut value = [0; 32];
        value[0] = 0x0f;
        value[31] = 0xa9;
        assert_eq!(Hex(value).to_string(), format!("0f{}a9", "00".repeat(30)));
        assert_eq!(
            format!("{:?}", Hex(blake3::hash(b"x").into())),
            blake3::hash(b"x").to_string()
        );
    }
}
