//! The wire format against arbitrary messages and arbitrary damage.

use std::num::NonZeroU64;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use rdcp::ids::{EntryId, RegionId, RemoteKey, SessionId, TransferId};
use rdcp::limits::{FRAME_BYTES_MAX, TEXT_BYTES_MAX};
use rdcp::manifest::{Entry, EntryKind, Item, Metadata, Name, Note, Place, Version};
use rdcp::units::{ByteRange, ChunkRange, ChunkSize, Timestamp};
use rdcp::wire::message::{
    Carried, ChunkDigest, Cleaning, Deleting, Direction, Fate, FilterRule, GidKind, Grant,
    GrantPart, HashKind, Hello, Invitation, LeftBehind, LinkLayer, Listed, ListedKind,
    ManifestPage, Moved, Open, Operation, Outcome, Overwrite, PathMtu, Placement, PortGid,
    Preserve, Probe, QueuePair, RailAnswer, RailConnect, RailDial, RailEnd, RailLink, RailOffer,
    RailPair, RailPort, RailReady, RailToken, Reason, RegionKey, Remark, RemarkKind, RemotePath,
    Removal, Removed, RemovedKind, Reuse, RootName, Running, SessionStatus, StatusPage,
    StatusQuery, TransferStatus, TransportOffer, Wanted, WayStatus, Welcome, Why,
};
use rdcp::wire::{
    Decoder, Envelope, FRAME_HEADER_BYTES, Fault, FaultCode, Message, WireError, encode,
    item_bytes, listed_bytes,
};

/// The message as releases wrote it that do not know the field at its end.
fn without_optional(envelope: &Envelope) -> Option<Envelope> {
    let mut older = envelope.clone();
    match &mut older.message {
        Message::RailOffer(offer) => offer.connect = None,
        Message::RailAnswer(answer) => {
            for pair in &mut answer.rails {
                pair.invitation = None;
            }
        }
        _ => return None,
    }
    Some(older)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn what_is_encoded_is_decoded_again(envelopes in vec(envelope(), 1..6), step in 1_usize..2000) {
        let mut stream = Vec::new();
        for envelope in &envelopes {
            encode(envelope, &mut stream).unwrap();
        }
        let mut decoder = Decoder::new();
        let mut decoded = Vec::new();
        for piece in stream.chunks(step) {
            prop_assert_eq!(decoder.feed(piece), piece.len());
            while let Some(envelope) = decoder.next().unwrap() {
                decoded.push(envelope);
            }
        }
        prop_assert_eq!(decoded, envelopes);
        prop_assert!(decoder.is_between_frames());
    }

    #[test]
    fn a_body_that_is_cut_is_refused_and_one_that_goes_on_is_not(
        envelope in envelope(),
        extra in vec(any::<u8>(), 0..20),
    ) {
        let mut frame = Vec::new();
        encode(&envelope, &mut frame).unwrap();
        let (header, body) = frame.split_at(FRAME_HEADER_BYTES);
        for end in 0..body.len().min(3000) {
            let cut = decode_one(header, &body[..end]);
            // Without the optional field at its end it is an older release's message, and no other.
            if let Some(older) = without_optional(&envelope)
                && let Ok(Some(decoded)) = &cut
            {
                let mut shorter = Vec::new();
                encode(&older, &mut shorter).unwrap();
                prop_assert_eq!(decoded, &older);
                prop_assert!(shorter[FRAME_HEADER_BYTES..].starts_with(&body[..end]));
                continue;
            }
            let truncated = matches!(cut, Err(WireError::Truncated { .. }));
            prop_assert!(truncated, "{:?} at {}", cut, end);
        }
        let longer = [body, &extra].concat();
        prop_assert_eq!(decode_one(header, &longer), Ok(Some(envelope)));
    }

    #[test]
    fn damage_is_an_error_or_another_message_that_can_be_sent(
        envelope in envelope(),
        value in any::<u8>(),
    ) {
        let mut frame = Vec::new();
        encode(&envelope, &mut frame).unwrap();
        for at in 0..frame.len().min(2000) {
            let mut damaged = frame.clone();
            damaged[at] ^= value | 1;
            let mut decoder = Decoder::new();
            decoder.feed(&damaged);
            while let Ok(Some(envelope)) = decoder.next() {
                // Whatever was let through satisfies what the types promise.
                let mut again = Vec::new();
                encode(&envelope, &mut again).unwrap();
                let mut decoder = Decoder::new();
                decoder.feed(&again);
                prop_assert_eq!(decoder.next(), Ok(Some(envelope)));
            }
        }
    }

    #[test]
    fn noise_is_never_a_panic(kind in 0_u16..60, body in vec(any::<u8>(), 0..600)) {
        let mut header = vec![0; FRAME_HEADER_BYTES];
        header[4..6].copy_from_slice(&kind.to_le_bytes());
        header[8] = u8::from(kind >= 16);
        let _ = decode_one(&header, &body);
    }

    #[test]
    fn sizes_are_told_before_they_are_paid(items in vec(item(), 0..8), lines in vec(listed(), 0..8)) {
        let transfer = TransferId([1; 16]);
        let told: usize = items.iter().map(item_bytes).sum();
        let message = Message::Manifest(ManifestPage { items, last: false });
        let mut frame = Vec::new();
        encode(&Envelope { transfer, message }, &mut frame).unwrap();
        prop_assert_eq!(frame.len(), FRAME_HEADER_BYTES + 3 + told);

        let told: usize = lines.iter().map(listed_bytes).sum();
        frame.clear();
        encode(&Envelope { transfer, message: Message::Listing(lines) }, &mut frame).unwrap();
        prop_assert_eq!(frame.len(), FRAME_HEADER_BYTES + 2 + told);
    }
}

#[test]
fn what_can_not_be_received_can_not_be_sent() {
    let transfer = TransferId([1; 16]);
    let huge = Metadata {
        xattrs: vec![(b"user.x".to_vec(), vec![0; 60_000])],
        ..Metadata::default()
    };
    let place = Place::Root(0);
    let entry = Entry {
        id: EntryId(0),
        place,
        kind: EntryKind::Directory,
        metadata: huge,
    };
    let items = vec![Item::Entry(entry); 20];
    for message in [
        Message::Manifest(ManifestPage { items, last: true }),
        Message::Close(vec![EntryId(0); 513]),
        Message::Want(vec![
            (
                EntryId(0),
                Wanted::Chunks(vec![ChunkRange::default(); 9000])
            );
            2
        ]),
    ] {
        let mut out = vec![1, 2, 3];
        assert!(encode(&Envelope { transfer, message }, &mut out).is_err());
        assert_eq!(out, [1, 2, 3]);
    }
    const { assert!(20 * 60_000 > FRAME_BYTES_MAX) };
}

fn decode_one(header: &[u8], body: &[u8]) -> Result<Option<Envelope>, WireError> {
    let mut frame = header.to_vec();
    frame[..4].copy_from_slice(&u32::try_from(body.len()).unwrap().to_le_bytes());
    frame.extend(body);
    let mut decoder = Decoder::new();
    decoder.feed(&frame);
    decoder.next()
}

fn envelope() -> impl Strategy<Value = Envelope> {
    let of_session = of_session().prop_map(|message| (TransferId::NONE, message));
    let id = any::<[u8; 16]>()
        .prop_filter("an id", |id| id != &[0; 16])
        .prop_map(TransferId);
    let of_transfer = (id, of_transfer());
    prop_oneof![1 => of_session, 4 => of_transfer]
        .prop_map(|(transfer, message)| Envelope { transfer, message })
}

fn of_session() -> impl Strategy<Value = Message> {
    prop_oneof![
        (any::<u16>(), any::<u16>(), text()).prop_map(|(one, two, software)| {
            let (level_min, level_max) = (one.min(two), one.max(two));
            Message::Hello(Hello {
                level_min,
                level_max,
                software,
            })
        }),
        welcome().prop_map(Message::Welcome),
        any::<u64>().prop_map(|nonce| Message::Ping { nonce }),
        any::<u64>().prop_map(|nonce| Message::Pong { nonce }),
        fault().prop_map(Message::Goodbye),
        of_rails(),
    ]
}

fn of_rails() -> impl Strategy<Value = Message> {
    let rail = || 1_u16..16;
    let link = || {
        (any::<u32>(), rail(), 0_u8..8).prop_map(|(attempt, rail, queue_pair)| RailLink {
            attempt,
            rail,
            queue_pair,
        })
    };
    let reasons = || vec(text(), 0..4);
    let dial = prop_oneof![Just(RailDial::Direct), Just(RailDial::Cm)];
    let invitation = (any::<[u8; 16]>(), any::<u16>(), any::<[[u8; 32]; 8]>());
    let place = (rail(), 0_u8..16, 0_u8..8);
    let pair = (place, rail_port(1..=1), rail_end(), option::of(invitation)).prop_map(
        |((rail, port, gid), server, end, invitation)| RailPair {
            rail,
            port,
            gid,
            server,
            invitation: invitation.map(|(address, port, tokens)| Invitation {
                address,
                port,
                tokens: tokens[..end.queue_pairs.len()]
                    .iter()
                    .copied()
                    .map(RailToken)
                    .collect(),
            }),
            end,
        },
    );
    prop_oneof![
        (
            any::<u32>(),
            vec(rail_port(0..=8), 0..=16),
            any::<bool>(),
            dial
        )
            .prop_map(
                |(attempt, ports, rails_only, dial)| Message::RailOffer(RailOffer {
                    attempt,
                    ports,
                    rails_only,
                    connect: Some(dial),
                })
            ),
        (any::<u32>(), vec(pair, 0..=15), reasons(), any::<bool>()).prop_map(
            |(attempt, rails, reasons, may_pass)| {
                Message::RailAnswer(RailAnswer {
                    attempt,
                    rails,
                    reasons,
                    may_pass,
                })
            }
        ),
        (any::<u32>(), vec((rail(), rail_end()), 0..=15))
            .prop_map(|(attempt, rails)| Message::RailConnect(RailConnect { attempt, rails })),
        (any::<u32>(), vec(rail(), 0..=15), reasons()).prop_map(|(attempt, rails, reasons)| {
            Message::RailReady(RailReady {
                attempt,
                rails,
                reasons,
            })
        }),
        (link(), any::<[u8; 32]>()).prop_map(|(link, read)| Message::RailProof { link, read }),
        (link(), text()).prop_map(|(link, reason)| Message::RailDown { link, reason }),
        status_page().prop_map(Message::StatusPage),
        (any::<u32>(), any::<u64>())
            .prop_map(|(number, after)| Message::StatusQuery(StatusQuery { number, after })),
        text().prop_map(|reason| Message::RailMemory { reason }),
    ]
}

fn status_page() -> impl Strategy<Value = StatusPage> {
    let moved =
        (text(), any::<u64>(), any::<u64>()).prop_map(|(transport, sent, received)| Moved {
            transport,
            sent_bytes: sent,
            received_bytes: received,
        });
    let kind = prop_oneof![
        Just(Running::Pull),
        Just(Running::Push),
        Just(Running::Operation)
    ];
    let numbers = || any::<[u64; 5]>();
    let running = (any::<[u8; 16]>(), kind, text(), numbers()).prop_map(
        |(id, kind, about, [up_s, files_seen, files_done, bytes_seen, bytes_done])| {
            TransferStatus {
                transfer: TransferId(id),
                kind,
                about,
                up_s,
                files_seen,
                files_done,
                bytes_seen,
                bytes_done,
            }
        },
    );
    let way = (text(), any::<u64>(), text()).prop_map(|(way, windows, reason)| WayStatus {
        way,
        windows,
        reason,
    });
    let head = (any::<u64>(), any::<bool>(), text(), text(), numbers());
    let lists = (vec(text(), 0..=16), vec(way, 0..=8), vec(running, 0..=16));
    let session = (head, lists, any::<u16>()).prop_map(
        |((id, own, from, software, [up_s, registered_bytes, ..]), lists, tcp_connections)| {
            let (rails, ways, transfers) = lists;
            SessionStatus {
                id,
                own,
                from,
                software,
                up_s,
                registered_bytes,
                tcp_connections,
                rails,
                ways,
                transfers,
                transfers_more: 7,
            }
        },
    );
    let numbers = (any::<u32>(), any::<u32>(), numbers());
    (
        numbers,
        vec(moved, 0..=8),
        vec(session, 0..=3),
        any::<bool>(),
    )
        .prop_map(
            |((number, sessions, [up_s, registered_bytes, most, ..]), moved, listed, last)| {
                StatusPage {
                    number,
                    up_s,
                    sessions,
                    registered_bytes,
                    registered_bytes_max: most,
                    moved,
                    listed,
                    last,
                }
            },
        )
}

fn rail_port(gids: std::ops::RangeInclusive<usize>) -> impl Strategy<Value = RailPort> {
    let kind = prop_oneof![
        Just(GidKind::InfiniBand),
        Just(GidKind::RoceV1),
        Just(GidKind::RoceV2)
    ];
    let gid = (kind, any::<[u8; 16]>()).prop_map(|(kind, gid)| PortGid { kind, gid });
    let link = prop_oneof![Just(LinkLayer::InfiniBand), Just(LinkLayer::Ethernet)];
    let mtu = (256_u32..9000).prop_filter_map("an mtu", PathMtu::from_bytes);
    let numbers = (any::<u64>(), any::<u8>(), any::<u16>(), any::<u16>());
    let limits = (
        any::<u32>(),
        any::<u8>(),
        any::<u8>(),
        any::<u32>(),
        1_u8..=8,
    );
    (text(), numbers, link, mtu, limits, vec(gid, gids)).prop_map(
        |(label, (guid, number, lid, pkey), link, mtu, limits, gids)| {
            let (speed_mbps, reads_served_max, reads_posted_max, message_bytes_max, queue_pairs) =
                limits;
            RailPort {
                label,
                guid,
                number,
                link,
                lid,
                pkey,
                mtu,
                speed_mbps,
                reads_served_max,
                reads_posted_max,
                message_bytes_max,
                queue_pairs,
                gids,
            }
        },
    )
}

fn rail_end() -> impl Strategy<Value = RailEnd> {
    let pair = (0_u32..1 << 24, 0_u32..1 << 24).prop_map(|(number, psn)| QueuePair { number, psn });
    let probe = (any::<u64>(), any::<u64>(), any::<[u8; 32]>());
    (probe, vec(pair, 1..=8)).prop_map(|((address, key, digest), queue_pairs)| RailEnd {
        probe: Probe {
            address,
            key: RemoteKey(key),
            digest,
        },
        queue_pairs,
    })
}

fn of_transfer() -> impl Strategy<Value = Message> {
    let entry_id = || any::<u64>().prop_map(EntryId);
    prop_oneof![
        open().prop_map(Message::Open),
        Just(Message::Opened),
        fault().prop_map(Message::Failed),
        (any::<u32>(), any::<u64>()).prop_map(|(pages, region_bytes)| Message::Credit {
            pages,
            region_bytes
        }),
        (vec(item(), 0..10), any::<bool>())
            .prop_map(|(items, last)| Message::Manifest(ManifestPage { items, last })),
        vec((entry_id(), wanted()), 0..20).prop_map(Message::Want),
        grant().prop_map(Message::Grant),
        vec(chunk_digest(), 0..20).prop_map(Message::Digests),
        (entry_id(), any::<u64>()).prop_map(|(entry, chunk)| Message::Recheck { entry, chunk }),
        vec(any::<u64>().prop_map(RegionId), 0..20).prop_map(Message::Release),
        vec(entry_id(), 0..20).prop_map(Message::Close),
        vec((entry_id(), any::<bool>()), 0..20).prop_map(Message::Closed),
        (entry_id(), fault()).prop_map(|(entry, fault)| Message::EntryFailed { entry, fault }),
        vec((entry_id(), outcome()), 0..20).prop_map(Message::Settled),
        any::<[u64; 4]>().prop_map(|[tcp, rdma, resumed, reused]| Message::Finish(Carried {
            tcp,
            rdma,
            resumed,
            reused
        })),
        Just(Message::Finished),
        vec(remark(), 0..16).prop_map(Message::Remarks),
        (any::<bool>(), vec(removal(), 0..16)).prop_map(|(comparing, removals)| {
            Message::Deleted {
                comparing,
                removals,
            }
        }),
        (1_u64..).prop_map(|region_bytes| Message::Bench { region_bytes }),
        operation().prop_map(Message::Operate),
        vec(listed(), 0..10).prop_map(Message::Listing),
        Just(Message::Done),
    ]
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![9 => ".{0,40}", 1 => Just("x".repeat(TEXT_BYTES_MAX))]
}

fn fault() -> impl Strategy<Value = Fault> {
    (any::<u16>(), text()).prop_map(|(code, text)| Fault::new(FaultCode::from_wire(code), text))
}

fn welcome() -> impl Strategy<Value = Welcome> {
    let offer =
        (text(), any::<bool>(), text()).prop_map(|(name, available, reason)| TransportOffer {
            name,
            available,
            reason,
        });
    let numbers = (any::<u16>(), any::<u64>(), any::<u64>(), any::<u16>());
    (numbers, text(), vec(offer, 0..=8)).prop_map(|(numbers, software, transports)| {
        let (level, session, epoch, data_connections_max) = numbers;
        let session = SessionId(session);
        Welcome {
            level,
            session,
            epoch,
            software,
            data_connections_max,
            transports,
        }
    })
}

fn bytes_without(
    forbidden: &'static [u8],
    len: std::ops::Range<usize>,
) -> impl Strategy<Value = Vec<u8>> {
    let byte = any::<u8>().prop_filter("a byte that may stand there", |b| !forbidden.contains(b));
    vec(byte, len)
}

fn name() -> impl Strategy<Value = Name> {
    bytes_without(b"/\0", 1..256).prop_filter_map("a name", |bytes| Name::new(bytes).ok())
}

fn remote_path() -> impl Strategy<Value = RemotePath> {
    ("[a-zäß]{0,20}", bytes_without(b"\0", 0..100))
        .prop_map(|(export, path)| RemotePath { export, path })
}

fn hash() -> impl Strategy<Value = HashKind> {
    prop_oneof![Just(HashKind::None), real_hash()]
}

fn real_hash() -> impl Strategy<Value = HashKind> {
    prop_oneof![Just(HashKind::Blake3), Just(HashKind::Sha256)]
}

fn open() -> impl Strategy<Value = Open> {
    let preserve =
        any::<[bool; 5]>().prop_map(|[mode, symlinks, hard_links, xattrs, owner]| Preserve {
            mode,
            symlinks,
            hard_links,
            xattrs,
            owner,
        });
    let chunk = (16_u8..=24).prop_map(|log2| ChunkSize::from_log2(log2).unwrap());
    let filter = (any::<bool>(), vec(any::<u8>(), 0..40))
        .prop_map(|(include, pattern)| FilterRule { include, pattern });
    let what = (direction(), vec(filter, 0..4), any::<[bool; 2]>());
    (what, hash(), chunk, preserve).prop_map(
        |((direction, filters, [recursive, dry_run]), hash, chunk, preserve)| Open {
            direction,
            hash,
            chunk,
            preserve,
            recursive,
            dry_run,
            filters,
        },
    )
}

fn direction() -> impl Strategy<Value = Direction> {
    let root = (option::of(name()), any::<bool>()).prop_map(|(name, contents)| {
        let name = name.map_or(Vec::new(), |name| name.as_bytes().to_vec());
        RootName { name, contents }
    });
    let overwrite = prop_oneof![
        Just(Overwrite::IfDifferent),
        Just(Overwrite::Older),
        Just(Overwrite::Never),
        Just(Overwrite::Error),
    ];
    let deleting = (option::of(any::<u64>()), any::<bool>())
        .prop_map(|(max, allow_empty)| Deleting { max, allow_empty });
    let push = (
        remote_path(),
        vec(root, 0..5),
        overwrite,
        any::<[bool; 7]>(),
        // A chunk must not take for ever: at least 2 MiB a second for the largest.
        option::of((1_u64 << 21..).prop_map(|rate| NonZeroU64::new(rate).expect("not 0"))),
        option::of(deleting),
    );
    prop_oneof![
        vec(remote_path(), 0..5).prop_map(Direction::Pull),
        push.prop_map(
            |(destination, roots, overwrite, bits, bytes_per_s, delete)| {
                let [
                    into_directory,
                    make_parents,
                    sync,
                    resume,
                    delta,
                    checksum,
                    in_place,
                ] = bits;
                let placement = Placement {
                    into_directory,
                    make_parents,
                    roots,
                };
                Direction::Push {
                    destination,
                    placement,
                    overwrite,
                    sync,
                    resume,
                    bytes_per_s,
                    delete,
                    reuse: Reuse {
                        delta,
                        checksum,
                        in_place,
                    },
                }
            }
        ),
    ]
}

fn timestamp() -> impl Strategy<Value = Timestamp> {
    (any::<i64>(), 0_u32..1_000_000_000).prop_map(|(seconds, nanoseconds)| Timestamp {
        seconds,
        nanoseconds,
    })
}

fn place() -> impl Strategy<Value = Place> {
    prop_oneof![
        any::<u32>().prop_map(Place::Root),
        (any::<u64>(), name()).prop_map(|(id, name)| Place::In(EntryId(id), name)),
    ]
}

fn metadata() -> impl Strategy<Value = Metadata> {
    let xattr = (bytes_without(b"\0", 1..30), vec(any::<u8>(), 0..300));
    let owner = (0_u32..=0o7777, any::<u32>(), any::<u32>());
    (owner, timestamp(), vec(xattr, 0..4)).prop_map(|((mode, uid, gid), mtime, xattrs)| Metadata {
        mode,
        uid,
        gid,
        mtime,
        xattrs,
    })
}

fn file_len() -> impl Strategy<Value = u64> {
    0..=u64::try_from(i64::MAX).unwrap()
}

fn item() -> impl Strategy<Value = Item> {
    let kind = prop_oneof![
        (file_len(), any::<bool>()).prop_map(|(len, linked)| EntryKind::File { len, linked }),
        Just(EntryKind::Directory),
        bytes_without(b"\0", 1..60).prop_map(EntryKind::Symlink),
        any::<u64>().prop_map(|id| EntryKind::HardLink(EntryId(id))),
    ];
    let entry =
        (any::<u64>(), place(), kind, metadata()).prop_map(|(id, place, kind, metadata)| {
            Item::Entry(Entry {
                id: EntryId(id),
                place,
                kind,
                metadata,
            })
        });
    let end = (any::<u64>(), any::<bool>()).prop_map(|(id, complete)| {
        Item::Note(Note::DirectoryEnd {
            directory: EntryId(id),
            complete,
        })
    });
    let skipped = (place(), fault(), any::<bool>()).prop_map(|(place, fault, failure)| {
        Item::Note(Note::Skipped {
            place,
            fault,
            failure,
        })
    });
    prop_oneof![4 => entry, 1 => end, 1 => skipped]
}

/// Ascending, disjoint ranges.
fn ranges() -> impl Strategy<Value = Vec<(u64, u64)>> {
    vec(any::<u64>(), 0..20).prop_map(|mut bounds| {
        bounds.sort_unstable();
        bounds
            .chunks_exact(2)
            .map(|pair| (pair[0], pair[1]))
            .collect()
    })
}

fn wanted() -> impl Strategy<Value = Wanted> {
    let chunks = ranges().prop_map(|ranges| {
        let chunks = ranges
            .into_iter()
            .map(|(start, end)| ChunkRange { start, end });
        Wanted::Chunks(chunks.collect())
    });
    let compared = any::<u64>().prop_map(Wanted::Compared);
    prop_oneof![Just(Wanted::Nothing), Just(Wanted::All), chunks, compared]
}

fn grant() -> impl Strategy<Value = Grant> {
    let key =
        (any::<u16>(), any::<u64>(), any::<u64>()).prop_map(|(rail, address, key)| RegionKey {
            rail,
            address,
            key: RemoteKey(key),
        });
    let numbers = (any::<u64>(), any::<u64>(), any::<u32>());
    (numbers, vec(key, 0..=16), vec(part(), 0..10)).prop_map(|(numbers, keys, parts)| {
        let (region, len, lease_ms) = numbers;
        Grant {
            region: RegionId(region),
            len,
            lease_ms,
            keys,
            parts,
        }
    })
}

fn part() -> impl Strategy<Value = GrantPart> {
    let within = file_len().prop_flat_map(|file_len| {
        (0..=file_len).prop_flat_map(move |start| (Just((file_len, start)), 0..=file_len - start))
    });
    let region_offset = 0..=u64::MAX / 2;
    let who = (any::<u64>(), any::<[u8; 32]>());
    (
        who,
        within,
        region_offset,
        ranges(),
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(
            |(
                (entry, version),
                ((file_len, file_offset), len),
                region_offset,
                ranges,
                last,
                packed,
            )| {
                let extents = ranges
                    .into_iter()
                    .map(|(start, end)| ByteRange { start, end });
                GrantPart {
                    entry: EntryId(entry),
                    version: Version(version),
                    file_len,
                    file_offset,
                    region_offset,
                    len,
                    extents: extents.collect(),
                    last,
                    packed,
                }
            },
        )
}

fn chunk_digest() -> impl Strategy<Value = ChunkDigest> {
    (any::<u64>(), any::<u64>(), any::<[u8; 32]>()).prop_map(|(entry, chunk, value)| ChunkDigest {
        entry: EntryId(entry),
        chunk,
        value,
    })
}

fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        (any::<u64>(), option::of(any::<[u8; 32]>()))
            .prop_map(|(bytes, digest)| Outcome::Published { bytes, digest }),
        Just(Outcome::Unchanged),
        proptest::sample::select(Reason::ALL).prop_map(Outcome::Planned),
        Just(Outcome::Updated),
        fault().prop_map(Outcome::Failed),
    ]
}

fn removal() -> impl Strategy<Value = Removal> {
    let kind = prop_oneof![
        Just(RemovedKind::File),
        Just(RemovedKind::Directory),
        Just(RemovedKind::Symlink),
        Just(RemovedKind::Special),
    ];
    let outcome = prop_oneof![
        Just(Removed::Gone),
        Just(Removed::Would),
        fault().prop_map(Removed::Failed),
        fault().prop_map(Removed::Kept),
    ];
    (any::<u32>(), bytes_without(b"\0", 0..60), kind, outcome).prop_map(
        |(root, path, kind, outcome)| Removal {
            root,
            path,
            kind,
            outcome,
        },
    )
}

fn remark() -> impl Strategy<Value = Remark> {
    let kind = prop_oneof![
        Just(RemarkKind::Owner),
        Just(RemarkKind::SetId),
        Just(RemarkKind::AttributesUnsupported),
        Just(RemarkKind::AccessListsUnsupported),
        Just(RemarkKind::AttributesPrivileged),
        Just(RemarkKind::LinkCopied),
        Just(RemarkKind::BegunAnew),
        (100_u8..).prop_map(RemarkKind::Unknown),
    ];
    let entries = vec(any::<u64>().prop_map(EntryId), 0..=4);
    (kind, any::<u64>(), entries).prop_map(|(kind, count, entries)| Remark {
        kind,
        count,
        entries,
    })
}

fn operation() -> impl Strategy<Value = Operation> {
    let parts = || (remote_path(), any::<bool>());
    prop_oneof![
        parts().prop_map(|(path, recursive)| Operation::List { path, recursive }),
        remote_path().prop_map(|path| Operation::Stat { path }),
        (parts(), real_hash()).prop_map(|((path, recursive), hash)| Operation::Sum {
            path,
            recursive,
            hash
        }),
        parts().prop_map(|(path, recursive)| Operation::Remove { path, recursive }),
        parts().prop_map(|(path, parents)| Operation::MakeDirectory { path, parents }),
        (parts(), cleaning()).prop_map(|((path, dry_run), which)| Operation::Clean {
            path,
            which,
            dry_run,
        }),
    ]
}

fn cleaning() -> impl Strategy<Value = Cleaning> {
    prop_oneof![
        Just(Cleaning::Stale),
        any::<u64>().prop_map(|age_s| Cleaning::OlderThan { age_s }),
        Just(Cleaning::All),
    ]
}

fn left_behind() -> impl Strategy<Value = LeftBehind> {
    let fate = prop_oneof![Just(Fate::Removed), Just(Fate::Would), Just(Fate::Kept)];
    let why = proptest::sample::select(Why::ALL);
    let destination = vec(any::<u8>(), 0..=255);
    let numbers = (any::<u64>(), any::<u64>(), any::<bool>());
    (destination, numbers, fate, why).prop_map(
        |(destination, (age_s, allocated, journal), fate, why)| LeftBehind {
            destination,
            age_s,
            allocated,
            journal,
            fate,
            why,
        },
    )
}

fn listed() -> impl Strategy<Value = Listed> {
    let kind = prop_oneof![
        any::<bool>().prop_map(|writable| ListedKind::Export { writable }),
        Just(ListedKind::File),
        Just(ListedKind::Directory),
        bytes_without(b"\0", 0..60).prop_map(ListedKind::Symlink),
        Just(ListedKind::Special),
    ];
    let owner = (0_u32..=0o7777, any::<u32>(), any::<u32>());
    let proof = (
        option::of(any::<[u8; 32]>()),
        option::of(fault()),
        option::of(left_behind()),
    );
    (
        bytes_without(b"\0", 0..100),
        kind,
        any::<u64>(),
        owner,
        timestamp(),
        proof,
    )
        .prop_map(
            |(path, kind, len, (mode, uid, gid), mtime, (digest, fault, left))| Listed {
                path,
                kind,
                len,
                mode,
                uid,
                gid,
                mtime,
                digest,
                fault,
                left,
            },
        )
}
