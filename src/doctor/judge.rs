//! Findings from facts: pure, so that every machine can be judged on any.
//!
//! Every warning and problem has the command that mends it, as it is typed on this machine: with
//! `sudo` unless the user is root, with the distribution's own package manager.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

use super::machine::{Card, Machine, Netdev, NodeState};
use super::route::Way;
use super::{Check, Topic};
use crate::client::TransportReport;
use crate::error::{Error, ErrorKind};
use crate::sys::verbs::Transport;
use crate::transport::rdma::{GidKind, LinkLayer, PortFacts};

/// Locked memory that transfers may come to: 256 MiB of slots, and as much of files in place.
const MEMLOCK_WANTED: u64 = 512 << 20;
/// What RoCE adds to a packet's payload at most, as the kernel counts it.
const ROCE_OVERHEAD: u32 = 96;
const AZURE_TAG: &str = "7783-7084-3265-9085-8269-3286-77";
const ORACLE_TAG: &str = "OracleCloud.com";
const PCI_MELLANOX: u32 = 0x15b3;
const PCI_MICROSOFT: u32 = 0x1414;
const PCI_VMWARE: u32 = 0x15ad;
const MEMLOCK_FIX: &str = "printf '* - memlock unlimited\\n' | sudo tee \
                           /etc/security/limits.d/90-rdcp.conf  # then log in again";

/// A word as a shell takes it.
pub(super) fn quoted(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-:".contains(&byte);
    if !word.is_empty() && word.bytes().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

impl Machine {
    /// A command that only root can do.
    fn as_root(&self, command: &str) -> String {
        if self.is_root {
            return command.to_owned();
        }
        format!("sudo {}", command.replace(" && ", " && sudo "))
    }

    fn install(&self, debian: &str, fedora: &str) -> String {
        let is = |names: &[&str]| {
            let mut words = self.system.split_whitespace();
            words.any(|word| names.contains(&word))
        };
        if is(&["fedora", "rhel", "centos", "mariner", "azurelinux"]) {
            self.as_root(&format!("dnf install {fedora}"))
        } else if is(&["suse", "sles", "opensuse"]) {
            self.as_root(&format!("zypper install {debian}"))
        } else {
            self.as_root(&format!("apt-get install {debian}"))
        }
    }

    /// Loads modules, or installs the package that has them.
    fn load(&self, modules: &[&str]) -> String {
        if modules.iter().all(|module| self.could_load(module)) {
            return self.as_root(&format!("modprobe -a {}", modules.join(" ")));
        }
        let debian = if self.system.contains("ubuntu") {
            format!("linux-modules-extra-{}", self.kernel)
        } else {
            "linux-image-amd64".to_owned()
        };
        self.install(&debian, "kernel-modules-extra")
    }

    fn memlock_fix(&self) -> String {
        if self.is_root {
            // A star stands for all users but root.
            MEMLOCK_FIX.replace("sudo ", "").replace("'* ", "'root ")
        } else {
            MEMLOCK_FIX.to_owned()
        }
    }
}

pub(super) fn kernel(machine: &Machine) -> Check {
    Check::ok(Topic::Kernel, "", format!("Linux {}", machine.kernel))
}

/// Where the machine runs, if that says something about RDMA.
pub(super) fn cloud(machine: &Machine) -> Option<Check> {
    let (about, text) = if machine.asset_tag == AZURE_TAG {
        (
            "Azure",
            "RDMA is InfiniBand in sizes for HPC, or MANA where guest RDMA is switched on",
        )
    } else if machine.asset_tag == ORACLE_TAG {
        (
            "OCI",
            "RDMA is RoCE v2 in cluster networks, whose ports want 802.1X before they pass traffic; \
                 rdma.traffic_class is 105 in shapes for HPC and 41 in those with GPUs",
        )
    } else if machine.vendor == "VMware, Inc." {
        (
            "VMware",
            "RDMA is PVRDMA, which reaches only other machines with PVRDMA",
        )
    } else if machine.vendor == "QEMU" {
        (
            "QEMU",
            "a virtual machine: RDMA is what its host hands through, or soft-RoCE",
        )
    } else if machine.vendor == "Microsoft Corporation" {
        (
            "Hyper-V",
            "a virtual machine: RDMA is what its host hands through, or soft-RoCE",
        )
    } else {
        return None;
    };
    Some(Check::ok(Topic::Cloud, about, text))
}

pub(super) fn libraries(
    machine: &Machine,
    library: &Result<(), String>,
    cm: &Result<(), String>,
) -> Vec<Check> {
    let release = machine.rdma_core.as_ref().map_or_else(
        || "its release is not known".to_owned(),
        |release| format!("rdma-core {release}"),
    );
    let verbs = match library {
        Ok(()) => Check::ok(Topic::Library, "libibverbs", release),
        Err(why) => Check::problem(
            Topic::Library,
            "libibverbs",
            why.clone(),
            machine.install("libibverbs1 ibverbs-providers", "libibverbs"),
        ),
    };
    let cm = match cm {
        Ok(()) => Check::ok(
            Topic::Library,
            "librdmacm",
            "it is there, for connect = \"cm\"",
        ),
        Err(why) => Check {
            fix: Some(machine.install("librdmacm1", "librdmacm")),
            ..Check::skipped(
                Topic::Library,
                "librdmacm",
                format!("{why}; rails do without it, but for connect = \"cm\""),
            )
        },
    };
    vec![verbs, cm]
}

/// The kernel's devices, as the library lists them (nothing: the library is not there).
pub(super) fn devices(
    machine: &Machine,
    listed: Result<&[(String, Transport)], &String>,
) -> Vec<Check> {
    if machine.devices.is_empty() {
        return vec![no_device(machine)];
    }
    let mut checks = Vec::new();
    for device in &machine.devices {
        let name = device.name.as_str();
        let mut text = device.driver.clone();
        if !device.firmware.is_empty() {
            let _ = write!(text, ", firmware {}", device.firmware);
        }
        if !device.netdevs.is_empty() {
            let _ = write!(text, ", on {}", device.netdevs.join(", "));
        }
        let text = text.trim_start_matches(", ");
        let listed = listed.map(|all| all.iter().find(|(listed, _)| listed == name));
        checks.push(match listed {
            _ if name.starts_with("manae_") => Check::skipped(
                Topic::Device,
                name,
                "it does Ethernet only, no reliable connections",
            ),
            // Why is told about the library.
            Err(_) => Check::ok(Topic::Device, name, format!("the kernel has it: {text}")),
            Ok(Some((_, Transport::InfiniBand))) => Check::ok(Topic::Device, name, text),
            Ok(Some((_, Transport::Iwarp))) => Check {
                fix: device
                    .netdevs
                    .first()
                    .map(|netdev| soft_roce(machine, netdev)),
                ..Check::skipped(
                    Topic::Device,
                    name,
                    "iWARP: what a READ brings must be writable for the peer, and no peer is given \
                     that right; soft-RoCE on its interface works",
                )
            },
            Ok(Some((_, Transport::Other(_)))) => {
                Check::skipped(Topic::Device, name, "it has no reliable connections")
            }
            Ok(None) if device.node.is_none() => Check::problem(
                Topic::Device,
                name,
                "the kernel has it, but programs can't reach it without the module ib_uverbs",
                machine.load(&["ib_uverbs"]),
            ),
            Ok(None) => Check::problem(
                Topic::Device,
                name,
                format!("the kernel has it ({text}), but libibverbs has no provider for it"),
                machine.install("ibverbs-providers", "libibverbs"),
            ),
        });
    }
    checks
}

fn no_device(machine: &Machine) -> Check {
    for card in &machine.cards {
        let Some((what, modules)) = known(card) else {
            continue;
        };
        let driver = card.driver.as_deref().map_or_else(
            || "it has no driver".to_owned(),
            |driver| format!("the driver {driver} has it"),
        );
        let lacking: Vec<&str> = modules
            .iter()
            .copied()
            .filter(|module| !machine.could_load(module))
            .collect();
        let lacking = if lacking.is_empty() {
            String::new()
        } else {
            format!("; this kernel comes without {}", lacking.join(", "))
        };
        let text = format!(
            "there is no RDMA device, but a card that can be one: {what} at {} \
             ({:04x}:{:04x}), {driver}{lacking}",
            card.slot, card.vendor, card.device,
        );
        return Check::problem(Topic::Device, "", text, machine.load(modules));
    }
    let netdev = machine
        .netdevs
        .iter()
        .filter(|netdev| netdev.name != "lo")
        .min_by_key(|netdev| !netdev.is_up);
    let netdev = netdev.map_or("lo", |netdev: &Netdev| netdev.name.as_str());
    let text = "there is no RDMA device and no card that can be one; soft-RoCE does it in software, \
                slower than tcp, good for trying";
    Check::problem(Topic::Device, "", text, soft_roce(machine, netdev))
}

fn soft_roce(machine: &Machine, netdev: &str) -> String {
    if !machine.could_load("rdma_rxe") {
        return machine.load(&["rdma_rxe"]);
    }
    let netdev = quoted(netdev);
    machine.as_root(&format!(
        "modprobe rdma_rxe && rdma link add rxe0 type rxe netdev {netdev}"
    ))
}

/// What a card is, and the modules that make an RDMA device of it.
fn known(card: &Card) -> Option<(&'static str, &'static [&'static str])> {
    match (card.vendor, card.device) {
        // ConnectX-3 and older; all newer ones are of the other driver.
        (PCI_MELLANOX, 0x1000..=0x1010) => Some(("Mellanox ConnectX-3", &["mlx4_ib", "ib_uverbs"])),
        (PCI_MELLANOX, _) => Some(("NVIDIA (Mellanox) ConnectX", &["mlx5_ib", "ib_uverbs"])),
        (PCI_MICROSOFT, 0x00b9 | 0x00ba) => Some(("Microsoft MANA", &["mana_ib", "ib_uverbs"])),
        (PCI_VMWARE, 0x0820) => Some(("VMware PVRDMA", &["vmw_pvrdma", "ib_uverbs"])),
        _ => None,
    }
}

/// The files through which programs reach devices.
pub(super) fn nodes(machine: &Machine) -> Vec<Check> {
    let mut checks = Vec::new();
    for (node, state) in machine.devices.iter().filter_map(|d| d.node.as_ref()) {
        let path = format!("/dev/infiniband/{node}");
        checks.push(match state {
            NodeState::Usable => Check::ok(Topic::Node, path, "this user may open it"),
            NodeState::Forbidden => {
                let fix = machine.as_root(&format!("chmod a+rw {path}"));
                Check::problem(Topic::Node, path, "this user may not open it", fix)
            }
            NodeState::Missing => {
                let text = "the kernel has the device, its file is not there; a container must be \
                            started with --device=/dev/infiniband";
                let fix = "udevadm trigger --action=add --subsystem-match=infiniband_verbs";
                Check::problem(Topic::Node, path, text, machine.as_root(fix))
            }
        });
    }
    if machine.devices.is_empty() {
        return checks;
    }
    let path = "/dev/infiniband/rdma_cm";
    checks.push(match machine.rdma_cm {
        Some(true) => Check::ok(Topic::Node, path, "it is there, for connect = \"cm\""),
        Some(false) => Check {
            fix: Some(machine.as_root(&format!("chmod a+rw {path}"))),
            ..Check::skipped(
                Topic::Node,
                path,
                "this user may not open it; rails do without it, but for connect = \"cm\"",
            )
        },
        None => Check {
            fix: Some(machine.load(&["rdma_ucm"])),
            ..Check::skipped(
                Topic::Node,
                path,
                "it is not there; rails do without it, but for connect = \"cm\"",
            )
        },
    });
    checks
}

/// A port of a device that reliable connections can be had from.
pub(super) fn port(machine: &Machine, facts: &PortFacts) -> Option<Check> {
    if facts.is_iwarp {
        return None;
    }
    let about = format!("{}:{}", facts.device, facts.port);
    let is_roce = facts.link_layer == LinkLayer::Ethernet;
    let netdev = netdev_of(machine, facts);
    if !facts.active {
        let text = format!("its state is {}", facts.state);
        let fix = match netdev {
            Some(netdev) if facts.state == "down" => {
                machine.as_root(&format!("ip link set dev {} up", quoted(netdev)))
            }
            _ if !is_roce && facts.state != "down" => machine.as_root("systemctl start opensm"),
            _ => format!("rdma link show {}/{}", facts.device, facts.port),
        };
        let text = match facts.state.as_str() {
            "down" => format!("{text}: no link, or its interface is not up"),
            _ if !is_roce => format!("{text}: it waits for a subnet manager on the fabric"),
            _ => text,
        };
        return Some(Check::problem(Topic::Port, about, text, fix));
    }
    let mut text = match facts.link_layer {
        LinkLayer::Ethernet => "active, RoCE".to_owned(),
        LinkLayer::InfiniBand => "active, InfiniBand".to_owned(),
        LinkLayer::Other => {
            let text = "it is neither InfiniBand nor Ethernet";
            return Some(Check::skipped(Topic::Port, about, text));
        }
    };
    if facts.speed_mbps > 0 {
        let _ = write!(text, ", {} Gbit/s", f64::from(facts.speed_mbps) / 1000.0);
    }
    let _ = write!(text, ", MTU {}", facts.mtu);
    if !is_roce {
        return Some(Check::ok(Topic::Port, about, text));
    }
    let interface = quoted(netdev.unwrap_or("INTERFACE"));
    let addresses: Vec<IpAddr> = facts
        .gids
        .iter()
        .filter(|gid| gid.kind == GidKind::RoceV2)
        .map(|gid| ip(gid.gid))
        .collect();
    if !addresses.iter().any(|address| !is_link_local(*address)) {
        let text = format!(
            "{text}, but no RoCE v2 address with an IP address behind it: give the interface one \
             that its network knows"
        );
        let fix = machine.as_root(&format!("ip address add ADDRESS/PREFIX dev {interface}"));
        // Link-local addresses reach peers on the same link.
        return Some(if facts.gids.is_empty() {
            Check::problem(Topic::Port, about, text, fix)
        } else {
            Check::warning(Topic::Port, about, text, fix)
        });
    }
    let best = addresses.iter().find(|address| address.is_ipv4());
    let best = best.or(addresses.iter().find(|address| !is_link_local(**address)));
    if let Some(address) = best {
        let _ = write!(text, ", RoCE v2 with {address} on {interface}");
    }
    if let Some(known) = netdev.and_then(|name| machine.netdev(name)) {
        let allowed = roce_mtu(known.mtu);
        if facts.mtu < allowed {
            let mtu = known.mtu;
            let text = format!("{text}: the interface's MTU of {mtu} allows {allowed}");
            // The kernel passes on changes only.
            let fix = format!(
                "ip link set dev {interface} mtu 1280 && ip link set dev {interface} mtu {mtu}"
            );
            let fix = machine.as_root(&fix);
            return Some(Check::warning(Topic::Port, about, text, fix));
        }
        if facts.mtu < 4096 {
            let _ = write!(text, "; an interface MTU of 4200 would allow 4096");
        }
    }
    Some(Check::ok(Topic::Port, about, text))
}

fn netdev_of<'a>(machine: &'a Machine, facts: &'a PortFacts) -> Option<&'a str> {
    let by_gid = facts.gids.iter().find_map(|gid| gid.netdev.as_deref());
    by_gid.or_else(|| {
        let device = machine.devices.iter().find(|d| d.name == facts.device)?;
        device.netdevs.first().map(String::as_str)
    })
}

/// The RoCE payload that fits the frames of an interface.
fn roce_mtu(netdev_mtu: u32) -> u32 {
    let room = netdev_mtu.saturating_sub(ROCE_OVERHEAD);
    [4096, 2048, 1024, 512]
        .into_iter()
        .find(|mtu| *mtu <= room)
        .unwrap_or(256)
}

fn ip(gid: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(gid).to_canonical()
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// OCI's cluster networks pass traffic of ports that have authenticated themselves, and of no other.
pub(super) fn oracle(machine: &Machine, facts: &PortFacts) -> Option<Check> {
    if machine.asset_tag != ORACLE_TAG || !facts.active {
        return None;
    }
    let in_cluster = |address: IpAddr| match address {
        IpAddr::V4(v4) => {
            let [a, b, ..] = v4.octets();
            (a == 192 && b == 168) || (a == 10 && b & 0xf0 == 224)
        }
        IpAddr::V6(_) => false,
    };
    facts.gids.iter().find(|gid| in_cluster(ip(gid.gid)))?;
    let netdev = netdev_of(machine, facts)?;
    if machine.supplicants.iter().any(|known| known == netdev) {
        return None;
    }
    let text = "it is in a cluster network, and no wpa_supplicant runs for it: without 802.1X its \
                packets are dropped";
    let unit = format!("wpa_supplicant-wired@{}", quoted(netdev));
    let fix = machine.as_root(&format!("systemctl enable --now {unit}"));
    let about = format!("{}:{}", facts.device, facts.port);
    Some(Check::warning(Topic::Port, about, text, fix))
}

pub(super) fn memlock(machine: &Machine) -> Check {
    let shown = match machine.memlock {
        None => return Check::ok(Topic::Memlock, "", "locked memory is not limited"),
        Some(bytes) => format!("locked memory is limited to {} KiB", bytes >> 10),
    };
    if machine.may_lock {
        let text = format!("{shown}, which CAP_IPC_LOCK lifts");
        return Check::ok(Topic::Memlock, "", text);
    }
    if machine.memlock.is_some_and(|bytes| bytes >= MEMLOCK_WANTED) {
        return Check::ok(Topic::Memlock, "", shown);
    }
    let text = format!(
        "{shown}; transfers can register {} KiB",
        MEMLOCK_WANTED >> 10
    );
    Check::warning(Topic::Memlock, "", text, machine.memlock_fix())
}

/// Registering slots, with which every file can be served.
pub(super) fn slots(machine: &Machine, device: &str, failed: Option<&String>) -> Check {
    match failed {
        None => Check::ok(
            Topic::Registration,
            device,
            "slots can be registered (pool)",
        ),
        Some(why) => {
            let text = format!("slots can't be registered: {why}");
            Check::problem(Topic::Registration, device, text, machine.memlock_fix())
        }
    }
}

/// How files of a file system can be served, by what came of registering one in both ways.
pub(super) fn file_system(
    machine: &Machine,
    path: &str,
    kind: Option<&str>,
    device: &str,
    (on_demand, pinned): (Result<(), String>, Result<(), String>),
) -> Check {
    let on = kind.map_or_else(|| device.to_owned(), |kind| format!("{kind} on {device}"));
    let (text, why) = match (on_demand, pinned) {
        (Ok(()), _) => (format!("{on}: odp"), String::new()),
        (Err(odp), Ok(())) => (format!("{on}: mmap (odp: {odp})"), String::new()),
        (Err(odp), Err(mmap)) => (
            format!("{on}: pool, by copying (odp: {odp}; mmap: {mmap})"),
            mmap,
        ),
    };
    // The limit is what can be mended; what the file system does not do can't.
    if why.contains("limit on locked memory") {
        return Check::warning(Topic::Registration, path, text, machine.memlock_fix());
    }
    Check::ok(Topic::Registration, path, text)
}

/// The kind of file system that a path is on, by the kernel's table of mounts.
pub(super) fn file_system_kind(table: &str, path: &Path) -> Option<String> {
    let mounts = table.lines().filter_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let point = mount.split(' ').nth(4)?.replace("\\040", " ");
        let kind = kind.split(' ').next()?;
        path.starts_with(&point).then_some((point.len(), kind))
    });
    // Of mounts over each other, the last one counts.
    let (_, kind) = mounts.max_by_key(|(len, _)| *len)?;
    Some(kind.to_owned())
}

/// Whether the way to a host leaves from an interface that an RDMA port sits on.
pub(super) fn route(
    machine: &Machine,
    host: &str,
    ways: &Result<Vec<Way>, String>,
    ports: &[PortFacts],
) -> Check {
    let ways = match ways {
        Ok(ways) => ways,
        Err(why) => {
            let fix = format!("getent ahosts {}", quoted(host));
            return Check::problem(Topic::Route, host, why.clone(), fix);
        }
    };
    if ways.iter().any(Way::is_here) {
        return Check::ok(Topic::Route, host, "it is this machine");
    }
    for way in ways {
        let port = ports.iter().find(|port| {
            let is_it = |name: Option<&str>| name.is_some() && name == way.interface.as_deref();
            is_it(netdev_of(machine, port))
                || port
                    .gids
                    .iter()
                    .any(|gid| ip(gid.gid) == way.source || is_it(gid.netdev.as_deref()))
        });
        if let Some(port) = port {
            let interface = way.interface.as_deref().unwrap_or("its interface");
            let text = format!(
                "the way to {} leaves from {} on {interface}, which carries {}:{}",
                way.host, way.source, port.device, port.port
            );
            return Check::ok(Topic::Route, host, text);
        }
    }
    let Some(way) = ways.first() else {
        return Check::skipped(Topic::Route, host, "it has no address");
    };
    let interface = way.interface.as_deref().unwrap_or("an interface");
    let text = format!(
        "the way to {} leaves from {} on {interface}, which no RDMA port sits on",
        way.host, way.source
    );
    let active = ports.iter().find(|port| port.active && !port.is_iwarp);
    let Some(active) = active else {
        let netdev = way.interface.as_deref().unwrap_or("lo");
        return Check::problem(Topic::Route, host, text, soft_roce(machine, netdev));
    };
    match netdev_of(machine, active) {
        Some(netdev) if active.link_layer == LinkLayer::Ethernet => {
            let fix = format!("ip route replace {} dev {}", way.host, quoted(netdev));
            Check::warning(Topic::Route, host, text, machine.as_root(&fix))
        }
        _ => {
            let text = format!("{text}; an InfiniBand port has a fabric of its own");
            Check::skipped(Topic::Route, host, text)
        }
    }
}

/// What a client that wanted rdma was told.
pub(super) fn rails(host: &str, outcome: &Result<TransportReport, Error>) -> Check {
    let host_word = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let host_word = quoted(host_word.trim_matches(['[', ']']));
    match outcome {
        Ok(report) if report.transport == "rdma" => Check::ok(
            Topic::Rails,
            host,
            format!("they come up: {}", report.reason),
        ),
        Ok(report) => {
            let fix = format!("ssh {host_word} rdcp doctor");
            Check::problem(Topic::Rails, host, report.reason.clone(), fix)
        }
        Err(error) => {
            let mut text = error.message().to_owned();
            let mut cause = std::error::Error::source(error);
            while let Some(next) = cause {
                let _ = write!(text, ": {next}");
                cause = next.source();
            }
            let fix = match error.kind() {
                ErrorKind::Denied => format!("rdcp doctor --accept-new {}", quoted(host)),
                ErrorKind::TransportUnavailable => format!("ssh {host_word} rdcp doctor"),
                _ => format!("ssh {host_word} sudo systemctl start rdcpd"),
            };
            Check::problem(Topic::Rails, host, text, fix)
        }
    }
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
