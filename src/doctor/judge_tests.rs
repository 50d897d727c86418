use super::super::Status;
use super::super::machine::Device;
use super::*;
use crate::transport::rdma::GidFacts;

fn machine() -> Machine {
    Machine {
        kernel: "6.12.1".to_owned(),
        netdevs: vec![
            Netdev {
                name: "lo".to_owned(),
                mtu: 65536,
                is_up: true,
            },
            Netdev {
                name: "net0".to_owned(),
                mtu: 4200,
                is_up: true,
            },
        ],
        ..Machine::default()
    }
}

fn with_device(driver: &str) -> Machine {
    Machine {
        devices: vec![Device {
            name: "d0".to_owned(),
            driver: driver.to_owned(),
            netdevs: vec!["net0".to_owned()],
            node: Some(("uverbs0".to_owned(), NodeState::Usable)),
            ..Device::default()
        }],
        ..machine()
    }
}

fn facts(address: &str, kind: GidKind) -> PortFacts {
    let address: IpAddr = address.parse().unwrap();
    let gid = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    PortFacts {
        device: "d0".to_owned(),
        guid: 1,
        port: 1,
        link_layer: LinkLayer::Ethernet,
        active: true,
        state: "active".to_owned(),
        lid: 0,
        pkey_index: 0,
        pkey: 0xffff,
        mtu: 4096,
        speed_mbps: 100_000,
        gids: vec![GidFacts {
            index: 0,
            gid: gid.octets(),
            kind,
            netdev: Some("net0".to_owned()),
        }],
        max_qp_rd_atom: 16,
        max_qp_init_rd_atom: 16,
        max_msg_bytes: None,
        is_iwarp: false,
    }
}

#[track_caller]
fn assert_bad(check: &Check, status: Status, text: &str, fix: &str) {
    assert_eq!(check.status, status, "{check:?}");
    assert!(check.text.contains(text), "{check:?}");
    assert_eq!(check.fix.as_deref(), Some(fix), "{check:?}");
}

#[test]
fn packages_are_named_in_the_words_of_the_distribution() {
    let missing = Err("libibverbs.so.1 is missing".to_owned());
    for (system, fix) in [
        (
            "debian",
            "sudo apt-get install libibverbs1 ibverbs-providers",
        ),
        (
            "ubuntu debian",
            "sudo apt-get install libibverbs1 ibverbs-providers",
        ),
        ("rocky rhel centos fedora", "sudo dnf install libibverbs"),
        (
            "sles suse",
            "sudo zypper install libibverbs1 ibverbs-providers",
        ),
    ] {
        let machine = Machine {
            system: system.to_owned(),
            ..machine()
        };
        let checks = libraries(&machine, &missing, &Ok(()));
        assert_bad(&checks[0], Status::Problem, "missing", fix);
    }
    let checks = libraries(&machine(), &Ok(()), &missing);
    assert_eq!(checks[0].status, Status::Ok);
    assert_bad(
        &checks[1],
        Status::Skipped,
        "do without",
        "sudo apt-get install librdmacm1",
    );
}

#[test]
fn a_machine_without_a_device_is_told_which_driver_its_card_needs() {
    let card = |vendor, device| Card {
        slot: "0000:01:00.0".to_owned(),
        vendor,
        device,
        driver: Some("x".to_owned()),
    };
    for (vendor, device, module) in [
        (0x15b3, 0x1017, "mlx5_ib"),
        (0x15b3, 0x1007, "mlx4_ib"),
        (0x1414, 0x00ba, "mana_ib"),
        (0x15ad, 0x0820, "vmw_pvrdma"),
    ] {
        let machine = Machine {
            cards: vec![card(0x8086, 1), card(vendor, device)],
            ..machine()
        };
        let checks = devices(&machine, Ok(&[]));
        let fix = format!("sudo modprobe -a {module} ib_uverbs");
        assert_bad(&checks[0], Status::Problem, "card that can be one", &fix);
    }
    // VMware's network card that is no RDMA device.
    let plain = Machine {
        cards: vec![card(0x15ad, 0x07b0)],
        ..machine()
    };
    let soft = "sudo modprobe rdma_rxe && sudo rdma link add rxe0 type rxe netdev net0";
    assert_bad(
        &devices(&plain, Ok(&[]))[0],
        Status::Problem,
        "no card",
        soft,
    );
    let small = Machine {
        modules_on_disk: vec!["ext4".to_owned()],
        is_root: true,
        system: "ubuntu debian".to_owned(),
        ..plain
    };
    let fix = "apt-get install linux-modules-extra-6.12.1";
    assert_bad(
        &devices(&small, Ok(&[]))[0],
        Status::Problem,
        "no card",
        fix,
    );
}

#[test]
fn devices_are_judged_by_what_they_speak() {
    let machine = with_device("mlx5_core");
    let judged = |transport| devices(&machine, Ok(&[("d0".to_owned(), transport)]))[0].clone();
    assert_eq!(judged(Transport::InfiniBand).status, Status::Ok);
    assert_eq!(judged(Transport::Other(5)).status, Status::Skipped);
    let fix = "sudo modprobe rdma_rxe && sudo rdma link add rxe0 type rxe netdev net0";
    assert_bad(&judged(Transport::Iwarp), Status::Skipped, "iWARP", fix);
    let unknown = &devices(&machine, Ok(&[]))[0];
    assert_bad(
        unknown,
        Status::Problem,
        "no provider",
        "sudo apt-get install ibverbs-providers",
    );
    let mut hidden = machine.clone();
    hidden.devices[0].node = None;
    let fix = "sudo modprobe -a ib_uverbs";
    assert_bad(
        &devices(&hidden, Ok(&[]))[0],
        Status::Problem,
        "ib_uverbs",
        fix,
    );
    let mut ethernet = machine;
    ethernet.devices[0].name = "manae_0".to_owned();
    let listed = [("manae_0".to_owned(), Transport::InfiniBand)];
    assert_eq!(devices(&ethernet, Ok(&listed))[0].status, Status::Skipped);
}

#[test]
fn device_files_must_be_there_and_open_to_the_user() {
    let mut machine = with_device("x");
    let usable = nodes(&machine);
    assert_eq!(usable[0].status, Status::Ok);
    assert_bad(
        &usable[1],
        Status::Skipped,
        "do without",
        "sudo modprobe -a rdma_ucm",
    );
    machine.devices[0].node = Some(("uverbs0".to_owned(), NodeState::Forbidden));
    let fix = "sudo chmod a+rw /dev/infiniband/uverbs0";
    assert_bad(&nodes(&machine)[0], Status::Problem, "may not", fix);
    machine.devices[0].node = Some(("uverbs0".to_owned(), NodeState::Missing));
    let fix = "sudo udevadm trigger --action=add --subsystem-match=infiniband_verbs";
    assert_bad(&nodes(&machine)[0], Status::Problem, "container", fix);
}

#[test]
fn ports_are_judged_by_state_addresses_and_mtu() {
    let machine = with_device("x");
    let good = facts("10.0.0.1", GidKind::RoceV2);
    let judged = |facts: &PortFacts| port(&machine, facts).unwrap();
    let ok = judged(&good);
    assert_eq!(ok.status, Status::Ok);
    assert_eq!(
        ok.text,
        "active, RoCE, 100 Gbit/s, MTU 4096, RoCE v2 with 10.0.0.1 on net0"
    );

    let down = PortFacts {
        active: false,
        state: "down".to_owned(),
        ..good.clone()
    };
    assert_bad(
        &judged(&down),
        Status::Problem,
        "down",
        "sudo ip link set dev net0 up",
    );
    let waiting = PortFacts {
        state: "initialising".to_owned(),
        link_layer: LinkLayer::InfiniBand,
        ..down
    };
    assert_bad(
        &judged(&waiting),
        Status::Problem,
        "subnet manager",
        "sudo systemctl start opensm",
    );

    let small = PortFacts {
        mtu: 1024,
        ..good.clone()
    };
    let fix = "sudo ip link set dev net0 mtu 1280 && sudo ip link set dev net0 mtu 4200";
    assert_bad(&judged(&small), Status::Warning, "allows 4096", fix);

    let fix = "sudo ip address add ADDRESS/PREFIX dev net0";
    let local = facts("fe80::1", GidKind::RoceV2);
    assert_bad(&judged(&local), Status::Warning, "no RoCE v2 address", fix);
    let old = facts("10.0.0.1", GidKind::RoceV1);
    assert_bad(&judged(&old), Status::Warning, "no RoCE v2 address", fix);
    let none = PortFacts {
        gids: Vec::new(),
        ..good.clone()
    };
    assert_bad(&judged(&none), Status::Problem, "no RoCE v2 address", fix);
    assert_eq!(
        port(
            &machine,
            &PortFacts {
                is_iwarp: true,
                ..good
            }
        ),
        None
    );
}

#[test]
fn roce_has_what_is_left_of_a_frame() {
    for (netdev, roce) in [
        (1500, 1024),
        (4200, 4096),
        (4191, 2048),
        (9000, 4096),
        (100, 256),
    ] {
        assert_eq!(roce_mtu(netdev), roce, "{netdev}");
    }
}

#[test]
fn the_limit_on_locked_memory_counts_unless_it_is_lifted() {
    let judged = |limit: Option<u64>, may_lock| {
        memlock(&Machine {
            memlock: limit,
            may_lock,
            ..machine()
        })
    };
    let limited = |limit, may_lock| judged(limit, may_lock).status;
    assert_eq!(limited(None, false), Status::Ok);
    assert_eq!(limited(Some(1 << 30), false), Status::Ok);
    assert_eq!(limited(Some(8 << 20), true), Status::Ok);
    assert_bad(
        &judged(Some(8 << 20), false),
        Status::Warning,
        "8192 KiB",
        MEMLOCK_FIX,
    );
    let root = Machine {
        is_root: true,
        ..machine()
    };
    let fix = root.memlock_fix();
    assert!(
        fix.starts_with("printf 'root - memlock unlimited\\n' | tee /etc"),
        "{fix}"
    );
}

#[test]
fn trials_tell_how_files_are_served() {
    let no = |why: &str| Err(why.to_owned());
    let judged = |odp, mmap| file_system(&machine(), "/x", Some("ext4"), "d0", (odp, mmap));
    assert_eq!(judged(Ok(()), Ok(())).text, "ext4 on d0: odp");
    assert_eq!(judged(no("a"), Ok(())).text, "ext4 on d0: mmap (odp: a)");
    let copied = judged(no("a"), no("b"));
    assert_eq!(
        (copied.status, copied.text.as_str()),
        (Status::Ok, "ext4 on d0: pool, by copying (odp: a; mmap: b)")
    );
    let limited = judged(no("a"), no("raise the limit on locked memory"));
    assert_bad(&limited, Status::Warning, "pool", MEMLOCK_FIX);
    let why = "no".to_owned();
    assert_bad(
        &slots(&machine(), "d0", Some(&why)),
        Status::Problem,
        "no",
        MEMLOCK_FIX,
    );
}

#[test]
fn the_nearest_mount_tells_the_file_system() {
    let table = "1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 8:2 / /da\\040ta rw - xfs /dev/sdb rw\n";
    let kind = |path| file_system_kind(table, Path::new(path));
    assert_eq!(kind("/da ta/x").as_deref(), Some("xfs"));
    assert_eq!(kind("/data").as_deref(), Some("ext4"));
    assert_eq!(file_system_kind("", Path::new("/")), None);
}

#[test]
fn the_route_must_leave_from_a_port() {
    let machine = with_device("x");
    let way = |interface: &str, source: &str| {
        Ok(vec![Way {
            host: "10.0.9.9".parse().unwrap(),
            source: source.parse().unwrap(),
            interface: Some(interface.to_owned()),
        }])
    };
    let ports = [facts("10.0.0.1", GidKind::RoceV2)];
    let judged = |ways, ports: &[PortFacts]| route(&machine, "h", &ways, ports);
    assert_eq!(judged(way("net0", "10.0.0.1"), &ports).status, Status::Ok);
    assert_eq!(judged(way("lo", "10.0.9.9"), &[]).status, Status::Ok);
    let other = judged(way("eth7", "10.1.0.1"), &ports);
    assert_bad(
        &other,
        Status::Warning,
        "no RDMA port",
        "sudo ip route replace 10.0.9.9 dev net0",
    );
    let none = judged(way("eth7", "10.1.0.1"), &[]);
    let fix = "sudo modprobe rdma_rxe && sudo rdma link add rxe0 type rxe netdev eth7";
    assert_bad(&none, Status::Problem, "no RDMA port", fix);
    let unknown = judged(Err("it has no address".to_owned()), &ports);
    assert_bad(&unknown, Status::Problem, "no address", "getent ahosts h");
}

#[test]
fn rails_that_stay_away_send_to_the_other_end() {
    let error = |kind| Err(Error::new(kind, "why"));
    for (kind, fix) in [
        (ErrorKind::TransportUnavailable, "ssh h rdcp doctor"),
        (ErrorKind::Unreachable, "ssh h sudo systemctl start rdcpd"),
        (ErrorKind::Denied, "rdcp doctor --accept-new h:20471"),
    ] {
        assert_bad(&rails("h:20471", &error(kind)), Status::Problem, "why", fix);
    }
}

#[test]
fn oracle_wants_8021x_on_cluster_ports() {
    let on_oci = Machine {
        asset_tag: ORACLE_TAG.to_owned(),
        ..with_device("mlx5_core")
    };
    let cluster = facts("192.168.3.4", GidKind::RoceV2);
    let fix = "sudo systemctl enable --now wpa_supplicant-wired@net0";
    assert_bad(
        &oracle(&on_oci, &cluster).unwrap(),
        Status::Warning,
        "802.1X",
        fix,
    );
    assert_eq!(oracle(&on_oci, &facts("10.0.0.1", GidKind::RoceV2)), None);
    assert_eq!(oracle(&machine(), &cluster), None);
    let done = Machine {
        supplicants: vec!["net0".to_owned()],
        ..on_oci
    };
    assert_eq!(oracle(&done, &cluster), None);
}

#[test]
fn words_are_quoted_for_a_shell() {
    for (word, shown) in [
        ("a/b-1.c", "a/b-1.c"),
        ("a b", "'a b'"),
        ("it's", "'it'\\''s'"),
        ("", "''"),
    ] {
        assert_eq!(quoted(word), shown);
    }
}

#[test]
fn clouds_are_told_by_dmi() {
    let on = |vendor: &str, tag: &str| {
        let machine = Machine {
            vendor: vendor.to_owned(),
            asset_tag: tag.to_owned(),
            ..machine()
        };
        cloud(&machine).map(|check| check.about)
    };
    assert_eq!(
        on("Microsoft Corporation", AZURE_TAG).as_deref(),
        Some("Azure")
    );
    assert_eq!(on("Microsoft Corporation", "").as_deref(), Some("Hyper-V"));
    assert_eq!(on("QEMU", ORACLE_TAG).as_deref(), Some("OCI"));
    assert_eq!(on("VMware, Inc.", "").as_deref(), Some("VMware"));
    assert_eq!(on("Dell Inc.", ""), None);
}
