//! What a user of the library can choose, each default with its reason.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::ids::TransferId;
use crate::session::known_hosts::HostTrust;
use crate::units::ChunkSize;
pub use crate::wire::message::{HashKind, Overwrite, Preserve};

/// How a client reaches and trusts a server.
#[derive(Clone)]
#[non_exhaustive]
pub struct ClientOptions {
    /// Where the pinned host keys are kept. Default: `$XDG_CONFIG_HOME/rdcp/known_hosts`, else
    /// `~/.config/rdcp/known_hosts`.
    pub known_hosts: Option<PathBuf>,
    /// What to do about a host whose key is not pinned. Default: refuse. A changed key is always
    /// refused.
    pub unknown_host: UnknownHost,
    /// Longest wait for the connection and for each answer of the handshake. Default 10 s: longer
    /// than three lost SYNs, shorter than a person's patience.
    pub connect_timeout: Duration,
    /// Data connections per session. Default: one per lane, at most 2 unless told otherwise; more
    /// streams than cores cost CPU and gain nothing on one host.
    pub streams: Option<usize>,
    /// A read of an open file fails if nothing of it came for this long. Default 60 s. Transfers
    /// have a limit of their own, [`TransferOptions::stall_timeout`].
    pub stall_timeout: Duration,
}

/// What a client does about a host whose key is not pinned yet.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum UnknownHost {
    /// Refuse, and tell the fingerprint.
    #[default]
    Refuse,
    /// Pin the key and go on.
    AcceptNew,
    /// Ask: the function gets the finding and answers whether to pin the key and go on. It runs on
    /// a blocking thread.
    Ask(Arc<dyn Fn(&HostTrust) -> bool + Send + Sync>),
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            known_hosts: None,
            unknown_host: UnknownHost::Refuse,
            connect_timeout: Duration::from_secs(10),
            streams: None,
            stall_timeout: Duration::from_secs(60),
        }
    }
}

/// Which way bytes are moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransportChoice {
    /// The best that works; the report says which and why.
    #[default]
    Auto,
    /// RDMA or an error.
    Rdma,
    /// TCP, even if something better works.
    Tcp,
    /// Copy on the same host or an error.
    Local,
}

/// What one transfer does.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TransferOptions {
    /// Directories are transferred with all below them; without it they are an error.
    pub recursive: bool,
    /// What is carried beside data and mtime. Default: nothing more.
    pub preserve: Preserve,
    /// The proof of every chunk. Default BLAKE3: several times faster than the network, and its
    /// result can be checked with `b3sum`.
    pub hash: HashKind,
    /// Default 1 MiB.
    pub chunk: ChunkSize,
    /// What to do about files that are there. Default: replaced, atomically, if size or mtime
    /// differ.
    pub overwrite: Overwrite,
    /// Missing parents of the destination are made. Default no: a mistyped path is an error.
    pub make_parents: bool,
    /// Files are durable before they count as done. Default yes.
    pub sync: bool,
    /// Default: the best that works.
    pub transport: TransportChoice,
    /// The first failure ends the run. Default no: a tree goes on and lists what failed.
    pub fail_early: bool,
    /// The run ends if nothing moved for this long. Default 120 s.
    pub stall_timeout: Duration,
    /// Its id, for those who must know it before it starts. Never give two transfers the same.
    /// Default: a fresh one.
    pub id: Option<TransferId>,
}

impl Default for TransferOptions {
    fn default() -> Self {
        Self {
            recursive: false,
            preserve: Preserve::default(),
            hash: HashKind::Blake3,
            chunk: ChunkSize::DEFAULT,
            overwrite: Overwrite::IfDifferent,
            make_parents: false,
            sync: true,
            transport: TransportChoice::Auto,
            fail_early: false,
            stall_timeout: Duration::from_secs(120),
            id: None,
        }
    }
}

impl TransferOptions {
    /// What `-a` means: recursive, and everything that is carried is carried.
    pub fn archive() -> Self {
        Self {
            recursive: true,
            preserve: Preserve {
                mode: true,
                symlinks: true,
                hard_links: true,
                xattrs: true,
                owner: true,
            },
            ..Self::default()
        }
    }
}
