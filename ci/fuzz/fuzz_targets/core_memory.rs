#![no_main]

use mscclpp_core::RegisteredMemory;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    mscclpp_fuzz::check(input, 2, |bytes| RegisteredMemory::deserialize(bytes)?.serialize());
});
