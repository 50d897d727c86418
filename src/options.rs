//! What a user of the library can choose, each default with its reason.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::ids::TransferId;
use crate::limits::RAIL_QUEUE_PAIRS_MAX;
pub use crate::session::exposing::rails::RdmaMemory;
use crate::session::known_hosts::HostTrust;
pub use crate::session::rails::network::IpNetwork;
use crate::storage::Filters;
use crate::units::ChunkSize;
pub use crate::wire::message::{Deleting, FilterRule, HashKind, Overwrite, Preserve, Reuse};

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
    /// The file of this user's own key, proved to servers that ask for one. Default:
    /// `$XDG_CONFIG_HOME/rdcp/identity.pem`, else `~/.config/rdcp/identity.pem`, if it is there; a
    /// file that is named here has to be.
    pub identity: Option<PathBuf>,
    /// Longest wait for the connection and for each answer of the handshake. Default 10 s: longer
    /// than three lost SYNs, shorter than a person's patience.
    pub connect_timeout: Duration,
    /// Data connections per session. Default: one per lane, at most 2, as more streams than cores cost CPU and
    /// gain nothing on one host; 8 to a server that is 5 ms away or more.
    pub streams: Option<usize>,
    /// A read of an open file fails if nothing of it came for this long. Default 60 s. Transfers
    /// have a limit of their own, [`TransferOptions::stall_timeout`].
    pub stall_timeout: Duration,
    /// The way that bytes take, in all transfers of the session. Default: the best that works.
    pub transport: TransportChoice,
    /// How RDMA is used if it is.
    pub rdma: RdmaOptions,
    /// How servers are started by ssh, for [`Client::connect_to`](crate::Client::connect_to) `ssh://...`.
    pub ssh: SshOptions,
}

/// How a server is started on another host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SshOptions {
    /// The program that logs in, and options for it, with blanks between them. It has to understand what OpenSSH's
    /// client does. Default: `ssh`.
    pub command: Option<String>,
    /// The daemon's program on the other host. Default: `rdcpd`, wherever the shell there finds it.
    pub rdcpd: Option<String>,
    /// Everything goes through ssh, even if the server could be reached directly.
    pub tunnel: bool,
}

impl SshOptions {
    pub(crate) fn command(&self) -> Vec<String> {
        let command = self.command.as_deref().unwrap_or("ssh");
        command.split_whitespace().map(str::to_owned).collect()
    }

    pub(crate) fn rdcpd(&self) -> &str {
        self.rdcpd.as_deref().unwrap_or("rdcpd")
    }
}

/// How RDMA is used. What concerns the wire must suit the network; the defaults suit one that loses
/// little.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RdmaOptions {
    /// Whether it is used at all. Default yes, where there are devices.
    pub enabled: bool,
    /// Devices to use: names (`mlx5_0`), names with a port (`mlx5_0:1`), network interfaces
    /// (`eth0`) or GUIDs (`5254:00ff:fe12:3456`). Default: all.
    pub devices: Vec<String>,
    /// The one address of each port to use, by its index in the port's table. Default: the best
    /// that suits the other end, RoCE v2 with an IP address first. Indices move when addresses do.
    pub gid_index: Option<u8>,
    /// DSCP and ECN bits of packets. Default 0.
    pub traffic_class: u8,
    /// InfiniBand's service level, or RoCE's priority; 0 to 15. Default 0.
    pub service_level: u8,
    /// Queue pairs per pair of ports; 1 to 8. Default 2: one alone leaves its link idle while it
    /// recovers from a loss. Ranges that are held have others, up to four a pair.
    pub queue_pairs: u8,
    /// How often a packet is sent again; 0 to 7. Default 6, as some devices take 7 for "for ever".
    pub retry_count: u8,
    /// How long until it is: 4.096 us times 2 to the power of this; 1 to 31. Default 14: 67 ms.
    pub timeout: u8,
    /// How often it is tried again when the other end is not ready; 0 to 7. Default 7: for ever.
    pub rnr_retry: u8,
    /// The code of the delay before that; 0 to 31. Default 12: 0.64 ms.
    pub min_rnr_timer: u8,
    /// How files get before the adapters when this end sends. Default: the best that works for each
    /// file system; the log says which and why.
    pub memory: RdmaMemory,
    /// Networks beside the ports' own in which the other end's ports may be, where they are reached
    /// through routers. The address that the session was made with is always allowed.
    pub peer_networks: Vec<IpNetwork>,
    /// How queue pairs are connected. Default: [`RdmaConnect::Direct`].
    pub connect: RdmaConnect,
    /// Where a server with [`RdmaConnect::Cm`] listens, on the address of each of its ports; clients
    /// are told. These numbers have nothing to do with tcp's. 0 takes a free one. Default 20471.
    pub cm_port: u16,
}

/// How queue pairs are connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RdmaConnect {
    /// By what the ends tell each other on the control connection: needs no port beside it, and works
    /// where there is no rdma_cm. A client follows a server that wants it otherwise.
    #[default]
    Direct,
    /// By rdma_cm, the kernel's connection manager, which finds the way between InfiniBand subnets as
    /// well. A server listens for it and connects no queue pair otherwise; a client takes nothing else.
    Cm,
}

/// The port of rdma_cm unless told otherwise: the same number as tcp's, in a space of its own.
pub const CM_PORT_DEFAULT: u16 = 20471;

impl Default for RdmaOptions {
    fn default() -> Self {
        Self {
            enabled: true,
            devices: Vec::new(),
            gid_index: None,
            traffic_class: 0,
            service_level: 0,
            queue_pairs: 2,
            retry_count: 6,
            timeout: 14,
            rnr_retry: 7,
            min_rnr_timer: 12,
            memory: RdmaMemory::Auto,
            peer_networks: Vec::new(),
            connect: RdmaConnect::Direct,
            cm_port: CM_PORT_DEFAULT,
        }
    }
}

impl RdmaOptions {
    /// The first value that can't be, with its name and what may be written.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`].
    pub fn check(&self) -> Result<(), Error> {
        let queue_pairs_max = u8::try_from(RAIL_QUEUE_PAIRS_MAX).unwrap_or(u8::MAX);
        for (name, value, least, most) in [
            ("service_level", self.service_level, 0, 15),
            ("queue_pairs", self.queue_pairs, 1, queue_pairs_max),
            ("retry_count", self.retry_count, 0, 7),
            ("timeout", self.timeout, 1, 31),
            ("rnr_retry", self.rnr_retry, 0, 7),
            ("min_rnr_timer", self.min_rnr_timer, 0, 31),
        ] {
            if !(least..=most).contains(&value) {
                let message = format!("rdma.{name} is {value}: write {least} to {most}");
                return Err(Error::new(ErrorKind::Usage, message));
            }
        }
        Ok(())
    }
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
            identity: None,
            unknown_host: UnknownHost::Refuse,
            connect_timeout: Duration::from_secs(10),
            streams: None,
            stall_timeout: Duration::from_secs(60),
            transport: TransportChoice::Auto,
            rdma: RdmaOptions::default(),
            ssh: SshOptions::default(),
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
    /// Which entries of trees take part: the first rule that matches one decides, what none matches
    /// takes part. Default: no rules. [`FilterRule::check`] finds out whether one can be used.
    pub filters: Vec<FilterRule>,
    /// Nothing is copied, written, made or touched on either side: the run says what it would do about
    /// each entry, and why, as [`Outcome::Planned`](crate::Outcome::Planned). It fails where the run
    /// itself would, as far as looking can tell; space is not reckoned. Default no.
    pub dry_run: bool,
    /// What a destination directory holds and its source does not is removed, after all else and only
    /// if nothing failed; what stands in the way of an entry is removed just before it. Default: nothing
    /// is removed. A server takes it from those only who may delete and list.
    pub delete: Option<Deleting>,
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
    /// An interrupted run leaves what it has of a file that takes long, with a journal of what is
    /// proved, and one that copies the same file to the same place goes on with it, after it has proved
    /// it where it lies. Default yes. Without it everything is fetched anew and nothing is left. Files
    /// that nothing proves ([`HashKind::None`]) are always fetched anew.
    pub resume: bool,
    /// How many bytes of file content are read a second, at most; in both directions and over every
    /// transport, what is read again counted too. At least so many that a chunk takes 8 s at most.
    /// Default: no limit.
    pub bytes_per_s: Option<NonZeroU64>,
    /// When the session is lost, the transfer goes on in another: the client connects again until nothing
    /// has moved for [`Self::stall_timeout`]. Default yes. Without it the transfer ends, and a rerun goes on.
    pub reconnect: bool,
    /// What becomes of the content of a file that is replaced. Default: chunks that it has already are
    /// taken from it and do not travel ([`Reuse::delta`]), each proved like one that does. That is for
    /// files of several chunks, and with a hash. A server does it for those who may read.
    pub reuse: Reuse,
    /// The first failure ends the run. Default no: a tree goes on and lists what failed.
    pub fail_early: bool,
    /// The run ends if nothing moved for this long: no entry was settled and less than 64 KiB travelled,
    /// whatever else the server said. Default 120 s. It is also how long a lost session is tried to be
    /// made anew.
    pub stall_timeout: Duration,
    /// Its id, for those who must know it before it starts. Never give two transfers the same.
    /// Default: a fresh one.
    pub id: Option<TransferId>,
}

impl Default for TransferOptions {
    fn default() -> Self {
        Self {
            recursive: false,
            filters: Vec::new(),
            dry_run: false,
            delete: None,
            preserve: Preserve::default(),
            hash: HashKind::Blake3,
            chunk: ChunkSize::DEFAULT,
            overwrite: Overwrite::IfDifferent,
            make_parents: false,
            sync: true,
            resume: true,
            bytes_per_s: None,
            reconnect: true,
            reuse: Reuse {
                delta: true,
                ..Reuse::default()
            },
            fail_early: false,
            stall_timeout: Duration::from_secs(120),
            id: None,
        }
    }
}

impl FilterRule {
    /// Whether all of these can be used together.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`], with the first pattern that is none.
    pub fn check(rules: &[Self]) -> Result<(), Error> {
        let checked = Filters::new(rules);
        checked
            .map(drop)
            .map_err(|error| Error::new(ErrorKind::Usage, error.to_string()))
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
