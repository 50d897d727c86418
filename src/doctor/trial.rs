//! Registers memory on each usable device: what works depends on kernel, device and file system,
//! and only trying tells.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::judge;
use super::machine::Machine;
use super::{Check, Status, Topic};
use crate::memory::Pool;
use crate::sys::verbs::{self, Context, Domain};

/// A slot of this size is registered, as a transfer's are.
const SLOT_BYTES: usize = 1 << 20;
/// Entries of a directory that are looked at for a file to try with.
const ENTRIES_MAX: usize = 1000;

/// What came of it.
pub(super) struct Tried {
    pub(super) checks: Vec<Check>,
    /// At least one device takes slots, with which every file can be served.
    pub(super) registers: bool,
}

/// Tries slots, and the file system of each path, on each of the devices.
pub(super) fn run(machine: &Machine, devices: &[&str], paths: &[PathBuf]) -> Tried {
    let mut tried = Tried {
        checks: Vec::new(),
        registers: false,
    };
    let mut domains = Vec::new();
    for name in devices {
        let outcome = open(name).and_then(|domain| slot(&domain).map(|()| domain));
        tried
            .checks
            .push(judge::slots(machine, name, outcome.as_ref().err()));
        if let Ok(domain) = outcome {
            tried.registers = true;
            domains.push(domain);
        }
    }
    let default = [PathBuf::from("."), PathBuf::from("/dev/shm")];
    let paths = if paths.is_empty() { &default } else { paths };
    for path in paths {
        let about = path.display().to_string();
        if domains.is_empty() {
            let text = "no device to try its file system with; mend the findings above first";
            let again = format!("rdcp doctor --path {}", judge::quoted(&about));
            tried.checks.push(Check {
                fix: Some(again),
                ..Check::skipped(Topic::Registration, about, text)
            });
            continue;
        }
        match file_of(path) {
            Ok(file) => tried.checks.extend(
                domains
                    .iter()
                    .map(|domain| file_system(machine, path, &file, domain)),
            ),
            Err(why) => tried.checks.push(Check {
                status: Status::Warning,
                fix: Some(format!("ls -ld {}", judge::quoted(&about))),
                ..Check::ok(Topic::Registration, about, why)
            }),
        }
    }
    tried
}

fn open(name: &str) -> Result<std::sync::Arc<Domain>, String> {
    let devices = verbs::devices().map_err(|error| error.to_string())?;
    let device = devices
        .iter()
        .find(|device| device.name() == name)
        .ok_or("the device has gone")?;
    let context = Context::open(device).map_err(words)?;
    Domain::new(&context).map_err(words)
}

fn slot(domain: &std::sync::Arc<Domain>) -> Result<(), String> {
    let pool = Pool::new(SLOT_BYTES, 1);
    let mut slot = pool.take().ok_or("no memory for a slot")?;
    verbs::region::register_serving(&mut slot, domain)
        .map(drop)
        .map_err(words)
}

fn file_system(
    machine: &Machine,
    path: &Path,
    file: &OwnedFd,
    domain: &std::sync::Arc<Domain>,
) -> Check {
    let outcome = match verbs::probe(domain, file) {
        Ok(support) => (
            support.on_demand.map_err(words),
            support.pinned.map_err(words),
        ),
        Err(error) => (Err(error.to_string()), Err(error.to_string())),
    };
    let kind = fs::canonicalize(path).ok().and_then(|path| {
        let table = fs::read_to_string("/proc/self/mountinfo").ok()?;
        judge::file_system_kind(&table, &path)
    });
    let device = domain.context().name();
    judge::file_system(
        machine,
        &path.display().to_string(),
        kind.as_deref(),
        device,
        outcome,
    )
}

/// A file with a byte in it on the path's file system: a nameless one, else one that is there.
fn file_of(path: &Path) -> Result<OwnedFd, String> {
    let meta = fs::metadata(path).map_err(|error| format!("it can't be tried: {error}"))?;
    if !meta.is_dir() {
        let file = File::open(path).map_err(|error| format!("it can't be opened: {error}"))?;
        return if meta.is_file() && meta.len() > 0 {
            Ok(file.into())
        } else {
            Err("it is no regular file with something in it".to_owned())
        };
    }
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let nameless = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR);
    if let Ok(nameless) = nameless {
        let mut file = File::from(nameless);
        if file.write_all(&[1; 4096]).is_ok() {
            return Ok(file.into());
        }
    }
    let entries = fs::read_dir(path).map_err(|error| format!("it can't be listed: {error}"))?;
    entries
        .filter_map(Result::ok)
        .take(ENTRIES_MAX)
        .filter(|entry| {
            entry
                .metadata()
                .is_ok_and(|meta| meta.is_file() && meta.len() > 0)
        })
        .find_map(|entry| File::open(entry.path()).ok())
        .map(Into::into)
        .ok_or_else(|| "no file can be made in it, and none is there to try with".to_owned())
}

fn words(error: verbs::Error) -> String {
    format!("{error}: {}", error.io())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_found_or_made_in_a_directory() {
        let folder = tempfile::tempdir().unwrap();
        let file = file_of(folder.path()).unwrap();
        assert_eq!(rustix::fs::fstat(&file).unwrap().st_size, 4096);
        let empty = folder.path().join("empty");
        File::create(&empty).unwrap();
        assert!(file_of(&empty).unwrap_err().contains("regular file"));
        assert!(file_of(&folder.path().join("none")).is_err());
    }

    #[test]
    fn without_devices_each_path_is_skipped_with_what_to_run_later() {
        let machine = Machine::default();
        let tried = run(&machine, &[], &[PathBuf::from("/a b")]);
        assert!(!tried.registers);
        let [check] = &tried.checks[..] else {
            panic!("{:?}", tried.checks)
        };
        assert_eq!(check.status, Status::Skipped);
        assert_eq!(check.fix.as_deref(), Some("rdcp doctor --path '/a b'"));
        assert_eq!(run(&machine, &[], &[]).checks.len(), 2);
    }
}
