//! READs between slots: what lands, what fails and how, and that every slot comes back.

use std::fs;
use std::os::fd::AsFd;

use rdcp::sys::verbs::{
    Batch, CompletionQueue, Domain, PostError, QueuePair, Read, WorkStatus, region,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::Outcome;
use crate::fabric::{DEPTH, Fabric, Pair, SLOT_BYTES, pattern};

pub(crate) fn between_slots(fabric: &Fabric) -> Outcome {
    let mut pair = fabric.pair()?;
    let (slot, remote) = pair.serving()?;
    for (id, (offset, len)) in [(0, SLOT_BYTES), (4096, 1), (12_345, 54_321)]
        .into_iter()
        .enumerate()
    {
        pair.read(id as u64, &remote, offset as u64, len)?;
        let finished = pair.finish()?;
        let done = finished.outcome?;
        if (finished.id, done.bytes) != (id as u64, len)
            || finished.slot[..len] != slot[offset..offset + len]
        {
            return Err(format!("READ {id} landed wrong").into());
        }
        if finished.slot[len..].iter().any(|&byte| byte != 0) {
            return Err(format!("READ {id} wrote beyond its range").into());
        }
    }
    // As many as fit, in order.
    for id in 0..u64::from(DEPTH) {
        pair.read(id, &remote, id * 4096, 4096)?;
    }
    for id in 0..u64::from(DEPTH) {
        let finished = pair.finish()?;
        finished.outcome?;
        let at = usize::try_from(id)? * 4096;
        if finished.id != id || finished.slot[..4096] != slot[at..at + 4096] {
            return Err(format!("READ {id} came as {}", finished.id).into());
        }
    }
    Ok(format!("{} READs, content equal, in order", 3 + DEPTH))
}

pub(crate) fn woken_by_event(fabric: &Fabric) -> Outcome {
    let mut pair = fabric.pair()?;
    let (_slot, remote) = pair.serving()?;
    let ready = |pair: &Pair, seconds| -> Result<bool, rustix::io::Errno> {
        let fd = pair.completions.as_fd();
        let limit = Timespec {
            tv_sec: seconds,
            tv_nsec: 0,
        };
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)).map(|count| count == 1)
    };
    for id in 0..100 {
        pair.completions.arm()?;
        if ready(&pair, 0)? {
            return Err("ready before a READ was posted".into());
        }
        pair.read(id, &remote, 0, 64)?;
        if !ready(&pair, 60)? {
            return Err("no event came".into());
        }
        if pair.completions.take_events()? != 1 || pair.completions.take_events()? != 0 {
            return Err("not one event".into());
        }
        pair.finish()?.outcome?;
    }
    Ok("100 READs, one event each".to_owned())
}

pub(crate) fn refused_posts(fabric: &Fabric) -> Outcome {
    let mut pair = fabric.pair()?;
    let (served, remote) = pair.serving()?;
    let read = |slot, range| Read {
        id: 7,
        slot,
        range,
        address: remote.address,
        rkey: remote.rkey,
    };
    let bare = pair.pool.take().ok_or("no slot")?;
    let Err((back, PostError::NotRegistered)) = pair.reader.post_read(read(bare, 0..1)) else {
        return Err("a slot that was never registered was taken".into());
    };
    drop(back);
    let Err((back, PostError::NotRegistered)) = pair.reader.post_read(read(served, 0..1)) else {
        return Err("a slot that is served was taken".into());
    };
    let mut served = back.slot;
    if region::register_landing(&mut served, pair.reader.domain()).is_ok() {
        return Err("a slot that is served could be registered for landing".into());
    }
    let landing = pair.landing()?;
    let range = 0..landing.len() + 1;
    let Err((back, PostError::OutOfRange)) = pair.reader.post_read(read(landing, range)) else {
        return Err("a range beyond the slot was taken".into());
    };
    // Registered in the reader's domain, not in the server's.
    let Err((back, PostError::NotRegistered)) = pair.server.post_read(read(back.slot, 0..1)) else {
        return Err("a slot of another domain was taken".into());
    };
    let mut unconnected = QueuePair::new(pair.reader.domain(), &pair.completions, 1)?;
    let Err((back, PostError::NotConnected)) = unconnected.post_read(read(back.slot, 0..1)) else {
        return Err("a queue pair in its reset state took a READ".into());
    };
    drop((back, unconnected));
    for id in 0..u64::from(DEPTH) {
        pair.read(id, &remote, 0, 64)?;
    }
    let landing = pair.landing()?;
    let Err((back, PostError::Full)) = pair.reader.post_read(read(landing, 0..1)) else {
        return Err("a full queue pair took another READ".into());
    };
    if back.id != 7 || back.slot.len() != SLOT_BYTES {
        return Err("something else came back".into());
    }
    for _ in 0..DEPTH {
        pair.finish()?.outcome?;
    }
    pair.reader
        .post_read(back)
        .map_err(|(_, error)| format!("after room was made: {error}"))?;
    pair.finish()?.outcome?;
    Ok("refused for six reasons, every slot came back".to_owned())
}

pub(crate) fn beyond_the_region(fabric: &Fabric) -> Outcome {
    let mut pair = fabric.pair()?;
    let (slot, remote) = pair.serving()?;
    pair.read(0, &remote, slot.len() as u64 - 10, 11)?;
    for id in 1..5 {
        pair.read(id, &remote, 0, 64)?;
    }
    let first = pair.finish()?;
    let status = first.outcome.err().map(|error| error.status);
    if first.id != 0 || status != Some(WorkStatus::RemoteAccess) {
        return Err(format!("READ {}: {status:?}", first.id).into());
    }
    for id in 1..5 {
        let finished = pair.finish()?;
        let status = finished.outcome.err().map(|error| error.status);
        if finished.id != id || status != Some(WorkStatus::Flushed) {
            return Err(format!("READ {}: {status:?}", finished.id).into());
        }
    }
    if pair.reader.in_flight() != 0 {
        return Err("something is still in flight".into());
    }
    Ok("remote access error, then 4 flushed".to_owned())
}

pub(crate) fn after_deregistration(fabric: &Fabric) -> Outcome {
    let mut pair = fabric.pair()?;
    let (slot, remote) = pair.serving()?;
    pair.read(1, &remote, 0, 64)?;
    pair.finish()?.outcome?;
    drop(slot);
    pair.read(2, &remote, 0, 64)?;
    let status = pair.finish()?.outcome.err().map(|error| error.status);
    if status != Some(WorkStatus::RemoteAccess) {
        return Err(format!("a key outlived its slot: {status:?}").into());
    }
    Ok("remote access error".to_owned())
}

pub(crate) fn taken_down(fabric: &Fabric) -> Outcome {
    let mut pair = fabric.pair()?;
    let (slot, remote) = pair.serving()?;
    for id in 0..u64::from(DEPTH) {
        pair.read(id, &remote, 0, SLOT_BYTES)?;
    }
    pair.reader.fail()?;
    let mut seen = Vec::new();
    let mut flushed = 0;
    for _ in 0..DEPTH {
        let finished = pair.finish()?;
        match finished.outcome {
            Ok(done) if finished.slot[..done.bytes] != slot[..done.bytes] => {
                return Err("told as done, with other bytes".into());
            }
            Ok(_) => {}
            Err(error) if error.status == WorkStatus::Flushed => flushed += 1,
            Err(error) => return Err(error.into()),
        }
        seen.push(finished.id);
    }
    seen.sort_unstable();
    if seen != (0..u64::from(DEPTH)).collect::<Vec<_>>() || pair.reader.in_flight() != 0 {
        return Err(format!("not every READ came back once: {seen:?}").into());
    }
    if pair.pool.available() != pair.pool.slots_max() - 1 {
        return Err("not every slot came back".into());
    }
    let slot = pair.landing()?;
    let read = Read {
        id: 0,
        slot,
        range: 0..1,
        address: remote.address,
        rkey: remote.rkey,
    };
    match pair.reader.post_read(read) {
        Err((_, PostError::NotConnected)) => {
            Ok(format!("{flushed} of {DEPTH} flushed, all came back"))
        }
        _ => Err("it took a READ afterwards".into()),
    }
}

pub(crate) fn destroyed(fabric: &Fabric) -> Outcome {
    let mut pair = fabric.pair()?;
    let (slot, remote) = pair.serving()?;
    for id in 0..u64::from(DEPTH) {
        pair.read(id, &remote, 0, SLOT_BYTES)?;
    }
    let Pair {
        reader,
        server,
        completions,
        pool,
        ..
    } = pair;
    let back = reader.destroy();
    let ids: Vec<u64> = back.iter().map(|(id, _)| *id).collect();
    if ids != (0..u64::from(DEPTH)).collect::<Vec<_>>() {
        return Err(format!("came back: {ids:?}").into());
    }
    // Completions that it left behind belong to nobody.
    let mut later = QueuePair::new(server.domain(), &completions, 1)?;
    let mut batch = Batch::new(64);
    while completions.poll(&mut batch)? > 0 {
        if batch
            .drain()
            .any(|completion| later.finish(completion).is_some())
        {
            return Err("a completion was taken for another queue pair's".into());
        }
    }
    drop((back, slot, server, later));
    if pool.available() != pool.slots_max() {
        return Err("a slot is missing".into());
    }
    Ok(format!("{DEPTH} READs in flight, all slots came back"))
}

pub(crate) fn room(fabric: &Fabric) -> Outcome {
    let completions = CompletionQueue::new(&fabric.context, 2 * DEPTH)?;
    let all = completions.available();
    let mut pair = fabric.pair_on(&completions)?;
    let domain = Domain::new(&fabric.context)?;
    if QueuePair::new(&domain, &completions, all - DEPTH + 1).is_ok() {
        return Err("a queue pair got more than there is room for".into());
    }
    if completions.available() != all - DEPTH {
        return Err("a refused queue pair took room".into());
    }
    let (_slot, remote) = pair.serving()?;
    for id in 0..u64::from(DEPTH) {
        pair.read(id, &remote, 0, 64)?;
    }
    drop(pair);
    if completions.available() != all - DEPTH {
        return Err("room was given away that completions may still take".into());
    }
    let mut batch = Batch::new(usize::try_from(all)? + 1);
    completions.poll(&mut batch)?;
    let left = batch.drain().count();
    completions.poll(&mut batch)?;
    if completions.available() != all {
        return Err(format!("{} of {all} are available at last", completions.available()).into());
    }
    Ok(format!(
        "{all} entries; {left} completions outlived their queue pair"
    ))
}

pub(crate) fn cycles(fabric: &Fabric, count: u32) -> Outcome {
    let open = || -> Result<usize, std::io::Error> { Ok(fs::read_dir("/proc/self/fd")?.count()) };
    let before = open()?;
    for cycle in 0..count {
        let mut pair = fabric.pair()?;
        let (slot, remote) = pair.serving()?;
        pair.read(1, &remote, 0, 4096)?;
        if cycle % 2 == 0 {
            let finished = pair.finish()?;
            if finished.slot[..4096] != slot[..4096] {
                return Err(format!("cycle {cycle} landed wrong").into());
            }
        }
    }
    let after = open()?;
    if before != after {
        return Err(format!("{before} descriptors before, {after} after").into());
    }
    // The pattern is what it is meant to be: bytes that differ.
    debug_assert_ne!(pattern(2)[0], pattern(2)[1]);
    Ok(format!("{after} descriptors, as before"))
}
