//! The parts of endpoints and regions that are sent to peers, the messages between the ends of a queue, and complaints.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mscclpp_ib::fuzzing;

fuzz_target!(|data: &[u8]| {
    fuzzing::parse_everything(data);
    // With a valid beginning the fuzzer reaches the rest sooner.
    fuzzing::parse_everything(&[&b"MSIB\x04\0\0\0"[..], data].concat());
});
