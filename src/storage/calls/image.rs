//! What a disk would hold after the power went, and the laying out of that as a real directory.
//!
//! In: a [`Disk`] and chance. Out: names, content, modes and times of a possible next morning. The
//! promises that it keeps are the disk's.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use super::disk::{Change, Content, Disk, Inode, Node, NodeKind, Order, What};
use crate::simulation::random::Random;

/// What a device writes at once.
const SECTOR_BYTES: usize = 512;

/// A possible content of a disk.
#[derive(Debug)]
pub(crate) struct Image {
    top: Inode,
    names: BTreeMap<Inode, BTreeMap<Vec<u8>, Inode>>,
    nodes: BTreeMap<Inode, Node>,
    /// Files whose content is not as it was written.
    pub(crate) torn: u64,
    /// Changes of names, modes and times that are missing.
    pub(crate) missing: u64,
}

impl Image {
    /// Draws one.
    pub(crate) fn draw(disk: &Disk, random: &mut Random) -> Self {
        let mut image = Self {
            top: disk.top,
            names: disk.names.clone(),
            nodes: BTreeMap::new(),
            torn: 0,
            missing: 0,
        };
        let mut nodes: Vec<_> = disk.nodes.iter().collect();
        nodes.sort_by_key(|(_, node)| node.number);
        for (inode, node) in nodes {
            let mut node = node.clone();
            if let NodeKind::File(content) = &mut node.kind {
                let pending = !content.pending.is_empty();
                content.durable = draw_content(content, random);
                content.pending.clear();
                image.torn += u64::from(pending);
            }
            image.nodes.insert(*inode, node);
        }
        let open = disk.changes.iter().filter(|(_, durable)| !durable).count() as u64;
        // With an order a part from the front, else some or none or nearly all.
        let cut = random.below(open + 1);
        let odds = random.pick(&[0, 1, 2, 2, 8]);
        let mut seen = 0;
        for (change, durable) in &disk.changes {
            let holds = *durable || {
                seen += 1;
                match disk.order {
                    Order::Journal => seen <= cut,
                    Order::None => odds != 0 && (odds == 1 || !random.one_in(odds)),
                }
            };
            match holds {
                true => image.apply(change),
                false => image.missing += 1,
            }
        }
        image
    }

    fn apply(&mut self, change: &Change) {
        match change {
            Change::Name {
                directory,
                name,
                node,
            } => {
                self.directory(*directory).insert(name.clone(), *node);
            }
            Change::NoName { directory, name } => {
                self.directory(*directory).remove(name);
            }
            Change::Rename { from, to, node } => {
                self.directory(from.0).remove(&from.1);
                self.directory(to.0).insert(to.1.clone(), *node);
            }
            Change::Mode(node, mode) => {
                if let Some(node) = self.nodes.get_mut(node) {
                    node.mode = *mode;
                }
            }
            Change::Time(node, mtime) => {
                if let Some(node) = self.nodes.get_mut(node) {
                    node.mtime = *mtime;
                }
            }
        }
    }

    fn directory(&mut self, inode: Inode) -> &mut BTreeMap<Vec<u8>, Inode> {
        self.names.entry(inode).or_default()
    }

    /// Lays it out below `path`, which is made.
    pub(crate) fn lay_out(&self, path: &Path) {
        let mut laid = BTreeMap::new();
        std::fs::create_dir(path).unwrap();
        self.lay_out_directory(self.top, path, &mut laid);
    }

    fn lay_out_directory(&self, inode: Inode, path: &Path, laid: &mut BTreeMap<Inode, PathBuf>) {
        for (name, inode) in self.names.get(&inode).into_iter().flatten() {
            let path = path.join(OsStr::from_bytes(name));
            let node = &self.nodes[inode];
            match (&node.kind, laid.get(inode)) {
                (NodeKind::Directory, _) => {
                    std::fs::create_dir(&path).unwrap();
                    self.lay_out_directory(*inode, &path, laid);
                }
                (NodeKind::Symlink(target), _) => {
                    symlink(OsStr::from_bytes(target), &path).unwrap();
                    let at = rustix::fs::CWD;
                    let times = crate::simulation::tree::times(node.mtime);
                    let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
                    rustix::fs::utimensat(at, &path, &times, flags).unwrap();
                    continue;
                }
                (NodeKind::File(_), Some(first)) => {
                    std::fs::hard_link(first, &path).unwrap();
                    continue;
                }
                (NodeKind::File(content), None) => {
                    std::fs::write(&path, &content.durable).unwrap();
                    laid.insert(*inode, path.clone());
                }
            }
            if let Some((seconds, nanoseconds)) = node.mtime {
                let since = Duration::new(seconds.try_into().unwrap(), nanoseconds);
                let file = std::fs::File::open(&path).unwrap();
                file.set_modified(UNIX_EPOCH + since).unwrap();
            }
            std::fs::set_permissions(&path, PermissionsExt::from_mode(node.mode)).unwrap();
        }
    }
}

/// What of a file's content is there.
fn draw_content(content: &Content, random: &mut Random) -> Vec<u8> {
    let mut bytes = content.durable.clone();
    if content.pending.is_empty() {
        return bytes;
    }
    let style = random.below(4);
    let mut lens = vec![bytes.len()];
    for write in content.pending.iter().filter(|write| !write.lost) {
        let part = match style {
            0 => None,
            1 => Some(write.what.clone()),
            _ => draw_write(&write.what, random),
        };
        if let Some(what) = part {
            what.apply(&mut bytes);
        }
        lens.push(bytes.len());
    }
    // Its length is metadata, and may be an earlier one.
    if style > 1 && random.one_in(3) {
        bytes.resize(random.pick(&lens), 0);
    }
    bytes
}

fn draw_write(what: &What, random: &mut Random) -> Option<What> {
    match (what, random.below(3)) {
        (_, 0) => None,
        (What::Bytes { at, bytes }, 1) => {
            // In the file's sectors, not the write's.
            let lead = usize::try_from(*at).unwrap() % SECTOR_BYTES;
            let sectors = (lead + bytes.len()).div_ceil(SECTOR_BYTES);
            let (from, to) = (random.index(sectors), 1 + random.index(sectors));
            let start = (from.min(to) * SECTOR_BYTES).saturating_sub(lead);
            let end = (from.max(to) * SECTOR_BYTES)
                .saturating_sub(lead)
                .min(bytes.len());
            (start < end).then(|| What::Bytes {
                at: at + start as u64,
                bytes: bytes[start..end].to_vec(),
            })
        }
        _ => Some(what.clone()),
    }
}
