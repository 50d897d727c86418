//! The record of who did what: a line of JSON for each event, appended to a file.
//!
//! In: the server's events, from any of its tasks, which never wait here. Out: lines, written one by one by a thread
//! of its own. If the disk is slower than events come for long, some are lost, and a line says how many. The file is
//! opened again when the daemon is told to reload, so that it can be rotated by renaming it.
//! The fields of a line are documented in the manual page; `v` counts up when one changes its meaning.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rdcp::audit::{AuditAction, AuditEvent, AuditOutcome, AuditRequest};
use rustix::fs::OFlags;
use serde::Serialize;
use tracing::error;

/// The version of the lines' schema.
const VERSION: u32 = 1;
/// Lines that may wait for the disk.
const WAITING_MAX: usize = 8192;
/// For its owner, and for the group that may read logs.
const MODE: u32 = 0o640;
/// Pause between two complaints that the file can't be written.
const COMPLAINT_PAUSE: Duration = Duration::from_secs(60);
/// How long the end of the daemon waits for the last lines.
const LAST_LINES_TIMEOUT: Duration = Duration::from_secs(2);

/// What the thread is told.
enum Told {
    /// A line without its end.
    Line(String),
    /// The file may be another one.
    Reopen,
    /// There is no more.
    End,
}

/// A record that is being kept.
pub(crate) struct AuditLog {
    teller: Teller,
    thread: JoinHandle<()>,
}

/// Whoever has it can add to the record.
#[derive(Clone)]
pub(crate) struct Teller {
    lines: SyncSender<Told>,
    /// Number of the next line. Held while a line is handed over, so that they lie in this order.
    next: Arc<Mutex<u64>>,
    lost: Arc<AtomicU64>,
}

impl AuditLog {
    /// Begins to write into `path`, behind what is there.
    ///
    /// # Errors
    /// It can't be opened, or no thread can be started.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = append_to(path)?;
        let (lines, told) = sync_channel(WAITING_MAX);
        let writer = Writer {
            path: path.to_owned(),
            file,
            complained: None,
        };
        let thread = thread::Builder::new()
            .name("rdcpd-audit".to_owned())
            .spawn(move || writer.run(&told))?;
        let teller = Teller {
            lines,
            next: Arc::default(),
            lost: Arc::default(),
        };
        Ok(Self { teller, thread })
    }

    /// Who adds to it.
    pub(crate) fn teller(&self) -> Teller {
        self.teller.clone()
    }

    /// Writes what is told into the file that has the path now.
    pub(crate) fn reopen(&self) {
        // A full queue has a thread that is stuck in the old file: it will be told next time.
        let _ = self.teller.lines.try_send(Told::Reopen);
    }

    /// Writes what was told so far, if the disk lets it.
    pub(crate) fn end(self) {
        let until = Instant::now() + LAST_LINES_TIMEOUT;
        let mut told = Told::End;
        while let Err(TrySendError::Full(again)) = self.teller.lines.try_send(told) {
            if Instant::now() > until {
                return;
            }
            told = again;
            thread::sleep(Duration::from_millis(5));
        }
        while !self.thread.is_finished() && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Teller {
    /// Adds what a server tells.
    pub(crate) fn tell(&self, event: &AuditEvent) {
        let (name, body) = body_of(event);
        self.add(Line {
            session: event.session,
            from: Some(event.from.to_string()),
            key: event.key.as_deref(),
            ..Line::new(name, body)
        });
    }

    /// Adds something about the daemon itself.
    pub(crate) fn note(&self, event: &'static str) {
        self.add(Line::new(event, Body::default()));
    }

    fn add(&self, line: Line<'_>) {
        let lost = self.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            let body = Body {
                count: Some(lost),
                ..Body::default()
            };
            if !self.send(Line::new("lost", body)) {
                self.lost.fetch_add(lost, Ordering::Relaxed);
            }
        }
        if !self.send(line) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn send(&self, mut line: Line<'_>) -> bool {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        line.seq = *next;
        // Texts and numbers: it can't fail.
        let Ok(text) = serde_json::to_string(&line) else {
            return false;
        };
        let sent = self.lines.try_send(Told::Line(text)).is_ok();
        *next += u64::from(sent);
        sent
    }
}

/// The thread's end.
struct Writer {
    path: PathBuf,
    file: File,
    complained: Option<Instant>,
}

impl Writer {
    fn run(mut self, told: &Receiver<Told>) {
        while let Ok(told) = told.recv() {
            let done = match told {
                Told::Line(mut line) => {
                    line.push('\n');
                    self.file.write_all(line.as_bytes())
                }
                Told::Reopen => append_to(&self.path).map(|file| self.file = file),
                Told::End => return,
            };
            if let Err(error) = done {
                self.complain(&error);
            }
        }
    }

    fn complain(&mut self, error: &io::Error) {
        if self
            .complained
            .is_some_and(|at| at.elapsed() < COMPLAINT_PAUSE)
        {
            return;
        }
        self.complained = Some(Instant::now());
        error!(path = ?self.path, %error, "THE AUDIT RECORD HAS GAPS: it can't be written");
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    // A link in its place would have another file grow; a FIFO must not hold anybody up.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(MODE)
        .custom_flags(i32::try_from(flags.bits()).unwrap_or_default())
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    Ok(file)
}

/// A line. What does not apply is left out.
#[derive(Serialize)]
struct Line<'a> {
    v: u32,
    seq: u64,
    time: String,
    event: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    #[serde(flatten)]
    body: Body<'a>,
}

impl<'a> Line<'a> {
    fn new(event: &'static str, body: Body<'a>) -> Self {
        Self {
            v: VERSION,
            seq: 0,
            time: jiff::Timestamp::now().to_string(),
            event,
            session: None,
            from: None,
            key: None,
            body,
        }
    }
}

#[derive(Default, Serialize)]
struct Body<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    software: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
    #[serde(flatten)]
    request: Option<RequestBody<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(flatten)]
    counts: Option<Counts>,
}

#[derive(Serialize)]
struct RequestBody<'a> {
    transfer: &'a str,
    request: &'static str,
    dry_run: bool,
    places: Vec<Place<'a>>,
}

#[derive(Serialize)]
struct Place<'a> {
    export: &'a str,
    /// For people: what is no UTF-8 is replaced.
    path: String,
    path_b64: String,
}

#[derive(Serialize)]
struct Counts {
    published: u64,
    updated: u64,
    unchanged: u64,
    deleted: u64,
    failed: u64,
    bytes: u64,
}

fn body_of(event: &AuditEvent) -> (&'static str, Body<'_>) {
    let reason = |reason| Body {
        reason: Some(reason),
        ..Body::default()
    };
    match &event.action {
        AuditAction::SessionBegan { software } => {
            let body = Body {
                software: Some(software),
                ..Body::default()
            };
            ("session_began", body)
        }
        AuditAction::ClientRefused { reason: text } => ("client_refused", reason(text)),
        AuditAction::SessionEnded { reason: text } => ("session_ended", reason(text)),
        AuditAction::RequestBegan(request) => {
            let body = Body {
                request: Some(request_of(request)),
                ..Body::default()
            };
            ("request_began", body)
        }
        AuditAction::RequestEnded(request, outcome) => {
            let failure = outcome.failure.as_ref();
            let body = Body {
                request: Some(request_of(request)),
                result: Some(result_of(outcome)),
                kind: failure.map(|(kind, _)| kind.name()),
                reason: failure.map(|(_, text)| text.as_str()),
                counts: Some(Counts {
                    published: outcome.published,
                    updated: outcome.updated,
                    unchanged: outcome.unchanged,
                    deleted: outcome.deleted,
                    failed: outcome.failed,
                    bytes: outcome.bytes,
                }),
                ..Body::default()
            };
            ("request_ended", body)
        }
        // Of a later library: its name is not known here, that something happened is told.
        _ => ("other", Body::default()),
    }
}

fn request_of(request: &AuditRequest) -> RequestBody<'_> {
    let places = request.places.iter().map(|place| Place {
        export: &place.export,
        path: String::from_utf8_lossy(&place.path).into_owned(),
        path_b64: STANDARD.encode(&place.path),
    });
    RequestBody {
        transfer: &request.transfer,
        request: request.what,
        dry_run: request.dry_run,
        places: places.collect(),
    }
}

fn result_of(outcome: &AuditOutcome) -> &'static str {
    match (&outcome.failure, outcome.failed) {
        (Some(_), _) => "failed",
        (None, 0) => "done",
        (None, _) => "partly",
    }
}
