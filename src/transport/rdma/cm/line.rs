//! A connection that rdma_cm has made, or is making.
//!
//! In: events. Out, while it is made: the same, to whoever makes it; once it is: the queue pair's
//! alarm, for every event that says that the connection is over; but for the other end's own word,
//! which it gives with its reason where it gave the token.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

use super::reader::{Ear, Hearing};
use crate::sys::verbs::cm::{Event, Identifier};
use crate::transport::rdma::alarm::Alarm;

/// One end of a connection. To be dropped after its queue pair: its end tells the other side.
pub(in crate::transport::rdma) struct Line {
    /// Before the key under which its events are heard.
    _id: Identifier,
    _hearing: Hearing,
}

impl Line {
    pub(super) fn new(id: Identifier, hearing: Hearing) -> Self {
        Self {
            _id: id,
            _hearing: hearing,
        }
    }
}

/// Who hears of it.
pub(super) struct LineEar(Mutex<State>);

enum State {
    Making(Sender<Event>),
    Made(Alarm),
}

impl LineEar {
    /// For a connection that is being made by whoever has the other end of `sender`.
    pub(super) fn making(sender: Sender<Event>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State::Making(sender))))
    }

    /// For one that is as good as made.
    pub(super) fn made(alarm: Alarm) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State::Made(alarm))))
    }

    /// From now on its end rings the alarm.
    pub(super) fn is_made(&self, alarm: Alarm) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = State::Made(alarm);
    }
}

impl Ear for LineEar {
    fn hear(&self, event: Event) {
        let alarm = match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Making(sender) => {
                // Whoever made it may have given up.
                let _ = sender.send(event);
                return;
            }
            State::Made(alarm) => alarm.clone(),
        };
        if let Some(reason) = end_of(&event) {
            alarm.ring(reason);
        }
    }
}

/// Why the connection is over, if the event says so.
fn end_of(event: &Event) -> Option<String> {
    Some(match event {
        Event::DeviceRemoved { .. } => "the device was removed".to_owned(),
        Event::AddressChanged { .. } => "the address moved to another port".to_owned(),
        Event::Failed { error, .. } => format!("rdma_cm gave the connection up: {error}"),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn events_go_to_the_maker_first_and_then_ring_the_alarm_if_they_end_it() {
        let (sender, receiver) = channel();
        let ear = LineEar::making(sender);
        ear.hear(Event::Disconnected { id: 1 });
        assert!(matches!(
            receiver.try_recv(),
            Ok(Event::Disconnected { id: 1 })
        ));
        let alarm = Alarm::default();
        ear.is_made(alarm.clone());
        ear.hear(Event::Established { id: 1 });
        ear.hear(Event::TimeWaitOver { id: 1 });
        ear.hear(Event::Disconnected { id: 1 });
        assert_eq!(alarm.rung(), None);
        ear.hear(Event::DeviceRemoved { id: 1 });
        assert!(alarm.rung().unwrap().contains("was removed"));
        assert!(receiver.try_recv().is_err());
    }
}
