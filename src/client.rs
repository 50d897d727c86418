//! The client's half of the public interface: connect, transfer, look.
//!
//! A [`Client`] is one session with one server; transfers and operations of it run at the same
//! time. It knows the session layer and nothing below: no keys of regions, rings or descriptors.

mod again;
mod bench;
mod connect;
pub(crate) mod far;
mod home;
mod identity;
mod local;
mod operations;
mod remote_file;
mod transfer;
mod transport;
mod trust;
mod work;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use bench::{Bench, BenchReport};
pub use identity::Identity;
pub use local::{clean_local, sum_local};
pub use operations::{Ping, Status};
pub use remote_file::{HeldRegion, RegisteredBuffer, RemoteFile};
pub use transfer::{Canceller, Transfer};
pub use transport::TransportReport;

use crate::error::{Error, ErrorKind};
use crate::ids::TransferId;
use crate::location::Location;
use crate::options::{ClientOptions, HashKind, TransferOptions};
use crate::remote::Remote;
use crate::wire::message::{Carried, Cleaning, Listed, RemotePath};

/// One thing to pull.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullSource {
    /// The export's name.
    pub export: String,
    /// Its path below the export; bytes, without a leading `/`.
    pub path: Vec<u8>,
    /// A directory's contents are meant, not the directory: it was written with a trailing slash.
    pub contents: bool,
}

impl PullSource {
    /// The thing at `path` below the export; a trailing slash means a directory's contents.
    pub fn new(export: impl Into<String>, path: impl Into<Vec<u8>>) -> Self {
        let path = path.into();
        let contents = path.ends_with(b"/");
        Self {
            export: export.into(),
            path,
            contents,
        }
    }
}

/// A session with a server.
///
/// Cheap to clone; the session ends when the last clone and the last transfer are gone. One that was lost
/// is made anew by what is asked for next, and by transfers that are under way
/// ([`TransferOptions::reconnect`]); the server has to show the same key. Open files
/// ([`Self::open`]) end with their session: [`Self::reopen`] goes on.
#[derive(Clone)]
pub struct Client {
    home: Arc<home::Home>,
}

impl Client {
    /// Connects to the daemon at `host` and `port`, checks its key against the known hosts and
    /// agrees on a protocol level.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] if nothing answers in time or it
    /// does not speak the protocol; [`ErrorKind::Denied`] if its key is
    /// unknown or has changed; [`ErrorKind::Busy`] if it takes no more
    /// sessions.
    pub async fn connect(host: &str, port: u16, options: ClientOptions) -> Result<Self, Error> {
        Ok(Self {
            home: home::Home::establish(host, port, options).await?,
        })
    }

    /// Connects to the server of a place: to the daemon that runs there or, for `ssh://...`, to one that ssh starts
    /// for this client and that ends with it. That one serves everything that its user may reach, as the export
    /// [`SSH_EXPORT`](crate::remote::SSH_EXPORT); who it is, and who may use it, is settled through ssh, so no
    /// known hosts and no key of the user's own take part.
    ///
    /// # Errors
    /// As [`Self::connect`]; [`ErrorKind::Unreachable`] if ssh can't log in, there is no rdcpd, or nothing answers
    /// directly and ssh forwards nothing.
    pub async fn connect_to(remote: &Remote, options: ClientOptions) -> Result<Self, Error> {
        let home = match remote.ssh {
            None => home::Home::establish(&remote.host, remote.port, options).await?,
            Some(_) => home::Home::establish_far(remote.clone(), options).await?,
        };
        Ok(Self { home })
    }

    /// Why everything goes through ssh, if it does.
    pub fn tunnelled(&self) -> Option<&str> {
        self.home.tunnelled()
    }

    /// The session, made anew if it is over.
    async fn session(&self) -> Result<Arc<connect::Session>, Error> {
        self.home.renewed().await.map_err(|unmade| unmade.error)
    }

    /// Starts fetching `sources` to `destination`, by the rules of the command: a directory becomes
    /// `destination/name` (its contents go into `destination` if `contents` is set); a file goes
    /// into `destination` if that ends in `/`, is a directory or there are several sources, else
    /// `destination` is its name.
    pub fn pull(
        &self,
        sources: &[PullSource],
        destination: &Path,
        options: TransferOptions,
    ) -> Transfer {
        transfer::pull(
            Arc::clone(&self.home),
            sources.to_vec(),
            destination.into(),
            options,
        )
    }

    /// Starts sending `sources` to `destination` on the server, by the same rules. A trailing slash
    /// on a source means a directory's contents; `into_directory` says that the destination was
    /// written with one.
    pub fn push(
        &self,
        sources: &[PathBuf],
        destination: &RemotePath,
        into_directory: bool,
        options: TransferOptions,
    ) -> Transfer {
        transfer::push(
            Arc::clone(&self.home),
            sources.to_vec(),
            destination.clone(),
            into_directory,
            options,
        )
    }

    /// Lists a directory, all below it if `recursive`, or the exports if `path.export` is empty.
    ///
    /// # Errors
    /// What the server says, or that it can't be reached any more.
    pub async fn list(
        &self,
        path: &RemotePath,
        recursive: bool,
        on: impl FnMut(Listed),
    ) -> Result<(), Error> {
        operations::list(&*self.session().await?, path, recursive, on).await
    }

    /// Looks at one thing; a symlink is not followed.
    ///
    /// # Errors
    /// What the server says, or that it can't be reached any more.
    pub async fn stat(&self, path: &RemotePath) -> Result<Listed, Error> {
        operations::stat(&*self.session().await?, path).await
    }

    /// Has the server digest a file, or all files below a directory, from their content.
    ///
    /// # Errors
    /// What the server says, or that it can't be reached any more. A file of a tree that can't be
    /// read is told as a [`Listed`] with its fault.
    pub async fn sum(
        &self,
        path: &RemotePath,
        recursive: bool,
        hash: HashKind,
        on: impl FnMut(Listed),
    ) -> Result<(), Error> {
        operations::sum(&*self.session().await?, path, recursive, hash, on).await
    }

    /// Removes a file, or a directory with all below it if `recursive`.
    ///
    /// # Errors
    /// What the server says, or that it can't be reached any more.
    pub async fn remove(&self, path: &RemotePath, recursive: bool) -> Result<(), Error> {
        operations::remove(&*self.session().await?, path, recursive).await
    }

    /// Makes a directory; with `parents` those above it too, and one that exists is fine.
    ///
    /// # Errors
    /// What the server says, or that it can't be reached any more.
    pub async fn make_directory(&self, path: &RemotePath, parents: bool) -> Result<(), Error> {
        operations::make_directory(&*self.session().await?, path, parents).await
    }

    /// Removes what copies that died left in a directory and below: part files and journals that nobody
    /// works on. Each is told as a [`Listed`] that has its `left`, removed or not; with `dry_run` nothing
    /// is removed. What can't be listed or removed is told with its fault.
    ///
    /// # Errors
    /// What the server says, or that it can't be reached any more, or is of an older release.
    pub async fn clean(
        &self,
        path: &RemotePath,
        which: Cleaning,
        dry_run: bool,
        on: impl FnMut(Listed),
    ) -> Result<(), Error> {
        operations::clean(&*self.session().await?, path, which, dry_run, on).await
    }

    /// Measures the round trip and tells what the server says of its transports.
    ///
    /// # Errors
    /// That the server can't be reached any more or does not answer in time.
    pub async fn ping(&self) -> Result<Ping, Error> {
        operations::ping(&*self.session().await?).await
    }

    /// Asks what the server does: its sessions, what runs in them, memory and counters.
    ///
    /// # Errors
    /// That the server can't be reached any more, does not answer in time, or is of an older release.
    pub async fn status(&self) -> Result<Status, Error> {
        operations::status(&*self.session().await?).await
    }

    /// Measures what the session's data connections bring from the server's memory to this end's,
    /// with no file and no digest: READs of a megabyte as a transfer has them under way, then READs
    /// of 4 KiB one at a time. A session that was made for one transport measures that one.
    ///
    /// # Errors
    /// As [`Self::transport`]; [`ErrorKind::Busy`] if the server has no memory free for it;
    /// [`ErrorKind::TimedOut`] if nothing came for [`ClientOptions::stall_timeout`].
    pub async fn bench(&self, options: &Bench) -> Result<BenchReport, Error> {
        bench::run(&*self.session().await?, options).await
    }

    /// Makes the session's data connections if they are not there yet, and tells what they are and
    /// why not better.
    ///
    /// # Errors
    /// [`ErrorKind::TransportUnavailable`] if the transport
    /// that was asked for is not there; that the server can't be reached.
    pub async fn transport(&self) -> Result<TransportReport, Error> {
        let session = self.session().await?;
        session.connect_data().await?;
        Ok(session.transport(Carried::default()))
    }

    /// Opens a file on the server for random reads without a copy on disk.
    ///
    /// # Errors
    /// What the server says, or that it can't be reached any more.
    pub async fn open(&self, path: &RemotePath) -> Result<RemoteFile, Error> {
        self.open_as(path, TransferId::random()).await
    }

    /// The same under an id of the caller's, which stands in the logs of both ends.
    ///
    /// # Errors
    /// As [`Self::open`]; an id that is in use is [`ErrorKind::Internal`].
    pub async fn open_as(&self, path: &RemotePath, id: TransferId) -> Result<RemoteFile, Error> {
        let session = self.session().await?;
        let opened = remote_file::open(Arc::clone(&session), path, id, None).await;
        opened.map_err(|error| about_file(&session, path, error))
    }

    /// Opens a file again whose session was lost, under the same id or another: it has to be what it was,
    /// and reads go on where they were.
    ///
    /// # Errors
    /// As [`Self::open`]; [`ErrorKind::SourceChanged`], here or at the next read, if it is not.
    pub async fn reopen(&self, file: &RemoteFile, id: TransferId) -> Result<RemoteFile, Error> {
        let session = self.session().await?;
        let path = file.path();
        let opened = remote_file::open(Arc::clone(&session), path, id, Some(file)).await;
        opened.map_err(|error| about_file(&session, path, error))
    }

    /// How long the server may keep silent before a request fails.
    const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

    /// Ends the session; running transfers of other clones fail.
    pub async fn close(self) {
        self.home.close().await;
    }
}

fn about_file(session: &connect::Session, path: &RemotePath, error: Error) -> Error {
    match error.kind() {
        // The session's failures are not about the file.
        ErrorKind::Unreachable | ErrorKind::TimedOut | ErrorKind::Busy => error,
        _ => error.at(Location::remote(&session.place(&path.export, &path.path))),
    }
}
