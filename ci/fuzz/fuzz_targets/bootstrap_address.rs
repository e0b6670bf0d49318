//! Addresses in the form in which users write them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mscclpp_bootstrap::fuzzing;

fuzz_target!(|text: &str| fuzzing::address(text));
