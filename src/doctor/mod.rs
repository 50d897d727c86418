//! What keeps this machine from RDMA, and the command that mends each thing.
//!
//! ```text
//!  machine   what /sys, /proc and /dev say    trial   registering memory, which only trying tells
//!  judge     findings from that, pure         route   which interface leads to a host
//! ```
//!
//! In: directories to try, a host. Out: a [`Diagnosis`], its findings in the order of their causes.
//! Whether rails to a host come up is found out by a client; [`Diagnosis::add_rails`] takes what it
//! reports. Nothing here prints, changes the machine, or needs privileges.

mod judge;
mod machine;
mod route;
mod trial;

use std::path::{Path, PathBuf};

use crate::client::TransportReport;
use crate::error::Error;
use crate::options::RdmaOptions;
use crate::session::rails::adapters::survey;
use crate::sys::verbs;
use crate::transport::rdma::{self, PortFacts, RailPolicy};

use machine::Machine;

/// What is to be found out.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Questions {
    /// Directories or files whose file systems are tried. None: the current directory and
    /// `/dev/shm`.
    pub paths: Vec<PathBuf>,
    /// A host that the route to is looked at.
    pub host: Option<(String, u16)>,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// As it should be.
    Ok,
    /// RDMA may work, but not as well as it could, or not to everybody.
    Warning,
    /// RDMA does not work for what this is about.
    Problem,
    /// Of no use for RDMA here, or not needed.
    Skipped,
}

impl Status {
    /// As programs read it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Problem => "problem",
            Self::Skipped => "skipped",
        }
    }
}

/// What a finding is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Topic {
    /// The running kernel.
    Kernel,
    /// Where the machine runs.
    Cloud,
    /// A shared library.
    Library,
    /// An RDMA device, or that there is none.
    Device,
    /// A file in `/dev/infiniband`.
    Node,
    /// A port of a device.
    Port,
    /// The limit on locked memory.
    Memlock,
    /// Registering memory.
    Registration,
    /// The way to the host.
    Route,
    /// Rails to the host.
    Rails,
}

impl Topic {
    /// As programs read it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Cloud => "cloud",
            Self::Library => "library",
            Self::Device => "device",
            Self::Node => "node",
            Self::Port => "port",
            Self::Memlock => "memlock",
            Self::Registration => "registration",
            Self::Route => "route",
            Self::Rails => "rails",
        }
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Check {
    /// What it is about.
    pub topic: Topic,
    /// Which one: a device, a path, a library; may be empty.
    pub about: String,
    /// How bad it is.
    pub status: Status,
    /// A sentence.
    pub text: String,
    /// The command that mends it: always for warnings and problems.
    pub fix: Option<String>,
}

impl Check {
    fn ok(topic: Topic, about: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            topic,
            about: about.into(),
            status: Status::Ok,
            text: text.into(),
            fix: None,
        }
    }

    fn problem(
        topic: Topic,
        about: impl Into<String>,
        text: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            status: Status::Problem,
            fix: Some(fix.into()),
            ..Self::ok(topic, about, text)
        }
    }

    fn warning(
        topic: Topic,
        about: impl Into<String>,
        text: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            status: Status::Warning,
            ..Self::problem(topic, about, text, fix)
        }
    }

    fn skipped(topic: Topic, about: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            status: Status::Skipped,
            ..Self::ok(topic, about, text)
        }
    }
}

/// All findings, and what comes of them.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Diagnosis {
    /// In the order of causes: what is mended first may mend what follows.
    pub checks: Vec<Check>,
    /// A port can be used and memory can be registered; with a host, rails came up.
    pub would_use_rdma: bool,
}

impl Diagnosis {
    /// Adds what a client with [`TransportChoice::Rdma`](crate::TransportChoice::Rdma) was told of
    /// its connection to `host`; from then on, that decides.
    pub fn add_rails(&mut self, host: &str, outcome: &Result<TransportReport, Error>) {
        let check = judge::rails(host, outcome);
        self.would_use_rdma = check.status == Status::Ok;
        self.checks.push(check);
    }
}

/// Looks at this machine. Blocks: for names to be resolved and for a few system calls.
pub fn examine(questions: &Questions) -> Diagnosis {
    let machine = Machine::read(Path::new("/"));
    let library = verbs::library().map_err(|why| why.to_string());
    let cm = verbs::cm_library().map_err(|why| why.to_string());
    let mut checks = vec![judge::kernel(&machine)];
    checks.extend(judge::cloud(&machine));
    checks.extend(judge::libraries(&machine, &library, &cm));
    let listed = verbs::devices().map_err(|why| why.to_string());
    let listed = listed.map(|devices| {
        let told = devices
            .iter()
            .map(|device| (device.name().to_owned(), device.transport()));
        told.collect::<Vec<_>>()
    });
    checks.extend(judge::devices(&machine, listed.as_deref()));
    checks.extend(judge::nodes(&machine));
    let ports = ports();
    checks.extend(ports.iter().filter_map(|port| judge::port(&machine, port)));
    checks.extend(
        ports
            .iter()
            .filter_map(|port| judge::oracle(&machine, port)),
    );
    checks.push(judge::memlock(&machine));
    let usable = survey(&RdmaOptions::default()).ports;
    let mut devices: Vec<&str> = usable.iter().map(|port| port.device.as_str()).collect();
    devices.dedup();
    let tried = trial::run(&machine, &devices, &questions.paths);
    let registers = tried.registers;
    checks.extend(tried.checks);
    if let Some((host, port)) = &questions.host {
        checks.push(judge::route(
            &machine,
            host,
            &route::sources(host, *port),
            &ports,
        ));
    }
    Diagnosis {
        checks,
        would_use_rdma: !usable.is_empty() && registers,
    }
}

/// Every port that could be asked; why others could not is found with their devices.
fn ports() -> Vec<PortFacts> {
    rdma::adapters().map_or_else(
        |_| Vec::new(),
        |adapters| adapters.ports(&RailPolicy::default()),
    )
}
