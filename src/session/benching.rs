//! The server's side of a measurement: memory that the client reads as often as it likes.
//!
//! In: a client's wish for a region, signs that it goes on. Out: the grant, and the memory back when
//! the client is done, silent, or has had it for long enough. The reads themselves are nobody's
//! affair here: lanes and adapters answer them as those of a transfer.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::exposing::lent::{Lent, ToLend};
use super::exposing::{LEASE_PATIENCE, MEMORY_PATIENCE};
use super::machinery::memory_returned;
use super::peer::{Inbound, Seat};
use super::serving::Serving;
use crate::wire::message::Running;
use crate::wire::{Fault, FaultCode, Message};

/// How long a client may have it: nobody measures longer, and others may wait.
const MEASURING_MAX: Duration = Duration::from_secs(600);

/// What the client is told of its lease.
#[allow(clippy::cast_possible_truncation, reason = "30 s")]
const LEASE_MS: u32 = LEASE_PATIENCE.as_millis() as u32;

/// Runs one measurement to its end.
pub(crate) async fn run(serving: Arc<Serving>, mut seat: Seat, region_bytes: u64) {
    let (session, transfer) = (seat.peer.id, seat.transfer);
    tracing::info!(%session, %transfer, region_bytes, "measurement began");
    let activity = seat.peer.activity();
    let _begun = activity.begin(
        transfer,
        Running::Operation,
        "bench".to_owned(),
        Arc::default(),
    );
    let ended = match lend(&serving, &mut seat, region_bytes).await {
        Ok(lent) => measured(&mut seat, lent).await,
        Err(fault) => Err(fault),
    };
    let reason = ended.as_ref().err().map(|fault| fault.text.escape_debug());
    tracing::info!(
        %session, %transfer, reason = reason.map(|reason| reason.to_string()), "measurement ended"
    );
    match ended {
        Ok(()) => seat.say(Message::Done),
        // Who says so need not hear it.
        Err(fault) if fault.from_peer => {}
        Err(fault) => seat.say(Message::Failed(fault)),
    }
}

async fn lend(serving: &Serving, seat: &mut Seat, region_bytes: u64) -> Result<Lent, Fault> {
    let slot = slot(serving, seat).await?;
    let memory = Arc::clone(seat.peer.memory());
    let (region, regions) = (seat.first_region(), seat.regions());
    let workers = serving.machinery.workers.clone();
    let lending = serving
        .machinery
        .workers
        .run(move || memory.lend(slot, region_bytes, region, regions, workers));
    lending
        .await
        .map_err(|panic| Fault::new(FaultCode::Internal, panic.to_string()))?
}

/// Waits for memory, as windows do.
async fn slot(serving: &Serving, seat: &mut Seat) -> Result<ToLend, Fault> {
    let deadline = Instant::now() + MEMORY_PATIENCE;
    loop {
        let returned = memory_returned();
        let memory = Arc::clone(seat.peer.memory());
        if let Some(slot) = memory.slot_to_lend(&serving.machinery.serving)? {
            return Ok(slot);
        }
        tokio::select! {
            () = returned => {}
            inbound = seat.inbox.recv() => drop(heard(inbound)?),
            () = tokio::time::sleep_until(deadline) => {
                let text = "the server's memory is in use by others; try again later";
                return Err(Fault::new(FaultCode::Busy, text));
            }
        }
    }
}

/// Lets the client read until it is done.
async fn measured(seat: &mut Seat, lent: Lent) -> Result<(), Fault> {
    seat.say(Message::Grant(lent.grant(LEASE_MS)));
    let end = Instant::now() + MEASURING_MAX;
    loop {
        let silent = Instant::now() + LEASE_PATIENCE;
        let inbound = timeout_at(silent.min(end), seat.inbox.recv()).await;
        let Ok(inbound) = inbound else {
            let text = format!(
                "the memory to measure with was taken back: the client said nothing for {} s, or \
                 has had it for {} s",
                LEASE_PATIENCE.as_secs(),
                MEASURING_MAX.as_secs()
            );
            return Err(Fault::new(FaultCode::TimedOut, text));
        };
        if let Heard::Released(regions) = heard(inbound)? {
            return match regions.as_slice() {
                [region] if *region == lent.region() => Ok(()),
                _ => Err(out_of_turn()),
            };
        }
    }
}

/// What a client may say while it measures.
enum Heard {
    /// It goes on; or what is not about it.
    Alive,
    /// It is done with this.
    Released(Vec<crate::ids::RegionId>),
}

fn heard(inbound: Option<Inbound>) -> Result<Heard, Fault> {
    match inbound {
        Some(Inbound::Message(Message::Credit { .. })) => Ok(Heard::Alive),
        Some(Inbound::Message(Message::Release(regions))) => Ok(Heard::Released(regions)),
        Some(Inbound::Message(Message::Failed(fault)) | Inbound::Over(fault)) => Err(fault),
        Some(Inbound::Message(_)) => Err(out_of_turn()),
        Some(Inbound::Lane(_) | Inbound::LaneUp(..) | Inbound::LaneDown(_)) => Ok(Heard::Alive),
        None => Err(Fault::new(FaultCode::Lost, "the session ended")),
    }
}

fn out_of_turn() -> Fault {
    Fault::new(
        FaultCode::Protocol,
        "a measurement takes credit and one release, and nothing else",
    )
}
