//! The rails of one session: which number means which two ports, and what is in use. Pure.
//!
//! Keys of granted regions are told by rail, so a number that was ever in use keeps its meaning
//! until the session ends; one that never was may be given to another pair.

use std::collections::BTreeMap;
use std::fmt;

use super::fabric::Reached;
use super::pairing::LocalPort;
use crate::limits::RAILS_MAX;
use crate::wire::message::{GidKind, RailLink, RailPort};

/// What a rail's number stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RailKey {
    local_device: String,
    local_number: u8,
    remote_guid: u64,
    remote_number: u8,
    /// GUIDs of software devices need not differ.
    remote_label: String,
}

impl RailKey {
    pub(crate) fn new(local: &LocalPort, remote: &RailPort) -> Self {
        Self {
            local_device: local.device.clone(),
            local_number: local.port.number,
            remote_guid: remote.guid,
            remote_number: remote.number,
            remote_label: remote.label.clone(),
        }
    }

    pub(crate) fn is_of_local(&self, local: &LocalPort) -> bool {
        self.local_device == local.device && self.local_number == local.port.number
    }

    pub(crate) fn is_of_remote(&self, remote: &RailPort) -> bool {
        self.remote_guid == remote.guid
            && self.remote_number == remote.number
            && self.remote_label == remote.label
    }
}

/// A rail in use, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RailReport {
    /// Its number.
    pub(crate) rail: u16,
    /// This end's port.
    pub(crate) local: String,
    /// The other end's.
    pub(crate) remote: String,
    /// How packets travel.
    pub(crate) kind: GidKind,
    /// Payload bytes of the largest packet.
    pub(crate) mtu_bytes: u32,
    /// The slower port's speed in Mbit/s, 0 if not known.
    pub(crate) speed_mbps: u32,
    /// rdma_cm has connected it.
    pub(crate) by_cm: bool,
    /// Queue pairs in use.
    pub(crate) queue_pairs: usize,
}

impl fmt::Display for RailReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            GidKind::InfiniBand => "InfiniBand",
            GidKind::RoceV1 => "RoCE v1",
            GidKind::RoceV2 => "RoCE v2",
        };
        write!(
            f,
            "{} to {} ({kind}, MTU {}",
            self.local, self.remote, self.mtu_bytes
        )?;
        match self.speed_mbps {
            0 => {}
            speed if speed % 1000 == 0 => write!(f, ", {} Gbit/s", speed / 1000)?,
            speed => write!(f, ", {}.{} Gbit/s", speed / 1000, speed % 1000 / 100)?,
        }
        if self.by_cm {
            f.write_str(", by rdma_cm")?;
        }
        let plural = if self.queue_pairs == 1 { "" } else { "s" };
        write!(f, ", {} queue pair{plural})", self.queue_pairs)
    }
}

impl RailReport {
    /// A rail with nothing in use yet.
    pub(crate) fn new(
        rail: u16,
        local: &LocalPort,
        remote: &RailPort,
        reached: &Reached,
        by_cm: bool,
    ) -> Self {
        let speeds = [local.port.speed_mbps, remote.speed_mbps];
        Self {
            rail,
            local: local.port.label.clone(),
            remote: remote.label.clone(),
            kind: reached.kind,
            mtu_bytes: reached.mtu.bytes(),
            speed_mbps: speeds
                .into_iter()
                .filter(|speed| *speed > 0)
                .min()
                .unwrap_or(0),
            by_cm,
            queue_pairs: 0,
        }
    }
}

#[derive(Debug)]
struct Rail {
    key: RailKey,
    report: RailReport,
    up: Vec<RailLink>,
    /// Most queue pairs that were ever in use at once.
    peak: usize,
}

/// See the module's first paragraph.
#[derive(Debug, Default)]
pub(crate) struct Book {
    rails: BTreeMap<u16, Rail>,
    /// Why there are not more rails, as of the last attempt and the losses since.
    reasons: Vec<String>,
    /// Why the peer's memory can't be read over them, as the peer says.
    memory: Option<String>,
}

/// Reasons that are kept for people.
const REASONS_MAX: usize = 8;

impl Book {
    /// The number of a pair of ports: the one it has, or one that is free. Nothing if all are in use
    /// for other pairs; `reserved` are given to pairs that are being made.
    pub(crate) fn number(&self, key: &RailKey, reserved: &[u16]) -> Option<u16> {
        let known = self.rails.iter().find(|(_, rail)| rail.key == *key);
        if let Some((number, _)) = known {
            return Some(*number);
        }
        let is_free = |number: &u16| !self.rails.contains_key(number) && !reserved.contains(number);
        let numbers = 1..u16::try_from(RAILS_MAX).unwrap_or(u16::MAX);
        numbers.into_iter().find(is_free)
    }

    /// Whether a number can mean this pair.
    pub(crate) fn may_mean(&self, number: u16, key: &RailKey) -> bool {
        let known = self.rails.iter().find(|(_, rail)| rail.key == *key);
        match (self.rails.get(&number), known) {
            (Some(rail), _) => rail.key == *key,
            (None, known) => known.is_none(),
        }
    }

    /// A queue pair is in use.
    pub(crate) fn up(&mut self, link: RailLink, key: RailKey, report: RailReport) {
        let rail = self.rails.entry(link.rail).or_insert_with(|| Rail {
            key,
            report: report.clone(),
            up: Vec::new(),
            peak: 0,
        });
        rail.report = report;
        rail.up.push(link);
        rail.peak = rail.peak.max(rail.up.len());
    }

    /// A queue pair is not in use any more; `false` if it was not.
    pub(crate) fn down(&mut self, link: RailLink) -> bool {
        let Some(rail) = self.rails.get_mut(&link.rail) else {
            return false;
        };
        let before = rail.up.len();
        rail.up.retain(|known| *known != link);
        rail.up.len() < before
    }

    /// An attempt came to this.
    pub(crate) fn set_reasons(&mut self, reasons: Vec<String>) {
        self.reasons = reasons;
        self.reasons.truncate(REASONS_MAX);
    }

    /// A queue pair was lost for this reason.
    pub(crate) fn add_reason(&mut self, reason: &str) {
        if self.reasons.len() < REASONS_MAX && !self.reasons.iter().any(|known| known == reason) {
            self.reasons.push(reason.to_owned());
        }
    }

    /// Why there are not more rails.
    pub(crate) fn reasons(&self) -> &[String] {
        &self.reasons
    }

    /// The peer says that its memory can't be read over rails.
    pub(crate) fn set_memory(&mut self, reason: String) {
        self.memory.get_or_insert(reason);
    }

    /// What it said of that first.
    pub(crate) fn memory(&self) -> Option<&str> {
        self.memory.as_deref()
    }

    /// Whether any rail ever had a queue pair in use.
    pub(crate) fn had_any(&self) -> bool {
        !self.rails.is_empty()
    }

    /// The rails that have queue pairs in use.
    pub(crate) fn reports(&self) -> Vec<RailReport> {
        let used = self.rails.values().filter(|rail| !rail.up.is_empty());
        used.map(|rail| RailReport {
            queue_pairs: rail.up.len(),
            ..rail.report.clone()
        })
        .collect()
    }

    /// The pairs that have queue pairs in use, with how many.
    pub(crate) fn in_use(&self) -> impl Iterator<Item = (u16, &RailKey, usize)> {
        self.rails
            .iter()
            .filter(|(_, rail)| !rail.up.is_empty())
            .map(|(number, rail)| (*number, &rail.key, rail.up.len()))
    }

    /// Number and local device of every rail that was ever in use.
    pub(crate) fn devices(&self) -> Vec<(u16, String)> {
        self.rails
            .iter()
            .map(|(number, rail)| (*number, rail.key.local_device.clone()))
            .collect()
    }

    /// Whether a port of this end is that of a rail that has queue pairs in use.
    pub(crate) fn is_port_of(&self, rail: u16, local: &LocalPort) -> bool {
        self.in_use()
            .any(|(number, key, _)| number == rail && key.is_of_local(local))
    }

    /// Whether rails have fewer queue pairs than they once had.
    pub(crate) fn is_lacking(&self) -> bool {
        self.rails.values().any(|rail| rail.up.len() < rail.peak)
    }

    /// Queue pairs in use on a port of this end.
    pub(crate) fn of_local(&self, local: &LocalPort) -> usize {
        self.in_use()
            .filter(|(_, key, _)| key.is_of_local(local))
            .map(|(_, _, count)| count)
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::message::PathMtu;

    fn key(device: &str) -> RailKey {
        RailKey {
            local_device: device.to_owned(),
            local_number: 1,
            remote_guid: 1,
            remote_number: 1,
            remote_label: "r".to_owned(),
        }
    }

    fn report(rail: u16) -> RailReport {
        RailReport {
            rail,
            local: "a".into(),
            remote: "b".into(),
            kind: GidKind::RoceV2,
            mtu_bytes: PathMtu::B1024.bytes(),
            speed_mbps: 2500,
            by_cm: false,
            queue_pairs: 0,
        }
    }

    fn link(rail: u16, queue_pair: u8) -> RailLink {
        RailLink {
            attempt: 1,
            rail,
            queue_pair,
        }
    }

    #[test]
    fn a_number_that_was_in_use_keeps_its_meaning() {
        let mut book = Book::default();
        assert_eq!(book.number(&key("a"), &[]), Some(1));
        assert_eq!(book.number(&key("b"), &[1]), Some(2));
        assert_eq!(book.number(&key("b"), &[]), Some(1), "it was never in use");
        book.up(link(1, 0), key("a"), report(1));
        book.up(link(1, 1), key("a"), report(1));
        assert!(!book.is_lacking());
        assert!(book.down(link(1, 0)) && !book.down(link(1, 0)) && !book.down(link(2, 0)));
        assert!(book.is_lacking());
        assert_eq!(book.reports()[0].queue_pairs, 1);
        assert!(book.down(link(1, 1)));
        assert_eq!(book.in_use().count(), 0);
        assert_eq!(book.number(&key("a"), &[]), Some(1));
        assert_eq!(book.number(&key("b"), &[]), Some(2));
        assert!(book.may_mean(1, &key("a")) && book.may_mean(2, &key("b")));
        assert!(!book.may_mean(1, &key("b")) && !book.may_mean(2, &key("a")));
        assert_eq!(book.devices(), [(1, "a".to_owned())]);
    }

    #[test]
    fn reasons_are_those_of_the_last_attempt_and_of_losses_since() {
        let mut book = Book::default();
        book.add_reason("a");
        book.add_reason("a");
        assert_eq!(book.reasons(), ["a"]);
        book.set_reasons(vec!["b".to_owned()]);
        for n in 0..100 {
            book.add_reason(&n.to_string());
        }
        assert_eq!(book.reasons().len(), REASONS_MAX);
        assert_eq!(book.reasons()[0], "b");
        assert!(!book.had_any());
        book.set_memory("first".to_owned());
        book.set_memory("second".to_owned());
        assert_eq!(book.memory(), Some("first"));
    }

    #[test]
    fn numbers_run_out() {
        let mut book = Book::default();
        for rail in 1..16 {
            let key = key(&rail.to_string());
            assert_eq!(book.number(&key, &[]), Some(rail));
            book.up(link(rail, 0), key, report(rail));
        }
        assert_eq!(book.number(&key("late"), &[]), None);
    }

    #[test]
    fn a_rail_is_told_in_one_line() {
        let one = RailReport {
            queue_pairs: 1,
            ..report(1)
        };
        assert_eq!(
            one.to_string(),
            "a to b (RoCE v2, MTU 1024, 2.5 Gbit/s, 1 queue pair)"
        );
    }
}
