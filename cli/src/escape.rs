//! Making names and texts from elsewhere fit to be shown.
//!
//! Bytes from file systems and peers go in; one line of harmless text comes out. Nothing that a
//! terminal would act on survives: control characters, ESC, bytes that are no UTF-8, characters
//! that are invisible or turn the direction of writing.

use std::fmt::Write as _;

/// Most characters of a path that are shown to a person; longer ones lose their middle.
const PATH_CHARS_MAX: usize = 512;
/// Most characters of a text from elsewhere that are shown.
const TEXT_CHARS_MAX: usize = 1024;
/// Stands where something was cut out.
const CUT: &str = "[...]";

/// A path, escaped so that different bytes always look different, whole.
pub(crate) fn path_whole(bytes: &[u8]) -> String {
    escaped(bytes, Backslash::Doubled)
}

/// A path for a person: as [`path_whole`], with its middle cut out if it is very long.
pub(crate) fn path(bytes: &[u8]) -> String {
    cut_middle(path_whole(bytes), PATH_CHARS_MAX)
}

/// A message from a peer or the library: harmless, one line, cut.
pub(crate) fn text(message: &str) -> String {
    let mut shown = escaped(message.as_bytes(), Backslash::Kept);
    if let Some((end, _)) = shown.char_indices().nth(TEXT_CHARS_MAX) {
        shown.truncate(end);
        shown.push_str(CUT);
    }
    shown
}

#[derive(Clone, Copy, PartialEq)]
enum Backslash {
    Doubled,
    /// Messages hold paths that were escaped already.
    Kept,
}

fn escaped(bytes: &[u8], backslash: Backslash) -> String {
    let mut shown = String::with_capacity(bytes.len());
    for part in bytes.utf8_chunks() {
        for character in part.valid().chars() {
            match character {
                '\\' if backslash == Backslash::Doubled => shown.push_str("\\\\"),
                '\n' => shown.push_str("\\n"),
                '\r' => shown.push_str("\\r"),
                '\t' => shown.push_str("\\t"),
                _ if u32::from(character) < 0x80 && character.is_control() => {
                    push(&mut shown, format_args!("\\x{:02x}", u32::from(character)));
                }
                _ if is_treacherous(character) => {
                    push(
                        &mut shown,
                        format_args!("\\u{{{:x}}}", u32::from(character)),
                    );
                }
                _ => shown.push(character),
            }
        }
        for byte in part.invalid() {
            push(&mut shown, format_args!("\\x{byte:02x}"));
        }
    }
    shown
}

fn push(shown: &mut String, part: std::fmt::Arguments<'_>) {
    // Writing to a String can't fail.
    let _ = shown.write_fmt(part);
}

/// Controls beyond ASCII, and characters that can't be seen or change how others are seen.
fn is_treacherous(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{ad}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{180e}' | '\u{3164}' | '\u{feff}'
            | '\u{ffa0}'
            // Zero width, marks, separators, embeddings and overrides, isolates, operators.
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{fff0}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}'
            // Private use: whatever a font makes of it.
            | '\u{e000}'..='\u{f8ff}' | '\u{f0000}'..='\u{10ffff}')
}

fn cut_middle(shown: String, max: usize) -> String {
    let count = shown.chars().count();
    if count <= max {
        return shown;
    }
    // The end, where the file's name is, says more than the beginning.
    let head = max / 3;
    let tail = max - head - CUT.len();
    let first = shown.chars().take(head);
    let last = shown.chars().skip(count - tail);
    first.chain(CUT.chars()).chain(last).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn harmless_names_stay_as_they_are() {
        for name in [
            "a",
            "model-00001.safetensors",
            "ÄÖ ü",
            "数据",
            "a b",
            "-rf",
            "🦀",
            "",
        ] {
            assert_eq!(path(name.as_bytes()), name);
        }
    }

    #[test]
    fn nothing_that_a_terminal_acts_on_survives() {
        let table: [(&[u8], &str); 9] = [
            (b"\x1b[31mred", "\\x1b[31mred"),
            (b"a\nb\rc\td", "a\\nb\\rc\\td"),
            (b"\x00\x7f", "\\x00\\x7f"),
            ("\u{9b}31m".as_bytes(), "\\u{9b}31m"),
            ("a\u{202e}gpj.exe".as_bytes(), "a\\u{202e}gpj.exe"),
            (
                "\u{2066}\u{200b}\u{feff}".as_bytes(),
                "\\u{2066}\\u{200b}\\u{feff}",
            ),
            (b"\xff\xfeok\xc3", "\\xff\\xfeok\\xc3"),
            (b"back\\slash", "back\\\\slash"),
            (b"\\n", "\\\\n"),
        ];
        for (bytes, expected) in table {
            assert_eq!(path(bytes), expected);
        }
    }

    #[test]
    fn all_bytes_and_characters_come_out_printable() {
        let every = (0..=255u8).collect::<Vec<_>>();
        let all = (0..=0x10_ffffu32)
            .filter_map(char::from_u32)
            .collect::<String>();
        for bytes in [every.as_slice(), all.as_bytes()] {
            assert!(!path_whole(bytes).chars().any(is_treacherous));
        }
    }

    #[test]
    fn long_ones_are_cut() {
        let long = [vec![b'd'; 4000], b"/name".to_vec()].concat();
        let shown = path(&long);
        assert!(shown.chars().count() <= PATH_CHARS_MAX);
        assert!(shown.contains(CUT) && shown.ends_with("/name"));
        assert_eq!(path_whole(&long).len(), long.len());
        assert!(text(&"\u{1b}".repeat(5000)).chars().count() <= TEXT_CHARS_MAX + CUT.len());
    }

    #[test]
    fn texts_keep_their_backslashes() {
        assert_eq!(text("\"a\\nb\": gone\x1b"), "\"a\\nb\": gone\\x1b");
    }
}
