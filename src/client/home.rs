//! The way to a client's server: the session that there is now, and how one takes its place when it is
//! lost.
//!
//! In: host, port and options, from the first connection. Out: the current session, or a new one once it
//! is over; whoever finds it lost asks for that, and all clones and transfers of a client share what
//! comes of it. The server has to show the key that it showed first. A server that ssh started is held on to. When it makes sense to try again is
//! not known here.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Mutex as AsyncMutex;

use super::connect::{Known, Session, Unmade};
use super::far::Far;
use crate::error::{Error, ErrorKind};
use crate::options::ClientOptions;
use crate::remote::Remote;
use crate::wire::{Fault, FaultCode};

/// How long a server that ssh started may take to answer directly: firewalls tend to say nothing.
const DIRECT_TIMEOUT: Duration = Duration::from_secs(3);

/// See the module's first paragraph.
pub(super) struct Home {
    host: String,
    port: u16,
    options: ClientOptions,
    /// What ssh started, if it did; it goes when nobody holds this any more.
    far: Option<Far>,
    tunnelled: Option<String>,
    now: Mutex<Now>,
    /// Held while a session is made, so that two transfers don't make two.
    making: AsyncMutex<()>,
}

struct Now {
    session: Arc<Session>,
    /// The client's owner ended it.
    closed: bool,
}

impl Home {
    pub(super) async fn establish(
        host: &str,
        port: u16,
        options: ClientOptions,
    ) -> Result<Arc<Self>, Error> {
        let made = Session::establish(host, port, options.clone(), Known::default()).await;
        let session = made.map_err(|unmade| unmade.error)?;
        Ok(Self::with(session, host, port, options))
    }

    /// Has ssh start a server, and connects to it: directly if something answers there, else through ssh.
    pub(super) async fn establish_far(
        remote: Remote,
        options: ClientOptions,
    ) -> Result<Arc<Self>, Error> {
        let (place, ssh) = (remote.clone(), options.ssh.clone());
        // It may wait for a person who types a password.
        let started = tokio::task::spawn_blocking(move || Far::start(&place, &ssh)).await;
        let far = started.map_err(crashed)??;
        let known = Known {
            fingerprint: Some(far.fingerprint),
            identity: Some(Arc::clone(&far.identity)),
            shown: Some(remote),
        };
        let mut reason = "it was asked for".to_owned();
        if !options.ssh.tunnel {
            let mut near = options.clone();
            near.connect_timeout = near.connect_timeout.min(DIRECT_TIMEOUT);
            for address in &far.direct {
                let host = address.ip().to_string();
                let made =
                    Session::establish(&host, address.port(), near.clone(), known.clone()).await;
                match made {
                    Ok(session) => {
                        let mut home = Self::new(session, &host, address.port(), options);
                        home.far = Some(far);
                        return Ok(Arc::new(home));
                    }
                    Err(unmade) => {
                        tracing::debug!(%address, error = %unmade.error, "not reached directly");
                        reason = format!("nothing that could be it answers at {address}");
                    }
                }
            }
        }
        let forwarded = tokio::task::spawn_blocking(move || {
            let port = far.forward();
            (far, port)
        });
        let (far, port) = forwarded.await.map_err(crashed)?;
        let (host, port) = (Ipv4Addr::LOCALHOST.to_string(), port?);
        let made = Session::establish(&host, port, options.clone(), known).await;
        // ssh takes the port, and only then finds out that sshd won't.
        let session = made.map_err(|unmade| match unmade.error.kind() {
            ErrorKind::Unreachable => far.unforwarded().with_source(unmade.error),
            _ => unmade.error,
        })?;
        let mut home = Self::new(session, &host, port, options);
        home.far = Some(far);
        home.tunnelled = Some(reason);
        Ok(Arc::new(home))
    }

    fn with(session: Arc<Session>, host: &str, port: u16, options: ClientOptions) -> Arc<Self> {
        Arc::new(Self::new(session, host, port, options))
    }

    fn new(session: Arc<Session>, host: &str, port: u16, options: ClientOptions) -> Self {
        Self {
            host: host.to_owned(),
            port,
            options,
            far: None,
            tunnelled: None,
            now: Mutex::new(Now {
                session,
                closed: false,
            }),
            making: AsyncMutex::new(()),
        }
    }

    pub(super) fn tunnelled(&self) -> Option<&str> {
        self.tunnelled.as_deref()
    }

    /// The session that there is now, which may be over.
    pub(super) fn session(&self) -> Arc<Session> {
        let now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&now.session)
    }

    /// A session that is not over: the current one, or one that takes its place.
    ///
    /// # Errors
    /// Why there is none, and whether another try may do better.
    pub(super) async fn renewed(&self) -> Result<Arc<Session>, Unmade> {
        let _one = self.making.lock().await;
        let session = self.open_session()?;
        if session.peer().over().is_none() {
            return Ok(session);
        }
        let known = Known {
            fingerprint: Some(session.fingerprint()),
            ..session.known()
        };
        drop(session);
        let options = self.options.clone();
        let made = Session::establish(&self.host, self.port, options, known).await?;
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        if now.closed {
            return Err(closed());
        }
        now.session = Arc::clone(&made);
        Ok(made)
    }

    fn open_session(&self) -> Result<Arc<Session>, Unmade> {
        let now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        match now.closed {
            true => Err(closed()),
            false => Ok(Arc::clone(&now.session)),
        }
    }

    /// Ends the session, and makes no other.
    pub(super) async fn close(&self) {
        let session = {
            let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
            now.closed = true;
            Arc::clone(&now.session)
        };
        session.close().await;
    }
}

fn crashed(error: tokio::task::JoinError) -> Error {
    Error::new(ErrorKind::Internal, "ssh was not waited for").with_source(error)
}

fn closed() -> Unmade {
    let fault = Fault::new(FaultCode::Cancelled, "the client closed the session");
    Unmade {
        error: fault.into(),
        passes: false,
    }
}
