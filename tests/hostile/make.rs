//! Short ways to write the messages that hostile peers say.

use rdcp::ids::{EntryId, RegionId, RemoteKey};
use rdcp::integrity;
use rdcp::manifest::{Entry, EntryKind, Item, Metadata, Name, Note, Place, Version};
use rdcp::units::ByteRange;
use rdcp::wire::Message;
use rdcp::wire::message::{
    ChunkDigest, Direction, Grant, GrantPart, ManifestPage, Open, Operation, Placement, RegionKey,
    RootName, Wanted,
};
use rdcp::{ChunkSize, HashKind, Overwrite, Preserve, RemotePath};

/// The key that a hostile server's regions are read under.
pub(crate) const KEY: u64 = 0x5eed;

pub(crate) fn remote(path: &str) -> RemotePath {
    RemotePath {
        export: "data".to_owned(),
        path: path.as_bytes().to_vec(),
    }
}

pub(crate) fn preserve() -> Preserve {
    Preserve {
        mode: true,
        symlinks: true,
        hard_links: true,
        xattrs: true,
        owner: false,
    }
}

pub(crate) fn pull(path: &str) -> Message {
    Message::Open(Open {
        direction: Direction::Pull(vec![remote(path)]),
        hash: HashKind::Blake3,
        chunk: ChunkSize::DEFAULT,
        preserve: preserve(),
        recursive: true,
        dry_run: false,
        filters: Vec::new(),
    })
}

/// A push into the directory `to`, of one source called `root`.
pub(crate) fn push(to: &str) -> Message {
    Message::Open(Open {
        direction: Direction::Push {
            destination: remote(to),
            placement: Placement {
                into_directory: true,
                make_parents: true,
                roots: vec![RootName {
                    name: b"root".to_vec(),
                    contents: false,
                }],
            },
            overwrite: Overwrite::IfDifferent,
            sync: false,
            resume: true,
            bytes_per_s: None,
            delete: None,
            reuse: Default::default(),
        },
        hash: HashKind::Blake3,
        chunk: ChunkSize::DEFAULT,
        preserve: preserve(),
        recursive: true,
        dry_run: false,
        filters: Vec::new(),
    })
}

pub(crate) fn list(path: &str) -> Message {
    Message::Operate(Operation::List {
        path: remote(path),
        recursive: true,
    })
}

pub(crate) fn credit(pages: u32, region_bytes: u64) -> Message {
    Message::Credit {
        pages,
        region_bytes,
    }
}

pub(crate) fn page(items: Vec<Item>) -> Message {
    Message::Manifest(ManifestPage { items, last: true })
}

pub(crate) fn more(items: Vec<Item>) -> Message {
    Message::Manifest(ManifestPage { items, last: false })
}

pub(crate) fn entry(id: u64, place: Place, kind: EntryKind) -> Item {
    Item::Entry(Entry {
        id: EntryId(id),
        place,
        kind,
        metadata: Metadata {
            mode: 0o755,
            ..Metadata::default()
        },
    })
}

pub(crate) fn within(directory: u64, name: &[u8]) -> Place {
    Place::In(EntryId(directory), Name::new(name).expect("it is a name"))
}

pub(crate) fn file(len: u64) -> EntryKind {
    EntryKind::File { len, linked: false }
}

pub(crate) fn end(directory: u64) -> Item {
    Item::Note(Note::DirectoryEnd {
        directory: EntryId(directory),
        complete: true,
    })
}

pub(crate) fn want(id: u64) -> Message {
    Message::Want(vec![(EntryId(id), Wanted::All)])
}

/// A window over all of a file, in a region of its own.
pub(crate) fn part(id: u64, len: u64) -> GrantPart {
    GrantPart {
        entry: EntryId(id),
        version: Version([1; 32]),
        file_len: len,
        file_offset: 0,
        region_offset: 0,
        len,
        extents: vec![ByteRange { start: 0, end: len }],
        last: true,
        packed: false,
    }
}

pub(crate) fn grant(region: u64, len: u64, parts: Vec<GrantPart>) -> Grant {
    Grant {
        region: RegionId(region),
        len,
        lease_ms: 60_000,
        keys: vec![RegionKey {
            rail: 0,
            address: 0,
            key: RemoteKey(KEY),
        }],
        parts,
    }
}

/// The right proofs of a file.
pub(crate) fn digests(id: u64, chunk: ChunkSize, content: &[u8]) -> Vec<ChunkDigest> {
    let mut digests = Vec::new();
    integrity::proofs(HashKind::Blake3, chunk, content, |chunk, value| {
        digests.push(ChunkDigest {
            entry: EntryId(id),
            chunk: chunk.0,
            value,
        });
    });
    digests
}
