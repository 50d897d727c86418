//! Files served by each way of registering them, where the kernel has it.

use std::error::Error;
use std::fs::{self, File};
use std::path::Path;

use rdcp::sys::verbs::{FileMapping, FileMode, FileRegion, WorkStatus, probe};

use crate::fabric::{Fabric, pattern};
use crate::{Outcome, chain};

/// Where a mapping starts in the file, and a region in the mapping: on pages, and not.
const STARTS: [(usize, usize); 3] = [(4096, 8192), (4096, 8192 + 1024), (4096 + 17, 8192 + 3)];
const FILE_BYTES: usize = 1_000_003;

pub(crate) fn served(fabric: &Fabric, directory: &str) -> Outcome {
    let path = Path::new(directory).join("verbs_check");
    let content = pattern(FILE_BYTES);
    fs::write(&path, &content)?;
    let result = all_modes(fabric, &path, &content);
    fs::remove_file(&path)?;
    result
}

fn all_modes(fabric: &Fabric, path: &Path, content: &[u8]) -> Outcome {
    let file = File::open(path)?;
    let support = probe(fabric.pair()?.server.domain(), &file)?;
    let mut lines = Vec::new();
    for (mode, is_there) in [
        (FileMode::OnDemand, support.on_demand),
        (FileMode::Pinned, support.pinned),
    ] {
        match is_there {
            Ok(()) => {
                for start in STARTS {
                    one_mode(fabric, &file, path, content, mode, start)
                        .map_err(|error| format!("from {start:?}: {error}"))?;
                }
                lines.push(format!("{mode:?} read and compared"));
            }
            Err(error) => {
                // What the probe says has to be what a region says.
                let pair = fabric.pair()?;
                let mapping = FileMapping::new(&file, 0, 8192)?;
                if FileRegion::new(pair.server.domain(), &mapping, 0..8192, mode).is_ok() {
                    return Err(format!("{mode:?}: the probe failed, a region did not").into());
                }
                lines.push(format!("{mode:?} is not to be had: {}", chain(&error)));
            }
        }
    }
    Ok(lines.join("; "))
}

fn one_mode(
    fabric: &Fabric,
    file: &File,
    path: &Path,
    content: &[u8],
    mode: FileMode,
    start: (usize, usize),
) -> Result<(), Box<dyn Error>> {
    let mut pair = fabric.pair()?;
    // To the file's end; the region is a part of the mapping.
    let (mapped, part) = start;
    let mapping = FileMapping::new(file, mapped as u64, content.len() - mapped)?;
    let range = part..mapping.len();
    let region = FileRegion::new(pair.server.domain(), &mapping, range, mode)?;
    let (remote, expected) = (region.remote(), &content[mapped + part..]);
    drop(mapping);
    if remote.len != expected.len() as u64 {
        return Err(format!("a region of {} bytes", remote.len).into());
    }
    let mut at = 0;
    while at < expected.len() {
        let len = (expected.len() - at).min(100_000);
        pair.read(at as u64, &remote, at as u64, len)?;
        let finished = pair.finish()?;
        finished.outcome?;
        if finished.slot[..len] != expected[at..at + len] {
            let differs = |index: &usize| finished.slot[*index] != expected[at + index];
            let wrong: Vec<usize> = (0..len).filter(differs).collect();
            let (address, count) = (remote.address + at as u64, wrong.len());
            let (first, last) = (wrong[0], wrong[count - 1]);
            let place = format!("{count} bytes from {first} to {last} of READ at {address:#x}");
            return Err(format!("{mode:?}: other bytes: {place}").into());
        }
        at += len;
    }
    // A write through the page cache is seen.
    let mut changed = content.to_vec();
    changed[mapped + part] ^= 0xff;
    rustix::io::pwrite(
        fs::OpenOptions::new().write(true).open(path)?,
        &changed[mapped + part..=mapped + part],
        (mapped + part) as u64,
    )?;
    pair.read(1, &remote, 0, 1)?;
    let finished = pair.finish()?;
    finished.outcome?;
    fs::write(path, content)?;
    if finished.slot[0] != changed[mapped + part] {
        return Err(format!("{mode:?}: a write to the file is not seen").into());
    }
    // The range ends where it was told to.
    pair.read(2, &remote, remote.len, 1)?;
    let status = pair.finish()?.outcome.err().map(|error| error.status);
    if status != Some(WorkStatus::RemoteAccess) {
        return Err(format!("{mode:?}: beyond the region: {status:?}").into());
    }
    // The key ends with the region.
    let mut pair = fabric.pair()?;
    drop(region);
    pair.read(3, &remote, 0, 1)?;
    let status = pair.finish()?.outcome.err().map(|error| error.status);
    if status != Some(WorkStatus::RemoteAccess) {
        return Err(format!("{mode:?}: after the region's end: {status:?}").into());
    }
    Ok(())
}
