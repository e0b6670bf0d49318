//! The parts of endpoints and regions that travel to peers, what the ends of a queue tell each other, and complaints.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mscclpp_ib::fuzzing;

fuzz_target!(|data: &[u8]| {
    fuzzing::parse_everything(data);
    // Behind a good beginning the fuzzer gets to the rest sooner.
    fuzzing::parse_everything(&[&b"MSIB\x04\0\0\0"[..], data].concat());
});
