//! What an export says of who may do what in it, and which directories can be none.

mod common;

use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::path::Path;

use common::mounts::with_own_mounts;
use common::{Daemon, World};

/// A key in `local/NAME.pem`; what servers know it by.
fn keygen(world: &World, name: &str) -> String {
    let file = format!("{name}.pem");
    let told = world.bare("keygen").args(["--identity", &file]).run().ok();
    let line = String::from_utf8(told.stdout.clone()).unwrap();
    line.split(' ').next().unwrap().to_owned()
}

/// A configuration with `text`, in which `TOP` stands for the world's directory.
fn config(world: &World, text: &str) -> Vec<OsString> {
    let top = world
        .path("")
        .to_str()
        .unwrap()
        .trim_end_matches('/')
        .to_owned();
    let file = world.write("rdcpd.toml", text.replace("TOP", &top));
    vec!["--config".into(), file.into()]
}

fn serve(world: &World, text: &str) -> Daemon {
    let listen = ["--listen".into(), "127.0.0.1:0".into()];
    world.serve_as(&[config(world, text), listen.into()].concat())
}

/// What is said of a configuration that can't be served.
#[track_caller]
fn refused(world: &World, text: &str) -> common::Finished {
    world
        .tool(common::program("rdcpd").to_str().unwrap())
        .args(config(world, text))
        .arg("--check-config")
        .run()
        .expect(2)
}

#[test]
fn the_rights_of_an_export_hold_for_everybody() {
    let world = World::new();
    world.write("export/file", "content");
    world.write("local/new", "new");
    let daemon = serve(
        &world,
        "[exports.drop]\npath = \"TOP/export\"\nrights = [\"create\"]\n\
         [exports.names]\npath = \"TOP/export\"\nrights = [\"list\"]\n\
         [exports.plain]\npath = \"TOP/export\"\n\
         [exports.grow]\npath = \"TOP/export\"\nrights = [\"read\", \"create\"]\n",
    );
    let run = |command: &str, words: &[OsString]| world.rdcp(command).args(words.to_vec()).run();
    let url = |path: &str| daemon.url(path);
    let push = |to: &str| ["--overwrite".into(), "never".into(), "new".into(), url(to)];

    // A letter box: what is thrown in is not seen again.
    run("push", &push("drop/a")).ok();
    assert_eq!(world.read("export/a"), b"new");
    run("pull", &[url("drop/a"), "x".into()])
        .expect(4)
        .says("right to read");
    run("ls", &[url("drop/")]).expect(4).says("right to list");
    run("rm", &[url("drop/a")])
        .expect(4)
        .says("right to delete");
    run("push", &["new".into(), url("drop/file")])
        .expect(4)
        .says("--overwrite never");
    run("push", &push("drop/file")).ok();
    assert_eq!(world.read("export/file"), b"content");

    run("ls", &[url("names/file")]).ok();
    run("sum", &[url("names/file")])
        .expect(4)
        .says("right to read");
    run("pull", &[url("names/file"), "x".into()]).expect(4);
    run("push", &push("names/b")).expect(4).says("read-only");

    run("pull", &[url("plain/file"), "x".into()]).ok();
    run("rm", &[url("plain/file")]).expect(4).says("read-only");

    run("pull", &[url("grow/file"), "y".into()]).ok();
    run("push", &push("grow/c")).ok();
    let mirror: [OsString; 5] = [
        "-r".into(),
        "--delete".into(),
        "--overwrite".into(),
        "never".into(),
        "./".into(),
    ];
    run("push", &[&mirror[..], &[url("grow/")]].concat())
        .expect(4)
        .says("delete");
    assert!(world.exists("export/file") && world.exists("export/c") && !world.exists("export/b"));

    // Which of them can be written to is said where they are listed.
    let listed = run("ls", &["-l".into(), url("")]).ok();
    let listed = String::from_utf8(listed.stdout.clone()).unwrap();
    let line = |name: &str| {
        listed
            .lines()
            .find(|line| line.ends_with(name))
            .unwrap()
            .to_owned()
    };
    assert!(
        line("drop").contains("rw") && line("grow").contains("rw"),
        "{listed}"
    );
    assert!(
        !line("names").contains("rw") && !line("plain").contains("rw"),
        "{listed}"
    );
}

#[test]
fn an_export_may_let_nothing_be_copied_unverified() {
    let world = World::new();
    world.write("export/file", "content");
    world.write("local/new", "new");
    let daemon = serve(
        &world,
        "[exports.sure]\npath = \"TOP/export\"\nwritable = true\nintegrity = \"required\"\n\
         [exports.free]\npath = \"TOP/export\"\nwritable = true\nintegrity = \"optional\"\n\
         [exports.near]\npath = \"TOP/export\"\nwritable = true\n",
    );
    for export in ["sure", "free", "near"] {
        for (hash, refused) in [
            ("blake3", false),
            ("sha256", false),
            ("none", export == "sure"),
        ] {
            let copy = |command: &str, words: [OsString; 2]| {
                let run = world
                    .rdcp(command)
                    .args(["--hash", hash, "--overwrite", "never"]);
                let done = run.args(words).run();
                match refused {
                    true => drop(
                        done.expect(4)
                            .says("export 'sure' lets nothing be copied unverified"),
                    ),
                    false => drop(done.ok()),
                }
            };
            let name = format!("{export}-{hash}");
            copy(
                "pull",
                [daemon.url(format!("{export}/file")), name.clone().into()],
            );
            copy(
                "push",
                ["new".into(), daemon.url(format!("{export}/{name}"))],
            );
            assert_eq!(world.exists(format!("local/{name}")), !refused);
            assert_eq!(world.exists(format!("export/{name}")), !refused);
        }
    }
    refused(
        &world,
        "[exports.d]\npath = \"TOP/export\"\nintegrity = \"none\"\n",
    )
    .says("write \"required\" or \"optional\"");
}

#[test]
fn an_export_is_there_only_for_those_whom_it_is_for() {
    let world = World::new();
    world.write("export/file", "content");
    let (ada, bob) = (keygen(&world, "ada"), keygen(&world, "bob"));
    world.write("keys", format!("{ada}\n{bob}\n"));
    let daemon = serve(
        &world,
        &format!(
            "authorized_keys = \"TOP/keys\"\n\
             [groups]\nstaff = [\"{ada}\"]\nnobody = []\nops = [\"{bob}\", \"{ada}\"]\n\
             [exports.all]\npath = \"TOP/export\"\n\
             [exports.hers]\npath = \"TOP/export\"\nclients = [\"@staff\"]\n\
             [exports.his]\npath = \"TOP/export\"\nclients = [\"{bob}\"]\n\
             [exports.both]\npath = \"TOP/export\"\nclients = [\"@ops\", \"@nobody\"]\n\
             [exports.near]\npath = \"TOP/export\"\nfrom = [\"127.0.0.1\"]\n\
             [exports.far]\npath = \"TOP/export\"\nfrom = [\"10.0.0.0/8\", \"::1\"]\n"
        ),
    );
    let run = |name: &str, command: &str, words: &[OsString]| {
        let file = format!("{name}.pem");
        let command = world.rdcp(command).args(["--identity", &file]);
        command.args(words.to_vec()).run()
    };
    for (name, sees) in [
        ("ada", ["all", "both", "hers", "near"]),
        ("bob", ["all", "both", "his", "near"]),
    ] {
        let listed = run(name, "ls", &[daemon.url("")]).ok();
        let listed = String::from_utf8(listed.stdout.clone()).unwrap();
        assert_eq!(listed.lines().collect::<Vec<_>>(), sees, "{name}");
    }
    let pull = |name: &str, export: &str| {
        run(
            name,
            "pull",
            &[daemon.url(format!("{export}/file")), "x".into()],
        )
    };
    pull("ada", "hers").ok();
    pull("ada", "near").ok();
    pull("bob", "his").ok();
    // What others do is told to nobody who does not see all of it.
    let host: OsString = daemon.address().to_string().into();
    run("ada", "status", std::slice::from_ref(&host))
        .expect(4)
        .says("every export");
    run("bob", "status", &[host]).expect(4);
    // What may not be seen answers like what is not there.
    let hidden = pull("bob", "hers").expect(5);
    let absent = pull("bob", "none").expect(5);
    assert_eq!(hidden.stderr.replace("hers", "none"), absent.stderr);
    pull("ada", "far").expect(5);
}

#[test]
fn the_daemons_own_files_are_in_no_export() {
    let world = World::new();
    world.make("export/inner");
    world.make("state");
    symlink(world.path("export/inner"), world.path("link")).unwrap();
    let export = "[exports.data]\npath = \"TOP/export\"\n";
    let own = "which is the daemon's own";
    // There already, to be made yet, and reached by a link that a client could turn elsewhere.
    for state in ["export", "export/inner", "export/later/state", "link/state"] {
        refused(&world, &format!("state_dir = \"TOP/{state}\"\n{export}")).says(own);
    }
    let keys = world.write("export/keys", "");
    let text = format!("state_dir = \"TOP/state\"\nauthorized_keys = {keys:?}\n{export}");
    refused(&world, &text).says(own);
    // A chain of links of which only the middle lies there; the host key alone.
    let keys = world.write("real/keys", "");
    symlink(keys, world.path("export/middle")).unwrap();
    symlink(world.path("export/middle"), world.path("keys")).unwrap();
    let text = "state_dir = \"TOP/state\"\nauthorized_keys = \"TOP/keys\"\n";
    refused(&world, &format!("{text}{export}")).says(own);
    symlink(world.path("export/key"), world.path("state/host_key.pem")).unwrap();
    refused(&world, &format!("state_dir = \"TOP/state\"\n{export}")).says(own);
    std::fs::remove_file(world.path("state/host_key.pem")).unwrap();
    // The configuration lies at the world's top.
    let whole = "[exports.data]\npath = \"TOP\"\n[exports.fine]\npath = \"TOP/export\"\n";
    let told = refused(
        &world,
        &format!("state_dir = \"/var/lib/rdcp-test\"\n{whole}"),
    );
    told.says("rdcpd.toml, which");
    refused(
        &world,
        "state_dir = \"TOP/state\"\n[exports.all]\npath = \"/\"\n",
    )
    .says(own);

    // By hand it is the same.
    let mut home = OsString::from("home=");
    home.push(world.path(""));
    world
        .tool(common::program("rdcpd").to_str().unwrap())
        .args(["--state-dir".into(), world.path("state").into_os_string()])
        .args([
            "--listen".into(),
            "127.0.0.1:0".into(),
            "--export".into(),
            home,
        ])
        .run()
        .expect(2)
        .says(own);
    assert!(!Path::new(&world.path("state/host_key.pem")).exists());
}

#[test]
fn what_is_mounted_in_an_export_is_in_it() {
    with_own_mounts("what_is_mounted_in_an_export_is_in_it", || {
        let world = World::new();
        let (state, shown) = (world.make("state"), world.make("export/a b"));
        world
            .tool("mount")
            .arg("--bind")
            .args([state, shown])
            .run()
            .ok();
        let text = "state_dir = \"TOP/state\"\n[exports.data]\npath = \"TOP/export\"\n";
        refused(&world, text).says("which is the daemon's own");
    });
}

#[test]
fn rules_that_make_no_sense_are_told_with_their_line() {
    let world = World::new();
    world.make("export");
    let key = keygen(&world, "ada");
    for (rule, part) in [
        (
            "rights = [\"write\"]",
            ":2: export data: `write` is no right",
        ),
        ("rights = []", "is no right"),
        (
            "writable = true\nrights = [\"read\"]",
            ":5: `rights` and `writable`",
        ),
        (
            "from = [\"localhost\"]",
            ":2: export data: `localhost` is no network",
        ),
        ("clients = [\"@staff\"]", ":4: no group is called `staff`"),
        ("clients = [\"ada\"]", ":4: \"ada\" is no key"),
        (
            "clients = \"ada\"",
            ":4: `exports.data.clients` must be a list",
        ),
        ("client = [\"ada\"]", "did you mean `clients`?"),
        (&format!("clients = [{key:?}]"), "asks nobody for a key"),
        (
            "[groups]\nstaff = [\"x\"]",
            ":5: group `staff`: \"x\" is no key",
        ),
        (
            "[groups]\nstaff = true",
            ":5: `groups.staff` must be a list",
        ),
    ] {
        let text =
            format!("state_dir = \"TOP/state\"\n[exports.data]\npath = \"TOP/export\"\n{rule}\n");
        refused(&world, &text).says(part);
    }
}
