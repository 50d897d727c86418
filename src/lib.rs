//! Moves files and trees between hosts, every byte checked by a digest that people can check too.
//!
//! `rdcp` is the library behind the command `rdcp` and the daemon `rdcpd`; both are thin shells
//! over what stands here. A [`Server`] offers directories as exports; a [`Client`] pulls from them,
//! pushes to them, looks at them, and reads single files at random. The receiver of data always
//! drives: it learns what there is, says what it wants, is granted regions to read, reads them
//! chunk by chunk, proves each chunk, and gives a file its name only when all of it is right.
//!
//! # A complete program
//!
//! ```no_run
//! use rdcp::{Client, ClientOptions, PullSource, TransferOptions};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), rdcp::Error> {
//!     let client = Client::connect("storage-1", rdcp::DEFAULT_PORT, ClientOptions::default()).await?;
//!     let source = PullSource::new("data", "checkpoints/step-9000");
//!     let options = TransferOptions::archive();
//!     let report = client.pull(&[source], "/scratch/".as_ref(), options).finish().await?;
//!     println!("{} files, {} bytes, over {}", report.files, report.bytes_moved, report.transport);
//!     for failure in &report.failures {
//!         eprintln!("{}: {}", failure.path.escape_ascii(), failure.fault.text);
//!     }
//!     Ok(())
//! }
//! ```
//!
//! Progress and cancellation: [`Transfer`]. Random reads without a copy on disk:
//! [`Client::open`] and [`RemoteFile::read_at`]. Serving: [`Server::builder`].
//!
//! # How it hangs together
//!
//! ```text
//!  rdcp (cli)   rdcpd (daemon)   your program
//!       | TransferOptions, Export ...    ^ Event, Report, Error
//!       v                                |
//!  client . server                  this interface: tasks and handles
//!       v
//!  session                          TLS, handshakes, the drivers; async lives here and outward
//!       | inputs: messages, completions, results of jobs    ^ outputs: say, fetch, store, publish
//!       v                                                   |
//!  engine                           decides; no socket, file, clock, thread or hash
//!  - - - - - - - - - - - - - - - -  the drivers carry its outputs out to:
//!  lane: transport (tcp) . memory   storage: Source . Sink     integrity: BLAKE3 . SHA-256
//!       v
//!  sys                              io_uring, readiness, write-back: the only unsafe code
//! ```
//!
//! What it does not do: it is no file system and no mount, it keeps no state between transfers but
//! the keys of known hosts and what an interrupted transfer left beside its destination, and it starts
//! no thread until a client or server is made.

pub mod audit;
pub mod client;
pub mod doctor;
pub mod error;
pub mod location;
pub mod options;
pub mod progress;
pub mod remote;
pub mod server;

// The inside. Public for the project's own tests, fuzz targets and benches alone; it changes
// without notice.
#[doc(hidden)]
pub mod engine;
#[doc(hidden)]
pub mod fuzzing;
#[doc(hidden)]
pub mod ids;
#[doc(hidden)]
pub mod integrity;
#[doc(hidden)]
pub mod lane;
#[doc(hidden)]
pub mod limits;
#[doc(hidden)]
pub mod manifest;
#[doc(hidden)]
pub mod memory;
#[doc(hidden)]
pub mod session;
#[cfg(test)]
mod simulation;
#[doc(hidden)]
pub mod storage;
#[doc(hidden)]
pub mod sys;
mod tally;
#[doc(hidden)]
pub mod transport;
#[doc(hidden)]
pub mod units;
#[doc(hidden)]
pub mod wire;
#[doc(hidden)]
pub mod workers;

pub use client::{
    Bench, BenchReport, Canceller, Client, HeldRegion, Ping, PullSource, RegisteredBuffer,
    RemoteFile, Status, Transfer, TransportReport, clean_local, sum_local,
};
pub use error::{Error, ErrorKind};
pub use ids::TransferId;
pub use integrity::Hex;
pub use location::{Location, Side};
pub use options::{
    ClientOptions, Deleting, FilterRule, HashKind, IpNetwork, Overwrite, Preserve, RdmaConnect,
    RdmaMemory, RdmaOptions, TransferOptions, TransportChoice, UnknownHost,
};
pub use progress::{EntryType, Event, Failure, Progress, Report};
pub use remote::{DEFAULT_PORT, Remote};
pub use server::{Export, Server, ServerBuilder, ServerLimits};
pub use session::dump::describe_activity;
pub use session::known_hosts::HostTrust;
pub use sys::quiet::ignore_user_signal;
pub use units::{ChunkSize, Timestamp};
pub use wire::message::{
    Action, Cleaning, Fate, LeftBehind, Listed, ListedKind, Outcome, Reason, RemotePath,
    TransportOffer, Why,
};
pub use wire::{Fault, FaultCode};
