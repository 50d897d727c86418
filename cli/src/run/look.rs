//! Small requests to servers: ls, stat, rm, mkdir, ping.

use rdcp::client::Client;
use rdcp::remote::Remote;
use rdcp::wire::message::{Listed, RemotePath};
use rdcp::{Error, ErrorKind, Location};
use tokio::sync::Notify;

use super::{Sessions, below, fail, remote_path, server_name};
use crate::args::ConnectionArgs;
use crate::escape;
use crate::exit::{End, Ending};
use crate::output::{Change, Output, PingReport};

pub(super) async fn list(
    paths: &[Remote],
    long: bool,
    recursive: bool,
    connection: &ConnectionArgs,
    output: &mut Output,
) -> End {
    let mut sessions = Sessions::new(connection, output);
    let mut ending = Ending::default();
    for (number, remote) in paths.iter().enumerate() {
        let client = match sessions.of(remote).await {
            Ok(client) => client,
            Err(error) => return fail(output, &error),
        };
        if paths.len() > 1 {
            output.heading(&remote.to_string(), number == 0);
        }
        let closed = Notify::new();
        let path = remote_path(remote);
        let listing = client.list(&path, recursive, |listed| {
            list_one(remote, &listed, long, output, &mut ending);
            if !output.io().stdout.is_open() {
                closed.notify_one();
            }
        });
        let result = tokio::select! {
            result = listing => result,
            () = closed.notified() => return End::DONE,
        };
        if let Err(error) = result {
            ending.error(output, &error);
        }
    }
    sessions.close().await;
    ending.end()
}

fn list_one(
    remote: &Remote,
    listed: &Listed,
    long: bool,
    output: &mut Output,
    ending: &mut Ending,
) {
    match &listed.fault {
        Some(fault) => ending.entry_failed(output, &below(remote, &listed.path), fault),
        // The thing itself is listed without a path; people are shown its name.
        None if listed.path.is_empty() => {
            output.entry(remote.own_name(), &remote.to_bytes(), listed, long);
        }
        None => output.entry(&listed.path, &listed.path, listed, long),
    }
}

pub(super) async fn stat(
    paths: &[Remote],
    connection: &ConnectionArgs,
    output: &mut Output,
) -> End {
    let mut sessions = Sessions::new(connection, output);
    let mut ending = Ending::default();
    for (number, remote) in paths.iter().enumerate() {
        let client = match sessions.of(remote).await {
            Ok(client) => client,
            Err(error) => return fail(output, &error),
        };
        match client.stat(&remote_path(remote)).await {
            Ok(listed) => {
                let place = remote.to_bytes();
                output.stat(&remote.to_string(), &place, &listed, number == 0);
            }
            Err(error) => ending.error(output, &error),
        }
    }
    sessions.close().await;
    ending.end()
}

pub(super) async fn remove(
    paths: &[Remote],
    recursive: bool,
    connection: &ConnectionArgs,
    output: &mut Output,
) -> End {
    let change = Change::Removed;
    each(paths, change, connection, output, async |client, path| {
        client.remove(path, recursive).await
    })
    .await
}

pub(super) async fn make_directories(
    paths: &[Remote],
    parents: bool,
    connection: &ConnectionArgs,
    output: &mut Output,
) -> End {
    let change = Change::Made;
    each(paths, change, connection, output, async |client, path| {
        if path.path.is_empty() {
            return Err(no_new_export(client, path).await);
        }
        client.make_directory(path, parents).await
    })
    .await
}

/// A directory was asked for where only exports are: says which there are.
async fn no_new_export(client: &Client, path: &RemotePath) -> Error {
    let mut exports = Vec::new();
    let top = RemotePath {
        export: String::new(),
        path: Vec::new(),
    };
    let listed = client.list(&top, false, |listed| exports.push(listed.path));
    if let Err(error) = listed.await {
        return error;
    }
    let names: Vec<_> = exports.iter().map(|name| escape::path(name)).collect();
    let name = escape::text(&path.export);
    if exports
        .iter()
        .any(|export| *export == path.export.as_bytes())
    {
        Error::new(
            ErrorKind::Usage,
            format!("{name} is an export and is there"),
        )
        .with_hint(format!("name a directory in it: /{name}/DIRECTORY"))
    } else {
        let message = format!(
            "no export is called '{name}', and a client can't make one; there are: {}",
            names.join(", ")
        );
        let first = names.first().map_or("EXPORT", String::as_str);
        Error::new(ErrorKind::Usage, message)
            .with_hint(format!("name a directory in one of them: /{first}/{name}"))
    }
}

/// Does the same to each place, going on after those that fail.
async fn each(
    paths: &[Remote],
    change: Change,
    connection: &ConnectionArgs,
    output: &mut Output,
    act: impl AsyncFn(&Client, &RemotePath) -> Result<(), Error>,
) -> End {
    let mut sessions = Sessions::new(connection, output);
    let mut ending = Ending::default();
    for remote in paths {
        let client = match sessions.of(remote).await {
            Ok(client) => client,
            Err(error) => return fail(output, &error),
        };
        match act(&client, &remote_path(remote)).await {
            Ok(()) => output.changed(change, &Location::remote(remote)),
            Err(error) => ending.error(output, &error),
        }
    }
    sessions.close().await;
    ending.end()
}

pub(super) async fn status(
    host: &str,
    port: u16,
    connection: &ConnectionArgs,
    output: &mut Output,
) -> End {
    let mut sessions = Sessions::new(connection, output);
    let asked = async {
        let client = sessions.of(&Remote::top(host, port)).await?;
        client.status().await
    };
    match asked.await {
        Ok(status) => output.status(&server_name(host, port), &status),
        Err(error) => return fail(output, &error),
    }
    sessions.close().await;
    End::DONE
}

pub(super) async fn ping(
    host: &str,
    port: u16,
    count: u16,
    connection: &ConnectionArgs,
    output: &mut Output,
) -> End {
    let mut sessions = Sessions::new(connection, output);
    match measure(&mut sessions, host, port, count).await {
        Ok(report) => output.ping(&report),
        Err(error) => return fail(output, &error),
    }
    sessions.close().await;
    End::DONE
}

async fn measure(
    sessions: &mut Sessions,
    host: &str,
    port: u16,
    count: u16,
) -> Result<PingReport, Error> {
    let client = sessions.of(&Remote::top(host, port)).await?;
    let first = client.ping().await?;
    let mut round_trips = vec![first.round_trip];
    for _ in 1..count {
        round_trips.push(client.ping().await?.round_trip);
    }
    let chosen = client.transport().await?;
    Ok(PingReport {
        server: server_name(host, port),
        software: first.server,
        level: first.level,
        round_trips,
        transport: chosen.transport.to_owned(),
        reason: chosen.reason,
        transports: first.transports,
    })
}
