//! Everything that comes over a connection: of a stranger, of one that answers us, and of a member.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mscclpp_bootstrap::fuzzing;

fuzz_target!(|data: &[u8]| {
    fuzzing::stranger(data);
    fuzzing::answer(data);
    fuzzing::member(data);
    fuzzing::table(data);
    fuzzing::collective_message(data);
    // Behind a good header the fuzzer gets to the payloads sooner.
    if let Some((kind, payload)) = data.split_first() {
        let frame = fuzzing::frame_of(*kind, payload);
        fuzzing::stranger(&frame);
        fuzzing::answer(&frame);
        fuzzing::member(&frame);
    }
});
