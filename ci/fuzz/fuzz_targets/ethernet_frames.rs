//! Everything that comes over a connection that carries data: of a stranger, and of a member.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mscclpp_ethernet::fuzzing::Victim;

thread_local! {
    static VICTIM: Victim = Victim::new();
}

fuzz_target!(|data: &[u8]| VICTIM.with(|victim| victim.suffer(data)));
