//! Opens many sessions to one daemon and holds them, idle, until its standard input ends:
//! `idle_sessions HOST:PORT COUNT`. A helper of `sessions.py`.

use std::error::Error;
use std::io::{Read, Write};
use std::net::SocketAddr;

use rdcp::client::Client;
use rdcp::options::{ClientOptions, UnknownHost};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: idle_sessions HOST:PORT COUNT";
    let address: SocketAddr = arguments.next().ok_or(usage)?.parse()?;
    let count: usize = arguments.next().ok_or(usage)?.parse()?;
    let host = address.ip().to_string();
    let mut clients = Vec::with_capacity(count);
    for _ in 0..count {
        let mut options = ClientOptions::default();
        options.unknown_host = UnknownHost::AcceptNew;
        clients.push(Client::connect(&host, address.port(), options).await?);
    }
    writeln!(std::io::stdout(), "connected {}", clients.len())?;
    // The sessions' tasks go on while this waits.
    tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
    for client in clients {
        client.close().await;
    }
    Ok(())
}
