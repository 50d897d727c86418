//! Clients that prove keys: who is let in, what each may do, and when that ends.

mod common;

use std::ffi::OsString;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use common::{Daemon, Proxy, Rdcp, Scope, World, tree};
use rdcp::session::own_key::OwnKey;
use rdcp::session::tls::{ClientKeys, presented_key, server_config};

/// A key in `local/NAME.pem`; what servers know it by.
fn keygen(world: &World, name: &str) -> String {
    let file = format!("{name}.pem");
    let told = world.bare("keygen").args(["--identity", &file]).run().ok();
    let line = told.stdout.clone();
    let line = String::from_utf8(line).unwrap();
    line.split(' ').next().unwrap().to_owned()
}

/// A daemon with `export` as `data` and `other`, for the keys that `keys` lists.
fn serve(world: &World, keys: &str) -> Daemon {
    world.write("keys", keys);
    let mut words: Vec<OsString> = vec![
        "--authorized-keys".into(),
        world.path("keys").into(),
        "--listen".into(),
        "127.0.0.1:0".into(),
    ];
    for name in ["data=", "other="] {
        let mut export = OsString::from(name);
        export.push(world.path("export"));
        export.push(":rw");
        words.extend(["--export".into(), export]);
    }
    world.serve_as(&words)
}

/// `rdcp` with the key called `name`.
fn with(world: &World, name: &str, command: &str) -> Rdcp {
    let file = format!("{name}.pem");
    world.rdcp(command).args(["--identity", &file])
}

#[test]
fn a_key_is_made_once_and_told_by_its_line() {
    let world = World::new();
    let first = world.bare("keygen").run().ok();
    let line = String::from_utf8(first.stdout.clone()).unwrap();
    assert!(line.starts_with("SHA256:") && line.contains('@'), "{line}");
    let file = world.path("config/rdcp/identity.pem");
    assert_eq!(
        fs::metadata(&file).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let secret = fs::read(&file).unwrap();
    let again = world.bare("keygen").run().ok();
    assert_eq!(again.stdout, first.stdout);
    assert_eq!(fs::read(&file).unwrap(), secret);

    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    world.bare("keygen").run().expect(7).says("chmod 600");
}

#[test]
fn who_proves_a_listed_key_is_let_in_and_nobody_else() {
    let world = World::new();
    world.write("export/file", "content");
    let (known, _stranger) = (keygen(&world, "known"), keygen(&world, "stranger"));
    let daemon = serve(&world, &format!("# who\n{known} somebody\n"));
    let words = || [daemon.url("data/file"), ".".into()];
    with(&world, "known", "pull").args(words()).run().ok();
    assert_eq!(world.read("local/file"), b"content");
    with(&world, "known", "status")
        .arg(daemon.address().to_string())
        .run()
        .ok();
    with(&world, "stranger", "pull")
        .args(words())
        .run()
        .expect(4)
        .says("is not among those");
    world
        .rdcp("pull")
        .args(words())
        .run()
        .expect(4)
        .says("rdcp keygen");
    with(&world, "absent", "pull")
        .args(words())
        .run()
        .expect(2)
        .says("rdcp keygen --identity absent.pem");
}

#[test]
fn started_by_hand_it_lets_its_starter_in() {
    let world = World::new();
    world.write("export/file", "content");
    let mut export = OsString::from("data=");
    export.push(world.path("export"));
    let words = |more: &[&str]| -> Vec<OsString> {
        let own = ["--listen", "127.0.0.1:0", "--export"].map(OsString::from);
        let more = more.iter().map(OsString::from);
        own.into_iter()
            .chain([export.clone()])
            .chain(more)
            .collect()
    };
    let state = ["--state-dir".into(), world.path("state").into_os_string()];
    let refused = |more: &[&str]| {
        world
            .tool(common::program("rdcpd").to_str().unwrap())
            .args(state.clone())
            .args(words(more))
            .env_clear()
            .env("HOME", world.path("home"))
            .env("XDG_CONFIG_HOME", world.path("config"))
            .run()
            .expect(2)
    };
    refused(&["--auth", "keys"]).says("rdcp keygen");
    refused(&["--authorize", "nonsense"]).says("is no key");
    let key = keygen(&world, "stranger");
    refused(&["--auth", "none", "--authorize", &key]).says("leave out one");
    refused(&["--listen", "0.0.0.0:0"]).says("--authorize SHA256:");

    world.bare("keygen").run().ok();
    let daemon = world.serve_as(&words(&["--auth", "keys"]));
    let pull = [daemon.url("data/file"), ".".into()];
    world.rdcp("pull").args(&pull).run().ok();
    with(&world, "stranger", "pull").args(&pull).run().expect(4);
}

#[test]
fn a_line_says_which_exports_and_what_may_be_done() {
    let world = World::new();
    world.write("export/file", "content");
    world.write("local/new", "new");
    let names = ["reader", "lister", "maker", "remover"];
    let keys: Vec<_> = names.iter().map(|name| keygen(&world, name)).collect();
    let list = format!(
        "export=\"data\",rights=\"read\" {}\nrights=\"list\" {}\nrights=\"create,list\" {}\n\
         rights=\"delete\" {}\n",
        keys[0], keys[1], keys[2], keys[3]
    );
    let daemon = serve(&world, &list);
    let run = |name: &str, command: &str, words: &[OsString]| {
        with(&world, name, command).args(words.to_vec()).run()
    };
    let (file, new) = (daemon.url("data/file"), daemon.url("data/new"));
    let (other, root) = (daemon.url("other/file"), daemon.url(""));

    let exports = run("reader", "ls", &[root]).ok();
    assert_eq!(String::from_utf8_lossy(&exports.stdout).trim(), "data");
    run("reader", "pull", &[file.clone(), "got".into()]).ok();
    run("reader", "sum", std::slice::from_ref(&file)).ok();
    // What may not be seen answers like what is not there.
    let hidden = run("reader", "pull", &[other.clone(), "x".into()]).expect(5);
    let absent = run("reader", "pull", &[daemon.url("nowhere/file"), "x".into()]).expect(5);
    let text = |told: &common::command::Finished| {
        told.stderr
            .replace("nowhere", "other")
            .replace(&*daemon.url("").to_string_lossy(), "")
    };
    assert_eq!(text(&hidden), text(&absent));
    run("reader", "push", &["new".into(), new.clone()])
        .expect(4)
        .says("no right to create");
    run("reader", "rm", std::slice::from_ref(&file))
        .expect(4)
        .says("no right to delete");

    run("lister", "ls", std::slice::from_ref(&other)).ok();
    run("lister", "pull", &[file.clone(), "x".into()])
        .expect(4)
        .says("no right to read");
    run("lister", "sum", std::slice::from_ref(&file)).expect(4);

    run("maker", "push", &["new".into(), new.clone()])
        .expect(4)
        .says("--overwrite never");
    let never: [OsString; 2] = ["--overwrite".into(), "never".into()];
    let push = |to: &OsString| [&never[..], &["new".into(), to.clone()]].concat();
    run("maker", "push", &push(&new)).ok();
    assert_eq!(world.read("export/new"), b"new");
    run("maker", "push", &push(&file)).ok();
    assert_eq!(world.read("export/file"), b"content");
    run("maker", "mkdir", &[daemon.url("data/dir")]).ok();
    // A directory that is there is changed in nothing but what is put into it.
    let mode = |path: &str| fs::metadata(world.path(path)).unwrap().permissions().mode() & 0o7777;
    fs::set_permissions(world.path("export/dir"), fs::Permissions::from_mode(0o750)).unwrap();
    world.write("local/dir/inner", "inner");
    fs::set_permissions(world.path("local/dir"), fs::Permissions::from_mode(0o1777)).unwrap();
    let tree: [OsString; 2] = ["-a".into(), "dir".into()];
    let tree = [&never[..], &tree, &[daemon.url("data/")]].concat();
    run("maker", "push", &tree).ok();
    assert_eq!(world.read("export/dir/inner"), b"inner");
    assert_eq!(mode("export/dir"), 0o750);
    run("maker", "pull", &[file.clone(), "x".into()]).expect(4);

    // Whom else the server has is for keys without limits.
    let host: OsString = daemon.address().to_string().into();
    run("reader", "status", &[host])
        .expect(4)
        .says("every right");

    run("remover", "ls", std::slice::from_ref(&file)).expect(4);
    run("remover", "rm", std::slice::from_ref(&new)).ok();
    assert!(!world.exists("export/new") && !world.exists("local/x"));
}

#[test]
fn a_key_counts_only_from_where_and_until_when_its_line_says() {
    let world = World::new();
    world.write("export/file", "content");
    let names = ["near", "far", "late", "early"];
    let keys: Vec<_> = names.iter().map(|name| keygen(&world, name)).collect();
    let list = format!(
        "from=\"127.0.0.0/8\" {}\nfrom=\"10.0.0.0/8,::1\" {}\nexpires=\"2020-01-01\" {}\n\
         expires=\"2999-01-01\" {}\n",
        keys[0], keys[1], keys[2], keys[3]
    );
    let daemon = serve(&world, &list);
    for (name, status) in names.into_iter().zip([0, 4, 4, 0]) {
        with(&world, name, "pull")
            .args([daemon.url("data/file"), name.into()])
            .run()
            .expect(status);
    }
}

#[test]
fn a_key_that_is_taken_out_ends_its_sessions() {
    let world = World::new();
    tree::random_file(&world.path("export/file"), 16 << 20, 1);
    let (gone, stays) = (keygen(&world, "gone"), keygen(&world, "stays"));
    let daemon = serve(&world, &format!("{gone}\n{stays}\n"));
    let proxy = Proxy::new(daemon.address()).hold_after(4 << 20, Scope::Data);
    let pull = |name: &str, url| with(&world, name, "pull").args([url, name.into()]);
    let running = pull("gone", proxy.url("data/file")).start();
    proxy.wait_held();

    // A slip changes nothing, and is told.
    world.write("keys", format!("{stays}\nnonsense\n"));
    common::wait_for("the slip is told", || {
        daemon.log().contains("line 2: no key").then_some(())
    });
    let look = || with(&world, "gone", "ls").arg(daemon.url("data/file"));
    look().run().ok();

    world.write("keys", format!("{stays}\n"));
    running.wait().expect(4).says("is not among those");
    assert!(!world.exists("local/gone"));
    look().run().expect(4);
    pull("stays", daemon.url("data/file")).run().ok();
}

#[test]
fn a_list_that_makes_no_sense_keeps_the_daemon_from_starting() {
    let world = World::new();
    let key = keygen(&world, "known");
    let started = |keys: &Path| {
        let mut export = OsString::from("data=");
        export.push(world.path("export"));
        world
            .tool(common::program("rdcpd").to_str().unwrap())
            .args(["--state-dir".into(), world.path("state").into_os_string()])
            .args(["--export".into(), export, "--authorized-keys".into()])
            .arg(keys)
            .args(["--listen", "127.0.0.1:0"])
            .run()
            .expect(2)
    };
    let file = world.write("keys", format!("{key}\nrights=\"write\" {key}\n"));
    started(&file).says("line 2: `write` is no right");
    started(&world.path("absent")).says("absent");
    fs::write(&file, format!("{key}\n")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    started(&file).says("chmod go-w");
}

/// Takes so many handshakes as a server with a key of its own, and tells which client keys it saw.
fn curious(listener: TcpListener, handshakes: usize) -> std::thread::JoinHandle<Vec<String>> {
    std::thread::spawn(move || {
        let key = OwnKey::ephemeral().expect("a key");
        let config = server_config(&key, ClientKeys::Asked).expect("a configuration");
        let mut seen = Vec::new();
        for _ in 0..handshakes {
            let (mut stream, _) = listener.accept().expect("a client comes");
            let mut tls = rustls::ServerConnection::new(Arc::clone(&config)).expect("a connection");
            while tls.is_handshaking() {
                if tls.complete_io(&mut stream).is_err() {
                    break;
                }
            }
            let shown = presented_key(&tls).expect("a key can be read");
            seen.extend(shown.map(|key| key.to_string()));
        }
        seen
    })
}

#[test]
fn a_key_is_shown_to_no_server_whose_own_is_not_known() {
    let world = World::new();
    keygen(&world, "own");
    let pull = |address: std::net::SocketAddr| {
        world
            .bare("pull")
            .args(["--identity", "own.pem"])
            .args([format!("rdcp://{address}/data/file"), ".".to_owned()])
            .run()
            .expect(4)
    };
    // A host that was never met.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let seen = curious(listener, 1);
    pull(address).says("is not known");
    assert!(seen.join().unwrap().is_empty());

    // One that has another key than the one that was accepted.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let accepted = OwnKey::ephemeral().unwrap().fingerprint();
    world.write("config/rdcp/known_hosts", format!("{address} {accepted}\n"));
    let seen = curious(listener, 2);
    pull(address).says("has changed");
    assert!(seen.join().unwrap().is_empty());
}

/// Which chunks a receiver asks for tells a sender what it has.
#[test]
fn who_may_not_read_learns_nothing_of_what_is_there_by_pushing() {
    let world = World::new();
    let keys = ["writer", "reader"].map(|name| keygen(&world, name));
    let lists = format!(
        "rights=\"create,overwrite\" {}\nrights=\"create,overwrite,read\" {}\n",
        keys[0], keys[1]
    );
    let daemon = serve(&world, &lists);
    let len = 8 << 20;
    for (name, reused) in [("writer", 0), ("reader", len)] {
        for (path, seconds) in [
            ("export/file", 1_500_000_000),
            ("local/file", 1_600_000_000),
        ] {
            let path = world.path(path);
            tree::random_file(&path, len, 5);
            tree::set_mtime(&path, seconds, 0);
        }
        let push = |options: &[&str]| {
            let push = with(&world, name, "push").arg("--json").args(options);
            push.arg("file").arg(daemon.url("data/file")).run()
        };
        let end = push(&[]).ok().json().pop().unwrap();
        assert_eq!(end["bytes_reused"], reused, "{name} {end}");
        assert_eq!(end["bytes_moved"], len - reused, "{name} {end}");
        let end = push(&["-c"]);
        if reused == 0 {
            let said = end.expect(4).text();
            assert!(said.contains("may not read"), "{said}");
        } else {
            assert_eq!(end.ok().json().pop().unwrap()["unchanged"], 1);
        }
    }
}
