//! Pages of a manifest by a hostile sender, through decoder and engine into a real directory: nothing
//! is made, changed or removed outside of the destination, whatever handles, names and kinds follow
//! one another. The input is pages, each behind two bytes of length.
#![no_main]

use std::fs;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use libfuzzer_sys::fuzz_target;
use rdcp::engine::Receiver;
use rdcp::engine::receiver::{Input, Output, Placed, ReceiverOptions};
use rdcp::ids::EntryId;
use rdcp::storage::{Identity, LastSymlink, Root, Sink, SinkOptions, sink};
use rdcp::units::ChunkSize;
use rdcp::wire::message::{HashKind, Message, Placement, RootName, Wanted};
use rdcp::wire::{Decoder, Fault, FaultCode};
use rdcp::{Overwrite, Preserve};

/// The type of a frame that carries a page.
const MANIFEST: u16 = 20;

/// Where it all happens: the destination, and what nobody may touch.
fn field() -> &'static Path {
    static FIELD: OnceLock<tempfile::TempDir> = OnceLock::new();
    FIELD.get_or_init(|| tempfile::tempdir_in("/dev/shm").expect("there is memory")).path()
}

fuzz_target!(|input: &[u8]| {
    let top = field();
    fs::create_dir_all(top.join("dst/sub")).expect("it is ours");
    fs::create_dir_all(top.join("outside")).expect("it is ours");
    fs::write(top.join("outside/file"), "untouched").expect("it is ours");
    let _ = std::os::unix::fs::symlink("../outside", top.join("dst/link"));

    receive(&sink_of(&top.join("dst")), input);

    let mut names: Vec<_> = fs::read_dir(top)
        .expect("it is there")
        .map(|entry| entry.expect("it can be listed").file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["dst", "outside"]);
    assert_eq!(fs::read(top.join("outside/file")).expect("it is there"), b"untouched");
    assert_eq!(fs::read_dir(top.join("outside")).expect("it is there").count(), 1);
    let removed = fs::remove_dir_all(top.join("dst"));
    removed.expect("what was made can be removed");
});

fn receive(sink: &Sink, input: &[u8]) {
    let mut options = ReceiverOptions::new(HashKind::Blake3, ChunkSize::MIN);
    options.pages_credit = 8;
    let mut machine = Receiver::new(options);
    let mut rest = input;
    while let Some((len, after)) = rest.split_first_chunk() {
        let len = usize::from(u16::from_le_bytes(*len)).min(after.len());
        let (body, after) = after.split_at(len);
        rest = after;
        let Some(page) = page(body) else {
            continue;
        };
        machine.handle(Input::Message(page));
        if answer(&mut machine, sink) {
            return;
        }
    }
    machine.handle(Input::Cancel(Fault::new(FaultCode::Cancelled, "the end")));
    assert!(answer(&mut machine, sink), "a cancelled run ends");
}

/// A page with this body, if it can be one.
fn page(body: &[u8]) -> Option<Message> {
    let mut frame = u32::try_from(body.len()).ok()?.to_le_bytes().to_vec();
    frame.extend(MANIFEST.to_le_bytes());
    frame.extend(1_u16.to_le_bytes());
    frame.extend([1; 16]);
    frame.extend(body);
    let mut decoder = Decoder::new();
    decoder.feed(&frame);
    decoder.next().ok().flatten().map(|envelope| envelope.message)
}

/// Carries out what the machine orders; whether the run has ended. No content ever comes.
fn answer(machine: &mut Receiver, sink: &Sink) -> bool {
    let fault = || Fault::new(FaultCode::Storage, "no content here");
    while let Some(output) = machine.poll() {
        let input = match output {
            Output::Finished(_) | Output::Failed { .. } => return true,
            Output::Place { page, items } => {
                let placed = sink.place(items);
                Input::Placed {
                    page,
                    entries: placed.entries.into_iter().map(told).collect(),
                    directories: placed.finished,
                }
            }
            Output::Prepare { entry, .. } => Input::Prepared { entry, result: Err(fault()) },
            Output::Link { entry, .. } => Input::Linked { entry, result: Err(fault()) },
            Output::Settled(entries) => Input::DirectoriesSettled(sink.settled(&entries)),
            _ => continue,
        };
        machine.handle(input);
    }
    false
}

fn told((entry, placed): (EntryId, sink::Placed)) -> (EntryId, Placed) {
    let placed = match placed {
        sink::Placed::Settled(outcome) => Placed::Settled(outcome),
        sink::Placed::Link { to } => Placed::Link(to),
        sink::Placed::Directory => Placed::Directory,
        _ => Placed::Fetch(Wanted::All),
    };
    (entry, placed)
}

fn sink_of(destination: &Path) -> Sink {
    let root = Root::open(destination, Identity::current()).expect("it is there");
    let options = SinkOptions {
        last_symlink: LastSymlink::Follow,
        placement: Placement {
            into_directory: true,
            make_parents: false,
            roots: vec![RootName { name: b"root".to_vec(), contents: true }],
        },
        overwrite: Overwrite::IfDifferent,
        preserve: Preserve {
            mode: true,
            symlinks: true,
            hard_links: true,
            xattrs: true,
            owner: false,
        },
        sync: false,
        only_adds: false,
        dry_run: false,
        mirror: None,
        reuse: Default::default(),
        writer: "a transfer".into(),
        chunk: ChunkSize::MIN,
    };
    Sink::new(Arc::new(root), b"".to_vec(), options)
}
