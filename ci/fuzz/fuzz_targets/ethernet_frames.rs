//! Everything that comes over a data connection: from a stranger, and from a member.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mscclpp_ethernet::fuzzing::Victim;

thread_local! {
    static VICTIM: Victim = Victim::new();
}

fuzz_target!(|data: &[u8]| VICTIM.with(|victim| victim.suffer(data)));
