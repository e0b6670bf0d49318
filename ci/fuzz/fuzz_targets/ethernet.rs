//! Blobs of regions, frames and complaints.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mscclpp_ethernet::fuzzing;

fuzz_target!(|data: &[u8]| fuzzing::parse_everything(data));
