//! The question about a host that is not known yet, asked on the terminal itself: standard input
//! and output may be anything.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::sync::Arc;

use rdcp::options::UnknownHost;
use rdcp::session::known_hosts::HostTrust;

use crate::args::ConnectionArgs;
use crate::escape;

/// Longest answer that is read, in bytes.
const ANSWER_BYTES_MAX: u64 = 1024;
/// How often an answer that is none is asked for again.
const TRIES_MAX: usize = 3;

/// What to do if `server` is not known: as the options say, else ask if there is somebody to ask.
pub(crate) fn unknown_host(
    connection: &ConnectionArgs,
    interactive: bool,
    server: String,
) -> UnknownHost {
    if connection.accept_new {
        UnknownHost::AcceptNew
    } else if interactive && terminal().is_ok() {
        UnknownHost::Ask(Arc::new(move |finding| ask_on_terminal(&server, finding)))
    } else {
        UnknownHost::Refuse
    }
}

fn terminal() -> io::Result<File> {
    File::options().read(true).write(true).open("/dev/tty")
}

fn ask_on_terminal(server: &str, finding: &HostTrust) -> bool {
    let answer =
        terminal().and_then(|tty| ask(&mut BufReader::new(&tty), &mut &tty, server, finding));
    // Nobody could be asked, so nobody agreed.
    answer.unwrap_or(false)
}

/// Only a whole "yes" or the fingerprint itself will do; a changed key is no question.
fn ask(
    reader: &mut impl BufRead,
    writer: &mut impl Write,
    server: &str,
    finding: &HostTrust,
) -> io::Result<bool> {
    let HostTrust::Unknown { fingerprint, .. } = finding else {
        return Ok(false);
    };
    let (server, fingerprint) = (escape::text(server), fingerprint.to_string());
    writeln!(
        writer,
        "The host {server} is not known yet. The fingerprint of its key is\n  {fingerprint}"
    )?;
    write!(
        writer,
        "Trust it from now on? (yes, no, or the fingerprint that you expect) "
    )?;
    for _ in 0..TRIES_MAX {
        writer.flush()?;
        let mut answer = Vec::new();
        if reader
            .by_ref()
            .take(ANSWER_BYTES_MAX)
            .read_until(b'\n', &mut answer)?
            == 0
        {
            return Ok(false);
        }
        let answer = answer.trim_ascii();
        if answer == fingerprint.as_bytes() || answer.eq_ignore_ascii_case(b"yes") {
            return Ok(true);
        }
        if answer.eq_ignore_ascii_case(b"no") {
            return Ok(false);
        }
        write!(writer, "Please write yes, no, or the fingerprint: ")?;
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPECTED: &str = "SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    const OTHER: &str = "SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAE";

    fn unknown() -> HostTrust {
        HostTrust::Unknown {
            fingerprint: EXPECTED.parse().unwrap(),
        }
    }

    fn answer(text: &str, finding: &HostTrust) -> (bool, String) {
        let mut said = Vec::new();
        let agreed = ask(&mut text.as_bytes(), &mut said, "gpu7:20471\x1b", finding).unwrap();
        (agreed, String::from_utf8(said).unwrap())
    }

    #[test]
    fn only_a_clear_yes_is_one() {
        for (text, agreed) in [
            ("yes\n", true),
            ("YES\r\n", true),
            (&format!("{EXPECTED}\n"), true),
            ("what\nyes\n", true),
            ("no\nyes\n", false),
            ("y\n\nsure\nyes\n", false),
            (OTHER, false),
            ("", false),
        ] {
            assert_eq!(answer(text, &unknown()).0, agreed, "{text:?}");
        }
    }

    #[test]
    fn the_question_shows_host_and_fingerprint_harmlessly() {
        let (_, said) = answer("no\n", &unknown());
        assert!(
            said.contains("gpu7:20471\\x1b") && said.contains(EXPECTED),
            "{said}"
        );
    }

    #[test]
    fn a_changed_key_is_never_accepted() {
        let (known, presented) = (EXPECTED.parse().unwrap(), OTHER.parse().unwrap());
        let changed = HostTrust::Changed {
            known,
            presented,
            lines: vec![1],
        };
        assert_eq!(answer("yes\n", &changed), (false, String::new()));
    }

    #[test]
    fn endless_answers_are_bounded() {
        let mut said = Vec::new();
        let mut endless = BufReader::new(io::repeat(b'y'));
        assert!(!ask(&mut endless, &mut said, "h", &unknown()).unwrap());
    }
}
