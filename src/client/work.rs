//! What a transfer does in one session, and does again in the next if that one is lost.
//!
//! In: what was asked for, settled once; a seat and a watch. Out: how that attempt ended. Every attempt
//! begins with the walk: what is there by then is found unchanged, and a file that was under way goes on
//! from its journal. What was told before, and when to try again, is others' affair.

use std::sync::Arc;

use super::connect::Session;
use crate::engine::receiver::ReceiverOptions;
use crate::engine::sender::SenderOptions;
use crate::options::TransferOptions;
use crate::session::peer::Seat;
use crate::session::receiving::Receiving;
use crate::session::sending::Sending;
use crate::session::watch::{Ended, Watch};
use crate::storage::Root;
use crate::storage::sink::{Sink, SinkOptions};
use crate::storage::source::{Source, SourceSpec, WalkOptions};
use crate::wire::Message;
use crate::wire::message::{Direction, Open, Overwrite, Placement, RemotePath};

/// What is to be done.
pub(super) enum Work {
    Pull {
        sources: Vec<RemotePath>,
        /// The destination: a directory that is there, and the rest of the path.
        root: Arc<Root>,
        below: Vec<u8>,
        sink: SinkOptions,
    },
    Push {
        specs: Vec<SourceSpec>,
        walk: WalkOptions,
        destination: RemotePath,
        placement: Placement,
    },
}

impl Work {
    /// Whether this end is the sender.
    pub(super) fn sends(&self) -> bool {
        matches!(self, Self::Push { .. })
    }

    /// Asks for it and carries it out. `again`: an attempt before this one may have left some of it at
    /// the destination, which is then not to be taken for somebody else's.
    pub(super) async fn run(
        &self,
        session: &Session,
        seat: Seat,
        watch: Watch,
        options: &TransferOptions,
        again: bool,
    ) -> Ended {
        let overwrite = match options.overwrite {
            Overwrite::Error if again => Overwrite::Never,
            overwrite => overwrite,
        };
        let direction = match self {
            Self::Pull { sources, .. } => Direction::Pull(sources.clone()),
            Self::Push {
                destination,
                placement,
                ..
            } => Direction::Push {
                destination: destination.clone(),
                placement: placement.clone(),
                overwrite,
                sync: options.sync,
                resume: options.resume,
                bytes_per_s: options.bytes_per_s,
                delete: options.delete,
                reuse: options.reuse,
            },
        };
        seat.say(Message::Open(Open {
            direction,
            hash: options.hash,
            chunk: options.chunk,
            preserve: options.preserve,
            recursive: options.recursive,
            dry_run: options.dry_run,
            filters: options.filters.clone(),
        }));
        match self {
            Self::Pull {
                root, below, sink, ..
            } => {
                let sink = SinkOptions {
                    overwrite,
                    writer: format!("transfer {}", seat.transfer).into(),
                    ..sink.clone()
                };
                let run = Receiving {
                    seat,
                    workers: session.workers(),
                    sink: Arc::new(Sink::new(Arc::clone(root), below.clone(), sink)),
                    options: ReceiverOptions {
                        fail_early: options.fail_early,
                        mirror: options.delete.is_some(),
                        ..ReceiverOptions::new(options.hash, options.chunk)
                    },
                    resume: options.resume,
                    bytes_per_s: options.bytes_per_s,
                    watch,
                };
                run.run().await
            }
            Self::Push { specs, walk, .. } => {
                let sender = SenderOptions {
                    first_region: seat.first_region(),
                    fail_early: options.fail_early,
                    dry_run: options.dry_run,
                    mirror: options.delete.is_some(),
                    ..SenderOptions::new(options.hash, options.chunk)
                };
                let run = Sending {
                    seat,
                    machinery: session.machinery(),
                    source: Arc::new(Source::new(specs.clone(), walk.clone())),
                    options: sender,
                    watch,
                };
                run.run().await
            }
        }
    }
}
