//! The way to a client's server: the session that there is now, and how one takes its place when it is
//! lost.
//!
//! In: host, port and options, from the first connection. Out: the current session, or a new one once it
//! is over; whoever finds it lost asks for that, and all clones and transfers of a client share what
//! comes of it. The server has to show the key that it showed first. When it makes sense to try again is
//! not known here.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Mutex as AsyncMutex;

use super::connect::{Session, Unmade};
use crate::error::Error;
use crate::options::ClientOptions;
use crate::wire::{Fault, FaultCode};

/// See the module's first paragraph.
pub(super) struct Home {
    host: String,
    port: u16,
    options: ClientOptions,
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
        let made = Session::establish(host, port, options.clone(), None).await;
        let session = made.map_err(|unmade| unmade.error)?;
        Ok(Arc::new(Self {
            host: host.to_owned(),
            port,
            options,
            now: Mutex::new(Now {
                session,
                closed: false,
            }),
            making: AsyncMutex::new(()),
        }))
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
        let known = session.fingerprint();
        drop(session);
        let options = self.options.clone();
        let made = Session::establish(&self.host, self.port, options, Some(known)).await?;
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

fn closed() -> Unmade {
    let fault = Fault::new(FaultCode::Cancelled, "the client closed the session");
    Unmade {
        error: fault.into(),
        passes: false,
    }
}
