//! Collectives whose ranks are processes: this program again.

mod nodes;
mod ranks;
#[path = "../it/support/mod.rs"]
mod support;

use std::process::ExitCode;

use libtest_mimic::Arguments;
use mscclpp::Platform;
use mscclpp_test_support::{
    job::{Role, run_if_child},
    of_modules,
};
use support::platform;

fn main() -> ExitCode {
    if let Some(code) = run_if_child(child) {
        return code;
    }
    let trials = of_modules([("nodes", nodes::trials()), ("ranks", ranks::trials())]);
    let mut arguments = Arguments::from_args();
    // On GPUs, kernels of several jobs take turns of milliseconds.
    let at_once = if platform() == Platform::Sim { 4 } else { 1 };
    arguments.test_threads.get_or_insert(at_once);
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn child(role: &Role) {
    mscclpp::log::init().expect("logging");
    let (module, role) = role.of_module();
    match module {
        "nodes" => nodes::child(&role),
        "ranks" => ranks::child(&role),
        other => panic!("no module {other}"),
    }
}
