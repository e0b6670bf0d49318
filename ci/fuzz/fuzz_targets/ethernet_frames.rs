//! Everything that comes over a data connection: from a stranger, and from a member.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mscclpp_ethernet::fuzzing::Receiving;

thread_local! {
    static RECEIVING: Receiving = Receiving::new();
}

fuzz_target!(|data: &[u8]| RECEIVING.with(|receiving| receiving.feed(data)));
