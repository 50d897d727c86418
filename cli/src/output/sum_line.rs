//! Lines of digests in the format that `sha256sum` and `b3sum` print and check.

use super::hex;
use crate::escape;

/// `<hex>  path` with its line end. As in coreutils, a name with a backslash, line feed or carriage return is
/// escaped and the line starts with a backslash. On a terminal the name is made harmless as well.
pub(crate) fn line(digest: &[u8; 32], path: &[u8], terminal: bool) -> Vec<u8> {
    let needs_escape = path
        .iter()
        .any(|byte| matches!(byte, b'\\' | b'\n' | b'\r'));
    let mut line = Vec::with_capacity(path.len() + 68);
    if needs_escape {
        line.push(b'\\');
    }
    line.extend_from_slice(hex(digest).as_bytes());
    line.extend_from_slice(b"  ");
    if terminal {
        // Differs from the format only for names that would act on the terminal.
        line.extend_from_slice(escape::path_whole(path).as_bytes());
    } else {
        path.iter().for_each(|byte| match byte {
            b'\\' => line.extend_from_slice(b"\\\\"),
            b'\n' => line.extend_from_slice(b"\\n"),
            b'\r' => line.extend_from_slice(b"\\r"),
            _ => line.push(*byte),
        });
    }
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(path: &[u8], terminal: bool) -> Vec<u8> {
        let line = line(&[0xab; 32], path, terminal);
        let digest = "ab".repeat(32);
        let at = line
            .windows(64)
            .position(|part| part == digest.as_bytes())
            .unwrap();
        [&line[..at], b"#", &line[at + 64..]].concat()
    }

    #[test]
    fn odd_names_are_written_as_coreutils_does() {
        assert_eq!(shown(b"a b", false), b"#  a b\n");
        assert_eq!(shown(b"a\\b", false), b"\\#  a\\\\b\n");
        assert_eq!(shown(b"a\nb\rc", false), b"\\#  a\\nb\\rc\n");
        assert_eq!(shown(b"\xff\x1b", false), b"#  \xff\x1b\n");
        assert_eq!(shown(b"\xff\x1b", true), b"#  \\xff\\x1b\n");
        assert_eq!(shown("ä".as_bytes(), true), "#  ä\n".as_bytes());
    }
}
