//! The wire format pinned down: one commented hex file per message in `tests/golden`. A change that
//! breaks one of these breaks every release that is out there.

use rdcp::ids::{EntryId, RegionId, RemoteKey, SessionId, TransferId};
use rdcp::manifest::{Entry, EntryKind, Item, Metadata, Name, Note, Place, Version};
use rdcp::units::{ByteRange, ChunkRange, ChunkSize, Timestamp};
use rdcp::wire::message::{
    Carried, ChunkDigest, Cleaning, Deleting, Direction, Fate, FilterRule, GidKind, Grant,
    GrantPart, HashKind, Hello, Invitation, LeftBehind, LinkLayer, Listed, ListedKind,
    ManifestPage, Moved, Open, Operation, Outcome, Overwrite, PathMtu, Placement, PortGid,
    Preserve, Probe, QueuePair, RailAnswer, RailConnect, RailDial, RailEnd, RailLink, RailOffer,
    RailPair, RailPort, RailReady, RailToken, Reason, RegionKey, Remark, RemarkKind, RemotePath,
    Removal, Removed, RemovedKind, Reuse, RootName, Running, SessionStatus, StatusPage,
    StatusQuery, TransferStatus, TransportOffer, Wanted, WayStatus, Welcome, Why,
};
use rdcp::wire::{Decoder, Envelope, Fault, FaultCode, Message, encode};

const DIGEST: [u8; 32] = [0xd1; 32];

macro_rules! golden {
    ($($file:ident: $message:expr;)*) => {$(
        #[test]
        fn $file() {
            let hex = include_str!(concat!("golden/", stringify!($file), ".hex"));
            check(&bytes_of(hex), $message);
        }
    )*};
}

golden! {
    hello: Message::Hello(Hello { level_min: 1, level_max: 3, software: "rdcp 0.1.0".into() });
    welcome: Message::Welcome(Welcome {
        level: 1,
        session: SessionId(0x1122_3344_5566_7788),
        epoch: 0x99,
        software: "rdcpd 0.1.0".into(),
        data_connections_max: 16,
        transports: vec![offer("rdma", false, "no device"), offer("tcp", true, "")],
    });
    ping: Message::Ping { nonce: 7 };
    pong: Message::Pong { nonce: 7 };
    rail_offer: Message::RailOffer(RailOffer {
        attempt: 3,
        ports: vec![
            RailPort { gids: vec![gid(GidKind::RoceV2), gid(GidKind::RoceV1)], ..port("mlx5_0/1") },
            RailPort {
                link: LinkLayer::InfiniBand,
                lid: 9,
                gids: vec![gid(GidKind::InfiniBand)],
                ..port("ib0/1")
            },
        ],
        rails_only: true,
        connect: Some(RailDial::Cm),
    });
    rail_answer: Message::RailAnswer(RailAnswer {
        attempt: 3,
        rails: vec![RailPair {
            rail: 1,
            port: 0,
            gid: 0,
            server: RailPort { gids: vec![gid(GidKind::RoceV2)], ..port("rxe0/1") },
            end: rail_end(),
            invitation: Some(Invitation {
                address: gid(GidKind::RoceV2).gid,
                port: 20471,
                tokens: vec![RailToken([0x70; 32]), RailToken([0x71; 32])],
            }),
        }],
        reasons: vec!["no".into()],
        may_pass: true,
    });
    rail_connect: Message::RailConnect(RailConnect { attempt: 3, rails: vec![(1, rail_end())] });
    rail_ready: Message::RailReady(RailReady { attempt: 3, rails: vec![1, 15], reasons: vec![] });
    rail_proof: Message::RailProof {
        link: RailLink { attempt: 3, rail: 1, queue_pair: 7 },
        read: DIGEST,
    };
    rail_down: Message::RailDown {
        link: RailLink { attempt: 3, rail: 1, queue_pair: 0 },
        reason: "retries ran out".into(),
    };
    status_query: Message::StatusQuery(StatusQuery { number: 2, after: 0x11 });
    status_page: Message::StatusPage(StatusPage {
        number: 2,
        up_s: 60,
        sessions: 3,
        registered_bytes: 0x0100_0000,
        registered_bytes_max: 0x4000_0000,
        moved: vec![Moved { transport: "tcp".into(), sent_bytes: 5, received_bytes: 6 }],
        listed: vec![SessionStatus {
            id: 0x12,
            own: true,
            from: "[::1]:9".into(),
            software: "rdcp".into(),
            up_s: 7,
            registered_bytes: 8,
            tcp_connections: 2,
            rails: vec!["a".into()],
            ways: vec![WayStatus { way: "odp".into(), windows: 9, reason: "ok".into() }],
            transfers: vec![TransferStatus {
                transfer: TransferId([0xee; 16]),
                kind: Running::Push,
                about: "d/x".into(),
                up_s: 10,
                files_seen: 11,
                files_done: 12,
                bytes_seen: 13,
                bytes_done: 14,
            }],
            transfers_more: 15,
        }],
        last: false,
    });
    rail_memory: Message::RailMemory { reason: "no memory".into() };
    goodbye: Message::Goodbye(Fault::new(FaultCode::Busy, "drängt"));
    open_pull: Message::Open(Open {
        direction: Direction::Pull(vec![path("data", b"a/b"), path("data", b"")]),
        hash: HashKind::Blake3,
        chunk: ChunkSize::DEFAULT,
        preserve: Preserve { mode: true, symlinks: true, owner: true, ..Preserve::default() },
        recursive: true,
        dry_run: false,
        filters: Vec::new(),
    });
    open_push: Message::Open(Open {
        direction: Direction::Push {
            destination: path("in", b"\xffx"),
            placement: Placement {
                into_directory: true,
                make_parents: false,
                roots: vec![
                    RootName { name: b"tree".to_vec(), contents: false },
                    RootName { name: Vec::new(), contents: true },
                ],
            },
            overwrite: Overwrite::Older,
            sync: true,
            resume: true,
            bytes_per_s: std::num::NonZeroU64::new(300 << 20),
            delete: Some(Deleting { max: Some(7), allow_empty: false }),
            reuse: Reuse { delta: true, checksum: false, in_place: true },
        },
        hash: HashKind::Sha256,
        chunk: ChunkSize::MIN,
        preserve: Preserve { hard_links: true, xattrs: true, ..Preserve::default() },
        recursive: false,
        dry_run: true,
        filters: vec![filter(true, b"*.\xff"), filter(false, b"a/*")],
    });
    opened: Message::Opened;
    failed: Message::Failed(Fault::new(FaultCode::Unknown(0x1234), "?"));
    credit: Message::Credit { pages: 16, region_bytes: 1 << 28 };
    manifest: Message::Manifest(page());
    want: Message::Want(vec![
        (EntryId(1), Wanted::Nothing),
        (EntryId(2), Wanted::All),
        (EntryId(3), Wanted::Chunks(vec![
            ChunkRange { start: 0, end: 1 },
            ChunkRange { start: 4, end: 9 },
        ])),
        (EntryId(4), Wanted::Compared(7)),
    ]);
    grant: Message::Grant(grant_of_two());
    digests: Message::Digests(vec![ChunkDigest { entry: EntryId(1), chunk: 2, value: DIGEST }]);
    recheck: Message::Recheck { entry: EntryId(1), chunk: 2 };
    release: Message::Release(vec![RegionId(5), RegionId(6)]);
    close: Message::Close(vec![EntryId(1)]);
    closed: Message::Closed(vec![(EntryId(1), true), (EntryId(2), false)]);
    entry_failed: Message::EntryFailed {
        entry: EntryId(1),
        fault: Fault::new(FaultCode::SourceChanged, "it changed"),
    };
    settled: Message::Settled(vec![
        (EntryId(1), Outcome::Published { bytes: 100, digest: Some(DIGEST) }),
        (EntryId(2), Outcome::Published { bytes: 0, digest: None }),
        (EntryId(3), Outcome::Unchanged),
        (EntryId(4), Outcome::Failed(Fault::new(FaultCode::NoSpace, "full"))),
        (EntryId(5), Outcome::Updated),
        (EntryId(6), Outcome::Planned(Reason::SizeDiffers)),
    ]);
    finish: Message::Finish(Carried { tcp: 5, rdma: 1 << 40, resumed: 3 << 20, reused: 1 << 20 });
    finished: Message::Finished;
    deleted: Message::Deleted {
        comparing: true,
        removals: vec![
            removal(0, b"a/\xff", RemovedKind::File, Removed::Gone),
            removal(1, b"d", RemovedKind::Directory, Removed::Would),
            removal(1, b"", RemovedKind::Symlink, Removed::Failed(Fault::new(FaultCode::Denied, "no"))),
            removal(2, b"m", RemovedKind::Special, Removed::Kept(Fault::new(FaultCode::Special, "?"))),
        ],
    };
    remarks: Message::Remarks(vec![
        Remark { kind: RemarkKind::Owner, count: 1000, entries: vec![EntryId(1), EntryId(2)] },
        Remark { kind: RemarkKind::Unknown(0x99), count: 1, entries: Vec::new() },
    ]);
    bench: Message::Bench { region_bytes: 4 << 20 };
    operate_list: Message::Operate(Operation::List { path: path("data", b"x"), recursive: true });
    operate_stat: Message::Operate(Operation::Stat { path: path("data", b"x") });
    operate_sum: Message::Operate(Operation::Sum {
        path: path("data", b"x"),
        recursive: false,
        hash: HashKind::Blake3,
    });
    operate_remove: Message::Operate(Operation::Remove {
        path: path("data", b"x"),
        recursive: true,
    });
    operate_make_directory: Message::Operate(Operation::MakeDirectory {
        path: path("data", b"x"),
        parents: true,
    });
    operate_clean: Message::Operate(Operation::Clean {
        path: path("data", b"x"),
        which: Cleaning::OlderThan { age_s: 86400 },
        dry_run: true,
    });
    listing_left: Message::Listing(vec![
        Listed {
            left: Some(LeftBehind {
                destination: b"f".to_vec(),
                age_s: 3600,
                allocated: 4096,
                journal: true,
                fate: Fate::Kept,
                why: Why::Resumable,
            }),
            ..listed(b"p", ListedKind::File)
        },
        Listed {
            fault: Some(Fault::new(FaultCode::Denied, "no")),
            left: Some(LeftBehind {
                destination: Vec::new(),
                age_s: 0,
                allocated: 0,
                journal: false,
                fate: Fate::Kept,
                why: Why::Abandoned,
            }),
            ..listed(b"q", ListedKind::File)
        },
    ]);
    listing: Message::Listing(vec![
        listed(b"data", ListedKind::Export { writable: true }),
        Listed { digest: Some(DIGEST), ..listed(b"a/b", ListedKind::File) },
        listed(b"l", ListedKind::Symlink(b"b".to_vec())),
        Listed {
            fault: Some(Fault::new(FaultCode::Denied, "no")),
            ..listed(b"d", ListedKind::Directory)
        },
    ]);
    done: Message::Done;
}

fn check(bytes: &[u8], message: Message) {
    let transfer = match message {
        Message::Hello(_)
        | Message::Welcome(_)
        | Message::Ping { .. }
        | Message::Pong { .. }
        | Message::Goodbye(_)
        | Message::RailOffer(_)
        | Message::RailAnswer(_)
        | Message::RailConnect(_)
        | Message::RailReady(_)
        | Message::RailProof { .. }
        | Message::RailDown { .. }
        | Message::StatusQuery(_)
        | Message::StatusPage(_)
        | Message::RailMemory { .. } => TransferId::NONE,
        _ => TransferId(std::array::from_fn(|at| 0xa0 + u8::try_from(at).unwrap())),
    };
    let envelope = Envelope { transfer, message };
    let mut encoded = Vec::new();
    encode(&envelope, &mut encoded).unwrap();
    assert_eq!(encoded, bytes);
    let mut decoder = Decoder::new();
    decoder.feed(bytes);
    assert_eq!(decoder.next(), Ok(Some(envelope)));
    assert!(decoder.is_between_frames());
}

/// Hex digits up to the `#` of each line.
fn bytes_of(hex: &str) -> Vec<u8> {
    let code = hex.lines().map(|line| line.split('#').next().unwrap_or(""));
    code.flat_map(str::split_ascii_whitespace)
        .map(|digits| u8::from_str_radix(digits, 16).unwrap())
        .collect()
}

fn port(label: &str) -> RailPort {
    RailPort {
        label: label.into(),
        guid: 0x1122_3344_5566_7788,
        number: 1,
        link: LinkLayer::Ethernet,
        lid: 0,
        pkey: 0xffff,
        mtu: PathMtu::B4096,
        speed_mbps: 100_000,
        reads_served_max: 16,
        reads_posted_max: 8,
        message_bytes_max: 1 << 24,
        queue_pairs: 2,
        gids: Vec::new(),
    }
}

fn gid(kind: GidKind) -> PortGid {
    let gid = match kind {
        GidKind::RoceV2 => [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 7],
        GidKind::RoceV1 => [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
        GidKind::InfiniBand => [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2],
    };
    PortGid { kind, gid }
}

fn rail_end() -> RailEnd {
    RailEnd {
        probe: Probe {
            address: 0x7f00_0000_1000,
            key: RemoteKey(0xdead_beef),
            digest: DIGEST,
        },
        queue_pairs: vec![
            QueuePair {
                number: 0x11,
                psn: 0xab_cdef,
            },
            QueuePair {
                number: 0x12,
                psn: 1,
            },
        ],
    }
}

fn offer(name: &str, available: bool, reason: &str) -> TransportOffer {
    TransportOffer {
        name: name.into(),
        available,
        reason: reason.into(),
    }
}

fn path(export: &str, path: &[u8]) -> RemotePath {
    RemotePath {
        export: export.into(),
        path: path.to_vec(),
    }
}

fn metadata(mode: u32) -> Metadata {
    let mtime = Timestamp {
        seconds: -1,
        nanoseconds: 999_999_999,
    };
    Metadata {
        mode,
        uid: 1000,
        gid: 100,
        mtime,
        xattrs: Vec::new(),
    }
}

fn inside(name: &[u8]) -> Place {
    Place::In(EntryId(0), Name::new(name).unwrap())
}

fn entry(id: u64, place: Place, kind: EntryKind, metadata: Metadata) -> Item {
    Item::Entry(Entry {
        id: EntryId(id),
        place,
        kind,
        metadata,
    })
}

fn page() -> ManifestPage {
    let xattrs = vec![(b"user.k".to_vec(), b"v\0".to_vec())];
    let file = EntryKind::File {
        len: 1 << 40,
        linked: true,
    };
    let symlink = EntryKind::Symlink(b"../t".to_vec());
    let hard_link = EntryKind::HardLink(EntryId(1));
    let fault = Fault::new(FaultCode::Special, "a FIFO");
    ManifestPage {
        items: vec![
            entry(0, Place::Root(0), EntryKind::Directory, metadata(0o755)),
            entry(
                1,
                inside(b"a\xff"),
                file,
                Metadata {
                    xattrs,
                    ..metadata(0o4755)
                },
            ),
            entry(2, inside(b"s"), symlink, metadata(0o777)),
            entry(3, inside(b"h"), hard_link, metadata(0o644)),
            Item::Note(Note::Skipped {
                place: inside(b"fifo"),
                fault,
                failure: false,
            }),
            Item::Note(Note::DirectoryEnd {
                directory: EntryId(0),
                complete: false,
            }),
        ],
        last: true,
    }
}

fn grant_of_two() -> Grant {
    const MIB: u64 = 1 << 20;
    let version = Version(std::array::from_fn(|at| u8::try_from(at).unwrap()));
    let window = GrantPart {
        entry: EntryId(1),
        version,
        file_len: 3 * MIB,
        file_offset: MIB,
        region_offset: 0,
        len: MIB,
        extents: vec![
            ByteRange {
                start: MIB,
                end: MIB + 4096,
            },
            ByteRange {
                start: MIB + 8192,
                end: 2 * MIB,
            },
        ],
        last: false,
        packed: false,
    };
    let empty = GrantPart {
        entry: EntryId(2),
        version,
        file_len: 0,
        file_offset: 0,
        region_offset: MIB,
        len: 0,
        extents: Vec::new(),
        last: true,
        packed: true,
    };
    Grant {
        region: RegionId(5),
        len: 1_000_000,
        lease_ms: 60_000,
        keys: vec![RegionKey {
            rail: 0,
            address: 0x7f00_0000_0000,
            key: RemoteKey(0xdead_beef),
        }],
        parts: vec![window, empty],
    }
}

fn removal(root: u32, path: &[u8], kind: RemovedKind, outcome: Removed) -> Removal {
    let path = path.to_vec();
    Removal {
        root,
        path,
        kind,
        outcome,
    }
}

fn filter(include: bool, pattern: &[u8]) -> FilterRule {
    let pattern = pattern.to_vec();
    FilterRule { include, pattern }
}

fn listed(path: &[u8], kind: ListedKind) -> Listed {
    let mtime = Timestamp {
        seconds: 1,
        nanoseconds: 2,
    };
    Listed {
        path: path.to_vec(),
        kind,
        len: 10,
        mode: 0o640,
        uid: 1,
        gid: 2,
        mtime,
        digest: None,
        fault: None,
        left: None,
    }
}
