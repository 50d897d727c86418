//! A stranger's first bytes, from either end: the greetings of a control connection inside of TLS
//! with all that follows them, and the opening of a data connection. No panic, nothing waited for
//! that can't come, and no way in without the session's key.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rdcp::fuzzing::{data_opening, greeting};

fuzz_target!(|input: &[u8]| {
    let Some((which, said)) = input.split_first() else {
        return;
    };
    let by_client = which & 1 == 0;
    match which & 2 {
        0 => greeting(said, by_client),
        _ => data_opening(said, by_client),
    }
});
