//! Numbers of variants and bits within bodies, shared by the writers and the readers.

/// The bits of a mode that travel: permissions, set-id, sticky.
pub(super) const MODE_BITS: u32 = 0o7777;

pub(super) const PULL: u8 = 1;
pub(super) const PUSH: u8 = 2;

pub(super) const OPEN_RECURSIVE: u8 = 1;
pub(super) const OPEN_DRY_RUN: u8 = 2;
pub(super) const OPEN_ALL: u8 = 3;

pub(super) const HASH_NONE: u8 = 0;
pub(super) const HASH_BLAKE3: u8 = 1;
pub(super) const HASH_SHA256: u8 = 2;

pub(super) const PRESERVE_MODE: u16 = 1;
pub(super) const PRESERVE_SYMLINKS: u16 = 2;
pub(super) const PRESERVE_HARD_LINKS: u16 = 4;
pub(super) const PRESERVE_XATTRS: u16 = 8;
pub(super) const PRESERVE_OWNER: u16 = 16;
pub(super) const PRESERVE_ALL: u16 = 31;

pub(super) const PUSH_INTO_DIRECTORY: u16 = 1;
pub(super) const PUSH_MAKE_PARENTS: u16 = 2;
pub(super) const PUSH_SYNC: u16 = 4;
pub(super) const PUSH_RESUME: u16 = 8;
pub(super) const PUSH_DELTA: u16 = 16;
pub(super) const PUSH_CHECKSUM: u16 = 32;
pub(super) const PUSH_IN_PLACE: u16 = 64;
pub(super) const PUSH_DELETE: u16 = 128;
pub(super) const PUSH_DELETE_MAX: u16 = 256;
pub(super) const PUSH_DELETE_EMPTY: u16 = 512;
pub(super) const PUSH_ALL: u16 = 1023;

pub(super) const OVERWRITE_IF_DIFFERENT: u8 = 1;
pub(super) const OVERWRITE_OLDER: u8 = 2;
pub(super) const OVERWRITE_NEVER: u8 = 3;
pub(super) const OVERWRITE_ERROR: u8 = 4;

pub(super) const ITEM_FILE: u8 = 1;
pub(super) const ITEM_DIRECTORY: u8 = 2;
pub(super) const ITEM_SYMLINK: u8 = 3;
pub(super) const ITEM_HARD_LINK: u8 = 4;
pub(super) const ITEM_DIRECTORY_END: u8 = 32;
pub(super) const ITEM_SKIPPED: u8 = 33;

pub(super) const PLACE_ROOT: u8 = 1;
pub(super) const PLACE_IN: u8 = 2;

pub(super) const WANT_NOTHING: u8 = 0;
pub(super) const WANT_ALL: u8 = 1;
pub(super) const WANT_CHUNKS: u8 = 2;
pub(super) const WANT_COMPARED: u8 = 3;

pub(super) const PART_LAST: u8 = 1;
pub(super) const PART_PACKED: u8 = 2;
pub(super) const PART_ALL: u8 = 3;

pub(super) const LINK_INFINIBAND: u8 = 1;
pub(super) const LINK_ETHERNET: u8 = 2;

pub(super) const GID_INFINIBAND: u8 = 1;
pub(super) const GID_ROCE_V1: u8 = 2;
pub(super) const GID_ROCE_V2: u8 = 3;

pub(super) const DIAL_DIRECT: u8 = 1;
pub(super) const DIAL_CM: u8 = 2;

pub(super) const OUTCOME_PUBLISHED: u8 = 1;
pub(super) const OUTCOME_UNCHANGED: u8 = 2;
pub(super) const OUTCOME_FAILED: u8 = 3;
pub(super) const OUTCOME_UPDATED: u8 = 4;
pub(super) const OUTCOME_PLANNED: u8 = 5;

pub(super) const REMOVED_FILE: u8 = 1;
pub(super) const REMOVED_DIRECTORY: u8 = 2;
pub(super) const REMOVED_SYMLINK: u8 = 3;
pub(super) const REMOVED_SPECIAL: u8 = 4;

pub(super) const REMOVED_GONE: u8 = 1;
pub(super) const REMOVED_WOULD: u8 = 2;
pub(super) const REMOVED_FAILED: u8 = 3;
pub(super) const REMOVED_KEPT: u8 = 4;

pub(super) const REMARK_OWNER: u8 = 1;
pub(super) const REMARK_SET_ID: u8 = 2;
pub(super) const REMARK_ATTRIBUTES_UNSUPPORTED: u8 = 3;
pub(super) const REMARK_ACCESS_LISTS_UNSUPPORTED: u8 = 4;
pub(super) const REMARK_ATTRIBUTES_PRIVILEGED: u8 = 5;
pub(super) const REMARK_LINK_COPIED: u8 = 6;
pub(super) const REMARK_BEGUN_ANEW: u8 = 7;

pub(super) const OPERATE_LIST: u8 = 1;
pub(super) const OPERATE_STAT: u8 = 2;
pub(super) const OPERATE_SUM: u8 = 3;
pub(super) const OPERATE_REMOVE: u8 = 4;
pub(super) const OPERATE_MAKE: u8 = 5;
pub(super) const OPERATE_CLEAN: u8 = 6;

pub(super) const CLEAN_STALE: u8 = 1;
pub(super) const CLEAN_OLDER: u8 = 2;
pub(super) const CLEAN_ALL: u8 = 3;

pub(super) const LISTED_EXPORT: u8 = 1;
pub(super) const LISTED_FILE: u8 = 2;
pub(super) const LISTED_DIRECTORY: u8 = 3;
pub(super) const LISTED_SYMLINK: u8 = 4;
pub(super) const LISTED_SPECIAL: u8 = 5;

pub(super) const LISTED_WRITABLE: u8 = 1;
pub(super) const LISTED_HAS_DIGEST: u8 = 2;
pub(super) const LISTED_HAS_FAULT: u8 = 4;
pub(super) const LISTED_IS_LEFT: u8 = 8;
pub(super) const LISTED_ALL: u8 = 15;

pub(super) const LEFT_REMOVED: u8 = 1;
pub(super) const LEFT_WOULD: u8 = 2;
pub(super) const LEFT_KEPT: u8 = 3;
