//! The driver's side of comparing with an older copy.
//!
//! In: the engine's orders. Out: jobs for the workers. How a chunk is compared is
//! [`delta`](crate::session::delta)'s affair.

use std::sync::Arc;

use super::{Done, Driver, write_fault};
use crate::engine::receiver::{Input, Proof};
use crate::ids::{EntryId, RegionId};
use crate::units::{ByteRange, ChunkIndex};
use crate::wire::{Fault, FaultCode};

impl Driver {
    /// Takes those of the chunks that an older copy has.
    pub(super) fn compare(
        &mut self,
        entry: EntryId,
        region: RegionId,
        chunks: Vec<(ChunkIndex, Proof, [u8; 32])>,
        data: Arc<[ByteRange]>,
    ) {
        let file = self.files.get(&entry);
        let part = file.and_then(|file| {
            let part = file.sink.clone()?;
            Some((part, file.len, Arc::clone(&file.found)))
        });
        let size = self.chunk;
        let path = self.watch.path(entry);
        self.job(move || {
            let result = match part {
                Some((part, len, found)) => found
                    .take_same(&part, len, size, chunks, data)
                    .map_err(|error| write_fault(&path, error)),
                None => Err(Fault::new(FaultCode::Internal, "no part file is open")),
            };
            Done::Input(Input::Compared {
                entry,
                region,
                result,
            })
        });
    }
}
