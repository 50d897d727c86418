//! Bits flipped on purpose between `rdcp` and `rdcpd`: which, and how many.
//!
//! In: what passes on a connection through the proxy, piece by piece. Out: the same with bits flipped as a
//! [`Harm`] says. Data connections are read as `FORMAT.md` draws them, so that a flip hits payload or a
//! header as it is meant to, and so that no chunk is hit more often than it is read again. Control
//! connections are TLS, in which nothing is told apart.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;

use super::tree::Random;

/// What the client sends to open a data connection: its hello and its proof.
const CLIENT_OPENS_BYTES: usize = 52 + 32;
/// What the server answers.
const SERVER_OPENS_BYTES: usize = 64;
const HEADER_BYTES: usize = 64;
const READ: u8 = 1;
const DATA: u8 = 2;

/// What is done to which bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Harm {
    /// Answers to READs are damaged.
    Payload {
        /// Bits in all answers together.
        bits: u64,
        /// One answer in so many, by chance.
        one_in: u64,
        /// Most bits in one answer. Every other answer that is hit loses one bit only.
        bits_max: u64,
        /// How often answers to the same READ are hit: a chunk is read again a few times only.
        times_max: u32,
    },
    /// One bit in so many headers of data connections, or in what opens them.
    Headers {
        /// Bits in all.
        bits: u64,
        /// One header in so many, by chance.
        one_in: u64,
    },
    /// One bit of what each control connection carries from this byte on, in either direction.
    Control {
        /// Bits in all.
        bits: u64,
        /// Bytes of a direction that pass before.
        from_byte: u64,
        /// The bit is one of so many bytes behind it.
        within_bytes: u64,
    },
}

/// The bits that are flipped in a run, and those that were.
pub(crate) struct Flips {
    harm: Harm,
    state: Mutex<State>,
}

struct State {
    dice: Random,
    left: u64,
    told: Told,
    /// How often the answer to a READ of this key and offset was hit.
    times: BTreeMap<(u64, u64), u32>,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) bits: u64,
    /// Answers to READs that a bit was flipped in.
    pub(crate) answers: u64,
    /// Those of them that were hit in one bit only.
    pub(crate) single: u64,
    /// Different READs that were hit.
    pub(crate) reads: u64,
}

/// What is known of the READs on one data connection.
#[derive(Default)]
pub(crate) struct Reads(Mutex<HashMap<(Side, u64), Read>>);

/// Who sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Side {
    Client,
    Server,
}

impl Side {
    fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

struct Read {
    offset: u64,
    /// Bits of the answer that are flipped, from its first bit on.
    bits: Vec<u64>,
}

/// One direction of a connection, read on.
pub(crate) struct Reader {
    side: Side,
    part: Part,
    /// Bytes that came by.
    passed: u64,
}

enum Part {
    /// So many bytes of what opens a data connection are to come; one of its bits may be flipped.
    Opening { left: usize, flip: Option<u64> },
    /// Of a header, as it was sent.
    Header { sent: Vec<u8>, flip: Option<u64> },
    /// So many bytes of payload are to come; which bits are flipped, from the first of them on.
    Payload { left: usize, bits: Vec<u64> },
    /// TLS; which bit is flipped, from the first byte of this direction on.
    Control { flip: Option<u64> },
}

impl Flips {
    pub(crate) fn new(harm: Harm, seed: u64) -> Self {
        let left = match harm {
            Harm::Payload { bits, .. }
            | Harm::Headers { bits, .. }
            | Harm::Control { bits, .. } => bits,
        };
        let state = State {
            dice: Random::new(seed),
            left,
            told: Told::default(),
            times: BTreeMap::new(),
        };
        Self {
            harm,
            state: Mutex::new(state),
        }
    }

    pub(crate) fn told(&self) -> Told {
        self.state.lock().unwrap().told
    }

    /// Reads one direction of a control connection.
    pub(crate) fn control(&self, side: Side) -> Reader {
        let flip = match self.harm {
            Harm::Control {
                from_byte,
                within_bytes,
                ..
            } => {
                let mut state = self.state.lock().unwrap();
                Some(from_byte * 8 + state.dice.below(within_bytes * 8))
            }
            Harm::Payload { .. } | Harm::Headers { .. } => None,
        };
        Reader::new(side, Part::Control { flip })
    }

    /// Reads one direction of a data connection, of which `begun` bytes have passed already.
    pub(crate) fn data(&self, side: Side, begun: usize) -> Reader {
        let left = match side {
            Side::Client => CLIENT_OPENS_BYTES - begun,
            Side::Server => SERVER_OPENS_BYTES - begun,
        };
        let flip = self.header_flip(left);
        Reader::new(side, Part::Opening { left, flip })
    }

    /// A bit of a header of so many bytes, if this one is to be hit.
    fn header_flip(&self, bytes: usize) -> Option<u64> {
        let Harm::Headers { one_in, .. } = self.harm else {
            return None;
        };
        let mut state = self.state.lock().unwrap();
        let hit = state.left > 0 && state.dice.below(one_in) == 0;
        hit.then(|| state.dice.below(bytes as u64 * 8))
    }

    /// The bits of the answer to this READ that are to be flipped, ascending.
    fn answer_flips(&self, key: u64, offset: u64, len: u64) -> Vec<u64> {
        let Harm::Payload {
            one_in,
            bits_max,
            times_max,
            ..
        } = self.harm
        else {
            return Vec::new();
        };
        let mut state = self.state.lock().unwrap();
        let times = state.times.get(&(key, offset)).copied().unwrap_or(0);
        if state.left == 0 || times >= times_max || state.dice.below(one_in) != 0 {
            return Vec::new();
        }
        let count = match state.dice.below(2) {
            0 => 1,
            _ => 1 + state.dice.below(bits_max),
        };
        let mut bits = std::collections::BTreeSet::new();
        for _ in 0..count.min(state.left) {
            let bit = state.dice.below(len * 8);
            // Flipped twice it would be as it was.
            bits.insert(bit);
        }
        let count = bits.len() as u64;
        state.left -= count;
        state.told.bits += count;
        state.told.answers += 1;
        state.told.single += u64::from(count == 1);
        state.told.reads += u64::from(times == 0);
        state.times.insert((key, offset), times + 1);
        bits.into_iter().collect()
    }

    /// Counts a bit of a header or of TLS, if there is one left to be flipped.
    fn take_bit(&self) -> bool {
        let mut state = self.state.lock().unwrap();
        let some = state.left > 0;
        if some {
            state.left -= 1;
            state.told.bits += 1;
        }
        some
    }
}

impl Reader {
    fn new(side: Side, part: Part) -> Self {
        Self {
            side,
            part,
            passed: 0,
        }
    }

    /// Flips what is to be flipped in the next bytes of this direction.
    pub(crate) fn pass(&mut self, flips: &Flips, reads: &Reads, piece: &mut [u8]) {
        let mut at = 0;
        while at < piece.len() {
            let rest = &mut piece[at..];
            let (taken, next) = match &mut self.part {
                Part::Control { flip } => {
                    let from = self.passed * 8;
                    if let Some(bit) = flip.and_then(|bit| bit.checked_sub(from))
                        && bit < rest.len() as u64 * 8
                    {
                        *flip = None;
                        if flips.take_bit() {
                            flip_bit(rest, bit);
                        }
                    }
                    (rest.len(), None)
                }
                Part::Opening { left, flip } => {
                    let taken = rest.len().min(*left);
                    hit(flips, &mut rest[..taken], flip);
                    *left -= taken;
                    (taken, (*left == 0).then(|| header(flips)))
                }
                Part::Header { sent, flip } => {
                    let taken = rest.len().min(HEADER_BYTES - sent.len());
                    sent.extend_from_slice(&rest[..taken]);
                    hit(flips, &mut rest[..taken], flip);
                    let whole = sent.len() == HEADER_BYTES;
                    let next = whole.then(|| behind(self.side, sent, flips, reads));
                    (taken, next)
                }
                Part::Payload { left, bits } => {
                    let taken = rest.len().min(*left);
                    let end = taken as u64 * 8;
                    for &bit in bits.iter().filter(|bit| **bit < end) {
                        flip_bit(rest, bit);
                    }
                    bits.retain(|bit| *bit >= end);
                    for bit in bits {
                        *bit -= end;
                    }
                    *left -= taken;
                    (taken, (*left == 0).then(|| header(flips)))
                }
            };
            if let Some(next) = next {
                self.part = next;
            }
            self.passed += taken as u64;
            at += taken;
        }
    }
}

fn flip_bit(bytes: &mut [u8], bit: u64) {
    bytes[usize::try_from(bit / 8).unwrap()] ^= 1 << (bit % 8);
}

/// Flips the bit, if it is among these bytes; else it is so much nearer.
fn hit(flips: &Flips, bytes: &mut [u8], flip: &mut Option<u64>) {
    let Some(bit) = *flip else { return };
    let end = bytes.len() as u64 * 8;
    if bit >= end {
        *flip = Some(bit - end);
        return;
    }
    *flip = None;
    if flips.take_bit() {
        flip_bit(bytes, bit);
    }
}

fn header(flips: &Flips) -> Part {
    Part::Header {
        sent: Vec::with_capacity(HEADER_BYTES),
        flip: flips.header_flip(HEADER_BYTES),
    }
}

/// What comes behind this header.
fn behind(side: Side, sent: &[u8], flips: &Flips, reads: &Reads) -> Part {
    let number = |at: usize| u64::from_le_bytes(sent[at..at + 8].try_into().unwrap());
    let (request, key, offset, len) = (number(16), number(24), number(32), number(40));
    let mut reads = reads.0.lock().unwrap();
    match sent[0] {
        READ => {
            let bits = flips.answer_flips(key, offset, len);
            reads.insert((side, request), Read { offset, bits });
        }
        DATA => {
            let left = u32::from_le_bytes(sent[4..8].try_into().unwrap()) as usize;
            let read = &reads[&(side.other(), request)];
            let from = (offset - read.offset) * 8;
            let end = from + left as u64 * 8;
            let bits = read.bits.iter().filter(|bit| (from..end).contains(bit));
            let bits = bits.map(|bit| bit - from).collect();
            if left > 0 {
                return Part::Payload { left, bits };
            }
        }
        _ => {}
    }
    header(flips)
}
