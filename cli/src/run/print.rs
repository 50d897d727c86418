//! One file to standard output: read front to back, every chunk proved before it is handed on.
//!
//! Standard output is the destination here, not a place for words: one that was closed, or whose
//! reader leaves early, is a copy that failed. A session that is lost is made anew, and reading goes on at
//! the byte that it had come to, if the file is still what it was.

use std::io;
use std::time::{Duration, Instant};

use rdcp::client::{Client, RemoteFile, TransportReport};
use rdcp::options::{ClientOptions, HashKind, TransferOptions};
use rdcp::progress::{Carried, EntryType, Event, Progress};
use rdcp::remote::Remote;
use rdcp::{Error, ErrorKind, ListedKind, Location, Outcome, TransferId};
use tokio::sync::mpsc;

use super::{client_options, fail, farewell, remote_path, server_name};
use crate::args::{ConnectionArgs, TransferOutput};
use crate::exit::End;
use crate::io::Stream;
use crate::output::{Output, Summary};
use crate::signals::Signals;

/// How often progress is told.
const TICK: Duration = Duration::from_millis(200);
/// Bytes of a file that are read at once: the default chunk, so that nothing is fetched twice to be
/// verified.
const PRINT_BYTES: usize = 1 << 20;
/// Pieces that wait for whoever reads standard output.
const PRINT_AHEAD: usize = 4;
/// First and longest pause before a lost session is made anew.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// One file to standard output.
pub(super) async fn print(
    source: &Remote,
    connection: &ConnectionArgs,
    timeout: Option<Duration>,
    told: &TransferOutput,
    verbose: bool,
    output: &mut Output,
    signals: &mut Signals,
) -> End {
    // The bar would be mixed into a file that is looked at.
    let bar = !verbose && !output.io().stdout.is_terminal();
    output.begin_copy(told.quiet, bar, verbose);
    let id = TransferId::random();
    output.set_transfer(&id.to_string());
    if output.io().stdout_was_missing {
        return fail(output, &closed_after(0));
    }
    let options = {
        let server = server_name(&source.host, source.port);
        client_options(connection, None, timeout, output.is_interactive(), server)
    };
    let mut run = Run {
        source,
        id,
        begun: Instant::now(),
        timeout: timeout.unwrap_or(TransferOptions::default().stall_timeout),
        transport: None,
        carried: Carried::default(),
        written: 0,
        reconnects: 0,
        moved: Instant::now(),
    };
    tokio::select! {
        result = run.fetch(options, output) => match result {
            Ok(()) => {
                output.summary(&run.summary(true));
                End::DONE
            }
            Err(error) => {
                if run.transport.is_some() {
                    output.unfinished(&run.summary(false));
                }
                fail(output, &error)
            }
        },
        status = signals.first() => End::signal(status),
    }
}

struct Run<'a> {
    source: &'a Remote,
    id: TransferId,
    begun: Instant,
    /// How long nothing may come.
    timeout: Duration,
    transport: Option<TransportReport>,
    /// Bytes that came, by the way they came.
    carried: Carried,
    /// Bytes that standard output took.
    written: u64,
    /// How often the session was lost and made anew.
    reconnects: u64,
    /// When something came last, as far as was looked.
    moved: Instant,
}

impl Run<'_> {
    async fn fetch(&mut self, options: ClientOptions, output: &mut Output) -> Result<(), Error> {
        let client = Client::connect_to(self.source, options).await?;
        let result = self.copy(&client, output).await;
        farewell(client).await;
        result
    }

    async fn copy(&mut self, client: &Client, output: &mut Output) -> Result<(), Error> {
        let path = remote_path(self.source);
        let mut file = match client.open_as(&path, self.id).await {
            Ok(file) => file,
            Err(error) => return Err(self.explained(client, error).await),
        };
        let chosen = client.transport().await?;
        output.event(&Event::Started {
            transfer: self.id,
            transport: chosen.transport,
            reason: chosen.reason.clone(),
            note: chosen.note.clone(),
        });
        self.transport = Some(chosen);
        // The stream moves to a thread that may wait for its reader, and comes back in the end.
        let stand_in = Stream::new(io::sink(), false);
        let mut stdout = std::mem::replace(&mut output.io().stdout, stand_in);
        let (pieces, mut taken) = mpsc::channel::<Vec<u8>>(PRINT_AHEAD);
        let writer = tokio::task::spawn_blocking(move || {
            let mut written = 0;
            while let Some(piece) = taken.blocking_recv() {
                written += stdout.write_content(&piece);
                if !stdout.is_open() {
                    break;
                }
            }
            stdout.flush();
            (stdout, written)
        });
        let mut progress = Progress::default();
        progress.files_seen = 1;
        progress.bytes_seen = file.len();
        progress.totals_known = true;
        let mut seen = 0;
        let result = loop {
            let read = read_on(&file, &mut progress, self.timeout, &pieces, output).await;
            self.count(file.carried());
            if progress.bytes_done > seen {
                (seen, self.moved) = (progress.bytes_done, Instant::now());
            }
            match read {
                Err(error) if file.is_cut_off() && is_lost(&error) && !pieces.is_closed() => {
                    match self.again(client, &file, &error, output).await {
                        Ok(again) => file = again,
                        Err(error) => break Err(error),
                    }
                }
                read => break read,
            }
        };
        drop(pieces);
        let (stdout, written) = writer
            .await
            .map_err(|error| Error::new(ErrorKind::Internal, "writing broke").with_source(error))?;
        self.written = written;
        let lost = match stdout.failure() {
            Some(error) => Some(not_written_after(written, error)),
            None if !stdout.is_open() => Some(closed_after(written)),
            None => None,
        };
        output.io().stdout = stdout;
        if let Some(error) = lost {
            return Err(error);
        }
        let of_it = |error: Error| match error.kind() {
            // These are the session's.
            ErrorKind::Unreachable | ErrorKind::TimedOut | ErrorKind::Busy => error,
            _ => error.at(Location::remote(self.source)),
        };
        result.map_err(of_it)?;
        let len = file.len();
        self.finish(client, &mut file, output)
            .await
            .map_err(of_it)?;
        output.event(&Event::Ended {
            path: self.source.own_name().to_vec(),
            entry: EntryType::File,
            outcome: Outcome::Published {
                bytes: len,
                digest: None,
            },
            len,
            location: None,
        });
        Ok(())
    }

    /// Makes sure that all that was read is of one version.
    async fn finish(
        &mut self,
        client: &Client,
        file: &mut RemoteFile,
        output: &mut Output,
    ) -> Result<(), Error> {
        loop {
            match file.finish().await {
                Err(error) if file.is_cut_off() && is_lost(&error) => {
                    *file = self.again(client, file, &error, output).await?;
                    // What is asked about has to have been read in the same session.
                    let last = file.len().saturating_sub(1);
                    file.read_at(&mut [0], last).await?;
                }
                finished => return finished,
            }
        }
    }

    /// Opens the file again, in a new session, until nothing has come for too long.
    async fn again(
        &mut self,
        client: &Client,
        file: &RemoteFile,
        lost: &Error,
        output: &mut Output,
    ) -> Result<RemoteFile, Error> {
        let since = Instant::now();
        let left = || self.timeout.saturating_sub(self.moved.elapsed());
        output.event(&Event::Lost {
            reason: lost.message().to_owned(),
        });
        let mut pause = PAUSE;
        loop {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
            let opened = async {
                let file = client.reopen(file, self.id).await?;
                Ok((file, client.transport().await?))
            };
            let error = match tokio::time::timeout(left(), opened).await {
                Ok(Ok((file, chosen))) => {
                    self.reconnects += 1;
                    output.event(&Event::Reconnected {
                        transport: chosen.transport,
                        after: since.elapsed(),
                    });
                    self.transport = Some(chosen);
                    return Ok(file);
                }
                Ok(Err(error)) => error,
                Err(_) => nothing_came(self.timeout),
            };
            if !is_lost(&error) || left().is_zero() {
                return Err(error);
            }
        }
    }

    fn count(&mut self, carried: Carried) {
        self.carried.tcp += carried.tcp;
        self.carried.rdma += carried.rdma;
    }

    /// Why a file could not be opened: of a directory, what to write instead.
    async fn explained(&self, client: &Client, error: Error) -> Error {
        if error.kind() != ErrorKind::Usage {
            return error;
        }
        let directory = client.stat(&remote_path(self.source)).await;
        // A symbolic link was followed before it turned out to be none.
        if !directory.is_ok_and(|listed| listed.kind == ListedKind::Directory) {
            return error;
        }
        let source = self.source;
        let message = format!("{source} is a directory, and - takes the content of one file");
        Error::new(ErrorKind::Usage, message)
            .with_hint(format!("rdcp pull -r {source} DIRECTORY copies it"))
    }

    fn summary(&self, done: bool) -> Summary {
        let chosen = self.transport.as_ref();
        Summary {
            transport: chosen.map_or("", |chosen| chosen.transport).to_owned(),
            reason: chosen.map_or("", |chosen| &chosen.reason).to_owned(),
            carried: self.carried,
            hash: HashKind::Blake3,
            verified: Some(done),
            published: done.into(),
            files: done.into(),
            updated: 0,
            unchanged: 0,
            deleted: 0,
            dry_run: false,
            failed: (!done).into(),
            warnings: 0,
            bytes: self.written,
            bytes_moved: self.written,
            bytes_resumed: 0,
            reconnects: self.reconnects,
            bytes_reused: 0,
            elapsed: self.begun.elapsed(),
            data_elapsed: None,
            // The one failure is what ends the run, and is told as that.
            failures: Vec::new(),
            failures_unlisted: 0,
        }
    }
}

fn nothing_came(timeout: Duration) -> Error {
    let message = format!("nothing moved for {} s", timeout.as_secs_f64());
    Error::new(ErrorKind::TimedOut, message)
}

fn closed_after(bytes: u64) -> Error {
    let message = format!("standard output was closed after {bytes} bytes");
    Error::new(ErrorKind::Storage, message)
        .with_hint("what reads it must read to its end; rdcp pull ... FILE copies into a file")
}

fn not_written_after(bytes: u64, error: &io::Error) -> Error {
    let message = format!("standard output can't be written after {bytes} bytes: {error}");
    Error::new(ErrorKind::Storage, message)
}

/// Whether another session may do better.
fn is_lost(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::Busy)
}

/// Reads on from where the progress is to the end, or until nobody takes any more.
async fn read_on(
    file: &RemoteFile,
    progress: &mut Progress,
    timeout: Duration,
    pieces: &mpsc::Sender<Vec<u8>>,
    output: &mut Output,
) -> Result<(), Error> {
    let mut told = Instant::now();
    while progress.bytes_done < file.len() {
        let left = file.len() - progress.bytes_done;
        let size = usize::try_from(left).map_or(PRINT_BYTES, |left| left.min(PRINT_BYTES));
        let mut piece = vec![0; size];
        // Whoever reads standard output may take as long as it likes; only the server's time counts.
        let reading = file.read_at(&mut piece, progress.bytes_done);
        let count = tokio::time::timeout(timeout, reading)
            .await
            .map_err(|_| nothing_came(timeout))??;
        if count == 0 {
            let message = "the file became shorter while it was read";
            return Err(Error::new(ErrorKind::SourceChanged, message));
        }
        piece.truncate(count);
        progress.bytes_done += count as u64;
        progress.bytes_moved = progress.bytes_done;
        if pieces.send(piece).await.is_err() {
            return Ok(());
        }
        if told.elapsed() >= TICK {
            told = Instant::now();
            output.progress(*progress);
        }
    }
    Ok(())
}
