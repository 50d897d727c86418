//! Changes a served file while it is being transferred, in one of the ways that files change.
//!
//! In: a kind of change, the file, what it is to become, and the folder in which a receiver writes its
//! part file. Out: the change, made when the receiver has some chunks and lacks others; exit status 3
//! if it had all of them before. Knows nothing of the transfer but that file.
//!
//! ```text
//! rdma_meddle key=value...   in=FOLDER chunks=4 (MiB that have landed before the change)
//!                            file=FILE from=FILE (what it becomes, of the same length; if
//!                            these are not told, nothing is changed)
//!                            kind=truncate|punch|write|map|direct|rename
//! ```

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use memmap2::{MmapMut, MmapOptions};
use rustix::fs::{FallocateFlags, OFlags, fallocate};

const MIB: u64 = 1 << 20;
/// Before a transfer is called one that does not begin. Emulated machines are slow.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let mut told: HashMap<String, String> = HashMap::new();
    for argument in std::env::args().skip(1) {
        let (key, value) = argument.split_once('=').expect("key=value");
        told.insert(key.to_owned(), value.to_owned());
    }
    let chunks = told.get("chunks").map_or(4, |n| n.parse().expect("chunks"));
    let kind = told.get("kind").map_or("none", |kind| kind.as_str());
    let folder = PathBuf::from(told.get("in").expect("in="));
    let (file, from) = (told.get("file"), told.get("from"));
    let change = match (file, from) {
        (Some(file), Some(from)) => {
            Some(Change::prepare(kind, file.as_ref(), from.as_ref()).expect("it can be changed"))
        }
        _ => None,
    };
    let begun = Instant::now();
    let (landed, all) = loop {
        match landed(&folder) {
            Some((landed, all)) if landed >= chunks => break (landed, all),
            _ if is_published(&folder) => return too_late(),
            _ => {}
        }
        assert!(begun.elapsed() < PATIENCE, "nothing lands in {folder:?}");
        std::thread::sleep(Duration::from_millis(2));
    };
    if landed == all {
        return too_late();
    }
    if let Some(change) = change {
        change.make().expect("the change");
    }
    println!("{kind}: when {landed} of {all} chunks had landed");
    ExitCode::SUCCESS
}

fn too_late() -> ExitCode {
    println!("all had landed before");
    ExitCode::from(3)
}

/// The receiver's hidden file.
fn part_file(folder: &Path) -> Option<PathBuf> {
    let names = fs::read_dir(folder).ok()?.filter_map(Result::ok);
    let mut paths = names.map(|entry| entry.path());
    paths.find(|path| path.extension().is_some_and(|end| end == "part"))
}

fn is_published(folder: &Path) -> bool {
    fs::read_dir(folder).is_ok_and(|mut names| names.next().is_some())
        && part_file(folder).is_none()
}

/// How many chunks have landed, and of how many: the sources of these tests have no zeros at their
/// beginnings, and a part file has nothing else before they land.
fn landed(folder: &Path) -> Option<(u64, u64)> {
    let file = File::open(part_file(folder)?).ok()?;
    let all = file.metadata().ok()?.len().div_ceil(MIB);
    let is_there = |chunk: &u64| {
        let mut word = [0; 8];
        file.read_exact_at(&mut word, chunk * MIB).is_ok() && word != [0; 8]
    };
    Some(((0..all).filter(is_there).count() as u64, all))
}

/// All that can be done before.
struct Change<'told> {
    kind: &'told str,
    path: &'told Path,
    from: &'told Path,
    file: File,
    /// On a page, as direct writes want it.
    content: MmapMut,
}

impl<'told> Change<'told> {
    fn prepare(kind: &'told str, path: &'told Path, from: &'told Path) -> io::Result<Self> {
        let bytes = fs::read(from)?;
        let mut content = MmapMut::map_anon(bytes.len())?;
        content.copy_from_slice(&bytes);
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        if kind == "direct" {
            options.custom_flags(OFlags::DIRECT.bits().cast_signed());
        }
        let file = options.open(path)?;
        Ok(Self {
            kind,
            path,
            from,
            file,
            content,
        })
    }

    fn make(&self) -> io::Result<()> {
        let len = self.content.len() as u64;
        match self.kind {
            "truncate" => self.file.set_len(len / 4),
            "punch" => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                Ok(fallocate(&self.file, flags, len / 4, len / 2)?)
            }
            "write" | "direct" => self.file.write_all_at(&self.content, 0),
            "map" => {
                let map = MmapOptions::new().map_raw(&self.file)?;
                // The kernel stores through the mapping for us, as a program's own stores would.
                let memory = OpenOptions::new().write(true).open("/proc/self/mem")?;
                memory.write_all_at(&self.content, map.as_mut_ptr().addr() as u64)
            }
            "rename" => fs::rename(self.from, self.path),
            other => panic!("no change is called {other}"),
        }
    }
}
