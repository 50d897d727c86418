//! Reads a file on a server in pieces of 4 KiB by a held region, compares them with a local copy and
//! tells how long they took; then ends the region's world in one of several ways, and wants errors.
//!
//! `held_reads SERVER:PORT EXPORT PATH LOCAL COUNT TRANSPORT [HOW COMMAND]`: a line of JSON on standard
//! output. HOW is `kill`: COMMAND, a line for the shell, ends the server while the region is held; or
//! `sleep`: nothing of the session runs for as long as a lease lasts, and COMMAND is run afterwards.
//! Needs a running `rdcpd`; for RDMA also a device, so the lab runs it.

use std::error::Error;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rdcp::{
    Client, ClientOptions, ErrorKind, HeldRegion, RegisteredBuffer, RemotePath, TransportChoice,
    UnknownHost,
};

type Outcome<T> = Result<T, Box<dyn Error>>;

const PIECE: usize = 4096;
/// Longer than a server waits for a sign of life.
const BEYOND_A_LEASE: Duration = Duration::from_secs(36);

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args().skip(1).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("held_reads: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[String]) -> Outcome<()> {
    let [server, export, path, local, count, transport, rest @ ..] = words else {
        return Err("SERVER:PORT EXPORT PATH LOCAL COUNT TRANSPORT [HOW COMMAND]".into());
    };
    let (host, port) = server.rsplit_once(':').ok_or("SERVER:PORT")?;
    let path = RemotePath {
        export: export.clone(),
        path: path.clone().into_bytes(),
    };
    let mut options = ClientOptions::default();
    options.unknown_host = UnknownHost::AcceptNew;
    options.known_hosts = Some(std::env::temp_dir().join("held_reads.known_hosts"));
    options.transport = match transport.as_str() {
        "rdma" => TransportChoice::Rdma,
        "tcp" => TransportChoice::Tcp,
        _ => TransportChoice::Auto,
    };
    let local = File::open(local)?;
    // On one thread: while that reads, or sleeps, nothing else of the session goes on.
    let alone = rest.first().is_some_and(|how| how == "sleep");
    let mut builder = match alone {
        true => tokio::runtime::Builder::new_current_thread(),
        false => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = builder.enable_all().build()?;
    let mut region = runtime.block_on(async {
        let client = Client::connect(host, port.parse()?, options).await?;
        let file = client.open(&path).await?;
        let end = file.len().min(32 << 20);
        let region = file.hold(end / 8..end).await?;
        // The region keeps what it needs.
        drop((file, client));
        Ok::<_, Box<dyn Error>>(region)
    })?;
    let mut buffer = region.buffer(PIECE)?;
    edges(&mut region, &mut buffer, &local)?;
    let times = measure(&mut region, &mut buffer, &local, count.parse()?)?;
    let of =
        |hundredth: usize| times[(times.len() * hundredth).div_ceil(100) - 1].as_secs_f64() * 1e6;
    println!(
        "{{\"transport\":\"{}\",\"reads\":{},\"min_us\":{:.1},\"p50_us\":{:.1},\"p99_us\":{:.1}}}",
        region.transport().transport,
        times.len(),
        times[0].as_secs_f64() * 1e6,
        of(50),
        of(99),
    );
    match rest {
        [] => {}
        [how, command] if how == "kill" => {
            shell(command)?;
            let error = until_it_fails(&mut region, &mut buffer, &local)?;
            eprintln!("after the server's end: {error}");
        }
        [how, command] if how == "sleep" => {
            std::thread::sleep(BEYOND_A_LEASE);
            let error = region.read_at(region.range().start, &mut buffer, PIECE);
            match error {
                Err(error) if error.kind() == ErrorKind::TimedOut => {
                    eprintln!("after the lease: {error}");
                }
                other => return Err(format!("after the lease: {other:?}").into()),
            }
            shell(command)?;
        }
        _ => return Err("HOW is kill or sleep".into()),
    }
    let again = region.read_at(region.range().start, &mut buffer, PIECE);
    if !rest.is_empty() && again.is_ok() {
        return Err("a region that failed can be read again".into());
    }
    // In the order that is worst: what it is registered with goes first.
    drop(region);
    drop(runtime);
    buffer.fill(7);
    Ok(())
}

fn shell(command: &str) -> Outcome<()> {
    let status = std::process::Command::new("sh")
        .args([OsStr::new("-c"), OsStr::new(command)])
        .status()?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("{command}: {status}").into()),
    }
}

/// Ends of the range, short pieces, and what is not in it.
fn edges(region: &mut HeldRegion, buffer: &mut RegisteredBuffer, local: &File) -> Outcome<()> {
    let range = region.range();
    for (offset, len, wanted) in [
        (range.start, 1, 1),
        (range.start + 3, 100, 100),
        (range.end - 5, PIECE, 5),
        (range.end, PIECE, 0),
        (range.end + 5, PIECE, 0),
    ] {
        let got = region.read_at(offset, buffer, len)?;
        if got != wanted {
            return Err(format!("{got} bytes at {offset}, not {wanted}").into());
        }
        compare(local, offset, &buffer[..got])?;
    }
    match region.read_at(range.start - 1, buffer, 1) {
        Err(error) if error.kind() == ErrorKind::Usage => Ok(()),
        other => Err(format!("before the range: {other:?}").into()),
    }
}

fn measure(
    region: &mut HeldRegion,
    buffer: &mut RegisteredBuffer,
    local: &File,
    count: u64,
) -> Outcome<Vec<Duration>> {
    let range = region.range();
    let pieces = (range.end - range.start) / PIECE as u64;
    let mut times = Vec::new();
    for at in 0..count {
        // All over the range, and never the next one.
        let offset = range.start + at.wrapping_mul(2_654_435_761) % pieces * PIECE as u64;
        let began = Instant::now();
        let got = region.read_at(offset, buffer, PIECE)?;
        times.push(began.elapsed());
        compare(local, offset, &buffer[..got])?;
    }
    times.sort_unstable();
    Ok(times)
}

fn compare(local: &File, offset: u64, bytes: &[u8]) -> Outcome<()> {
    let mut wanted = vec![0; bytes.len()];
    local.read_exact_at(&mut wanted, offset)?;
    match wanted == bytes {
        true => Ok(()),
        false => Err(format!("other bytes at {offset}").into()),
    }
}

/// Reads until there is an error, which must come soon; all bytes before it are right.
fn until_it_fails(
    region: &mut HeldRegion,
    buffer: &mut RegisteredBuffer,
    local: &File,
) -> Outcome<rdcp::Error> {
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(60) {
        let offset = region.range().start;
        match region.read_at(offset, buffer, PIECE) {
            Ok(got) => compare(local, offset, &buffer[..got])?,
            Err(error) => return Ok(error),
        }
    }
    Err("the region can still be read".into())
}
