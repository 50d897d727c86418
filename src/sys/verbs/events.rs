//! What a device says unasked: ports that go up and down, queue pairs that fail, the device's end.
//!
//! In: a context. Out: a descriptor that becomes readable, and typed events. Each event is
//! acknowledged as soon as it was read, since the object that it speaks of can't be destroyed
//! before. Kinds are read as plain numbers: rdma-sys has a Rust `enum` there, for which a number
//! that a newer rdma-core may send is undefined behaviour.
#![allow(unsafe_code)] // The call fills a C structure.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr;
use std::sync::Arc;

use rdma_sys::{ibv_async_event, ibv_qp};

use super::context::Context;
use super::{Error, plain};

/// Something that happened to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A completion queue is broken.
    CompletionQueueFailed,
    /// The queue pair with this number is broken.
    QueuePairFailed(u32),
    /// The queue pair with this number got a request that it can't serve, and is in its error state.
    RequestRefused(u32),
    /// A peer of the queue pair with this number reached for memory that it may not have.
    AccessRefused(u32),
    /// The first packet arrived before the connection was told established.
    Established(u32),
    /// The queue pair's send queue is drained.
    Drained(u32),
    /// The port is usable.
    PortActive(u8),
    /// The port is not usable any more.
    PortFailed(u8),
    /// The port's LID changed.
    LidChanged(u8),
    /// The port's P_Key table changed.
    PkeysChanged(u8),
    /// The port's GID table changed.
    GidsChanged(u8),
    /// The port's subnet manager changed or wants its clients to register again.
    SubnetManagerChanged(u8),
    /// The device is broken or was pulled out: everything on it is lost.
    DeviceFailed,
    /// Another event; the raw kind.
    Unknown(u32),
}

/// `struct ibv_async_event`, with its kind as a number.
#[repr(C)]
struct RawEvent {
    element: Element,
    kind: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
union Element {
    queue_pair: *mut ibv_qp,
    port: c_int,
}

const _: () = assert!(size_of::<RawEvent>() == size_of::<ibv_async_event>());
const _: () = assert!(align_of::<RawEvent>() == align_of::<ibv_async_event>());
const _: () = assert!(
    std::mem::offset_of!(RawEvent, kind) == std::mem::offset_of!(ibv_async_event, event_type)
);

/// The events of one device. One reader per context: each event is told once.
#[derive(Debug)]
pub struct Events {
    context: Arc<Context>,
}

impl Events {
    /// Makes the context's descriptor one that does not wait.
    pub fn new(context: &Arc<Context>) -> Result<Self, Error> {
        let events = Self {
            context: Arc::clone(context),
        };
        plain::set_nonblocking(events.as_fd())
            .map_err(|error| context.error("set up its events", error))?;
        Ok(events)
    }

    /// The next event; `None` when there is none yet.
    pub fn next_event(&self) -> Result<Option<AsyncEvent>, Error> {
        let verbs = self.context.verbs();
        let mut event = RawEvent {
            element: Element {
                queue_pair: ptr::null_mut(),
            },
            kind: 0,
        };
        let raw = (&raw mut event).cast::<ibv_async_event>();
        // SAFETY: the context is open; the structure has the layout that C fills, as asserted.
        let code = unsafe { (verbs.ibv_get_async_event)(self.context.raw().as_ptr(), raw) };
        if let Err(error) = plain::check_errno(code) {
            if matches!(
                error.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
            ) {
                return Ok(None);
            }
            return Err(self.context.error("tell its events", error));
        }
        let told = translate(&event);
        // SAFETY: filled by the call above, and acknowledged once.
        unsafe { (verbs.ibv_ack_async_event)(raw) };
        Ok(Some(told))
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open, and the member does not change.
        let fd = unsafe { (*self.context.raw().as_ptr()).async_fd };
        // SAFETY: the descriptor is the context's, which is open while `self` holds it.
        unsafe { plain::borrow(self, fd) }
    }
}

/// Between reading and acknowledging, so that a queue pair that the event names is alive.
fn translate(event: &RawEvent) -> AsyncEvent {
    let queue_pair = || {
        // SAFETY: the kinds that ask for it carry a queue pair.
        let queue_pair = unsafe { event.element.queue_pair };
        // SAFETY: destroying it waits until the event is acknowledged, which comes after this.
        unsafe { (*queue_pair).qp_num }
    };
    let port = || {
        // SAFETY: the kinds that ask for it carry a port's number.
        let port = unsafe { event.element.port };
        u8::try_from(port).unwrap_or(0)
    };
    match event.kind {
        0 => AsyncEvent::CompletionQueueFailed,
        1 => AsyncEvent::QueuePairFailed(queue_pair()),
        2 => AsyncEvent::RequestRefused(queue_pair()),
        3 => AsyncEvent::AccessRefused(queue_pair()),
        4 => AsyncEvent::Established(queue_pair()),
        5 => AsyncEvent::Drained(queue_pair()),
        8 => AsyncEvent::DeviceFailed,
        9 => AsyncEvent::PortActive(port()),
        10 => AsyncEvent::PortFailed(port()),
        11 => AsyncEvent::LidChanged(port()),
        12 => AsyncEvent::PkeysChanged(port()),
        13 | 17 => AsyncEvent::SubnetManagerChanged(port()),
        18 => AsyncEvent::GidsChanged(port()),
        other => AsyncEvent::Unknown(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdma_sys::ibv_event_type;

    fn told(kind: u32, port: c_int) -> AsyncEvent {
        translate(&RawEvent {
            element: Element { port },
            kind,
        })
    }

    #[test]
    fn kinds_are_those_of_the_header() {
        assert_eq!(
            told(ibv_event_type::IBV_EVENT_PORT_ACTIVE as u32, 2),
            AsyncEvent::PortActive(2)
        );
        assert_eq!(
            told(ibv_event_type::IBV_EVENT_PORT_ERR as u32, 1),
            AsyncEvent::PortFailed(1)
        );
        assert_eq!(
            told(ibv_event_type::IBV_EVENT_GID_CHANGE as u32, 1),
            AsyncEvent::GidsChanged(1)
        );
        assert_eq!(
            told(ibv_event_type::IBV_EVENT_DEVICE_FATAL as u32, 0),
            AsyncEvent::DeviceFailed
        );
    }

    #[test]
    fn a_kind_from_the_future_is_unknown() {
        assert_eq!(told(20, 1), AsyncEvent::Unknown(20));
    }
}
