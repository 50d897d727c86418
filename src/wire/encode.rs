//! Messages into the fields of their bodies, in the order that the format page draws.

use std::num::NonZeroU64;

use crate::limits::{
    BATCH_ENTRIES_MAX, DIGESTS_MAX, FILTER_BYTES_MAX, FILTERS_BYTES_MAX, FILTERS_MAX,
    GRANT_EXTENTS_MAX, PACK_FILES_MAX, PAGE_ITEMS_MAX, RAILS_MAX, REMARK_ENTRIES_MAX, REMARKS_MAX,
    ROOTS_MAX, TRANSPORTS_MAX, WANT_RANGES_MAX, XATTR_BYTES_MAX, XATTRS_MAX,
};
use crate::manifest::{Entry, EntryKind, Item, Metadata, Note, Place};
use crate::units::Timestamp;
use crate::wire::Fault;
use crate::wire::codec::Writer;
use crate::wire::message::{
    Direction, Grant, GrantPart, HashKind, Hello, Listed, ListedKind, ManifestPage, Message, Open,
    Operation, Outcome, Overwrite, Placement, Preserve, Remark, RemarkKind, RemotePath, Wanted,
    Welcome,
};
use crate::wire::{left_behind, plan, rail, removal, status, tag};

/// Bytes that an item takes in a manifest page, so that a page can be closed in time.
pub fn item_bytes(item: &Item) -> usize {
    measure(|writer| write_item(writer, item))
}

/// Bytes that a line takes in a listing.
pub fn listed_bytes(listed: &Listed) -> usize {
    measure(|writer| write_listed(writer, listed))
}

fn measure(write: impl FnOnce(&mut Writer<'_>)) -> usize {
    let mut scratch = Vec::with_capacity(256);
    write(&mut Writer::new(&mut scratch));
    scratch.len()
}

pub(super) fn message(w: &mut Writer<'_>, message: &Message) {
    match message {
        Message::Hello(hello) => write_hello(w, hello),
        Message::Welcome(welcome) => write_welcome(w, welcome),
        Message::Ping { nonce } | Message::Pong { nonce } => w.u64(*nonce),
        Message::Goodbye(fault) | Message::Failed(fault) => write_fault(w, fault),
        Message::RailOffer(offer) => rail::write_offer(w, offer),
        Message::RailAnswer(answer) => rail::write_answer(w, answer),
        Message::RailConnect(connect) => rail::write_connect(w, connect),
        Message::RailReady(ready) => rail::write_ready(w, ready),
        Message::RailProof { link, read } => rail::write_proof(w, link, read),
        Message::RailDown { link, reason } => rail::write_down(w, link, reason),
        Message::StatusQuery(query) => status::write_query(w, query),
        Message::StatusPage(page) => status::write_page(w, page),
        Message::RailMemory { reason } => w.text(reason),
        Message::Open(open) => write_open(w, open),
        Message::Finish(carried) => {
            w.u64(carried.tcp);
            w.u64(carried.rdma);
            w.u64(carried.resumed);
            w.u64(carried.reused);
        }
        Message::Opened | Message::Finished | Message::Done => {}
        Message::Credit {
            pages,
            region_bytes,
        } => {
            w.u32(*pages);
            w.u64(*region_bytes);
        }
        Message::Manifest(page) => write_page(w, page),
        Message::Want(wants) => write_want(w, wants),
        Message::Grant(grant) => write_grant(w, grant),
        Message::Digests(digests) => w.list(digests, DIGESTS_MAX, "digests", |w, digest| {
            w.u64(digest.entry.0);
            w.u64(digest.chunk);
            w.array(&digest.value);
        }),
        Message::Recheck { entry, chunk } => {
            w.u64(entry.0);
            w.u64(*chunk);
        }
        Message::Release(regions) => {
            w.list(regions, BATCH_ENTRIES_MAX, "regions", |w, region| {
                w.u64(region.0)
            });
        }
        Message::Close(entries) => {
            w.list(entries, BATCH_ENTRIES_MAX, "entries", |w, entry| {
                w.u64(entry.0)
            });
        }
        Message::Closed(answers) => {
            w.list(answers, BATCH_ENTRIES_MAX, "entries", |w, (entry, same)| {
                w.u64(entry.0);
                w.boolean(*same);
            });
        }
        Message::EntryFailed { entry, fault } => {
            w.u64(entry.0);
            write_fault(w, fault);
        }
        Message::Settled(settled) => {
            w.list(
                settled,
                BATCH_ENTRIES_MAX,
                "entries",
                |w, (entry, outcome)| {
                    w.u64(entry.0);
                    write_outcome(w, outcome);
                },
            );
        }
        Message::Deleted {
            comparing,
            removals,
        } => removal::write(w, *comparing, removals),
        Message::Remarks(remarks) => w.short_list(remarks, REMARKS_MAX, "remarks", write_remark),
        Message::Bench { region_bytes } => w.u64(*region_bytes),
        Message::Operate(operation) => write_operation(w, operation),
        Message::Listing(lines) => w.list(lines, BATCH_ENTRIES_MAX, "lines", write_listed),
    }
}

pub(super) fn write_fault(w: &mut Writer<'_>, fault: &Fault) {
    w.u16(fault.code.to_wire());
    w.text(&fault.text);
}

fn write_hello(w: &mut Writer<'_>, hello: &Hello) {
    w.u16(hello.level_min);
    w.u16(hello.level_max);
    w.text(&hello.software);
}

fn write_welcome(w: &mut Writer<'_>, welcome: &Welcome) {
    w.u16(welcome.level);
    w.u64(welcome.session.0);
    w.u64(welcome.epoch);
    w.u16(welcome.data_connections_max);
    w.text(&welcome.software);
    w.short_list(
        &welcome.transports,
        TRANSPORTS_MAX,
        "transports",
        |w, offer| {
            w.boolean(offer.available);
            w.text(&offer.name);
            w.text(&offer.reason);
        },
    );
}

fn write_open(w: &mut Writer<'_>, open: &Open) {
    w.u8(match open.direction {
        Direction::Pull(_) => tag::PULL,
        Direction::Push { .. } => tag::PUSH,
    });
    w.u8(hash_tag(open.hash));
    w.u8(open.chunk.log2());
    w.u16(preserve_bits(open.preserve));
    let recursive = if open.recursive {
        tag::OPEN_RECURSIVE
    } else {
        0
    };
    let dry_run = if open.dry_run { tag::OPEN_DRY_RUN } else { 0 };
    w.u8(recursive | dry_run);
    w.list(&open.filters, FILTERS_MAX, "filters", |w, filter| {
        w.boolean(filter.include);
        w.bytes16(&filter.pattern, FILTER_BYTES_MAX, "pattern");
    });
    let bytes = open.filters.iter().map(|filter| filter.pattern.len()).sum();
    w.bound(bytes, FILTERS_BYTES_MAX, "bytes of all patterns");
    match &open.direction {
        Direction::Pull(sources) => w.list(sources, ROOTS_MAX, "sources", write_remote_path),
        Direction::Push {
            destination,
            placement,
            overwrite,
            sync,
            resume,
            bytes_per_s,
            delete,
            reuse,
        } => {
            write_remote_path(w, destination);
            let bits = flag(*sync, tag::PUSH_SYNC)
                | flag(*resume, tag::PUSH_RESUME)
                | flag(reuse.delta, tag::PUSH_DELTA)
                | flag(reuse.checksum, tag::PUSH_CHECKSUM)
                | flag(reuse.in_place, tag::PUSH_IN_PLACE)
                | removal::deleting_bits(*delete);
            write_placement(w, placement, *overwrite, bits);
            w.u64(bytes_per_s.map_or(0, NonZeroU64::get));
            removal::write_deleting(w, delete.unwrap_or_default());
        }
    }
}

fn write_placement(w: &mut Writer<'_>, placement: &Placement, overwrite: Overwrite, bits: u16) {
    let into = flag(placement.into_directory, tag::PUSH_INTO_DIRECTORY);
    let parents = flag(placement.make_parents, tag::PUSH_MAKE_PARENTS);
    w.u16(into | parents | bits);
    w.u8(match overwrite {
        Overwrite::IfDifferent => tag::OVERWRITE_IF_DIFFERENT,
        Overwrite::Older => tag::OVERWRITE_OLDER,
        Overwrite::Never => tag::OVERWRITE_NEVER,
        Overwrite::Error => tag::OVERWRITE_ERROR,
    });
    w.list(&placement.roots, ROOTS_MAX, "roots", |w, root| {
        w.boolean(root.contents);
        w.bytes8(&root.name, "root name");
    });
}

fn flag(is_set: bool, bit: u16) -> u16 {
    if is_set { bit } else { 0 }
}

fn write_remote_path(w: &mut Writer<'_>, path: &RemotePath) {
    w.bytes8(path.export.as_bytes(), "export name");
    w.path(&path.path, "path");
}

fn hash_tag(hash: HashKind) -> u8 {
    match hash {
        HashKind::None => tag::HASH_NONE,
        HashKind::Blake3 => tag::HASH_BLAKE3,
        HashKind::Sha256 => tag::HASH_SHA256,
    }
}

fn preserve_bits(preserve: Preserve) -> u16 {
    let Preserve {
        mode,
        symlinks,
        hard_links,
        xattrs,
        owner,
    } = preserve;
    let mut bits = 0;
    for (set, bit) in [
        (mode, tag::PRESERVE_MODE),
        (symlinks, tag::PRESERVE_SYMLINKS),
        (hard_links, tag::PRESERVE_HARD_LINKS),
        (xattrs, tag::PRESERVE_XATTRS),
        (owner, tag::PRESERVE_OWNER),
    ] {
        if set {
            bits |= bit;
        }
    }
    bits
}

fn write_page(w: &mut Writer<'_>, page: &ManifestPage) {
    w.boolean(page.last);
    w.list(&page.items, PAGE_ITEMS_MAX, "items", write_item);
}

fn write_item(w: &mut Writer<'_>, item: &Item) {
    match item {
        Item::Entry(entry) => write_entry(w, entry),
        Item::Note(Note::DirectoryEnd {
            directory,
            complete,
        }) => {
            w.u8(tag::ITEM_DIRECTORY_END);
            w.u64(directory.0);
            w.boolean(*complete);
        }
        Item::Note(Note::Skipped {
            place,
            fault,
            failure,
        }) => {
            w.u8(tag::ITEM_SKIPPED);
            w.boolean(*failure);
            write_place(w, place);
            write_fault(w, fault);
        }
    }
}

fn write_entry(w: &mut Writer<'_>, entry: &Entry) {
    w.u8(match entry.kind {
        EntryKind::File { .. } => tag::ITEM_FILE,
        EntryKind::Directory => tag::ITEM_DIRECTORY,
        EntryKind::Symlink(_) => tag::ITEM_SYMLINK,
        EntryKind::HardLink(_) => tag::ITEM_HARD_LINK,
    });
    w.u64(entry.id.0);
    write_place(w, &entry.place);
    write_metadata(w, &entry.metadata);
    match &entry.kind {
        EntryKind::File { len, linked } => {
            w.u64(*len);
            w.boolean(*linked);
        }
        EntryKind::Directory => {}
        EntryKind::Symlink(target) => w.path(target, "symlink target"),
        EntryKind::HardLink(to) => w.u64(to.0),
    }
}

fn write_place(w: &mut Writer<'_>, place: &Place) {
    match place {
        Place::Root(index) => {
            w.u8(tag::PLACE_ROOT);
            w.u32(*index);
        }
        Place::In(directory, name) => {
            w.u8(tag::PLACE_IN);
            w.u64(directory.0);
            w.bytes8(name.as_bytes(), "name");
        }
    }
}

fn write_metadata(w: &mut Writer<'_>, metadata: &Metadata) {
    write_mode(w, metadata.mode);
    w.u32(metadata.uid);
    w.u32(metadata.gid);
    write_timestamp(w, metadata.mtime);
    let mut bytes = 0_usize;
    w.short_list(
        &metadata.xattrs,
        XATTRS_MAX,
        "xattrs",
        |w, (name, value)| {
            w.bytes8(name, "xattr name");
            w.bytes32(value, XATTR_BYTES_MAX, "xattr value");
            bytes = bytes.saturating_add(name.len()).saturating_add(value.len());
        },
    );
    w.bound(bytes, XATTR_BYTES_MAX, "xattrs' bytes");
}

/// Permission bits only: what a thing is stands in its tag, so type bits are left behind.
fn write_mode(w: &mut Writer<'_>, mode: u32) {
    w.u16(u16::try_from(mode & tag::MODE_BITS).unwrap_or_default());
}

fn write_timestamp(w: &mut Writer<'_>, time: Timestamp) {
    w.i64(time.seconds);
    w.u32(time.nanoseconds);
}

fn write_want(w: &mut Writer<'_>, wants: &[(crate::ids::EntryId, Wanted)]) {
    let mut ranges_told = 0;
    w.list(wants, BATCH_ENTRIES_MAX, "entries", |w, (entry, wanted)| {
        w.u64(entry.0);
        match wanted {
            Wanted::Nothing => w.u8(tag::WANT_NOTHING),
            Wanted::All => w.u8(tag::WANT_ALL),
            Wanted::Chunks(ranges) => {
                w.u8(tag::WANT_CHUNKS);
                ranges_told += ranges.len();
                w.list(ranges, WANT_RANGES_MAX, "ranges", |w, range| {
                    w.u64(range.start);
                    w.u64(range.end);
                });
            }
            Wanted::Compared(before) => {
                w.u8(tag::WANT_COMPARED);
                w.u64(*before);
            }
        }
    });
    w.bound(ranges_told, WANT_RANGES_MAX, "ranges of all entries");
}

fn write_grant(w: &mut Writer<'_>, grant: &Grant) {
    w.u64(grant.region.0);
    w.u64(grant.len);
    w.u32(grant.lease_ms);
    w.short_list(&grant.keys, RAILS_MAX, "keys", |w, key| {
        w.u16(key.rail);
        w.u64(key.address);
        w.u64(key.key.0);
    });
    w.list(&grant.parts, PACK_FILES_MAX, "parts", write_part);
    let extents = grant.parts.iter().map(|part| part.extents.len()).sum();
    w.bound(extents, GRANT_EXTENTS_MAX, "extents of all parts");
}

fn write_part(w: &mut Writer<'_>, part: &GrantPart) {
    w.u64(part.entry.0);
    w.array(&part.version.0);
    w.u64(part.file_len);
    w.u64(part.file_offset);
    w.u64(part.region_offset);
    w.u64(part.len);
    let last = if part.last { tag::PART_LAST } else { 0 };
    let packed = if part.packed { tag::PART_PACKED } else { 0 };
    w.u8(last | packed);
    w.list(&part.extents, GRANT_EXTENTS_MAX, "extents", |w, extent| {
        w.u64(extent.start);
        w.u64(extent.end);
    });
}

fn write_outcome(w: &mut Writer<'_>, outcome: &Outcome) {
    match outcome {
        Outcome::Published { bytes, digest } => {
            w.u8(tag::OUTCOME_PUBLISHED);
            w.u64(*bytes);
            w.boolean(digest.is_some());
            write_digest(w, digest.as_ref());
        }
        Outcome::Unchanged => w.u8(tag::OUTCOME_UNCHANGED),
        Outcome::Updated => w.u8(tag::OUTCOME_UPDATED),
        Outcome::Planned(reason) => {
            w.u8(tag::OUTCOME_PLANNED);
            plan::write(w, *reason);
        }
        Outcome::Failed(fault) => {
            w.u8(tag::OUTCOME_FAILED);
            write_fault(w, fault);
        }
    }
}

fn write_remark(w: &mut Writer<'_>, remark: &Remark) {
    w.u8(match remark.kind {
        RemarkKind::Owner => tag::REMARK_OWNER,
        RemarkKind::SetId => tag::REMARK_SET_ID,
        RemarkKind::AttributesUnsupported => tag::REMARK_ATTRIBUTES_UNSUPPORTED,
        RemarkKind::AccessListsUnsupported => tag::REMARK_ACCESS_LISTS_UNSUPPORTED,
        RemarkKind::AttributesPrivileged => tag::REMARK_ATTRIBUTES_PRIVILEGED,
        RemarkKind::LinkCopied => tag::REMARK_LINK_COPIED,
        RemarkKind::BegunAnew => tag::REMARK_BEGUN_ANEW,
        RemarkKind::Unknown(kind) => kind,
    });
    w.u64(remark.count);
    w.short_list(
        &remark.entries,
        REMARK_ENTRIES_MAX,
        "entries",
        |w, entry| w.u64(entry.0),
    );
}

fn write_digest(w: &mut Writer<'_>, digest: Option<&[u8; 32]>) {
    if let Some(digest) = digest {
        w.array(digest);
    }
}

fn write_operation(w: &mut Writer<'_>, operation: &Operation) {
    let (tag, flag, path) = match operation {
        Operation::List { path, recursive } => (tag::OPERATE_LIST, *recursive, path),
        Operation::Stat { path } => (tag::OPERATE_STAT, false, path),
        Operation::Sum {
            path, recursive, ..
        } => (tag::OPERATE_SUM, *recursive, path),
        Operation::Remove { path, recursive } => (tag::OPERATE_REMOVE, *recursive, path),
        Operation::MakeDirectory { path, parents } => (tag::OPERATE_MAKE, *parents, path),
        Operation::Clean { path, dry_run, .. } => (tag::OPERATE_CLEAN, *dry_run, path),
    };
    w.u8(tag);
    w.boolean(flag);
    write_remote_path(w, path);
    match operation {
        Operation::Sum { hash, .. } => w.u8(hash_tag(*hash)),
        Operation::Clean { which, .. } => left_behind::write_cleaning(w, *which),
        _ => {}
    }
}

fn write_listed(w: &mut Writer<'_>, listed: &Listed) {
    let (tag, writable) = match &listed.kind {
        ListedKind::Export { writable } => (tag::LISTED_EXPORT, *writable),
        ListedKind::File => (tag::LISTED_FILE, false),
        ListedKind::Directory => (tag::LISTED_DIRECTORY, false),
        ListedKind::Symlink(_) => (tag::LISTED_SYMLINK, false),
        ListedKind::Special => (tag::LISTED_SPECIAL, false),
    };
    let writable = if writable { tag::LISTED_WRITABLE } else { 0 };
    let digest = if listed.digest.is_some() {
        tag::LISTED_HAS_DIGEST
    } else {
        0
    };
    let fault = if listed.fault.is_some() {
        tag::LISTED_HAS_FAULT
    } else {
        0
    };
    let left = if listed.left.is_some() {
        tag::LISTED_IS_LEFT
    } else {
        0
    };
    w.u8(tag);
    w.u8(writable | digest | fault | left);
    w.u64(listed.len);
    write_mode(w, listed.mode);
    w.u32(listed.uid);
    w.u32(listed.gid);
    write_timestamp(w, listed.mtime);
    w.path(&listed.path, "path");
    if let ListedKind::Symlink(target) = &listed.kind {
        w.path(target, "symlink target");
    }
    write_digest(w, listed.digest.as_ref());
    if let Some(fault) = &listed.fault {
        write_fault(w, fault);
    }
    if let Some(left) = &listed.left {
        left_behind::write_left_behind(w, left);
    }
}
