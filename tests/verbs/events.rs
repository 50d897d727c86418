//! What a device tells when its network interface goes down and comes up.

use std::error::Error;
use std::process::Command;
use std::time::{Duration, Instant};

use rdcp::sys::verbs::{AsyncEvent, Events};

use crate::Outcome;
use crate::fabric::Fabric;

pub(crate) fn told(fabric: &Fabric, interface: &str) -> Outcome {
    let events = Events::new(&fabric.context)?;
    while events.next_event()?.is_some() {}
    let port = fabric.port.number;
    set(interface, "down")?;
    let mut seen = until(&events, AsyncEvent::PortFailed(port))?;
    set(interface, "up")?;
    seen.extend(until(&events, AsyncEvent::PortActive(port))?);
    Ok(format!("{seen:?}"))
}

fn set(interface: &str, state: &str) -> Result<(), Box<dyn Error>> {
    let status = Command::new("ip")
        .args(["link", "set", "dev", interface, state])
        .status()?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("ip link set dev {interface} {state}: {status}").into())
    }
}

fn until(events: &Events, last: AsyncEvent) -> Result<Vec<AsyncEvent>, Box<dyn Error>> {
    let begun = Instant::now();
    let mut seen = Vec::new();
    while begun.elapsed() < Duration::from_secs(60) {
        match events.next_event()? {
            Some(event) => seen.push(event),
            None => std::thread::yield_now(),
        }
        if seen.last() == Some(&last) {
            return Ok(seen);
        }
    }
    Err(format!("{last:?} was not told, but {seen:?}").into())
}
