//! The voice for people: a bar and one line for a person who watches, and for everybody what
//! failed. Nothing on standard output.

use rdcp::options::HashKind;
use rdcp::progress::{EntryType, Event, Progress};
use rdcp::wire::Fault;
use rdcp::{Action, Error, ErrorKind, Location, Outcome};

use super::bar::Bar;
use super::{Summary, about, chain, hash_name};
use crate::escape;
use crate::io::Io;
use crate::quantity::{bytes, counted, duration, rate};

/// Failures and warnings that are shown one by one; the rest is counted.
const LISTED_MAX: usize = 20;

#[derive(Default)]
pub(super) struct Human {
    quiet: bool,
    verbose: bool,
    bar: Option<Bar>,
    warnings: u64,
    lost: u64,
}

impl Human {
    pub(super) fn begin_copy(&mut self, quiet: bool, bar: bool, verbose: bool) {
        self.quiet = quiet;
        self.verbose = verbose;
        self.bar = (bar && !quiet).then(Bar::new);
    }

    pub(super) fn event(&mut self, io: &mut Io, event: &Event) {
        match event {
            Event::Progress(progress) => self.progress(*progress),
            Event::Started {
                note: Some(note), ..
            } if !self.quiet => {
                self.line(io, &format!("rdcp: note: {}", crate::escape::text(note)));
            }
            Event::Lost { reason } if !self.quiet => {
                self.lost += 1;
                if self.lost <= LISTED_MAX as u64 {
                    let reason = escape::text(reason);
                    self.line(io, &format!("rdcp: {reason}; connecting again"));
                }
            }
            Event::Reconnected { after, .. }
                if !self.quiet
                    && self.lost <= LISTED_MAX as u64
                    && (io.stderr.is_terminal() || self.verbose) =>
            {
                let after = duration(*after);
                self.line(io, &format!("rdcp: connected again after {after}"));
            }
            Event::Warning {
                path,
                fault,
                location,
            } if !self.quiet => {
                self.warnings += 1;
                if self.warnings <= LISTED_MAX as u64 {
                    let about = about_fault(path, location.as_ref(), fault);
                    self.line(io, &format!("rdcp: warning: {about}"));
                }
            }
            Event::Deleted {
                path,
                entry,
                is_planned: true,
            } if !self.quiet => planned(io, "delete", path, *entry, NOT_IN_SOURCE),
            Event::Deleted {
                path,
                is_planned: false,
                ..
            } if self.verbose && !self.quiet => {
                self.line(io, &format!("rdcp: deleted {}", escape::path_whole(path)));
            }
            Event::Ended {
                path,
                entry,
                outcome: Outcome::Planned(reason),
                ..
            } if !self.quiet => {
                let action = match reason.action() {
                    Action::Copy => "copy",
                    Action::Update => "update",
                    Action::Keep => "keep",
                };
                planned(io, action, path, *entry, reason.words());
            }
            _ => {}
        }
    }

    pub(super) fn progress(&mut self, progress: Progress) {
        if let Some(bar) = &mut self.bar {
            bar.update(progress);
        }
    }

    pub(super) fn stopping(&mut self, io: &mut Io) {
        if io.stderr.is_terminal() && !self.quiet {
            self.line(io, "rdcp: stopping; once more ends at once");
        }
    }

    pub(super) fn summary(&mut self, io: &mut Io, summary: &Summary) {
        self.failures(io, summary);
        if (io.stderr.is_terminal() || self.verbose || summary.dry_run) && !self.quiet {
            io.stderr.line(&summary_line(summary));
        }
    }

    /// What failed, up to a limit.
    pub(super) fn failures(&mut self, io: &mut Io, summary: &Summary) {
        self.bar = None;
        let unlisted = self.warnings.saturating_sub(LISTED_MAX as u64);
        if unlisted > 0 {
            io.stderr
                .line(&format!("rdcp: and {}", counted(unlisted, "more warning")));
        }
        for failure in summary.failures.iter().take(LISTED_MAX) {
            let about = about_fault(&failure.path, failure.location.as_ref(), &failure.fault);
            io.stderr.line(&format!("rdcp: {about}"));
        }
        let beyond = summary.failures.len().saturating_sub(LISTED_MAX) as u64;
        let more = summary.failures_unlisted + beyond;
        // A run that was ended by its one failure tells that elsewhere.
        if !summary.failures.is_empty() && more > 0 {
            io.stderr.line(&format!("rdcp: and {more} more"));
        }
    }

    pub(super) fn error(&mut self, io: &mut Io, error: &Error) {
        self.line(io, &format!("rdcp: {}", chain(error)));
        if let Some(hint) = error.hint() {
            self.line(io, &format!("hint: {}", escape::text(hint)));
        }
    }

    pub(super) fn entry_failed(&mut self, io: &mut Io, at: &Location, fault: &Fault) {
        let about = about_fault(b"", Some(at), fault);
        self.line(io, &format!("rdcp: {about}"));
    }

    pub(super) fn finish(&mut self) {
        self.bar = None;
    }

    /// A line on standard error, with the bar out of its way.
    fn line(&self, io: &mut Io, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| io.stderr.line(text)),
            None => io.stderr.line(text),
        }
    }
}

fn about_fault(path: &[u8], location: Option<&Location>, fault: &Fault) -> String {
    about(
        path,
        location,
        ErrorKind::of_fault(fault.class()),
        &fault.text,
    )
}

/// Why something is deleted.
const NOT_IN_SOURCE: &str = "not in the source";

/// A line of a dry run.
fn planned(io: &mut Io, action: &str, path: &[u8], entry: EntryType, why: &str) {
    let slash = if entry == EntryType::Directory {
        "/"
    } else {
        ""
    };
    let path = match escape::path_whole(path) {
        path if path.is_empty() => "./".to_owned(),
        path => path + slash,
    };
    io.stdout.line(&format!("{action:<6}  {path}  ({why})"));
}

fn dry_summary_line(summary: &Summary) -> String {
    let mut parts = vec![format!(
        "dry run: would copy {}, {}",
        counted(summary.published, "entry"),
        bytes(summary.bytes)
    )];
    if summary.updated > 0 {
        parts.push(format!("update {}", summary.updated));
    }
    if summary.unchanged > 0 {
        parts.push(format!("keep {}", summary.unchanged));
    }
    if summary.deleted > 0 {
        parts.push(format!("delete {}", summary.deleted));
    }
    if summary.failed > 0 {
        parts.push(format!("fail at {}", summary.failed));
    }
    parts.join(", ")
}

fn summary_line(summary: &Summary) -> String {
    if summary.dry_run {
        return dry_summary_line(summary);
    }
    let elapsed = duration(summary.elapsed);
    let mut parts = Vec::new();
    let there = summary.unchanged + summary.updated;
    if summary.published == 0 && summary.failed == 0 && there > 0 {
        let mut line = format!("nothing to copy, {} unchanged", summary.unchanged);
        if summary.updated > 0 {
            line.push_str(&format!(", {} updated", summary.updated));
        }
        if summary.deleted > 0 {
            line.push_str(&format!(", {} deleted", summary.deleted));
        }
        return format!("{line} ({elapsed})");
    }
    let mut first = format!(
        "{}, {} in {elapsed}",
        counted(summary.files, "file"),
        bytes(summary.bytes)
    );
    if let Some(rate) =
        rate(summary.bytes_moved, summary.elapsed).filter(|_| summary.bytes_moved > 0)
    {
        first.push_str(&format!(" ({rate})"));
    }
    parts.push(first);
    if summary.bytes_resumed > 0 {
        parts.push(format!(
            "resumed {} of {}",
            bytes(summary.bytes_resumed),
            bytes(summary.bytes)
        ));
    }
    if summary.bytes_reused > 0 {
        parts.push(format!(
            "{} of {} were there",
            bytes(summary.bytes_reused),
            bytes(summary.bytes)
        ));
    }
    if summary.unchanged > 0 {
        parts.push(format!("{} unchanged", summary.unchanged));
    }
    if summary.updated > 0 {
        parts.push(format!("{} updated", summary.updated));
    }
    if summary.deleted > 0 {
        parts.push(format!("{} deleted", summary.deleted));
    }
    if summary.failed > 0 {
        parts.push(format!("{} failed", summary.failed));
    }
    parts.push(summary.transport.clone());
    match summary.hash {
        HashKind::None => parts.push("not verified".to_owned()),
        hash if summary.verified == Some(true) => {
            parts.push(format!("verified with {}", hash_name(hash)))
        }
        // There was nothing to verify.
        _ => {}
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::End;
    use crate::io::tests::captured;
    use crate::output::Output;
    use rdcp::progress::{Carried, Failure};
    use rdcp::wire::FaultCode;
    use std::time::Duration;

    fn summary() -> Summary {
        Summary {
            transport: "tcp".into(),
            reason: "no RDMA device".into(),
            carried: Carried::default(),
            hash: HashKind::Blake3,
            dry_run: false,
            verified: Some(true),
            published: 3,
            files: 3,
            unchanged: 0,
            updated: 0,
            deleted: 0,
            failed: 0,
            warnings: 0,
            bytes: 3 << 30,
            bytes_moved: 3 << 30,
            bytes_resumed: 0,
            reconnects: 0,
            bytes_reused: 0,
            elapsed: Duration::from_secs(2),
            data_elapsed: None,
            failures: Vec::new(),
            failures_unlisted: 0,
        }
    }

    #[test]
    fn all_well_is_one_line_on_a_terminal_and_nothing_elsewhere() {
        for (terminal, quiet, verbose, expected) in [
            (
                true,
                false,
                false,
                "3 files, 3.0 GiB in 2.0 s (1.5 GiB/s), tcp, verified with blake3\n",
            ),
            (
                false,
                false,
                true,
                "3 files, 3.0 GiB in 2.0 s (1.5 GiB/s), tcp, verified with blake3\n",
            ),
            (true, true, false, ""),
            (false, false, false, ""),
        ] {
            let (io, out, err) = captured(terminal);
            let mut output = Output::new(io);
            output.begin_copy(quiet, false, verbose);
            output.summary(&summary());
            output.finish(End::DONE);
            assert_eq!((out.text().as_str(), err.text().as_str()), ("", expected));
        }
    }

    #[test]
    fn summary_lines() {
        let line = summary_line(&Summary {
            hash: HashKind::None,
            unchanged: 2,
            failed: 1,
            ..summary()
        });
        assert_eq!(
            line,
            "3 files, 3.0 GiB in 2.0 s (1.5 GiB/s), 2 unchanged, 1 failed, tcp, not verified"
        );
        let line = summary_line(&Summary {
            bytes_moved: 1 << 30,
            bytes_resumed: 2 << 30,
            ..summary()
        });
        assert_eq!(
            line,
            "3 files, 3.0 GiB in 2.0 s (512.0 MiB/s), resumed 2.0 GiB of 3.0 GiB, tcp, verified with \
             blake3"
        );
        let line = summary_line(&Summary {
            bytes_moved: 1 << 30,
            bytes_reused: 2 << 30,
            ..summary()
        });
        assert_eq!(
            line,
            "3 files, 3.0 GiB in 2.0 s (512.0 MiB/s), 2.0 GiB of 3.0 GiB were there, tcp, verified with \
             blake3"
        );
        let line = summary_line(&Summary {
            published: 0,
            files: 0,
            unchanged: 5,
            ..summary()
        });
        assert_eq!(line, "nothing to copy, 5 unchanged (2.0 s)");
        let line = summary_line(&Summary {
            published: 0,
            files: 0,
            updated: 2,
            ..summary()
        });
        assert_eq!(line, "nothing to copy, 0 unchanged, 2 updated (2.0 s)");
    }

    #[test]
    fn failures_are_listed_up_to_a_limit() {
        let fault = Fault::new(FaultCode::Denied, "permission denied\x1b[2J");
        let failures = (0..100)
            .map(|i| Failure {
                path: format!("f{i}\n").into_bytes(),
                location: None,
                fault: fault.clone(),
            })
            .collect();
        let (io, _, err) = captured(false);
        Output::new(io).summary(&Summary {
            failed: 1234,
            failures,
            failures_unlisted: 1134,
            ..summary()
        });
        let text = err.text();
        let lines = text.lines().collect::<Vec<_>>();
        assert_eq!(lines.len(), 21);
        assert_eq!(lines[0], "rdcp: f0\\n: permission denied\\x1b[2J");
        assert_eq!(lines[20], "rdcp: and 1214 more");
    }

    #[test]
    fn warnings_are_shown_up_to_a_limit_and_not_when_quiet() {
        let warning = Event::Warning {
            path: b"x".to_vec(),
            fault: Fault::new(FaultCode::Special, "a socket, left out"),
            location: None,
        };
        for (quiet, lines) in [(false, 21), (true, 0)] {
            let (io, _, err) = captured(false);
            let mut output = Output::new(io);
            output.begin_copy(quiet, false, false);
            (0..25).for_each(|_| output.event(&warning));
            output.summary(&summary());
            assert_eq!(err.text().lines().count(), lines, "{}", err.text());
            assert!(quiet || err.text().ends_with("rdcp: and 5 more warnings\n"));
        }
    }

    #[test]
    fn errors_have_their_hint_on_its_own_line() {
        let (io, _, err) = captured(false);
        Output::new(io).error(&Error::new(ErrorKind::Usage, "bad").with_hint("good"));
        assert_eq!(err.text(), "rdcp: bad\nhint: good\n");
    }
}
