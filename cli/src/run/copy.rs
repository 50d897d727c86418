//! Copies: a transfer with its events.

use std::time::Duration;

use rdcp::client::{Client, PullSource, Transfer};
use rdcp::progress::Report;
use rdcp::{Error, ErrorKind, TransferId};
use tokio::time::MissedTickBehavior;

use super::{client_options, fail, farewell, remote_path, server};
use crate::escape;
use crate::exit::{End, ExitStatus};
use crate::job::{TransferJob, Way};
use crate::output::{Output, Summary};
use crate::signals::Signals;

/// What to do about a copy that was cut short.
const GOES_ON: &str = "the same command again goes on from here";
/// Longest wait for the server to take note that an interrupted copy's session ends.
const FAREWELL_INTERRUPTED_MAX: Duration = Duration::from_millis(200);
/// The same if files were written in place.
const MENDS: &str = "files that were being written in place may be part old and part new: the same command \
                     again mends them";
/// How often the bar moves while nothing happens.
const TICK: Duration = Duration::from_millis(200);

pub(super) async fn transfer(
    mut job: TransferJob,
    verbose: bool,
    output: &mut Output,
    signals: &mut Signals,
) -> End {
    let bar = !verbose && !job.options.dry_run;
    output.begin_copy(job.output.quiet, bar, verbose);
    // Known before anything else is, so that every line about this run has it.
    let id = TransferId::random();
    job.options.id = Some(id);
    output.set_transfer(&id.to_string());
    job.options.filters = match job.filters.rules() {
        Ok(rules) => rules,
        Err(error) => return fail(output, &error),
    };
    let there = match &job.way {
        Way::Pull { sources, .. } => match sources.first() {
            Some(source) => source.clone(),
            None => return End::DONE,
        },
        Way::Push { destination, .. } => destination.clone(),
    };
    let mut options = {
        let (interactive, server) = (output.is_interactive(), server(&there));
        let timeout = Some(job.options.stall_timeout);
        client_options(&job.connection, job.streams, timeout, interactive, server)
    };
    options.transport = job.transport;
    options.rdma = std::mem::take(&mut job.rdma);
    let client = tokio::select! {
        connected = Client::connect_to(&there, options) => match connected {
            Ok(client) => client,
            Err(error) => return fail(output, &error),
        },
        status = signals.first() => return End::signal(status),
    };
    if let Some(reason) = client.tunnelled() {
        output.remark(&format!(
            "{}: everything goes through ssh ({reason})",
            escape::text(&there.host)
        ));
    }
    let goes_on = match job.options.reuse.in_place {
        true => MENDS,
        false => GOES_ON,
    };
    let transfer = start(&client, job);
    let end = watch(transfer, goes_on, output, signals).await;
    if end.kind == Some(ErrorKind::Cancelled) {
        // Who interrupts a copy does not wait for a server that does not answer.
        let _ = tokio::time::timeout(FAREWELL_INTERRUPTED_MAX, client.close()).await;
    } else {
        farewell(client).await;
    }
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
async fn watch(
    mut transfer: Transfer,
    goes_on: &str,
    output: &mut Output,
    signals: &mut Signals,
) -> End {
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
    ended(transfer.finish().await, interrupted, goes_on, output)
}

fn ended(
    result: Result<Report, Error>,
    interrupted: Option<ExitStatus>,
    goes_on: &str,
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
        (Err(ended), Some(status)) => {
            if let Some(report) = ended.report() {
                output.unfinished(&Summary::from(report));
            }
            let error = Error::new(ErrorKind::Cancelled, "interrupted");
            output.error(&error.with_hint(goes_on));
            End::signal(status)
        }
        (Err(error), None) => {
            if let Some(report) = error.report() {
                output.unfinished(&Summary::from(report));
            }
            // What ended it in the middle may not be there the next time.
            let broke = matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::TimedOut);
            if broke && error.report().is_some() && error.hint().is_none() {
                return fail(output, &error.with_hint(goes_on));
            }
            fail(output, &error)
        }
    }
}
