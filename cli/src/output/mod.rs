//! What a run tells, in one of two voices: to people, or as JSON lines to programs.
//!
//! Events, errors and reports of the library go in; text goes to the two streams. All that came
//! from a peer or a file system is escaped here or in what is called here, and nowhere else.

mod bar;
mod human;
mod json;
pub(crate) mod listing;
mod status;
pub(crate) mod sum_line;

use std::time::Duration;

use rdcp::client::BenchReport;
use rdcp::doctor::Diagnosis;
use rdcp::options::HashKind;
use rdcp::progress::{Carried, Event, Failure, Progress, Report};
use rdcp::storage::error::ShownPath;
use rdcp::wire::Fault;
use rdcp::wire::message::{Listed, TransportOffer};
use rdcp::{Error, ErrorKind, LeftBehind, Location, Side, Status};

use crate::exit::{End, ExitStatus};
use crate::io::Io;

use human::Human;
use json::Json;

/// The voice of a run.
pub(crate) struct Output {
    io: Io,
    voice: Voice,
}

enum Voice {
    Human(Human),
    Json(Box<Json>),
}

/// Where JSON lines go.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum JsonTo {
    /// As usual.
    Stdout,
    /// When standard output carries a file.
    Stderr,
}

/// How a copy ended, as both voices tell it.
#[derive(Clone, Debug)]
pub(crate) struct Summary {
    /// `rdma`, `tcp`, `local`, `rdma+tcp`.
    pub(crate) transport: String,
    /// Why this and none better.
    pub(crate) reason: String,
    /// What landed by which.
    pub(crate) carried: Carried,
    /// What proved the chunks.
    pub(crate) hash: HashKind,
    /// Nothing was done: counts are of what would be.
    pub(crate) dry_run: bool,
    /// Whether all of the published files were proved; nothing if there was nothing to prove.
    pub(crate) verified: Option<bool>,
    /// Entries published.
    pub(crate) published: u64,
    /// Files among them.
    pub(crate) files: u64,
    /// Files that were there.
    pub(crate) unchanged: u64,
    /// Entries of which only metadata differed.
    pub(crate) updated: u64,
    /// What the source does not have and was removed.
    pub(crate) deleted: u64,
    /// Entries that failed.
    pub(crate) failed: u64,
    /// Warnings.
    pub(crate) warnings: u64,
    /// Bytes of published files.
    pub(crate) bytes: u64,
    /// Bytes that travelled.
    pub(crate) bytes_moved: u64,
    /// Bytes that an interrupted run had brought.
    pub(crate) bytes_resumed: u64,
    /// How often the connection was lost and made anew.
    pub(crate) reconnects: u64,
    /// Bytes that older copies at the destination had.
    pub(crate) bytes_reused: u64,
    /// How long it took.
    pub(crate) elapsed: Duration,
    /// How long bytes were read and stored, if this end did that.
    pub(crate) data_elapsed: Option<Duration>,
    /// The first failures.
    pub(crate) failures: Vec<Failure>,
    /// How many more there are.
    pub(crate) failures_unlisted: u64,
}

impl From<&Report> for Summary {
    fn from(report: &Report) -> Self {
        Self {
            transport: report.transport.to_owned(),
            reason: report.reason.clone(),
            carried: report.carried,
            hash: report.hash,
            dry_run: report.dry_run,
            verified: report.verified(),
            published: report.published,
            files: report.files,
            unchanged: report.unchanged,
            updated: report.updated,
            deleted: report.deleted,
            failed: report.failed,
            warnings: report.warnings,
            bytes: report.bytes_published,
            bytes_moved: report.bytes_moved,
            bytes_resumed: report.bytes_resumed,
            reconnects: report.reconnects,
            bytes_reused: report.bytes_reused,
            elapsed: report.elapsed,
            data_elapsed: report.data_elapsed,
            failures: report.failures.clone(),
            failures_unlisted: report.failures_unlisted,
        }
    }
}

/// Round trips to a server.
#[derive(Clone, Debug)]
pub(crate) struct PingReport {
    /// `host:port`, as it is written.
    pub(crate) server: String,
    /// Name and release of what answered.
    pub(crate) software: String,
    /// Feature level that both speak.
    pub(crate) level: u16,
    /// Each round trip; at least one.
    pub(crate) round_trips: Vec<Duration>,
    /// What data would go by.
    pub(crate) transport: String,
    /// Over what, or why nothing better.
    pub(crate) reason: String,
    /// What it offers.
    pub(crate) transports: Vec<TransportOffer>,
}

impl PingReport {
    fn shortest(&self) -> Duration {
        self.round_trips.iter().min().copied().unwrap_or_default()
    }

    fn average(&self) -> Duration {
        let count = u32::try_from(self.round_trips.len())
            .unwrap_or(u32::MAX)
            .max(1);
        self.round_trips.iter().sum::<Duration>() / count
    }
}

/// What a transport brings, or why it is not there.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    /// `host:port`, as it is written.
    pub(crate) server: String,
    /// `rdma`, `tcp`, `local`.
    pub(crate) transport: &'static str,
    pub(crate) result: Result<BenchReport, String>,
}

/// How an entry of a comparison differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Difference {
    /// It is on the server only.
    MissingHere,
    /// It is on this side only.
    MissingThere,
    /// Both are files, with different content.
    Content,
    /// One is a file, the other something else.
    Kind,
}

/// What a small request did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Something is gone.
    Removed,
    /// A directory is there.
    Made,
}

impl Output {
    /// Speaks to people until told otherwise.
    pub(crate) fn new(io: Io) -> Self {
        Self {
            io,
            voice: Voice::Human(Human::default()),
        }
    }

    /// Speaks to programs from now on.
    pub(crate) fn use_json(&mut self, to: JsonTo) {
        self.voice = Voice::Json(Box::new(Json::new(to)));
    }

    /// The streams, for what is the same in both voices: help, scripts, a file's content.
    pub(crate) fn io(&mut self) -> &mut Io {
        &mut self.io
    }

    /// Whether a question may be asked: a person is watching and no program is listening.
    pub(crate) fn is_interactive(&self) -> bool {
        matches!(self.voice, Voice::Human(_)) && self.io.stderr.is_terminal()
    }

    /// A copy begins. `bar`: a person may see how it goes on. `verbose`: its summary is wanted even
    /// where no person watches.
    pub(crate) fn begin_copy(&mut self, quiet: bool, bar: bool, verbose: bool) {
        if let Voice::Human(human) = &mut self.voice {
            human.begin_copy(quiet, bar && self.io.stderr.is_terminal(), verbose);
        }
    }

    /// The id that stands in every JSON line from now on.
    pub(crate) fn set_transfer(&mut self, transfer: &str) {
        if let Voice::Json(json) = &mut self.voice {
            json.set_transfer(transfer);
        }
    }

    /// Something happened in a copy.
    pub(crate) fn event(&mut self, event: &Event) {
        match &mut self.voice {
            Voice::Human(human) => human.event(&mut self.io, event),
            Voice::Json(json) => json.event(&mut self.io, event),
        }
    }

    /// Totals as they are now; called as often as it suits the caller.
    pub(crate) fn progress(&mut self, progress: Progress) {
        match &mut self.voice {
            Voice::Human(human) => human.progress(progress),
            Voice::Json(json) => json.progress(&mut self.io, progress),
        }
    }

    /// A first signal came and the copy is being ended in order.
    pub(crate) fn stopping(&mut self) {
        if let Voice::Human(human) = &mut self.voice {
            human.stopping(&mut self.io);
        }
    }

    /// How a copy ended, if it ran to its end.
    pub(crate) fn summary(&mut self, summary: &Summary) {
        match &mut self.voice {
            Voice::Human(human) => human.summary(&mut self.io, summary),
            Voice::Json(json) => json.set_summary(summary),
        }
    }

    /// How far a copy came that did not run to its end; why is told as an error. People are told what
    /// failed before that.
    pub(crate) fn unfinished(&mut self, summary: &Summary) {
        match &mut self.voice {
            Voice::Human(human) => human.failures(&mut self.io, summary),
            Voice::Json(json) => json.set_summary(summary),
        }
    }

    /// Why something that was asked for was not done.
    pub(crate) fn error(&mut self, error: &Error) {
        match &mut self.voice {
            Voice::Human(human) => human.error(&mut self.io, error),
            Voice::Json(json) => json.error(&mut self.io, error),
        }
    }

    /// An entry that could not be looked at.
    pub(crate) fn entry_failed(&mut self, at: &Location, fault: &Fault) {
        match &mut self.voice {
            Voice::Human(human) => human.entry_failed(&mut self.io, at, fault),
            Voice::Json(json) => json.entry_failed(&mut self.io, at, fault),
        }
    }

    /// A heading between listings of several directories.
    pub(crate) fn heading(&mut self, text: &str, first: bool) {
        if let Voice::Human(_) = self.voice {
            let gap = if first { "" } else { "\n" };
            self.io
                .stdout
                .line(&format!("{gap}{}:", crate::escape::text(text)));
        }
    }

    /// An entry of a listing under the name `path`.
    pub(crate) fn entry(&mut self, name: &[u8], path: &[u8], listed: &Listed, long: bool) {
        match &mut self.voice {
            Voice::Human(_) => {
                let line = if long {
                    listing::long(name, listed)
                } else {
                    listing::short(name)
                };
                self.io.stdout.write(line.as_bytes());
                self.io.stdout.write(b"\n");
            }
            Voice::Json(json) => json.entry(&mut self.io, path, listed),
        }
    }

    /// What one thing is.
    pub(crate) fn stat(&mut self, place: &str, path: &[u8], listed: &Listed, first: bool) {
        match &mut self.voice {
            Voice::Human(_) => {
                if !first {
                    self.io.stdout.write(b"\n");
                }
                let block = listing::block(place, listed);
                self.io.stdout.write(block.as_bytes());
                self.io.stdout.flush();
            }
            Voice::Json(json) => json.entry(&mut self.io, path, listed),
        }
    }

    /// Something was removed or made. People see it by the silence.
    pub(crate) fn changed(&mut self, change: Change, at: &Location) {
        if let Voice::Json(json) = &mut self.voice {
            json.changed(&mut self.io, change, &at.path);
        }
    }

    /// What a copy left behind at `path`, and what becomes of it.
    pub(crate) fn left_behind(&mut self, path: &[u8], len: u64, left: &LeftBehind) {
        match &mut self.voice {
            Voice::Human(_) => self.io.stdout.line(&listing::left_behind(path, left)),
            Voice::Json(json) => json.left_behind(&mut self.io, path, len, left),
        }
    }

    /// A file's digest.
    pub(crate) fn digest(&mut self, path: &[u8], digest: &[u8; 32], hash: HashKind, len: u64) {
        match &mut self.voice {
            Voice::Human(_) => {
                let line = sum_line::line(digest, path, self.io.stdout.is_terminal());
                self.io.stdout.write(&line);
                self.io.stdout.flush();
            }
            Voice::Json(json) => json.digest(&mut self.io, path, digest, hash, len),
        }
    }

    /// An entry of a comparison that is not the same on both sides.
    pub(crate) fn difference(&mut self, path: &[u8], difference: Difference) {
        match &mut self.voice {
            Voice::Human(_) => {
                let what = match difference {
                    Difference::MissingHere => "missing here",
                    Difference::MissingThere => "missing there",
                    Difference::Content => "differs",
                    Difference::Kind => "other kind",
                };
                self.io
                    .stdout
                    .line(&format!("{what:<13}  {}", crate::escape::path(path)));
            }
            Voice::Json(json) => json.difference(&mut self.io, path, difference),
        }
    }

    /// A sentence for a watching person.
    pub(crate) fn remark(&mut self, text: &str) {
        if self.is_interactive() {
            self.io.stderr.line(text);
        }
    }

    /// Round trips to a server.
    pub(crate) fn ping(&mut self, report: &PingReport) {
        match &mut self.voice {
            Voice::Human(_) => self.io.stdout.line(&listing::ping(report)),
            Voice::Json(json) => json.ping(&mut self.io, report),
        }
    }

    /// What a server does.
    pub(crate) fn status(&mut self, server: &str, status: &Status) {
        match &mut self.voice {
            Voice::Human(_) => self.io.stdout.line(&status::text(server, status)),
            Voice::Json(json) => json.status(&mut self.io, server, status),
        }
    }

    /// What a transport brings.
    pub(crate) fn measured(&mut self, measured: &Measured) {
        match &mut self.voice {
            Voice::Human(_) => self.io.stdout.line(&listing::measured(measured)),
            Voice::Json(json) => json.measured(&mut self.io, measured),
        }
        // The next one takes a while.
        self.io.stdout.flush();
    }

    /// What was found out about RDMA. JSON has it in its summary, and no other line.
    pub(crate) fn diagnosis(&mut self, diagnosis: &Diagnosis) {
        match &mut self.voice {
            Voice::Human(_) => self.io.stdout.line(&listing::diagnosis(diagnosis)),
            Voice::Json(json) => json.set_diagnosis(diagnosis),
        }
    }

    /// The run ends. JSON gets its summary, exactly once, however often this is called.
    pub(crate) fn finish(&mut self, end: End) -> ExitStatus {
        match &mut self.voice {
            Voice::Human(human) => human.finish(),
            Voice::Json(json) => json.finish(&mut self.io, end),
        }
        self.io.stdout.flush();
        self.io.stderr.flush();
        let Some(lost) = self.lost(end) else {
            return end.status;
        };
        self.io.stderr.line(&format!("rdcp: {lost}"));
        match end.status {
            ExitStatus::DONE => ExitStatus::of(ErrorKind::Storage),
            status => status,
        }
    }

    /// What was asked for and was not delivered. Words for people may stay unread: who reads them
    /// knows where they end. A program that was promised a summary does not.
    fn lost(&self, end: End) -> Option<String> {
        // Of a run that failed otherwise it may be the very failure.
        if let (Some(error), ExitStatus::DONE) = (self.io.stdout.failure(), end.status) {
            let reason = crate::escape::text(&error.to_string());
            return Some(format!("standard output: {reason}"));
        }
        let Voice::Json(json) = &self.voice else {
            return None;
        };
        let (name, stream) = match json.to() {
            JsonTo::Stdout => ("standard output", &self.io.stdout),
            JsonTo::Stderr => ("standard error", &self.io.stderr),
        };
        let closed = format!("{name} was closed before all JSON lines were read");
        (!stream.is_open()).then_some(closed)
    }
}

/// The digest's name as options and `*sum` tools spell it.
pub(crate) fn hash_name(hash: HashKind) -> &'static str {
    match hash {
        HashKind::Blake3 => "blake3",
        HashKind::Sha256 => "sha256",
        _ => "none",
    }
}

/// A digest as `*sum` tools print it.
pub(crate) fn hex(digest: &[u8; 32]) -> String {
    use std::fmt::Write as _;
    digest
        .iter()
        .fold(String::with_capacity(64), |mut text, byte| {
            // Writing to a String can't fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
}

/// `place: reason`, where the place is said once and whose permission it takes is said as well.
fn about(path: &[u8], location: Option<&Location>, kind: ErrorKind, reason: &str) -> String {
    let Some(location) = location else {
        let (path, reason) = (crate::escape::path(path), crate::escape::text(reason));
        return if path.is_empty() || reason.contains(&path) {
            reason
        } else {
            format!("{path}: {reason}")
        };
    };
    let place = crate::escape::path(&location.path);
    let reason = crate::escape::text(&without_place(reason, &location.path));
    let whose = match location.side {
        _ if kind != ErrorKind::Denied => "",
        Side::Local => " (on this host)",
        Side::Remote => " (on the server)",
    };
    format!("{place}: {reason}{whose}")
}

/// "can't open 'run/f': why" and "'run/f' is this" know less of the place than its location does: the
/// path below an export or a directory that is held. It is left out where it is the end of the
/// location.
fn without_place(reason: &str, place: &[u8]) -> String {
    let shown = ShownPath(place).to_string();
    let is_place = |path: &str| {
        let path = path.strip_prefix("...").unwrap_or(path);
        let above = shown.strip_suffix(path.trim_matches('/'));
        above.is_some_and(|above| above.is_empty() || above.ends_with('/') || above == "...")
    };
    let what_is = reason
        .strip_prefix('\'')
        .and_then(|rest| rest.split_once("' "));
    if let Some((path, what)) = what_is
        && is_place(path)
    {
        return what.to_owned();
    }
    let quoted = reason
        .strip_prefix("can't ")
        .and_then(|rest| rest.split_once(" '"))
        .filter(|(verb, _)| !verb.contains('\''))
        .and_then(|(verb, rest)| Some((verb, rest.split_once("': ")?)));
    match quoted {
        Some((verb, (path, why))) if is_place(path) => {
            // "look at" and "write to" want something behind them.
            let hangs = [" at", " to", " of"].iter().any(|end| verb.ends_with(end));
            let it = if hangs { " it" } else { "" };
            format!("can't {verb}{it}: {why}")
        }
        _ => reason.to_owned(),
    }
}

/// An error with its place and all that caused it, each said once.
fn chain(error: &Error) -> String {
    about(b"", error.location(), error.kind(), &causes(error))
}

fn causes(error: &Error) -> String {
    let mut text = error.message().to_owned();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_told_once() {
        let cause = std::io::Error::other("no\nspace");
        let error = Error::new(ErrorKind::Storage, "a: can't write").with_source(cause);
        assert_eq!(chain(&error), "a: can't write: no\\nspace");
        let cause = std::io::Error::other("no space");
        let error = Error::new(ErrorKind::Storage, "a: no space").with_source(cause);
        assert_eq!(chain(&error), "a: no space");
    }

    #[test]
    fn places_are_told_once_with_their_side() {
        let remote = Location {
            side: Side::Remote,
            path: b"host:/data/run/f".to_vec(),
        };
        let denied = |reason: &str| about(b"run/f", Some(&remote), ErrorKind::Denied, reason);
        assert_eq!(
            denied("can't open 'run/f': Permission denied"),
            "host:/data/run/f: can't open: Permission denied (on the server)"
        );
        assert_eq!(
            denied("can't open 'un/f': no"),
            "host:/data/run/f: can't open 'un/f': no (on the server)"
        );
        let local = Location::local(*b"/tmp/it's/f\n");
        assert_eq!(
            about(
                b"f",
                Some(&local),
                ErrorKind::Storage,
                "can't write 'tmp/it's/f\\n': full"
            ),
            "/tmp/it's/f\\n: can't write: full"
        );
        assert_eq!(about(b"x", None, ErrorKind::Storage, "full"), "x: full");
        let other = about(b"f", Some(&local), ErrorKind::Storage, "'other' is a FIFO");
        assert_eq!(other, "/tmp/it's/f\\n: 'other' is a FIFO");
        let local = Location::local(*b"/tmp/new");
        assert_eq!(
            about(
                b"new",
                Some(&local),
                ErrorKind::NotFound,
                "can't write to 'new': there is no such directory"
            ),
            "/tmp/new: can't write to it: there is no such directory"
        );
        assert_eq!(
            about(b"new", Some(&local), ErrorKind::Usage, "'new' is a FIFO"),
            "/tmp/new: is a FIFO"
        );
    }

    #[test]
    fn lost_output_is_a_failure() {
        for (path, expected) in [("/dev/full", 7), ("/dev/null", 0)] {
            let file = std::fs::File::options().write(true).open(path).unwrap();
            let io = Io {
                stdout: crate::io::Stream::new(file, false),
                stderr: crate::io::Stream::new(std::io::sink(), false),
                stdout_was_missing: false,
            };
            let mut output = Output::new(io);
            output.io().stdout.line("x");
            assert_eq!(output.finish(End::DONE).code(), expected);
        }
    }
}
