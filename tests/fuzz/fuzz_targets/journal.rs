//! A journal beside a part file in a directory that others may write to. The first byte says whether
//! its checksums are made right, so that an attacker's who computed them are tried too.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    if let Some((mended, journal)) = input.split_first() {
        rdcp::fuzzing::journal(journal, mended & 1 == 1);
    }
});
