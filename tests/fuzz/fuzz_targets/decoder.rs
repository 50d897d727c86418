//! Any bytes, in pieces of any size, into the decoder of the control connection. Nothing may panic
//! or grow, an error stays an error, and what was decoded is what its own encoding means.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rdcp::wire::{Decoder, Envelope, encode};

fuzz_target!(|input: &[u8]| {
    let Some((piece_bytes, bytes)) = input.split_first() else { return };
    let mut decoder = Decoder::new();
    for piece in bytes.chunks(usize::from(*piece_bytes).max(1)) {
        let mut rest = piece;
        while !rest.is_empty() {
            let fed = decoder.feed(rest);
            rest = &rest[fed..];
            loop {
                match decoder.next() {
                    Ok(Some(envelope)) => same_again(&envelope),
                    Ok(None) => break,
                    Err(error) => {
                        assert_eq!(decoder.next().err(), Some(error), "an error stays");
                        return;
                    }
                }
            }
            assert!(fed > 0 || rest.is_empty(), "it takes bytes once it was emptied");
        }
    }
});

fn same_again(envelope: &Envelope) {
    let mut frame = Vec::new();
    // A message whose fields are right can still stand in the wrong envelope; it has no encoding.
    if encode(envelope, &mut frame).is_err() {
        return;
    }
    let mut decoder = Decoder::new();
    assert_eq!(decoder.feed(&frame), frame.len());
    let again = decoder.next().expect("an encoding can be decoded");
    assert_eq!(again.as_ref(), Some(envelope));
    assert!(decoder.is_between_frames());
}
