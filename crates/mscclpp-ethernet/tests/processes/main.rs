//! Tests of processes that reach each other: one is killed, they are in different namespaces, or the network fails. This program
//! starts itself once for each.

mod killed;
mod namespaces;
mod outages;
#[path = "../support/mod.rs"]
mod support;

use std::process::ExitCode;

use libtest_mimic::Arguments;
use mscclpp_test_support::child::role;

fn main() -> ExitCode {
    if let Some(role) = role() {
        match role[0].split(' ').next() {
            Some("exchange" | "fail") => namespaces::play(&role[0]),
            Some("watch" | "flood" | "spoke") => outages::play(&role[0]),
            _ => killed::play(&role[0]),
        }
        return ExitCode::SUCCESS;
    }
    let mut arguments = Arguments::from_args();
    // The tests wait for losses most of the time.
    arguments.test_threads.get_or_insert(9);
    let trials = [outages::trials(), killed::trials(), namespaces::trials()].into_iter().flatten().collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}
