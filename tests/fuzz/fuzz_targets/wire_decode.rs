//! Bytes of a peer into the decoder: no panic, bounded memory, and whatever comes out can be sent
//! again and comes out the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rdcp::wire::{Decoder, encode};

fuzz_target!(|input: &[u8]| {
    let mut decoder = Decoder::new();
    let mut rest = input;
    loop {
        while let Ok(Some(envelope)) = decoder.next() {
            let mut frame = Vec::new();
            encode(&envelope, &mut frame).expect("what was received can be sent");
            let mut again = Decoder::new();
            again.feed(&frame);
            assert_eq!(again.next(), Ok(Some(envelope)));
        }
        if rest.is_empty() || decoder.next().is_err() {
            return;
        }
        rest = &rest[decoder.feed(rest)..];
    }
});
