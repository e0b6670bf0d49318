//! Everything that comes over a connection: from a stranger, from one that answers us, and from a member.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mscclpp_bootstrap::{collective::call, fuzzing};
use mscclpp_net::frame::encode;

fuzz_target!(|data: &[u8]| {
    fuzzing::stranger(data);
    fuzzing::answer(data);
    fuzzing::member(data);
    fuzzing::table(data);
    call::check(data);
    // With a valid header the fuzzer reaches the payloads sooner.
    if let Some((kind, payload)) = data.split_first() {
        let frame = encode(*kind, payload);
        fuzzing::stranger(&frame);
        fuzzing::answer(&frame);
        fuzzing::member(&frame);
    }
});
