#![no_main]

use mscclpp_core::Endpoint;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    mscclpp_fuzz::check(input, 1, |bytes| Endpoint::deserialize(bytes)?.serialize());
});
