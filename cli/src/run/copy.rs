//! Copies: a transfer with its events, or one file to standard output.

use std::io;
use std::time::{Duration, Instant};

use rdcp::client::{Client, PullSource, RemoteFile, Transfer};
use rdcp::progress::{Progress, Report};
use rdcp::remote::Remote;
use rdcp::{Error, ErrorKind};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use super::{client_options, fail, farewell, remote_path, server_name};
use crate::args::{ConnectionArgs, TransferOutput};
use crate::exit::{End, ExitStatus};
use crate::io::Stream;
use crate::job::{TransferJob, Way};
use crate::output::{Output, Summary};
use crate::signals::Signals;

/// How often the bar moves while nothing happens.
const TICK: Duration = Duration::from_millis(200);
/// Bytes of a file on standard output that are read at once: the default chunk, so that nothing is
/// fetched twice to be verified.
const PRINT_BYTES: usize = 1 << 20;
/// Pieces that wait for whoever reads standard output.
const PRINT_AHEAD: usize = 4;

pub(super) async fn transfer(
    job: TransferJob,
    verbose: bool,
    output: &mut Output,
    signals: &mut Signals,
) -> End {
    output.begin_copy(job.output.quiet, !verbose);
    let (host, port) = match &job.way {
        Way::Pull { sources, .. } => match sources.first() {
            Some(source) => (source.host.clone(), source.port),
            None => return End::DONE,
        },
        Way::Push { destination, .. } => (destination.host.clone(), destination.port),
    };
    let mut options = {
        let (interactive, server) = (output.is_interactive(), server_name(&host, port));
        client_options(&job.connection, job.streams, interactive, server)
    };
    options.transport = job.transport;
    let client = tokio::select! {
        connected = Client::connect(&host, port, options) => match connected {
            Ok(client) => client,
            Err(error) => return fail(output, &error),
        },
        status = signals.first() => return End::signal(status),
    };
    let transfer = start(&client, job);
    let end = watch(transfer, output, signals).await;
    farewell(client).await;
    end
}

fn start(client: &Client, job: TransferJob) -> Transfer {
    match job.way {
        Way::Pull {
            sources,
            destination,
        } => {
            let sources = sources.into_iter().map(|source| PullSource {
                export: source.export,
                path: source.path,
                contents: source.trailing_slash,
            });
            client.pull(&sources.collect::<Vec<_>>(), &destination, job.options)
        }
        Way::Push {
            sources,
            destination,
        } => {
            let into_directory = destination.trailing_slash;
            client.push(
                &sources,
                &remote_path(&destination),
                into_directory,
                job.options,
            )
        }
    }
}

/// Tells what happens until the transfer ends; a signal cancels it and its end is waited for.
async fn watch(mut transfer: Transfer, output: &mut Output, signals: &mut Signals) -> End {
    output.set_transfer(&transfer.id().to_string());
    let mut interrupted = None;
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            event = transfer.next_event() => match event {
                Some(event) => output.event(&event),
                None => break,
            },
            _ = tick.tick() => output.progress(transfer.progress()),
            status = signals.first(), if interrupted.is_none() => {
                interrupted = Some(status);
                transfer.cancel();
                output.stopping();
            }
        }
    }
    ended(transfer.finish().await, interrupted, output)
}

fn ended(
    result: Result<Report, Error>,
    interrupted: Option<ExitStatus>,
    output: &mut Output,
) -> End {
    match (result, interrupted) {
        (Ok(report), interrupted) => {
            output.summary(&Summary::from(&report));
            match (report.failure_kind, interrupted) {
                (Some(_), Some(status)) => End::signal(status),
                (Some(kind), None) => End::of(kind),
                // The signal came too late to change anything.
                (None, _) => End::DONE,
            }
        }
        (Err(_), Some(status)) => {
            let error = Error::new(ErrorKind::Cancelled, "interrupted");
            output.error(&error.with_hint("the same command again copies what is missing"));
            End::signal(status)
        }
        (Err(error), None) => fail(output, &error),
    }
}

/// One file to standard output.
pub(super) async fn print(
    source: &Remote,
    connection: &ConnectionArgs,
    told: &TransferOutput,
    verbose: bool,
    output: &mut Output,
    signals: &mut Signals,
) -> End {
    // The bar would be mixed into a file that is looked at.
    let bar = !verbose && !output.io().stdout.is_terminal();
    output.begin_copy(told.quiet, bar);
    let options = {
        let server = server_name(&source.host, source.port);
        client_options(connection, None, output.is_interactive(), server)
    };
    tokio::select! {
        result = fetch(source, options, output) => match result {
            Ok(()) => End::DONE,
            Err(error) => fail(output, &error),
        },
        status = signals.first() => End::signal(status),
    }
}

async fn fetch(
    source: &Remote,
    options: rdcp::options::ClientOptions,
    output: &mut Output,
) -> Result<(), Error> {
    let client = Client::connect(&source.host, source.port, options).await?;
    let file = client.open(&remote_path(source)).await?;
    // The stream moves to a thread that may wait for its reader, and comes back in the end.
    let closed = Stream::new(io::sink(), false);
    let mut stdout = std::mem::replace(&mut output.io().stdout, closed);
    let (pieces, mut taken) = mpsc::channel::<Vec<u8>>(PRINT_AHEAD);
    let writer = tokio::task::spawn_blocking(move || {
        while let Some(piece) = taken.blocking_recv() {
            stdout.write(&piece);
            if !stdout.is_open() {
                break;
            }
        }
        stdout.flush();
        stdout
    });
    let result = read_all(&file, &pieces, output).await;
    drop(pieces);
    let writer = writer.await;
    output.io().stdout = writer
        .map_err(|error| Error::new(ErrorKind::Internal, "writing broke").with_source(error))?;
    result?;
    farewell(client).await;
    Ok(())
}

/// Reads front to back until the end, or until nobody takes any more.
async fn read_all(
    file: &RemoteFile,
    pieces: &mpsc::Sender<Vec<u8>>,
    output: &mut Output,
) -> Result<(), Error> {
    let mut progress = Progress::default();
    progress.files_seen = 1;
    progress.bytes_seen = file.len();
    progress.totals_known = true;
    let mut told = Instant::now();
    while progress.bytes_done < file.len() {
        let left = file.len() - progress.bytes_done;
        let mut piece = vec![
            0;
            usize::try_from(left)
                .unwrap_or(PRINT_BYTES)
                .min(PRINT_BYTES)
        ];
        let count = file.read_at(&mut piece, progress.bytes_done).await?;
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
            output.progress(progress);
        }
    }
    Ok(())
}
