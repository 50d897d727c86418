//! The judges judged: the comparison of trees sees what a copy can get wrong, and the proxy
//! does what it is told, without any rdcp.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use common::proxy::{MARKER, marked_content};
use common::tree::{self, Carried, assert_same};
use common::{Proxy, Scope, World};

/// A way to spoil a copy.
type Damage = (&'static str, fn(&Path));

#[test]
fn the_comparison_sees_every_kind_of_difference() {
    let world = World::new();
    let original = world.path("original");
    tree::make_everything(&original);
    let copied = world.path("copied");
    let copy = || {
        let _ = fs::remove_dir_all(&copied);
        let words = [&original, &copied];
        let options = ["-a", "--preserve=xattr", "--sparse=always"];
        world.tool("cp").args(options).args(words).run().ok();
    };
    copy();
    assert_same(&original, &copied, Carried::All);
    let damages: &[Damage] = &[
        ("content", |root| {
            let path = root.join("big");
            let mut content = fs::read(&path).unwrap();
            content[4_000_000] ^= 1;
            fs::write(&path, content).unwrap();
            tree::set_mtime(&path, 1_600_000_000, 0);
        }),
        ("length", |root| {
            let file = fs::OpenOptions::new()
                .write(true)
                .open(root.join("all hole"));
            file.unwrap().set_len(4 << 20).unwrap();
        }),
        ("missing", |root| {
            fs::remove_dir(root.join("empty")).unwrap()
        }),
        ("too much", |root| fs::write(root.join("more"), "").unwrap()),
        ("mode", |root| {
            tree::set_mode(&root.join("modes/640"), 0o644)
        }),
        ("directory's mode", |root| {
            tree::set_mode(&root.join("modes/d555"), 0o755)
        }),
        ("nanoseconds", |root| {
            tree::set_mtime(&root.join("links/one"), 1_600_000_000, 5)
        }),
        ("directory's time", |root| {
            tree::set_mtime(&root.join("empty"), 1_600_000_000, 5)
        }),
        ("symlink's target", |root| {
            fs::remove_file(root.join("links/relative")).unwrap();
            std::os::unix::fs::symlink("../sparse", root.join("links/relative")).unwrap();
        }),
        ("hard link", |root| {
            let path = root.join("links/two");
            let content = fs::read(&path).unwrap();
            fs::remove_file(&path).unwrap();
            fs::write(&path, content).unwrap();
        }),
        ("attribute", |root| {
            rustix::fs::lremovexattr(root.join("attributes/file"), "user.empty").unwrap();
        }),
        ("ACL", |root| {
            let path = root.join("attributes/acl");
            rustix::fs::lremovexattr(path, "system.posix_acl_access").unwrap();
        }),
        ("holes", |root| {
            let path = root.join("sparse");
            let content = fs::read(&path).unwrap();
            fs::write(&path, content).unwrap();
        }),
    ];
    for (what, damage) in damages {
        copy();
        damage(&copied);
        let seen = catch_unwind(AssertUnwindSafe(|| {
            assert_same(&original, &copied, Carried::All);
        }));
        assert!(seen.is_err(), "{what} went unseen");
    }
}

/// Sends back what it gets.
fn echo() -> TcpListener {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let accepting = listener.try_clone().unwrap();
    std::thread::spawn(move || {
        for mut stream in accepting.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let mut back = stream.try_clone().unwrap();
                let _ = std::io::copy(&mut stream, &mut back);
            });
        }
    });
    listener
}

#[test]
fn the_proxy_damages_markers_and_nothing_else() {
    let echo = echo();
    let proxy = Proxy::new(echo.local_addr().unwrap()).damage(3);
    let content = marked_content(20_000, 1);
    let mut stream = TcpStream::connect(proxy.address()).unwrap();
    stream.write_all(&[1]).unwrap();
    stream.write_all(&content).unwrap();
    let mut back = vec![0; content.len() + 1];
    stream.read_exact(&mut back).unwrap();
    let different: Vec<usize> = (0..content.len())
        .filter(|at| back[at + 1] != content[*at])
        .collect();
    assert_eq!(different.len(), 3);
    assert!(
        different
            .iter()
            .all(|at| content[*at..].starts_with(MARKER))
    );
    assert_eq!(proxy.flipped(), 3);
}

#[test]
fn the_proxy_holds_releases_and_cuts() {
    let echo = echo();
    let proxy = Proxy::new(echo.local_addr().unwrap()).hold_after(10_000, Scope::Data);
    let connect = |first: u8| {
        let mut stream = TcpStream::connect(proxy.address()).unwrap();
        stream.write_all(&[first]).unwrap();
        stream.read_exact(&mut [0]).unwrap();
        stream
    };
    let (mut control, mut data) = (connect(22), connect(1));
    data.write_all(&[7; 10_000]).unwrap();
    proxy.wait_held();
    control.write_all(b"still").unwrap();
    control.read_exact(&mut [0; 5]).unwrap();
    proxy.release();
    data.read_exact(&mut [0; 10_000]).unwrap();
    proxy.cut(Scope::Data);
    assert!(!matches!(data.read(&mut [0]), Ok(1)), "it is cut");
    control.write_all(b"still").unwrap();
    control.read_exact(&mut [0; 5]).unwrap();
}
