//! A file of known hosts that anybody may have edited.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| rdcp::fuzzing::known_hosts(input));
