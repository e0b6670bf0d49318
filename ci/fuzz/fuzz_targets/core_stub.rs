#![no_main]

use mscclpp_core::SemaphoreStub;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    mscclpp_fuzz::check(input, 3, |bytes| SemaphoreStub::deserialize(bytes)?.serialize());
    mscclpp_fuzz::check(input, 4, |bytes| SemaphoreStub::serialize_all(&SemaphoreStub::deserialize_all(bytes)?));
});
