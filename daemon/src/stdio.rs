//! `rdcpd --stdio`: serves one client that started it by ssh, as the user whom ssh logged in.
//!
//! In: a line on standard input with the client's key. Out: a line on standard output with a key made for this run
//! and the addresses it listens on; then a server of everything that this user may reach, which lets in that key and
//! no other. Both lines go through ssh, so each end knows whom it got. It ends when its input has ended, which is
//! when ssh does, and no session is left: a copy that goes on without ssh is not cut short. What the lines look like
//! stands where they are read, in the library's `client/far.rs`.

use std::env;
use std::io::{self, BufRead, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use rdcp::remote::SSH_EXPORT;
use rdcp::server::{Export, Server, check_key};
use rdcp::{Error, ErrorKind};
use tokio::signal::unix::{SignalKind, signal};
use tracing::info;

use crate::{EXIT_INTERNAL, EXIT_USAGE};

/// First word of what both ends say, and the way in which they speak.
const MARK: &str = "rdcp-ssh";
const VERSION: &str = "1";
/// Longest line of a client.
const LINE_BYTES_MAX: u64 = 4096;
/// Pause between two looks whether a session is left.
const SESSIONS_PAUSE: Duration = Duration::from_millis(100);
/// How long what runs may take to end after a signal.
const GRACE: Duration = Duration::from_secs(5);

/// Serves until the client is gone.
pub(crate) async fn run() -> ExitCode {
    let started = match greeting() {
        Ok(key) => serve(&key).await,
        Err(what) => Err(Error::new(ErrorKind::Usage, what)),
    };
    let (server, addresses) = match started {
        Ok(started) => started,
        Err(error) => {
            let text = crate::in_one_line(&error);
            say(&format!("error {}", text.escape_debug()));
            return ExitCode::from(match error.kind() {
                ErrorKind::Usage => EXIT_USAGE,
                _ => EXIT_INTERNAL,
            });
        }
    };
    let mut words = vec![VERSION.to_owned(), server.fingerprint()];
    words.extend(addresses.iter().map(ToString::to_string));
    say(&words.join(" "));
    let mut server = Some(server);
    let ended = async {
        // The end of the input: nothing more is said by it.
        let _ = tokio::task::spawn_blocking(|| io::copy(&mut io::stdin(), &mut io::sink())).await;
        while server.as_ref().is_some_and(|server| server.sessions() > 0) {
            tokio::time::sleep(SESSIONS_PAUSE).await;
        }
    };
    let signalled = async {
        let (terminate, interrupt) = (
            signal(SignalKind::terminate()),
            signal(SignalKind::interrupt()),
        );
        match (terminate, interrupt) {
            (Ok(mut terminate), Ok(mut interrupt)) => {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
            }
            // They end the process as they do any other.
            _ => std::future::pending().await,
        }
    };
    tokio::select! {
        () = ended => info!("the client is gone"),
        () = signalled => {}
    }
    if let Some(server) = server.take() {
        server.shutdown(GRACE).await;
    }
    ExitCode::SUCCESS
}

/// The key that the client says is its own.
fn greeting() -> Result<String, String> {
    let mut line = String::new();
    let read = io::stdin().lock().take(LINE_BYTES_MAX).read_line(&mut line);
    read.map_err(|error| format!("standard input can't be read: {error}"))?;
    let words: Vec<_> = line.trim_end().split(' ').collect();
    match words[..] {
        [MARK, VERSION, key] => {
            check_key(key).map_err(|error| error.to_string())?;
            Ok(key.to_owned())
        }
        [MARK, other, ..] if other != VERSION => Err(format!(
            "the client speaks version {} through ssh, and this is {VERSION}: install the same release on both hosts",
            other.escape_debug()
        )),
        _ => Err(
            "no client speaks: --stdio is for rdcp, which starts it for ssh://host/path".to_owned(),
        ),
    }
}

/// A server for whoever has this key, and where it listens: directly, if that is possible, and on loopback.
async fn serve(key: &str) -> Result<(Server, Vec<SocketAddr>), Error> {
    let near = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let direct = env::var("SSH_CONNECTION").ok();
    let direct = direct.as_deref().and_then(own_address);
    let start = |listen: Vec<SocketAddr>| {
        let builder = Server::builder()
            .export(Export::new(SSH_EXPORT, "/").writable(true).unverified(true))
            .authorize(key)
            // Not a tree that is this daemon's to keep clean.
            .sweep(false);
        listen
            .into_iter()
            .fold(builder, |builder, address| builder.listen(address))
            .start()
    };
    if let Some(direct) = direct.filter(|direct| !direct.is_loopback()) {
        // An address that ssh got to by a translation is none of this host.
        if let Ok(server) = start(vec![SocketAddr::new(direct, 0), near]).await {
            let addresses = server.local_addrs().to_vec();
            return Ok((server, addresses));
        }
    }
    let server = start(vec![near]).await?;
    let mut addresses = server.local_addrs().to_vec();
    if direct.is_some_and(|direct| direct.is_loopback()) {
        addresses.extend_from_within(..);
    }
    Ok((server, addresses))
}

/// This host's address in `SSH_CONNECTION` (ssh(1), ENVIRONMENT): the third of four words.
fn own_address(connection: &str) -> Option<IpAddr> {
    connection.split(' ').nth(2)?.parse().ok()
}

fn say(words: &str) {
    let mut stdout = io::stdout().lock();
    // Who does not listen any more has gone, and so has the input.
    let _ = writeln!(stdout, "{MARK} {words}").and_then(|()| stdout.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_own_address_is_the_third_word() {
        assert_eq!(
            own_address("10.0.0.1 5000 10.0.0.2 22"),
            Some([10, 0, 0, 2].into())
        );
        assert!(own_address("fe80::1 5000 fe80::2 22").is_some_and(|address| address.is_ipv6()));
        for odd in ["", "UNKNOWN 65535 UNKNOWN 65535", "10.0.0.1"] {
            assert_eq!(own_address(odd), None, "{odd}");
        }
    }
}
