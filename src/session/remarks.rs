//! What a receiver remarked, gathered for those who watch.
//!
//! In: remarks, as the sink notes them or as a peer tells them, and what entries are called. Out: a
//! sentence per kind, with how many entries it happened to and the first of them. Memory is a few
//! paths per kind, whatever a peer says. It decides nothing and sends nothing.

use std::collections::BTreeMap;

use crate::ids::EntryId;
use crate::limits::REMARK_ENTRIES_MAX;
use crate::storage::error::ShownPath;
use crate::wire::message::{Remark, RemarkKind};

/// The remarks of one transfer.
#[derive(Debug, Default)]
pub(crate) struct Remarks(BTreeMap<RemarkKind, Gathered>);

#[derive(Debug, Default)]
struct Gathered {
    count: u64,
    paths: Vec<Vec<u8>>,
}

impl Remarks {
    /// Adds what was remarked. `path` tells what an entry is called, nothing once it is settled.
    pub(crate) fn add(&mut self, remark: &Remark, path: impl Fn(EntryId) -> Vec<u8>) {
        let gathered = self.0.entry(remark.kind).or_default();
        gathered.count = gathered.count.saturating_add(remark.count);
        for &entry in &remark.entries {
            let path = path(entry);
            if gathered.paths.len() < REMARK_ENTRIES_MAX && !path.is_empty() {
                gathered.paths.push(path);
            }
        }
    }

    /// A sentence for each kind and the path of the first entry, if it has a name; nothing is left.
    pub(crate) fn take(&mut self) -> Vec<(String, Vec<u8>)> {
        let gathered = std::mem::take(&mut self.0).into_iter();
        let told = gathered.filter(|(_, gathered)| gathered.count > 0);
        told.map(|(kind, gathered)| {
            let first = gathered.paths.first().cloned().unwrap_or_default();
            (gathered.sentence(kind), first)
        })
        .collect()
    }
}

impl Gathered {
    fn sentence(&self, kind: RemarkKind) -> String {
        let mut sentence = words(kind);
        let mut named = 0;
        for path in &self.paths {
            let before = if named == 0 { "; at" } else { "," };
            sentence.push_str(&format!("{before} '{}'", ShownPath(path)));
            named += 1;
        }
        let more = self.count.saturating_sub(named);
        match (named, more) {
            (_, 0) => {}
            (0, 1) => sentence.push_str("; at 1 entry"),
            (0, more) => sentence.push_str(&format!("; at {more} entries")),
            (_, more) => sentence.push_str(&format!(" and {more} more")),
        }
        sentence
    }
}

fn words(kind: RemarkKind) -> String {
    let words = match kind {
        RemarkKind::Owner => {
            "owners were not set: the receiver's user may not set them (run the receiver as root)"
        }
        RemarkKind::SetId => "set-user-id and set-group-id bits were left out",
        RemarkKind::AttributesUnsupported => {
            "extended attributes were left out: the destination's file system does not keep them"
        }
        RemarkKind::AccessListsUnsupported => {
            "access lists were left out: the destination's file system does not keep them; the \
             group has what the list gave to it alone"
        }
        RemarkKind::AttributesPrivileged => {
            "extended attributes other than user.* and POSIX ACLs were left out"
        }
        RemarkKind::LinkCopied => {
            "hard links were copied: the destination's file system does not link them"
        }
        RemarkKind::BegunAnew => {
            "what an interrupted copy had brought was fetched anew: its source has changed since"
        }
        RemarkKind::Unknown(kind) => {
            return format!(
                "the receiver left something out that this release has no words for (kind {kind}); \
                 look into the receiver's log"
            );
        }
    };
    words.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_one_sentence_with_its_first_entries() {
        let path = |entry: EntryId| match entry.0 {
            9 => Vec::new(),
            number => format!("f{number}").into_bytes(),
        };
        let remark = |kind, count, entries: &[u64]| Remark {
            kind,
            count,
            entries: entries.iter().copied().map(EntryId).collect(),
        };
        let mut remarks = Remarks::default();
        remarks.add(&remark(RemarkKind::SetId, 1, &[9]), path);
        remarks.add(&remark(RemarkKind::Owner, 2, &[1, 2]), path);
        for entry in 3..100 {
            remarks.add(&remark(RemarkKind::Owner, 10, &[entry]), path);
        }
        remarks.add(&remark(RemarkKind::Unknown(77), 0, &[]), path);
        let told = remarks.take();
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(
            told[0]
                .0
                .ends_with("; at 'f1', 'f2', 'f3', 'f4' and 968 more"),
            "{told:?}"
        );
        assert_eq!(told[0].1, b"f1");
        assert!(told[1].0.ends_with("left out; at 1 entry"), "{told:?}");
        assert_eq!(told[1].1, b"");
        assert!(remarks.take().is_empty());
    }

    #[test]
    fn what_a_peer_says_costs_little() {
        let mut remarks = Remarks::default();
        for number in 0..10_000 {
            let remark = Remark {
                kind: RemarkKind::Unknown(200),
                count: u64::MAX,
                entries: vec![EntryId(number); 4],
            };
            remarks.add(&remark, |_| vec![b'x'; 4095]);
        }
        assert_eq!(remarks.0.len(), 1);
        let kept = remarks.0.values().map(|gathered| gathered.paths.len());
        assert_eq!(kept.sum::<usize>(), REMARK_ENTRIES_MAX);
    }
}
