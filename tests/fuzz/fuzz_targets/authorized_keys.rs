//! A file of authorized keys: what a slip of the pen may look like.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    if let Ok(text) = std::str::from_utf8(input) {
        rdcp::fuzzing::authorized_keys(text);
    }
});
