//! Jobs are done here: the only module that talks to the library's client.

mod bench;
mod check;
mod clean;
mod copy;
mod doctor;
mod keygen;
mod look;
mod print;

use std::time::Duration;

use rdcp::client::Client;
use rdcp::options::ClientOptions;
use rdcp::remote::Remote;
use rdcp::wire::message::RemotePath;
use rdcp::{Error, ErrorKind, Location};

use crate::args::ConnectionArgs;
use crate::confirm;
use crate::escape;
use crate::exit::End;
use crate::job::Job;
use crate::manual;
use crate::output::Output;
use crate::signals::Signals;

/// Descriptors that a run begins with: sockets, reactors, directories.
const FILES_MIN: usize = 20;
/// Longest wait for the server to take note that a session ends.
const FAREWELL_MAX: Duration = Duration::from_secs(1);

/// Does a job to its end. `verbose`: log lines share standard error, so nothing else moves there.
pub(crate) fn run(job: Job, verbose: bool, output: &mut Output) -> End {
    match job {
        Job::Completions(shell) => {
            output.io().stdout.write(&manual::completions(shell));
            End::DONE
        }
        Job::Keygen { identity } => keygen::keygen(identity.as_deref(), output),
        Job::Manual { page, dir } => show_manual(page.as_deref(), dir.as_deref(), output),
        job => {
            if let Err(error) = can_open_files() {
                return fail(output, &error);
            }
            let runtime = match tokio::runtime::Builder::new_multi_thread()
                .enable_all()
                .build()
            {
                Ok(runtime) => runtime,
                Err(error) => return fail(output, &no_runtime(error)),
            };
            let end = runtime.block_on(run_online(job, verbose, output));
            // A thread that waits for a terminal or a pipe must not hold up the end.
            runtime.shutdown_background();
            end
        }
    }
}

async fn run_online(job: Job, verbose: bool, output: &mut Output) -> End {
    let mut signals = match Signals::listen() {
        Ok(signals) => signals,
        Err(error) => return fail(output, &no_runtime(error)),
    };
    match job {
        Job::Transfer(job) => copy::transfer(*job, verbose, output, &mut signals).await,
        Job::Print {
            source,
            connection,
            timeout,
            output: told,
        } => {
            let run = print::print(
                &source,
                &connection,
                timeout,
                &told,
                verbose,
                output,
                &mut signals,
            );
            run.await
        }
        job => tokio::select! {
            end = look(job, output) => end,
            status = signals.first() => End::signal(status),
        },
    }
}

async fn look(job: Job, output: &mut Output) -> End {
    match job {
        Job::List {
            paths,
            long,
            recursive,
            connection,
        } => look::list(&paths, long, recursive, &connection, output).await,
        Job::Stat { paths, connection } => look::stat(&paths, &connection, output).await,
        Job::Sum {
            paths,
            hash,
            recursive,
            connection,
        } => check::sum(&paths, hash, recursive, &connection, output).await,
        Job::Verify(job) => check::verify(*job, output).await,
        Job::Remove {
            paths,
            recursive,
            connection,
        } => look::remove(&paths, recursive, &connection, output).await,
        Job::MakeDirectory {
            paths,
            parents,
            connection,
        } => look::make_directories(&paths, parents, &connection, output).await,
        Job::Clean {
            paths,
            which,
            dry_run,
            connection,
        } => clean::clean(&paths, which, dry_run, &connection, output).await,
        Job::Ping {
            host,
            port,
            count,
            connection,
        } => look::ping(&host, port, count, &connection, output).await,
        Job::Status {
            host,
            port,
            connection,
        } => look::status(&host, port, &connection, output).await,
        Job::Bench(job) => bench::bench(&job, output).await,
        Job::Doctor {
            host,
            paths,
            connection,
        } => doctor::examine(host, paths, &connection, output).await,
        // The others were taken out before.
        Job::Transfer(_)
        | Job::Print { .. }
        | Job::Keygen { .. }
        | Job::Completions(_)
        | Job::Manual { .. } => End::DONE,
    }
}

fn show_manual(page: Option<&str>, dir: Option<&std::path::Path>, output: &mut Output) -> End {
    if let Some(dir) = dir {
        return match manual::write_all(dir) {
            Ok(written) => {
                output.remark(&format!("wrote {} pages", written.pages));
                if let Err(reason) = written.daemon {
                    // Told to scripts as well: a package without the page would be made otherwise.
                    let reason = escape::text(&reason);
                    output.io().stderr.line(&format!(
                        "rdcp: rdcpd(1) was not written, 'rdcpd --man' prints it ({reason})"
                    ));
                }
                End::DONE
            }
            Err(error) => {
                let message = format!("{}: can't write manual pages", dir.display());
                fail(
                    output,
                    &Error::new(ErrorKind::Storage, message).with_source(error),
                )
            }
        };
    }
    match manual::page(page) {
        Some(text) => {
            output.io().stdout.write(&text);
            End::DONE
        }
        None => {
            let message = format!("man: no such command: {}", page.unwrap_or_default());
            let error = Error::new(ErrorKind::Usage, message);
            fail(output, &error.with_hint("rdcp --help lists the commands"))
        }
    }
}

/// Tells an error that ends the run.
fn fail(output: &mut Output, error: &Error) -> End {
    output.error(error);
    End::of(error.kind())
}

/// Fails if there are not even the descriptors that a run begins with: what finds none then would say so in
/// many ways, and tokio by a panic.
fn can_open_files() -> Result<(), Error> {
    let mut open = Vec::with_capacity(FILES_MIN);
    for _ in 0..FILES_MIN {
        match std::fs::File::open("/dev/null") {
            Ok(file) => open.push(file),
            // Of a machine without it nothing is known yet.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => break,
            Err(error) => {
                let message = format!("can't start: it takes {FILES_MIN} more open files");
                let error = Error::new(ErrorKind::Storage, message).with_source(error);
                return Err(error.with_hint("raise the limit of open files (ulimit -n)"));
            }
        }
    }
    Ok(())
}

fn no_runtime(error: std::io::Error) -> Error {
    Error::new(ErrorKind::Internal, "can't start").with_source(error)
}

fn remote_path(remote: &Remote) -> RemotePath {
    RemotePath {
        export: remote.export.clone(),
        path: remote.path.clone(),
    }
}

/// Where something below a remote place is.
fn below(remote: &Remote, path: &[u8]) -> Location {
    let mut place = remote.clone();
    if !place.path.is_empty() && !path.is_empty() {
        place.path.push(b'/');
    }
    place.path.extend_from_slice(path);
    Location::remote(&place)
}

/// `interactive`: somebody can be asked about a host that is not known.
fn client_options(
    connection: &ConnectionArgs,
    streams: Option<usize>,
    timeout: Option<Duration>,
    interactive: bool,
    server: String,
) -> ClientOptions {
    let mut options = ClientOptions::default();
    // Whoever waits shorter for progress waits shorter for its beginning too.
    options.connect_timeout = timeout.map_or(options.connect_timeout, |timeout| {
        timeout.min(options.connect_timeout)
    });
    options.known_hosts.clone_from(&connection.known_hosts);
    options.identity.clone_from(&connection.identity);
    options.unknown_host = confirm::unknown_host(connection, interactive, server);
    options.ssh.command.clone_from(&connection.ssh);
    options.ssh.rdcpd.clone_from(&connection.ssh_rdcpd);
    options.ssh.tunnel = connection.ssh_tunnel;
    options.streams = streams.or(options.streams);
    options
}

/// A place's server as messages name it.
fn server(remote: &Remote) -> String {
    server_name(&remote.host, remote.port)
}

/// A server as messages name it.
fn server_name(host: &str, port: u16) -> String {
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

/// Sessions for a list of places: one at a time, kept while the server stays the same.
struct Sessions {
    connection: ConnectionArgs,
    interactive: bool,
    open: Option<(Remote, Client)>,
}

impl Sessions {
    fn new(connection: &ConnectionArgs, output: &Output) -> Self {
        let interactive = output.is_interactive();
        Self {
            connection: connection.clone(),
            interactive,
            open: None,
        }
    }

    async fn of(&mut self, remote: &Remote) -> Result<Client, Error> {
        if let Some((open, client)) = &self.open
            && open.same_server(remote)
        {
            return Ok(client.clone());
        }
        self.close().await;
        let options = client_options(
            &self.connection,
            None,
            None,
            self.interactive,
            server(remote),
        );
        let client = Client::connect_to(remote, options).await?;
        self.open = Some((remote.clone(), client.clone()));
        Ok(client)
    }

    async fn close(&mut self) {
        if let Some((_, client)) = self.open.take() {
            farewell(client).await;
        }
    }
}

/// Ends a session in order, but does not wait for a server that doesn't answer.
async fn farewell(client: Client) {
    // All is done and told; a server that is gone changes nothing about it.
    let _ = tokio::time::timeout(FAREWELL_MAX, client.close()).await;
}
