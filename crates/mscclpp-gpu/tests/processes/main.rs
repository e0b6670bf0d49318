//! Tests that start this program again, with another environment or as the other of two processes.

#[path = "../device/mod.rs"]
mod device;
mod environment;
mod freed;
mod sharing;

use std::process::ExitCode;

use libtest_mimic::Arguments;
use mscclpp_test_support::child;

fn main() -> ExitCode {
    if let Some(role) = child::role() {
        match &*role[0] {
            "environment" => println!("{}", environment::answer(&role[1])),
            "freed" => freed::use_freed_memory(),
            "sharing" => sharing::importer(&role[1]),
            other => panic!("no role {other}"),
        }
        return ExitCode::SUCCESS;
    }
    let trials = environment::trials().into_iter().chain(sharing::trials()).chain([freed::trial()]).collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
