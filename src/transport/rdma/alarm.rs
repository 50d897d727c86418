//! The word that a connection is broken, from whoever learns of it first.
//!
//! An adapter's events name ports and queue pairs; whoever carries a connection wants to hear of
//! its own. An alarm rings once, also when nobody listens yet. Nothing here knows verbs or lanes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Takes why a connection is broken; called once at most, from any thread, and must not wait.
pub(crate) type Listener = Box<dyn FnOnce(String) + Send>;

/// See the module's first paragraph. Clones are the same alarm.
#[derive(Clone, Default)]
pub(crate) struct Alarm {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
enum State {
    #[default]
    Quiet,
    Listened(Listener),
    Rung(String),
    Told,
}

impl Alarm {
    /// The connection is broken. The first reason counts.
    pub(super) fn ring(&self, reason: String) {
        let listener = {
            let mut state = self.lock();
            match std::mem::take(&mut *state) {
                State::Quiet => {
                    *state = State::Rung(reason);
                    return;
                }
                State::Listened(listener) => {
                    *state = State::Told;
                    listener
                }
                rung => {
                    *state = rung;
                    return;
                }
            }
        };
        // Without the lock: the listener is somebody else's code.
        listener(reason);
    }

    /// Tells `listener` when it rings, at once if it has.
    pub(crate) fn tell(&self, listener: Listener) {
        let reason = {
            let mut state = self.lock();
            match std::mem::take(&mut *state) {
                State::Rung(reason) => {
                    *state = State::Told;
                    reason
                }
                State::Told => {
                    *state = State::Told;
                    return;
                }
                State::Quiet | State::Listened(_) => {
                    *state = State::Listened(listener);
                    return;
                }
            }
        };
        listener(reason);
    }

    /// Why, if it has rung and nobody was told.
    pub(super) fn rung(&self) -> Option<String> {
        match &*self.lock() {
            State::Rung(reason) => Some(reason.clone()),
            _ => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Whole between any two statements.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn rings_once_whoever_comes_first() {
        for listens_first in [true, false] {
            let (told, heard) = channel();
            let alarm = Alarm::default();
            let listener = Box::new(move |reason| told.send(reason).unwrap());
            if listens_first {
                alarm.clone().tell(listener);
                alarm.ring("first".to_owned());
            } else {
                alarm.ring("first".to_owned());
                assert_eq!(alarm.rung().as_deref(), Some("first"));
                alarm.clone().tell(listener);
            }
            alarm.ring("second".to_owned());
            assert_eq!(heard.try_iter().collect::<Vec<String>>(), ["first"]);
            assert_eq!(alarm.rung(), None);
        }
    }
}
