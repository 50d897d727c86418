//! `rdcp clean`: what interrupted copies left behind, here or on servers.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rdcp::client::{Client, clean_local};
use rdcp::remote::Remote;
use rdcp::{Cleaning, Error, ErrorKind, Fate, Listed, Location};
use tokio::sync::{Notify, mpsc};

use super::{Sessions, below, fail, remote_path};
use crate::args::ConnectionArgs;
use crate::exit::{End, Ending};
use crate::job::Place;
use crate::output::Output;
use crate::quantity::{bytes, counted};

/// Lines of this host that wait to be taken.
const AHEAD: usize = 256;

/// What became of what was found.
#[derive(Default)]
struct Tally {
    ending: Ending,
    gone: u64,
    gone_bytes: u64,
    kept: u64,
}

pub(super) async fn clean(
    paths: &[Place],
    which: Cleaning,
    dry_run: bool,
    connection: &ConnectionArgs,
    output: &mut Output,
) -> End {
    let mut sessions = Sessions::new(connection, output);
    let mut tally = Tally::default();
    for place in paths {
        let result = match place {
            Place::Local(path) => here(path, which, dry_run, output, &mut tally).await,
            Place::Remote(remote) => match sessions.of(remote).await {
                Ok(client) => there(&client, remote, which, dry_run, output, &mut tally).await,
                Err(error) => return fail(output, &error),
            },
        };
        if let Err(error) = result {
            tally.ending.error(output, &error);
        }
    }
    sessions.close().await;
    let gone = counted(tally.gone, "leftover");
    let freed = bytes(tally.gone_bytes);
    let kept = tally.kept;
    output.remark(&match dry_run {
        true => format!("{gone} would be removed ({freed}), {kept} kept"),
        false => format!("{gone} removed ({freed}), {kept} kept"),
    });
    tally.ending.end()
}

async fn here(
    path: &Path,
    which: Cleaning,
    dry_run: bool,
    output: &mut Output,
    tally: &mut Tally,
) -> Result<(), Error> {
    let (sender, mut lines) = mpsc::channel(AHEAD);
    let owned = path.to_owned();
    let work = tokio::task::spawn_blocking(move || {
        clean_local(&owned, which, dry_run, &mut |listed| {
            // Nobody takes lines any more when the run is ending.
            let _ = sender.blocking_send(listed);
        })
    });
    while let Some(listed) = lines.recv().await {
        let base = path.as_os_str().as_bytes();
        let at = Location::local(super::check::joined_path(base, &listed.path));
        tally.take(output, at, &listed);
    }
    match work.await {
        Ok(result) => result,
        Err(error) => Err(Error::new(ErrorKind::Internal, "cleaning broke").with_source(error)),
    }
}

async fn there(
    client: &Client,
    remote: &Remote,
    which: Cleaning,
    dry_run: bool,
    output: &mut Output,
    tally: &mut Tally,
) -> Result<(), Error> {
    let closed = Notify::new();
    let path = remote_path(remote);
    let cleaning = client.clean(&path, which, dry_run, |listed| {
        tally.take(output, below(remote, &listed.path), &listed);
        if dry_run && !output.io().stdout.is_open() {
            closed.notify_one();
        }
    });
    tokio::select! {
        result = cleaning => result,
        // Nobody reads what would be done.
        () = closed.notified() => Ok(()),
    }
}

impl Tally {
    fn take(&mut self, output: &mut Output, at: Location, listed: &Listed) {
        if let Some(left) = &listed.left {
            match left.fate {
                Fate::Removed | Fate::Would => {
                    self.gone += 1;
                    self.gone_bytes = self.gone_bytes.saturating_add(left.allocated);
                }
                Fate::Kept => self.kept += 1,
            }
            if listed.fault.is_none() {
                output.left_behind(&at.path, listed.len, left);
            }
        }
        if let Some(fault) = &listed.fault {
            self.ending.entry_failed(output, &at, fault);
        }
    }
}
