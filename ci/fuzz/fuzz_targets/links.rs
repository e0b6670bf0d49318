//! Addresses, handshakes, and the messages on links.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mscclpp_net::links::fuzzing;

fuzz_target!(|data: &[u8]| fuzzing::parse_everything(data));
