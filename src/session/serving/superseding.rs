//! One run of a transfer at a time: a client that has lost its session goes on in another, often before
//! this end knows that the first one is dead.
//!
//! In: transfers that begin, with whose they are. Out: leave to begin, once an earlier run of the same
//! transfer has ended; it is ended for that, and leaves what can be gone on with. It holds the part files'
//! locks, so the two must not overlap. Only the client that a transfer belongs to can end it in this way.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use crate::ids::TransferId;
use crate::session::admission::Origin;
use crate::session::own_key::Fingerprint;
use crate::wire::{Fault, FaultCode};

/// How long the end of an earlier run is waited for: longer than a run that is ended takes.
const PATIENCE: Duration = Duration::from_secs(15);

/// Whose a transfer is: who proves the same key, or, where none are asked for, comes from the same address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) key: Option<Fingerprint>,
    pub(super) origin: Origin,
}

impl Owner {
    fn is(&self, other: &Self) -> bool {
        match (self.key, other.key) {
            (Some(one), Some(other)) => one == other,
            (None, None) => self.origin == other.origin,
            _ => false,
        }
    }
}

/// The transfers that run.
#[derive(Debug, Default)]
pub(super) struct Runs(Mutex<HashMap<TransferId, Run>>);

#[derive(Debug)]
struct Run {
    owner: Owner,
    end: watch::Sender<Option<Fault>>,
}

/// A run's place among them, given back when it is dropped.
pub(super) struct RunPlace {
    runs: Arc<Runs>,
    transfer: TransferId,
    /// Becomes `Some` when the run has to give way.
    pub(super) cancel: watch::Receiver<Option<Fault>>,
}

impl Runs {
    /// Waits until no other run of this transfer is left, and takes its place.
    ///
    /// # Errors
    /// The transfer is somebody else's, or its earlier run does not end.
    pub(super) async fn enter(
        self: &Arc<Self>,
        transfer: TransferId,
        owner: Owner,
    ) -> Result<RunPlace, Fault> {
        let entering = async {
            loop {
                let end = {
                    let mut runs = self.lock();
                    match runs.get(&transfer) {
                        None => {
                            let (end, cancel) = watch::channel(None);
                            runs.insert(transfer, Run { owner, end });
                            return Ok(RunPlace {
                                runs: Arc::clone(self),
                                transfer,
                                cancel,
                            });
                        }
                        Some(run) if run.owner.is(&owner) => run.end.clone(),
                        Some(_) => {
                            let text = "a transfer with this id runs already";
                            return Err(Fault::new(FaultCode::Protocol, text));
                        }
                    }
                };
                if end.borrow().is_none() {
                    tracing::info!(%transfer, "the client goes on in another session");
                }
                let text = "the client goes on in another session";
                end.send_replace(Some(Fault::new(FaultCode::Cancelled, text)));
                end.closed().await;
            }
        };
        timeout(PATIENCE, entering).await.unwrap_or_else(|_| {
            let text = "an earlier run of this transfer has not ended yet; try again later";
            Err(Fault::new(FaultCode::Busy, text))
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<TransferId, Run>> {
        // Whole between any two statements.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RunPlace {
    fn drop(&mut self) {
        self.runs.lock().remove(&self.transfer);
        // Whoever waits is woken when the receiver goes, which is after this.
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    fn owner(last: u8) -> Owner {
        Owner {
            key: None,
            origin: Origin::of(IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))),
        }
    }

    #[tokio::test]
    async fn a_run_gives_way_to_the_next_of_its_owner_and_to_nobody_else() {
        let runs = Arc::new(Runs::default());
        let id = TransferId::random();
        let mut first = runs.enter(id, owner(1)).await.unwrap();
        let refused = runs.enter(id, owner(2)).await.err().unwrap();
        assert_eq!(refused.code, FaultCode::Protocol);
        assert_eq!(*first.cancel.borrow(), None);
        let again = tokio::spawn({
            let runs = Arc::clone(&runs);
            async move { runs.enter(id, owner(1)).await.map(|place| place.transfer) }
        });
        let told = first
            .cancel
            .wait_for(Option::is_some)
            .await
            .unwrap()
            .clone();
        assert_eq!(told.unwrap().code, FaultCode::Cancelled);
        assert!(!again.is_finished());
        drop(first);
        assert_eq!(again.await.unwrap().unwrap(), id);
        // Its place is free again.
        runs.enter(id, owner(2)).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_that_does_not_end_is_not_waited_for_for_ever() {
        let runs = Arc::new(Runs::default());
        let id = TransferId::random();
        let _first = runs.enter(id, owner(1)).await.unwrap();
        let refused = runs.enter(id, owner(1)).await.err().unwrap();
        assert_eq!(refused.code, FaultCode::Busy);
    }
}
