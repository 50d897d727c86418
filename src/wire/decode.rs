//! Bodies into messages. Every value is checked here, so that what comes out of this module holds
//! what the types promise: names are single components, modes have no stray bits, ranges run
//! forward, counts are within their maximum, whatever the peer sent.

use std::num::NonZeroU64;

use crate::ids::{EntryId, RegionId, RemoteKey, SessionId};
use crate::limits::{
    BATCH_ENTRIES_MAX, DIGESTS_MAX, FILTER_BYTES_MAX, FILTERS_BYTES_MAX, FILTERS_MAX,
    GRANT_EXTENTS_MAX, PACK_FILES_MAX, PAGE_ITEMS_MAX, RAILS_MAX, REMARK_ENTRIES_MAX, REMARKS_MAX,
    ROOTS_MAX, TRANSPORTS_MAX, WANT_RANGES_MAX, XATTR_BYTES_MAX, XATTRS_MAX,
};
use crate::manifest::{Entry, EntryKind, Item, Metadata, Name, Note, Place, Version};
use crate::units::{ByteRange, ChunkRange, ChunkSize, Timestamp};
use crate::wire::codec::Reader;
use crate::wire::kind::Kind;
use crate::wire::message::{
    Carried, ChunkDigest, Direction, FilterRule, Grant, GrantPart, HashKind, Hello, Listed,
    ListedKind, ManifestPage, Message, Open, Operation, Outcome, Overwrite, Placement, Preserve,
    RegionKey, Remark, RemarkKind, RemotePath, Reuse, RootName, TransportOffer, Wanted, Welcome,
};
use crate::wire::{Fault, FaultCode, WireError, left_behind, plan, rail, removal, status, tag};

/// A line with an empty path and nothing optional: kind, flags, length, mode, owner, group, time, and
/// the path's length.
const LISTED_BYTES_MIN: usize = 1 + 1 + 8 + 2 + 4 + 4 + 12 + 2;

type Result<T> = std::result::Result<T, WireError>;

/// Reads the body of a frame. Bytes behind the fields known here are a later release's, and ignored.
pub(super) fn message(kind: Kind, body: &[u8]) -> Result<Message> {
    let r = &mut Reader::new(body, kind.name());
    Ok(match kind {
        Kind::Hello => Message::Hello(read_hello(r)?),
        Kind::Welcome => Message::Welcome(read_welcome(r)?),
        Kind::Ping => Message::Ping { nonce: r.u64()? },
        Kind::Pong => Message::Pong { nonce: r.u64()? },
        Kind::Goodbye => Message::Goodbye(read_fault(r)?),
        Kind::RailOffer => Message::RailOffer(rail::read_offer(r)?),
        Kind::RailAnswer => Message::RailAnswer(rail::read_answer(r)?),
        Kind::RailConnect => Message::RailConnect(rail::read_connect(r)?),
        Kind::RailReady => Message::RailReady(rail::read_ready(r)?),
        Kind::RailProof => {
            let (link, read) = rail::read_proof(r)?;
            Message::RailProof { link, read }
        }
        Kind::RailDown => {
            let (link, reason) = rail::read_down(r)?;
            Message::RailDown { link, reason }
        }
        Kind::StatusQuery => Message::StatusQuery(status::read_query(r)?),
        Kind::StatusPage => Message::StatusPage(status::read_page(r)?),
        Kind::RailMemory => Message::RailMemory {
            reason: r.text("reason")?,
        },
        Kind::Open => Message::Open(read_open(r)?),
        Kind::Opened => Message::Opened,
        Kind::Failed => Message::Failed(read_fault(r)?),
        Kind::Credit => Message::Credit {
            pages: r.u32()?,
            region_bytes: r.u64()?,
        },
        Kind::Manifest => Message::Manifest(read_page(r)?),
        Kind::Want => Message::Want(read_want(r)?),
        Kind::Grant => Message::Grant(read_grant(r)?),
        Kind::Digests => Message::Digests(r.list(DIGESTS_MAX, 48, "digests", read_chunk_digest)?),
        Kind::Recheck => Message::Recheck {
            entry: read_entry_id(r)?,
            chunk: r.u64()?,
        },
        Kind::Release => {
            Message::Release(r.list(BATCH_ENTRIES_MAX, 8, "regions", |r| r.u64().map(RegionId))?)
        }
        Kind::Close => Message::Close(r.list(BATCH_ENTRIES_MAX, 8, "entries", read_entry_id)?),
        Kind::Closed => Message::Closed(r.list(BATCH_ENTRIES_MAX, 9, "entries", |r| {
            Ok((read_entry_id(r)?, r.boolean("same")?))
        })?),
        Kind::EntryFailed => Message::EntryFailed {
            entry: read_entry_id(r)?,
            fault: read_fault(r)?,
        },
        Kind::Settled => Message::Settled(r.list(BATCH_ENTRIES_MAX, 9, "entries", |r| {
            Ok((read_entry_id(r)?, read_outcome(r)?))
        })?),
        Kind::Finish => Message::Finish(Carried {
            tcp: r.u64()?,
            rdma: r.u64()?,
            resumed: r.u64()?,
            reused: r.u64()?,
        }),
        Kind::Finished => Message::Finished,
        Kind::Deleted => {
            let (comparing, removals) = removal::read(r)?;
            Message::Deleted {
                comparing,
                removals,
            }
        }
        Kind::Remarks => Message::Remarks(r.short_list(REMARKS_MAX, 10, "remarks", read_remark)?),
        Kind::Bench => {
            let region_bytes = r.u64()?;
            r.require(region_bytes > 0, "region bytes")?;
            Message::Bench { region_bytes }
        }
        Kind::Operate => Message::Operate(read_operation(r)?),
        Kind::Listing => {
            Message::Listing(r.list(BATCH_ENTRIES_MAX, LISTED_BYTES_MIN, "lines", read_listed)?)
        }
        Kind::Done => Message::Done,
    })
}

fn read_entry_id(r: &mut Reader<'_>) -> Result<EntryId> {
    r.u64().map(EntryId)
}

pub(super) fn read_fault(r: &mut Reader<'_>) -> Result<Fault> {
    let code = FaultCode::from_wire(r.u16()?);
    Ok(Fault {
        code,
        text: r.text("text")?,
        from_peer: true,
    })
}

fn read_hello(r: &mut Reader<'_>) -> Result<Hello> {
    let level_min = r.u16()?;
    let level_max = r.u16()?;
    r.require(level_min <= level_max, "levels")?;
    Ok(Hello {
        level_min,
        level_max,
        software: r.text("software")?,
    })
}

fn read_welcome(r: &mut Reader<'_>) -> Result<Welcome> {
    Ok(Welcome {
        level: r.u16()?,
        session: SessionId(r.u64()?),
        epoch: r.u64()?,
        data_connections_max: r.u16()?,
        software: r.text("software")?,
        transports: r.short_list(TRANSPORTS_MAX, 5, "transports", |r| {
            let available = r.boolean("available")?;
            let name = r.text("transport name")?;
            Ok(TransportOffer {
                name,
                available,
                reason: r.text("reason")?,
            })
        })?,
    })
}

fn read_open(r: &mut Reader<'_>) -> Result<Open> {
    let direction = r.u8()?;
    let hash = read_hash(r)?;
    let chunk = ChunkSize::from_log2(r.u8()?).ok_or_else(|| r.invalid("chunk size"))?;
    let preserve = read_preserve(r)?;
    let bits = r.bits8(tag::OPEN_ALL, "options")?;
    let filters = read_filters(r)?;
    let direction = match direction {
        tag::PULL => Direction::Pull(r.list(ROOTS_MAX, 3, "sources", read_remote_path)?),
        tag::PUSH => read_push(r, chunk)?,
        _ => return Err(r.invalid("direction")),
    };
    Ok(Open {
        direction,
        hash,
        chunk,
        preserve,
        recursive: bits & tag::OPEN_RECURSIVE != 0,
        dry_run: bits & tag::OPEN_DRY_RUN != 0,
        filters,
    })
}

/// What a pattern means is found out by who applies it.
fn read_filters(r: &mut Reader<'_>) -> Result<Vec<FilterRule>> {
    let mut bytes_left = FILTERS_BYTES_MAX;
    r.list(FILTERS_MAX, 3, "filters", |r| {
        let include = r.boolean("filter")?;
        let pattern = r.bytes16(FILTER_BYTES_MAX.min(bytes_left), "pattern")?;
        bytes_left -= pattern.len();
        Ok(FilterRule {
            include,
            pattern: pattern.to_vec(),
        })
    })
}

fn read_push(r: &mut Reader<'_>, chunk: ChunkSize) -> Result<Direction> {
    let destination = read_remote_path(r)?;
    let bits = r.bits16(tag::PUSH_ALL, "options")?;
    let overwrite = match r.u8()? {
        tag::OVERWRITE_IF_DIFFERENT => Overwrite::IfDifferent,
        tag::OVERWRITE_OLDER => Overwrite::Older,
        tag::OVERWRITE_NEVER => Overwrite::Never,
        tag::OVERWRITE_ERROR => Overwrite::Error,
        _ => return Err(r.invalid("overwrite")),
    };
    let placement = Placement {
        into_directory: bits & tag::PUSH_INTO_DIRECTORY != 0,
        make_parents: bits & tag::PUSH_MAKE_PARENTS != 0,
        roots: r.list(ROOTS_MAX, 2, "roots", read_root_name)?,
    };
    let bytes_per_s = NonZeroU64::new(r.u64()?);
    r.require(
        bytes_per_s.is_none_or(|rate| rate.get() >= chunk.bytes_per_s_min()),
        "rate",
    )?;
    Ok(Direction::Push {
        destination,
        placement,
        overwrite,
        sync: bits & tag::PUSH_SYNC != 0,
        resume: bits & tag::PUSH_RESUME != 0,
        bytes_per_s,
        delete: removal::read_deleting(r, bits)?,
        reuse: Reuse {
            delta: bits & tag::PUSH_DELTA != 0,
            checksum: bits & tag::PUSH_CHECKSUM != 0,
            in_place: bits & tag::PUSH_IN_PLACE != 0,
        },
    })
}

/// A root's name becomes a name in the destination, so it is a single component or nothing.
fn read_root_name(r: &mut Reader<'_>) -> Result<RootName> {
    let contents = r.boolean("contents")?;
    let name = r.bytes8("root name")?;
    r.require(name.is_empty() || Name::new(name).is_ok(), "root name")?;
    Ok(RootName {
        name: name.to_vec(),
        contents,
    })
}

fn read_remote_path(r: &mut Reader<'_>) -> Result<RemotePath> {
    Ok(RemotePath {
        export: r.identifier("export name")?,
        path: r.path("path")?,
    })
}

fn read_hash(r: &mut Reader<'_>) -> Result<HashKind> {
    match r.u8()? {
        tag::HASH_NONE => Ok(HashKind::None),
        tag::HASH_BLAKE3 => Ok(HashKind::Blake3),
        tag::HASH_SHA256 => Ok(HashKind::Sha256),
        _ => Err(r.invalid("hash")),
    }
}

fn read_preserve(r: &mut Reader<'_>) -> Result<Preserve> {
    let bits = r.bits16(tag::PRESERVE_ALL, "preserve")?;
    Ok(Preserve {
        mode: bits & tag::PRESERVE_MODE != 0,
        symlinks: bits & tag::PRESERVE_SYMLINKS != 0,
        hard_links: bits & tag::PRESERVE_HARD_LINKS != 0,
        xattrs: bits & tag::PRESERVE_XATTRS != 0,
        owner: bits & tag::PRESERVE_OWNER != 0,
    })
}

fn read_page(r: &mut Reader<'_>) -> Result<ManifestPage> {
    let last = r.boolean("last")?;
    Ok(ManifestPage {
        items: r.list(PAGE_ITEMS_MAX, 9, "items", read_item)?,
        last,
    })
}

fn read_item(r: &mut Reader<'_>) -> Result<Item> {
    match r.u8()? {
        kind @ tag::ITEM_FILE..=tag::ITEM_HARD_LINK => read_entry(r, kind).map(Item::Entry),
        tag::ITEM_DIRECTORY_END => Ok(Item::Note(Note::DirectoryEnd {
            directory: read_entry_id(r)?,
            complete: r.boolean("complete")?,
        })),
        tag::ITEM_SKIPPED => {
            let failure = r.boolean("failure")?;
            let place = read_place(r)?;
            Ok(Item::Note(Note::Skipped {
                place,
                fault: read_fault(r)?,
                failure,
            }))
        }
        _ => Err(r.invalid("item")),
    }
}

fn read_entry(r: &mut Reader<'_>, kind: u8) -> Result<Entry> {
    let id = read_entry_id(r)?;
    let place = read_place(r)?;
    let metadata = read_metadata(r)?;
    let kind = match kind {
        tag::ITEM_FILE => EntryKind::File {
            len: read_file_len(r)?,
            linked: r.boolean("linked")?,
        },
        tag::ITEM_DIRECTORY => EntryKind::Directory,
        tag::ITEM_SYMLINK => EntryKind::Symlink(read_target(r)?),
        tag::ITEM_HARD_LINK => EntryKind::HardLink(read_entry_id(r)?),
        _ => return Err(r.invalid("item")),
    };
    Ok(Entry {
        id,
        place,
        kind,
        metadata,
    })
}

/// Offsets are signed in every interface of the kernel.
fn read_file_len(r: &mut Reader<'_>) -> Result<u64> {
    let len = r.u64()?;
    r.require(i64::try_from(len).is_ok(), "file length")?;
    Ok(len)
}

fn read_target(r: &mut Reader<'_>) -> Result<Vec<u8>> {
    let target = r.path("symlink target")?;
    r.require(!target.is_empty(), "symlink target")?;
    Ok(target)
}

fn read_place(r: &mut Reader<'_>) -> Result<Place> {
    match r.u8()? {
        tag::PLACE_ROOT => r.u32().map(Place::Root),
        tag::PLACE_IN => {
            let directory = read_entry_id(r)?;
            let name = Name::new(r.bytes8("name")?).map_err(|_| r.invalid("name"))?;
            Ok(Place::In(directory, name))
        }
        _ => Err(r.invalid("place")),
    }
}

fn read_metadata(r: &mut Reader<'_>) -> Result<Metadata> {
    let mode = read_mode(r)?;
    let uid = r.u32()?;
    let gid = r.u32()?;
    let mtime = read_timestamp(r)?;
    let mut bytes = 0;
    let xattrs = r.short_list(XATTRS_MAX, 5, "xattrs", |r| {
        let name = r.bytes8("xattr name")?;
        let named = !name.is_empty() && !name.contains(&0);
        r.require(named, "xattr name")?;
        let value = r.bytes32(XATTR_BYTES_MAX, "xattr value")?;
        bytes += name.len() + value.len();
        r.require(bytes <= XATTR_BYTES_MAX, "xattrs' bytes")?;
        Ok((name.to_vec(), value.to_vec()))
    })?;
    Ok(Metadata {
        mode,
        uid,
        gid,
        mtime,
        xattrs,
    })
}

fn read_mode(r: &mut Reader<'_>) -> Result<u32> {
    let mode = u32::from(r.u16()?);
    r.require(mode & !tag::MODE_BITS == 0, "mode")?;
    Ok(mode)
}

fn read_timestamp(r: &mut Reader<'_>) -> Result<Timestamp> {
    let seconds = r.i64()?;
    let nanoseconds = r.u32()?;
    r.require(nanoseconds < 1_000_000_000, "nanoseconds")?;
    Ok(Timestamp {
        seconds,
        nanoseconds,
    })
}

fn read_want(r: &mut Reader<'_>) -> Result<Vec<(EntryId, Wanted)>> {
    let mut ranges_left = WANT_RANGES_MAX;
    r.list(BATCH_ENTRIES_MAX, 9, "entries", |r| {
        let entry = read_entry_id(r)?;
        let wanted = match r.u8()? {
            tag::WANT_NOTHING => Wanted::Nothing,
            tag::WANT_ALL => Wanted::All,
            tag::WANT_CHUNKS => {
                let ranges = r.list(ranges_left, 16, "ranges", |r| Ok((r.u64()?, r.u64()?)))?;
                ranges_left -= ranges.len();
                r.require(run_forward(&ranges), "ranges")?;
                let chunks = |(start, end)| ChunkRange { start, end };
                Wanted::Chunks(ranges.into_iter().map(chunks).collect())
            }
            tag::WANT_COMPARED => Wanted::Compared(r.u64()?),
            _ => return Err(r.invalid("wanted")),
        };
        Ok((entry, wanted))
    })
}

/// Whether ranges are ascending and disjoint and none ends before it starts.
fn run_forward(ranges: &[(u64, u64)]) -> bool {
    ranges.iter().all(|(start, end)| start <= end)
        && ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0)
}

fn read_grant(r: &mut Reader<'_>) -> Result<Grant> {
    let region = RegionId(r.u64()?);
    let len = r.u64()?;
    let lease_ms = r.u32()?;
    let keys = r.short_list(RAILS_MAX, 18, "keys", |r| {
        Ok(RegionKey {
            rail: r.u16()?,
            address: r.u64()?,
            key: RemoteKey(r.u64()?),
        })
    })?;
    let mut extents_left = GRANT_EXTENTS_MAX;
    let parts = r.list(PACK_FILES_MAX, 75, "parts", |r| {
        let part = read_part(r, extents_left)?;
        extents_left -= part.extents.len();
        Ok(part)
    })?;
    Ok(Grant {
        region,
        len,
        lease_ms,
        keys,
        parts,
    })
}

fn read_part(r: &mut Reader<'_>, extents_max: usize) -> Result<GrantPart> {
    let entry = read_entry_id(r)?;
    let version = Version(r.array()?);
    let file_len = read_file_len(r)?;
    let file_offset = r.u64()?;
    let region_offset = r.u64()?;
    let len = r.u64()?;
    let in_file = file_offset
        .checked_add(len)
        .is_some_and(|end| end <= file_len);
    r.require(in_file, "part in the file")?;
    r.require(
        region_offset.checked_add(len).is_some(),
        "part in the region",
    )?;
    let bits = r.bits8(tag::PART_ALL, "part flags")?;
    let ranges = r.list(extents_max, 16, "extents", |r| Ok((r.u64()?, r.u64()?)))?;
    r.require(run_forward(&ranges), "extents")?;
    let extents = ranges
        .into_iter()
        .map(|(start, end)| ByteRange { start, end })
        .collect();
    let (last, packed) = (bits & tag::PART_LAST != 0, bits & tag::PART_PACKED != 0);
    Ok(GrantPart {
        entry,
        version,
        file_len,
        file_offset,
        region_offset,
        len,
        extents,
        last,
        packed,
    })
}

fn read_chunk_digest(r: &mut Reader<'_>) -> Result<ChunkDigest> {
    Ok(ChunkDigest {
        entry: read_entry_id(r)?,
        chunk: r.u64()?,
        value: r.array()?,
    })
}

fn read_outcome(r: &mut Reader<'_>) -> Result<Outcome> {
    match r.u8()? {
        tag::OUTCOME_PUBLISHED => {
            let bytes = r.u64()?;
            let known = r.boolean("digest known")?;
            Ok(Outcome::Published {
                bytes,
                digest: read_digest(r, known)?,
            })
        }
        tag::OUTCOME_UNCHANGED => Ok(Outcome::Unchanged),
        tag::OUTCOME_FAILED => read_fault(r).map(Outcome::Failed),
        tag::OUTCOME_UPDATED => Ok(Outcome::Updated),
        tag::OUTCOME_PLANNED => plan::read(r).map(Outcome::Planned),
        _ => Err(r.invalid("outcome")),
    }
}

fn read_remark(r: &mut Reader<'_>) -> Result<Remark> {
    let kind = match r.u8()? {
        tag::REMARK_OWNER => RemarkKind::Owner,
        tag::REMARK_SET_ID => RemarkKind::SetId,
        tag::REMARK_ATTRIBUTES_UNSUPPORTED => RemarkKind::AttributesUnsupported,
        tag::REMARK_ACCESS_LISTS_UNSUPPORTED => RemarkKind::AccessListsUnsupported,
        tag::REMARK_ATTRIBUTES_PRIVILEGED => RemarkKind::AttributesPrivileged,
        tag::REMARK_LINK_COPIED => RemarkKind::LinkCopied,
        tag::REMARK_BEGUN_ANEW => RemarkKind::BegunAnew,
        kind => RemarkKind::Unknown(kind),
    };
    Ok(Remark {
        kind,
        count: r.u64()?,
        entries: r.short_list(REMARK_ENTRIES_MAX, 8, "entries", read_entry_id)?,
    })
}

fn read_digest(r: &mut Reader<'_>, present: bool) -> Result<Option<[u8; 32]>> {
    present.then(|| r.array()).transpose()
}

fn read_operation(r: &mut Reader<'_>) -> Result<Operation> {
    let kind = r.u8()?;
    let flag = r.boolean("options")?;
    let path = read_remote_path(r)?;
    Ok(match kind {
        tag::OPERATE_LIST => Operation::List {
            path,
            recursive: flag,
        },
        tag::OPERATE_STAT => {
            r.require(!flag, "options")?;
            Operation::Stat { path }
        }
        tag::OPERATE_SUM => {
            let hash = read_hash(r)?;
            r.require(hash != HashKind::None, "hash")?;
            Operation::Sum {
                path,
                recursive: flag,
                hash,
            }
        }
        tag::OPERATE_REMOVE => Operation::Remove {
            path,
            recursive: flag,
        },
        tag::OPERATE_MAKE => Operation::MakeDirectory {
            path,
            parents: flag,
        },
        tag::OPERATE_CLEAN => Operation::Clean {
            path,
            which: left_behind::read_cleaning(r)?,
            dry_run: flag,
        },
        _ => return Err(r.invalid("operation")),
    })
}

fn read_listed(r: &mut Reader<'_>) -> Result<Listed> {
    let kind = r.u8()?;
    let bits = r.bits8(tag::LISTED_ALL, "flags")?;
    let len = r.u64()?;
    let mode = read_mode(r)?;
    let uid = r.u32()?;
    let gid = r.u32()?;
    let mtime = read_timestamp(r)?;
    let path = r.path("path")?;
    let kind = match kind {
        tag::LISTED_EXPORT => ListedKind::Export {
            writable: bits & tag::LISTED_WRITABLE != 0,
        },
        tag::LISTED_FILE => ListedKind::File,
        tag::LISTED_DIRECTORY => ListedKind::Directory,
        tag::LISTED_SYMLINK => ListedKind::Symlink(r.path("symlink target")?),
        tag::LISTED_SPECIAL => ListedKind::Special,
        _ => return Err(r.invalid("kind")),
    };
    let digest = read_digest(r, bits & tag::LISTED_HAS_DIGEST != 0)?;
    let faulty = bits & tag::LISTED_HAS_FAULT != 0;
    let fault = faulty.then(|| read_fault(r)).transpose()?;
    let is_left = bits & tag::LISTED_IS_LEFT != 0;
    let left = is_left
        .then(|| left_behind::read_left_behind(r))
        .transpose()?;
    Ok(Listed {
        path,
        kind,
        len,
        mode,
        uid,
        gid,
        mtime,
        digest,
        fault,
        left,
    })
}
