//! Tests on soft-RoCE devices that may be taken away: order, many connections, and everything that fails.
//!
//! They run only in the virtual machine of `cargo xtask rdma-vm`, as root, one test after the other.

#[path = "../ends/mod.rs"]
mod ends;
mod failures;
mod limits;
mod traffic;

use std::{env, process::ExitCode};

use libtest_mimic::{Arguments, Trial};
use mscclpp_core::IbMode;
use mscclpp_test_support::child;

const MODES: [(&str, IbMode); 2] = [("atomics", IbMode::Host), ("immediates", IbMode::HostNoAtomic)];

type Case = fn(IbMode);

fn main() -> ExitCode {
    if let Some(role) = child::role() {
        match role[0].as_str() {
            limits::TOO_LITTLE => limits::register_too_much(),
            failures::PEER => failures::play_the_peer(),
            other => panic!("no role {other}"),
        }
        return ExitCode::SUCCESS;
    }
    let may_run = env::var("MSCCLPP_VM_NODES").is_ok_and(|hosts| hosts == "1");
    let cases = [traffic::CASES, limits::CASES, failures::CASES].concat();
    let trials = MODES.iter().flat_map(|(name, mode)| {
        cases.iter().map(move |(case_name, case)| {
            let (mode, case): (IbMode, Case) = (*mode, *case);
            let trial = Trial::test(format!("{name}::{case_name}"), move || {
                case(mode);
                Ok(())
            });
            match may_run {
                true => trial,
                false => trial.with_kind("runs in `cargo xtask rdma-vm`").with_ignored_flag(true),
            }
        })
    });
    let mut arguments = Arguments::from_args();
    // The tests take devices away from each other.
    arguments.test_threads = Some(1);
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}
