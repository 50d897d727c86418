//! Operations outside transfers: each one request, a stream of lines perhaps, and an end.

use std::time::{Duration, Instant};

use super::Client;
use super::again::said_by;
use super::connect::Session;
use crate::error::{Error, ErrorKind};
use crate::ids::TransferId;
use crate::limits::PATH_BYTES_MAX;
use crate::location::Location;
use crate::manifest::Name;
use crate::options::HashKind;
use crate::session::peer::{Inbound, Seat};
use crate::storage::error::ShownPath;
use crate::wire::level::LEVEL_CLEAN;
use crate::wire::message::{
    Cleaning, Listed, Moved, Operation, RemotePath, SessionStatus, TransportOffer,
};
use crate::wire::{Fault, FaultCode, Message};

/// Messages of listed lines that the server may have on their way at once.
const LISTINGS_CREDIT: u32 = 4;

/// What a ping found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Ping {
    /// From the question to its answer.
    pub round_trip: Duration,
    /// The server's name and release.
    pub server: String,
    /// The feature level that both ends speak.
    pub level: u16,
    /// What the server says of each transport.
    pub transports: Vec<TransportOffer>,
}

pub(super) async fn list(
    session: &Session,
    path: &RemotePath,
    recursive: bool,
    on: impl FnMut(Listed),
) -> Result<(), Error> {
    run(
        session,
        Operation::List {
            path: path.clone(),
            recursive,
        },
        on,
    )
    .await
}

pub(super) async fn stat(session: &Session, path: &RemotePath) -> Result<Listed, Error> {
    let mut found = None;
    run(session, Operation::Stat { path: path.clone() }, |listed| {
        found = Some(listed)
    })
    .await?;
    found.ok_or_else(|| {
        Error::new(
            ErrorKind::Unreachable,
            "the server answered without a result",
        )
    })
}

pub(super) async fn sum(
    session: &Session,
    path: &RemotePath,
    recursive: bool,
    hash: HashKind,
    on: impl FnMut(Listed),
) -> Result<(), Error> {
    run(
        session,
        Operation::Sum {
            path: path.clone(),
            recursive,
            hash,
        },
        on,
    )
    .await
}

pub(super) async fn remove(
    session: &Session,
    path: &RemotePath,
    recursive: bool,
) -> Result<(), Error> {
    run(
        session,
        Operation::Remove {
            path: path.clone(),
            recursive,
        },
        |_| (),
    )
    .await
}

pub(super) async fn make_directory(
    session: &Session,
    path: &RemotePath,
    parents: bool,
) -> Result<(), Error> {
    run(
        session,
        Operation::MakeDirectory {
            path: path.clone(),
            parents,
        },
        |_| (),
    )
    .await
}

pub(super) async fn clean(
    session: &Session,
    path: &RemotePath,
    which: Cleaning,
    dry_run: bool,
    on: impl FnMut(Listed),
) -> Result<(), Error> {
    let level = session.welcome().level;
    if level < LEVEL_CLEAN {
        let message = format!(
            "{}: {} there speaks level {level}, and is asked to clean up from level {LEVEL_CLEAN} on",
            session.host(),
            session.welcome().software
        );
        let hint = "install a newer rdcpd there; the next copy into a directory cleans it too";
        return Err(Error::new(ErrorKind::Unreachable, message).with_hint(hint));
    }
    let operation = Operation::Clean {
        path: path.clone(),
        which,
        dry_run,
    };
    run(session, operation, on).await
}

pub(super) async fn ping(session: &Session) -> Result<Ping, Error> {
    let asked = Instant::now();
    session.ping(Client::ANSWER_TIMEOUT).await?;
    let welcome = session.welcome();
    Ok(Ping {
        round_trip: asked.elapsed(),
        server: welcome.software.clone(),
        level: welcome.level,
        transports: welcome.transports.clone(),
    })
}

/// What a server does.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Status {
    /// The server's name and release.
    pub server: String,
    /// Since it began.
    pub up: Duration,
    /// How many sessions it has.
    pub sessions: u32,
    /// Bytes of files registered with adapters, of all sessions.
    pub registered_bytes: u64,
    /// What sessions may have registered together, beside a window of each.
    pub registered_bytes_max: u64,
    /// Payload bytes by transport, since it began.
    pub moved: Vec<Moved>,
    /// Its sessions, at most [`Status::SESSIONS_LISTED_MAX`].
    pub listed: Vec<SessionStatus>,
}

impl Status {
    /// How many sessions are listed.
    pub const SESSIONS_LISTED_MAX: usize = 4096;
}

pub(super) async fn status(session: &Session) -> Result<Status, Error> {
    let mut after = 0;
    let mut listed: Vec<SessionStatus> = Vec::new();
    loop {
        let page = session.status(after, Client::ANSWER_TIMEOUT).await?;
        let ascending = page.listed.iter().all(|told| {
            let above = told.id > after;
            after = told.id;
            above
        });
        if !ascending || (page.listed.is_empty() && !page.last) {
            let text = "the server answered with sessions that were not asked for";
            return Err(Error::new(ErrorKind::Unreachable, text));
        }
        listed.extend(page.listed);
        listed.truncate(Status::SESSIONS_LISTED_MAX);
        if page.last || listed.len() == Status::SESSIONS_LISTED_MAX {
            return Ok(Status {
                server: session.welcome().software.clone(),
                up: Duration::from_secs(page.up_s),
                sessions: page.sessions,
                registered_bytes: page.registered_bytes,
                registered_bytes_max: page.registered_bytes_max,
                moved: page.moved,
                listed,
            });
        }
    }
}

/// An operation under way; dropped before its end, it tells the server that nobody waits.
struct Running {
    seat: Seat,
    over: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.over {
            let fault = Fault::new(FaultCode::Cancelled, "the client does not wait for it");
            self.seat.say(Message::Failed(fault));
        }
    }
}

/// Asks for an operation and takes its lines until its end.
async fn run(session: &Session, operation: Operation, on: impl FnMut(Listed)) -> Result<(), Error> {
    let path = match &operation {
        Operation::List { path, .. }
        | Operation::Stat { path }
        | Operation::Sum { path, .. }
        | Operation::Remove { path, .. }
        | Operation::MakeDirectory { path, .. }
        | Operation::Clean { path, .. } => session.place(&path.export, &path.path),
    };
    match answered(session, operation, on).await {
        // What the server says is about the thing that was asked for.
        Err(Failed::Said(fault)) => Err(Error::from(fault).at(Location::remote(&path))),
        Err(Failed::Lost(error)) => Err(error),
        Ok(()) => Ok(()),
    }
}

/// Why an operation did not come to its end.
enum Failed {
    /// The server said so.
    Said(Fault),
    /// The session.
    Lost(Error),
}

async fn answered(
    session: &Session,
    operation: Operation,
    mut on: impl FnMut(Listed),
) -> Result<(), Failed> {
    let seat = session.seat(TransferId::random()).map_err(Failed::Lost)?;
    let depth = Depth::of(&operation);
    seat.say(Message::Operate(operation));
    seat.say(Message::Credit {
        pages: LISTINGS_CREDIT,
        region_bytes: 0,
    });
    let mut running = Running { seat, over: false };
    loop {
        match running.seat.inbox.recv().await {
            Some(Inbound::Message(Message::Listing(lines))) => {
                if let Some(line) = lines.iter().find(|line| !depth.allows(&line.path)) {
                    let error = not_asked_for(&session.host().to_string(), &line.path);
                    return Err(Failed::Lost(error));
                }
                lines.into_iter().for_each(&mut on);
                running.seat.say(Message::Credit {
                    pages: 1,
                    region_bytes: 0,
                });
            }
            Some(Inbound::Message(Message::Done)) => {
                running.over = true;
                return Ok(());
            }
            Some(Inbound::Message(Message::Failed(fault))) => {
                running.over = true;
                return Err(Failed::Said(fault));
            }
            Some(Inbound::Over(fault)) => {
                running.over = true;
                return Err(Failed::Lost(said_by(&session.host().to_string(), fault)));
            }
            Some(Inbound::Message(_)) => {
                let text = "the server answered out of turn";
                return Err(Failed::Lost(Error::new(ErrorKind::Unreachable, text)));
            }
            Some(Inbound::Lane(_) | Inbound::LaneUp(..) | Inbound::LaneDown(_)) => {}
            None => {
                let error = Error::new(ErrorKind::Unreachable, "the session ended");
                return Err(Failed::Lost(error));
            }
        }
    }
}

/// What lines of an operation may be about.
#[derive(Clone, Copy)]
enum Depth {
    /// The thing itself.
    Itself,
    /// Also what lies in it.
    Within,
    /// Also what lies further below.
    Below,
}

impl Depth {
    fn of(operation: &Operation) -> Self {
        match operation {
            // Of the server itself: its exports.
            Operation::Stat { path } if path.export.is_empty() => Self::Within,
            Operation::List { recursive, .. } | Operation::Sum { recursive, .. } => {
                if *recursive {
                    Self::Below
                } else {
                    Self::Within
                }
            }
            Operation::Clean { .. } => Self::Below,
            Operation::Stat { .. } | Operation::Remove { .. } | Operation::MakeDirectory { .. } => {
                Self::Itself
            }
        }
    }

    /// Whether a line may have this path. Nobody who joins it to a directory, or shows it, should have
    /// to ask where it leads.
    fn allows(self, path: &[u8]) -> bool {
        if path.is_empty() {
            return true;
        }
        let plain = || {
            path.len() <= PATH_BYTES_MAX
                && path
                    .split(|byte| *byte == b'/')
                    .all(|name| Name::new(name).is_ok())
        };
        match self {
            Self::Itself => false,
            Self::Within => !path.contains(&b'/') && plain(),
            Self::Below => plain(),
        }
    }
}

fn not_asked_for(server: &str, path: &[u8]) -> Error {
    let path = ShownPath(path);
    let message = format!("{server}: the server told of '{path}', which was not asked for");
    Error::new(ErrorKind::Unreachable, message)
        .with_hint("is it a damaged or foreign build of rdcpd?")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_about_what_was_asked_for() {
        let plain: [&[u8]; 3] = [b"a", b"..a", b"\xff\n"];
        for path in plain {
            assert!(Depth::Within.allows(path) && Depth::Below.allows(path));
            assert!(!Depth::Itself.allows(path));
        }
        assert!(Depth::Itself.allows(b"") && Depth::Below.allows(b"a/b"));
        assert!(!Depth::Within.allows(b"a/b"));
        let long = [b'a'; 300];
        let wrong: [&[u8]; 9] = [
            b"/", b"/a", b"a/", b"a//b", b"..", b"../a", b"a/../b", b"a/./b", b"a\0b",
        ];
        for path in wrong.into_iter().chain([&long[..]]) {
            assert!(!Depth::Below.allows(path), "{}", path.escape_ascii());
        }
    }
}
