//! The messages of the Unix socket, and the parts of endpoints and regions that are sent to peers.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mscclpp_cuda_ipc::fuzzing;

fuzz_target!(|data: &[u8]| {
    fuzzing::parse_everything(data);
    // With a valid beginning the fuzzer reaches the rest sooner.
    for beginning in [&b"MSCI\x01"[..], b"\x01"] {
        fuzzing::parse_everything(&[beginning, data].concat());
    }
});
