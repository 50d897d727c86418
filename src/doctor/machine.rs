//! What the kernel tells of itself and of the hardware, read once from /sys, /proc, /dev and /etc.
//!
//! What can't be read is left empty: absence is judged elsewhere. The tree's root is a parameter, so
//! that tests can lay one out.

use std::fs;
use std::path::Path;

use rustix::fs::Access;
use rustix::process::{Resource, getrlimit};

/// The bit of CAP_IPC_LOCK in a set of capabilities.
const CAP_IPC_LOCK: u64 = 1 << 14;

/// See the module's first paragraph.
#[derive(Clone, Debug, Default)]
pub(super) struct Machine {
    /// The kernel's release, as `uname -r` has it.
    pub(super) kernel: String,
    /// `ID` and `ID_LIKE` of os-release.
    pub(super) system: String,
    /// `sys_vendor` of DMI, and the chassis's tag.
    pub(super) vendor: String,
    pub(super) asset_tag: String,
    pub(super) is_root: bool,
    /// Loaded modules, or those that are part of the kernel and show in /sys.
    pub(super) modules: Vec<String>,
    /// Modules that the kernel has on disk.
    pub(super) modules_on_disk: Vec<String>,
    /// RDMA devices that the kernel has.
    pub(super) devices: Vec<Device>,
    pub(super) cards: Vec<Card>,
    pub(super) netdevs: Vec<Netdev>,
    /// The connection manager's file can be used; nothing if it is not there.
    pub(super) rdma_cm: Option<bool>,
    /// Version of the installed rdma-core.
    pub(super) rdma_core: Option<String>,
    /// Soft limit on locked memory in bytes; nothing: none.
    pub(super) memlock: Option<u64>,
    /// CAP_IPC_LOCK is effective, with which the limit does not count.
    pub(super) may_lock: bool,
    /// Interfaces that wpa_supplicant authenticates.
    pub(super) supplicants: Vec<String>,
}

/// An RDMA device as the kernel shows it.
#[derive(Clone, Debug, Default)]
pub(super) struct Device {
    pub(super) name: String,
    pub(super) driver: String,
    pub(super) firmware: String,
    pub(super) netdevs: Vec<String>,
    /// Its file in /dev/infiniband, and whether it is there and this user may open it.
    pub(super) node: Option<(String, NodeState)>,
}

/// A file of /dev/infiniband.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeState {
    Missing,
    Forbidden,
    Usable,
}

/// A network card on the PCI bus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Card {
    /// Where on the bus.
    pub(super) slot: String,
    pub(super) vendor: u32,
    pub(super) device: u32,
    /// Its driver, if one has it.
    pub(super) driver: Option<String>,
}

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Netdev {
    pub(super) name: String,
    pub(super) mtu: u32,
    /// It is up, as its administrator set it.
    pub(super) is_up: bool,
}

impl Machine {
    pub(super) fn read(root: &Path) -> Self {
        let uname = rustix::system::uname();
        let kernel = uname.release().to_string_lossy().into_owned();
        let dmi = root.join("sys/class/dmi/id");
        Self {
            system: system(&text(&root.join("etc/os-release"))),
            vendor: text(&dmi.join("sys_vendor")),
            asset_tag: text(&dmi.join("chassis_asset_tag")),
            is_root: rustix::process::geteuid().is_root(),
            modules: names(&root.join("sys/module")),
            modules_on_disk: modules_on_disk(&root.join("lib/modules").join(&kernel)),
            devices: devices(root),
            cards: cards(&root.join("sys/bus/pci/devices")),
            netdevs: netdevs(&root.join("sys/class/net")),
            rdma_cm: match node_state(&root.join("dev/infiniband/rdma_cm")) {
                NodeState::Missing => None,
                state => Some(state == NodeState::Usable),
            },
            rdma_core: rdma_core(root),
            memlock: getrlimit(Resource::Memlock).current,
            may_lock: has_ipc_lock(&text(&root.join("proc/self/status"))),
            supplicants: names(&root.join("run/wpa_supplicant")),
            kernel,
        }
    }

    /// Whether a module is loaded.
    pub(super) fn has_module(&self, name: &str) -> bool {
        self.modules.iter().any(|module| module == name)
    }

    /// Whether a module could be loaded. True if the disk says nothing about modules.
    pub(super) fn could_load(&self, name: &str) -> bool {
        self.modules_on_disk.is_empty()
            || self.has_module(name)
            || self.modules_on_disk.iter().any(|module| module == name)
    }

    pub(super) fn netdev(&self, name: &str) -> Option<&Netdev> {
        self.netdevs.iter().find(|netdev| netdev.name == name)
    }
}

fn text(path: &Path) -> String {
    // Not all of /etc and /sys is UTF-8.
    let bytes = fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

/// The names in a folder, in order.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(Result::ok)
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// The last component of what a link leads to.
fn link(path: &Path) -> Option<String> {
    let target = fs::read_link(path).ok()?;
    Some(target.file_name()?.to_string_lossy().into_owned())
}

fn system(os_release: &str) -> String {
    let values = os_release
        .lines()
        .filter_map(|line| line.strip_prefix("ID=").or(line.strip_prefix("ID_LIKE=")))
        .map(|value| value.trim_matches('"'));
    values.collect::<Vec<_>>().join(" ")
}

fn modules_on_disk(folder: &Path) -> Vec<String> {
    let listed = [
        text(&folder.join("modules.dep")),
        text(&folder.join("modules.builtin")),
    ];
    let paths = listed.iter().flat_map(|list| list.lines());
    let stem = |line: &str| {
        let path = line.split(':').next().unwrap_or_default();
        let file = path.rsplit('/').next().unwrap_or_default();
        file.split('.').next().unwrap_or_default().replace('-', "_")
    };
    paths.map(stem).collect()
}

fn devices(root: &Path) -> Vec<Device> {
    let class = root.join("sys/class/infiniband");
    let nodes = root.join("sys/class/infiniband_verbs");
    let node_of = |device: &str| {
        let node = names(&nodes)
            .into_iter()
            .find(|node| text(&nodes.join(node).join("ibdev")) == device)?;
        let path = root.join("dev/infiniband").join(&node);
        let state = node_state(&path);
        Some((node, state))
    };
    let device = |name: String| {
        let folder = class.join(&name);
        // Software devices have no PCI device behind them, but a parent.
        let parent = text(&folder.join("parent"));
        let mut netdevs = names(&folder.join("device/net"));
        if !parent.is_empty() {
            netdevs.push(parent.clone());
        }
        let driver = link(&folder.join("device/driver"));
        Device {
            driver: driver.unwrap_or_else(|| {
                let is_soft = if parent.is_empty() { "" } else { "soft-RoCE" };
                is_soft.to_owned()
            }),
            firmware: text(&folder.join("fw_ver")),
            node: node_of(&name),
            netdevs,
            name,
        }
    };
    names(&class).into_iter().map(device).collect()
}

fn node_state(path: &Path) -> NodeState {
    if !path.exists() {
        NodeState::Missing
    } else if rustix::fs::access(path, Access::READ_OK | Access::WRITE_OK).is_err() {
        NodeState::Forbidden
    } else {
        NodeState::Usable
    }
}

fn cards(bus: &Path) -> Vec<Card> {
    let card = |slot: String| {
        let folder = bus.join(&slot);
        let number = |name| {
            let text = text(&folder.join(name));
            u32::from_str_radix(text.trim_start_matches("0x"), 16).ok()
        };
        // Of class "network controller".
        (number("class")? >> 16 == 2).then_some(())?;
        Some(Card {
            vendor: number("vendor")?,
            device: number("device")?,
            driver: link(&folder.join("driver")),
            slot,
        })
    };
    names(bus).into_iter().filter_map(card).collect()
}

fn netdevs(class: &Path) -> Vec<Netdev> {
    let netdev = |name: String| {
        let folder = class.join(&name);
        let flags = text(&folder.join("flags"));
        let flags = u32::from_str_radix(flags.trim_start_matches("0x"), 16).ok()?;
        Some(Netdev {
            mtu: text(&folder.join("mtu")).parse().ok()?,
            is_up: flags & 1 == 1,
            name,
        })
    };
    names(class).into_iter().filter_map(netdev).collect()
}

/// From what stands behind the names of the library: `libibverbs.so.1.14.44.0` is of release 44.0.
fn rdma_core(root: &Path) -> Option<String> {
    [
        "usr/lib/x86_64-linux-gnu",
        "usr/lib/aarch64-linux-gnu",
        "usr/lib64",
        "usr/lib",
    ]
    .iter()
    .find_map(|folder| link(&root.join(folder).join("libibverbs.so.1")))
    .and_then(|file| {
        let numbers = file.strip_prefix("libibverbs.so.1.")?;
        Some(numbers.split_once('.')?.1.to_owned())
    })
}

fn has_ipc_lock(status: &str) -> bool {
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|set| u64::from_str_radix(set.trim(), 16).ok())
        .is_some_and(|set| set & CAP_IPC_LOCK != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn put(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn a_laid_out_tree_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        put(root, "etc/os-release", "ID=ubuntu\nID_LIKE=\"debian\"\n");
        put(root, "sys/class/dmi/id/sys_vendor", "QEMU\n");
        put(root, "sys/class/infiniband/rxe0/parent", "net0\n");
        put(root, "sys/class/infiniband_verbs/uverbs3/ibdev", "rxe0\n");
        put(root, "dev/infiniband/uverbs3", "");
        put(root, "sys/class/net/net0/flags", "0x1003\n");
        put(root, "sys/class/net/net0/mtu", "4200\n");
        let card = "sys/bus/pci/devices/0000:01:00.0";
        for (name, text) in [
            ("class", "0x020700"),
            ("vendor", "0x15b3"),
            ("device", "0x1017"),
        ] {
            put(root, &format!("{card}/{name}"), text);
        }
        put(root, "usr/lib64/libibverbs.so.1.14.44.0", "");
        symlink(
            "libibverbs.so.1.14.44.0",
            root.join("usr/lib64/libibverbs.so.1"),
        )
        .unwrap();
        let kernel = rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned();
        let list = format!("lib/modules/{kernel}/modules.dep");
        put(
            root,
            &list,
            "kernel/mlx5-ib.ko.xz: kernel/mlx5_core.ko.xz\n",
        );

        let machine = Machine::read(root);
        assert_eq!(
            (machine.system.as_str(), machine.vendor.as_str()),
            ("ubuntu debian", "QEMU")
        );
        let [device] = &machine.devices[..] else {
            panic!("{:?}", machine.devices)
        };
        assert_eq!(
            (device.driver.as_str(), &device.netdevs[..]),
            ("soft-RoCE", &["net0".to_owned()][..])
        );
        assert_eq!(device.node, Some(("uverbs3".to_owned(), NodeState::Usable)));
        assert_eq!(machine.cards[0].vendor, 0x15b3);
        assert!(
            machine
                .netdev("net0")
                .is_some_and(|netdev| netdev.is_up && netdev.mtu == 4200)
        );
        assert_eq!(machine.rdma_core.as_deref(), Some("44.0"));
        assert_eq!(machine.rdma_cm, None);
        assert!(machine.could_load("mlx5_ib") && !machine.could_load("rdma_rxe"));
    }

    #[test]
    fn capabilities_are_read_by_bit() {
        assert!(has_ipc_lock("Name:\tx\nCapEff:\t0000000000004000\n"));
        assert!(!has_ipc_lock("CapEff:\t0000000000003fff\n"));
        assert!(!has_ipc_lock(""));
    }
}
