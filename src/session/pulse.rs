//! Whether the peer is alive: asked when nothing was heard for a while, believed dead when nothing
//! was heard for longer. Any message counts as a sign of life.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use super::peer::Peer;
use crate::ids::TransferId;
use crate::wire::{Fault, FaultCode, Message};

/// Nothing was heard for this long: ask.
const ASK_AFTER: Duration = Duration::from_secs(15);
/// Nothing was heard for this long: the peer is gone.
const DEAD_AFTER: Duration = Duration::from_secs(60);

/// One session's signs of life.
pub(crate) struct Pulse(Mutex<State>);

struct State {
    heard: Instant,
    next_nonce: u64,
    waiting: HashMap<u64, oneshot::Sender<()>>,
}

impl Pulse {
    pub(crate) fn new() -> Self {
        let heard = Instant::now();
        Self(Mutex::new(State {
            heard,
            next_nonce: 1,
            waiting: HashMap::new(),
        }))
    }

    /// A message came.
    pub(crate) fn heard(&self) {
        self.lock().heard = Instant::now();
    }

    /// A Pong came.
    pub(crate) fn answered(&self, nonce: u64) {
        if let Some(waiting) = self.lock().waiting.remove(&nonce) {
            // Whoever asked may have given up.
            let _ = waiting.send(());
        }
    }

    /// Asks the peer and waits for its answer, or for the session's end.
    pub(crate) async fn ask(&self, peer: &Arc<Peer>) -> Result<(), Fault> {
        let (answer, answered) = oneshot::channel();
        let nonce = {
            let mut state = self.lock();
            let nonce = state.next_nonce;
            state.next_nonce += 1;
            state.waiting.insert(nonce, answer);
            nonce
        };
        peer.say(TransferId::NONE, Message::Ping { nonce });
        tokio::select! {
            answer = answered => answer.map_err(|_| lost()),
            fault = peer.closed() => Err(fault),
        }
    }

    /// Keeps asking; returns when the peer is believed dead.
    pub(crate) async fn beat(&self, peer: &Arc<Peer>) -> Fault {
        let mut asked = Instant::now();
        loop {
            let heard = self.lock().heard;
            let silent = heard.elapsed();
            if silent >= DEAD_AFTER {
                let seconds = silent.as_secs();
                return Fault::new(
                    FaultCode::Lost,
                    format!("nothing was heard for {seconds} s"),
                );
            }
            if silent >= ASK_AFTER && asked.elapsed() >= ASK_AFTER {
                asked = Instant::now();
                peer.say(TransferId::NONE, Message::Ping { nonce: 0 });
            }
            sleep_until(heard.max(asked) + ASK_AFTER).await;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn lost() -> Fault {
    Fault::new(FaultCode::Lost, "the session ended")
}
