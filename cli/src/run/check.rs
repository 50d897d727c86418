//! Digests of what is there, and the comparison of two sides by them.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rdcp::client::{Client, sum_local};
use rdcp::options::HashKind;
use rdcp::remote::Remote;
use rdcp::wire::message::{Listed, ListedKind};
use rdcp::{Error, ErrorKind, Location};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;

use super::{Sessions, below, fail, remote_path};
use crate::args::ConnectionArgs;
use crate::compare::{Comparison, Content, Side};
use crate::exit::{End, Ending};
use crate::job::{Place, VerifyJob};
use crate::output::{Difference, Output};
use crate::quantity::counted;

/// Lines of a local sum that wait to be taken.
const AHEAD: usize = 256;

pub(super) async fn sum(
    paths: &[Place],
    hash: HashKind,
    recursive: bool,
    connection: &ConnectionArgs,
    output: &mut Output,
) -> End {
    let mut sessions = Sessions::new(connection, output);
    let mut ending = Ending::default();
    for place in paths {
        let result = match place {
            Place::Local(path) => sum_here(path, hash, recursive, output, &mut ending).await,
            Place::Remote(remote) => match sessions.of(remote).await {
                Ok(client) => {
                    sum_there(&client, remote, hash, recursive, output, &mut ending).await
                }
                Err(error) => return fail(output, &error),
            },
        };
        if let Err(error) = result {
            ending.error(output, &error);
        }
        if !output.io().stdout.is_open() {
            return End::DONE;
        }
    }
    sessions.close().await;
    ending.end()
}

async fn sum_here(
    path: &Path,
    hash: HashKind,
    recursive: bool,
    output: &mut Output,
    ending: &mut Ending,
) -> Result<(), Error> {
    let (mut lines, sum) = start_local(path.to_owned(), recursive, hash);
    while let Some(listed) = lines.recv().await {
        let base = path.as_os_str().as_bytes();
        let at = Location::local(joined_path(base, &listed.path));
        tell_digest(base, &listed, &at, hash, output, ending);
        if !output.io().stdout.is_open() {
            return Ok(());
        }
    }
    joined(sum).await
}

async fn sum_there(
    client: &Client,
    remote: &Remote,
    hash: HashKind,
    recursive: bool,
    output: &mut Output,
    ending: &mut Ending,
) -> Result<(), Error> {
    let closed = Notify::new();
    let path = remote_path(remote);
    let sum = client.sum(&path, recursive, hash, |listed| {
        // A file has its name; what is below a directory gets the prefix that a pull would give.
        let contents = remote.trailing_slash && !listed.path.is_empty();
        let base = if contents { b"" } else { remote.own_name() };
        let at = below(remote, &listed.path);
        tell_digest(base, &listed, &at, hash, output, ending);
        if !output.io().stdout.is_open() {
            closed.notify_one();
        }
    });
    tokio::select! {
        result = sum => result,
        () = closed.notified() => Ok(()),
    }
}

fn tell_digest(
    base: &[u8],
    listed: &Listed,
    at: &Location,
    hash: HashKind,
    output: &mut Output,
    ending: &mut Ending,
) {
    let path = joined_path(base, &listed.path);
    match (&listed.fault, &listed.digest) {
        (Some(fault), _) => ending.entry_failed(output, at, fault),
        (None, Some(digest)) => output.digest(&path, digest, hash, listed.len),
        // Directories and the like have none.
        (None, None) => {}
    }
}

pub(super) fn joined_path(base: &[u8], below: &[u8]) -> Vec<u8> {
    match (base, below) {
        (base, b"") => base.to_vec(),
        (b"", below) => below.to_vec(),
        (base, below) if base.ends_with(b"/") => [base, below].concat(),
        (base, below) => [base, b"/", below].concat(),
    }
}

/// Digests local files on a thread of its own.
fn start_local(
    path: PathBuf,
    recursive: bool,
    hash: HashKind,
) -> (mpsc::Receiver<Listed>, JoinHandle<Result<(), Error>>) {
    let (sender, lines) = mpsc::channel(AHEAD);
    let sum = tokio::task::spawn_blocking(move || {
        sum_local(&path, recursive, hash, &mut |listed| {
            // Nobody takes lines any more when the run is ending.
            let _ = sender.blocking_send(listed);
        })
    });
    (lines, sum)
}

async fn joined(sum: JoinHandle<Result<(), Error>>) -> Result<(), Error> {
    match sum.await {
        Ok(result) => result,
        Err(error) => Err(Error::new(ErrorKind::Internal, "digesting broke").with_source(error)),
    }
}

pub(super) async fn verify(job: VerifyJob, output: &mut Output) -> End {
    let mut sessions = Sessions::new(&job.connection, output);
    let end = match compare(&job, &mut sessions, output).await {
        Ok(end) => end,
        Err(error) => fail(output, &error),
    };
    sessions.close().await;
    end
}

async fn compare(
    job: &VerifyJob,
    sessions: &mut Sessions,
    output: &mut Output,
) -> Result<End, Error> {
    // Before connecting: a mistyped path is told at once.
    let here = fs::metadata(&job.local).map_err(|error| cannot_look(&job.local, error))?;
    if !here.is_dir() && !here.is_file() {
        let message = "it is neither a file nor a directory, and only those can be compared";
        let at = Location::local(job.local.as_os_str().as_bytes());
        return Err(Error::new(ErrorKind::NotFound, message).at(at));
    }
    let client = sessions.of(&job.remote).await?;
    let there = client.stat(&remote_path(&job.remote)).await?;
    let there_directory = matches!(
        there.kind,
        ListedKind::Directory | ListedKind::Export { .. }
    );
    let there_file = matches!(there.kind, ListedKind::File);
    let name = name_of(&job.local);
    if (here.is_dir() && there_file) || (here.is_file() && there_directory) {
        if !job.quiet {
            output.difference(&name, Difference::Kind);
        }
        return Ok(End::of(ErrorKind::Different));
    }
    let mut run = Run {
        comparison: Comparison::default(),
        ending: Ending::default(),
        quiet: job.quiet,
        here: job.local.as_os_str().as_bytes().to_vec(),
        there: job.remote.clone(),
        name,
    };
    let (here_ok, there_ok) = both_sides(job, &client, here.is_dir(), &mut run, output).await;
    for (path, difference) in run.comparison.end(here_ok, there_ok) {
        run.tell(&path, difference, output);
    }
    Ok(run.end(output))
}

/// Digests both sides at the same time; tells which of them came to its end.
async fn both_sides(
    job: &VerifyJob,
    client: &Client,
    recursive: bool,
    run: &mut Run,
    output: &mut Output,
) -> (bool, bool) {
    let (mut here, local_sum) = start_local(job.local.clone(), recursive, job.hash);
    let path = remote_path(&job.remote);
    // The remote lines pass through a queue too, so that both streams meet in one place. It needs no
    // bound of its own: the library calls back only for what the session's credit let come.
    let (sender, mut there) = mpsc::unbounded_channel();
    let remote_sum = client.sum(&path, recursive, job.hash, move |listed| {
        let _ = sender.send(listed);
    });
    tokio::pin!(remote_sum);
    let (mut here_open, mut there_open, mut there_result) = (true, true, None);
    while here_open || there_open || there_result.is_none() {
        tokio::select! {
            listed = here.recv(), if here_open => match listed {
                Some(listed) => run.take(Side::Here, listed, output),
                None => here_open = false,
            },
            listed = there.recv(), if there_open => match listed {
                Some(listed) => run.take(Side::There, listed, output),
                None => there_open = false,
            },
            result = &mut remote_sum, if there_result.is_none() => {
                there_result = Some(result);
                // Its sender lives as long as the finished future; what was sent is taken here.
                while let Ok(listed) = there.try_recv() {
                    run.take(Side::There, listed, output);
                }
                there_open = false;
            }
        }
    }
    let here_result = joined(local_sum).await;
    let mut complete = |result: Result<(), Error>| match result {
        Ok(()) => true,
        Err(error) => {
            run.ending.error(output, &error);
            false
        }
    };
    (
        complete(here_result),
        complete(there_result.unwrap_or(Ok(()))),
    )
}

/// A comparison under way and what it found.
struct Run {
    comparison: Comparison,
    ending: Ending,
    quiet: bool,
    /// What was asked for on either side.
    here: Vec<u8>,
    there: Remote,
    /// Stands for the thing itself, which has no path.
    name: Vec<u8>,
}

impl Run {
    fn take(&mut self, side: Side, listed: Listed, output: &mut Output) {
        let content = match (&listed.fault, listed.digest) {
            (Some(fault), _) => {
                let at = match side {
                    Side::Here => Location::local(joined_path(&self.here, &listed.path)),
                    Side::There => below(&self.there, &listed.path),
                };
                self.ending.entry_failed(output, &at, fault);
                match listed.kind {
                    // What is in it, if it is a directory, is not known.
                    ListedKind::Directory | ListedKind::Special => Content::Unlisted,
                    _ => Content::Unreadable,
                }
            }
            (None, Some(digest)) => Content::File(digest),
            (None, None) => Content::Other,
        };
        if let Some((path, difference)) = self.comparison.add(side, listed.path, content) {
            self.tell(&path, difference, output);
        }
    }

    fn tell(&self, path: &[u8], difference: Difference, output: &mut Output) {
        if !self.quiet {
            let path = if path.is_empty() { &self.name } else { path };
            output.difference(path, difference);
        }
    }

    fn end(mut self, output: &mut Output) -> End {
        let (same, different) = (self.comparison.same(), self.comparison.different());
        if different > 0 {
            self.ending.failed(ErrorKind::Different);
        }
        if !self.quiet {
            output.remark(&match different {
                0 => format!("{} the same", counted(same, "file")),
                _ => format!("{} the same, {different} not", counted(same, "file")),
            });
        }
        self.ending.end()
    }
}

fn name_of(path: &Path) -> Vec<u8> {
    path.file_name()
        .unwrap_or(path.as_os_str())
        .as_bytes()
        .to_vec()
}

fn cannot_look(path: &Path, error: std::io::Error) -> Error {
    let kind = match error.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => ErrorKind::NotFound,
        std::io::ErrorKind::PermissionDenied => ErrorKind::Denied,
        _ => ErrorKind::Storage,
    };
    Error::new(kind, "can't look at it")
        .with_source(error)
        .at(Location::local(path.as_os_str().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_joined_as_a_shell_user_would() {
        for (base, below, joined) in [
            ("a", "", "a"),
            ("", "b", "b"),
            ("a", "b/c", "a/b/c"),
            ("a/", "b", "a/b"),
            (".", "b", "./b"),
        ] {
            assert_eq!(
                joined_path(base.as_bytes(), below.as_bytes()),
                joined.as_bytes()
            );
        }
    }
}
