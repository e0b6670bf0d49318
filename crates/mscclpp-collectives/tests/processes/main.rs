//! Collectives whose ranks are processes: this program again.

mod nodes;
mod ranks;
#[path = "../it/support/mod.rs"]
mod support;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};
use mscclpp::Platform;
use mscclpp_test_support::job::{Role, run_if_child};
use support::platform;

fn main() -> ExitCode {
    if let Some(code) = run_if_child(child) {
        return code;
    }
    let of_module =
        |name: &'static str, trials: Vec<Trial>| trials.into_iter().map(move |trial| trial.with_kind(name));
    let trials = of_module("nodes", nodes::trials()).chain(of_module("ranks", ranks::trials())).collect();
    let mut arguments = Arguments::from_args();
    // On GPUs, kernels of several jobs take turns of milliseconds.
    let at_once = if platform() == Platform::Sim { 4 } else { 1 };
    arguments.test_threads.get_or_insert(at_once);
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// The roles are `MODULE ROLE`.
fn child(role: &Role) {
    mscclpp::log::init().expect("logging");
    let (module, name) = role.name.split_once(' ').expect("a module and a role");
    let role = Role { name: name.to_owned(), ..*role };
    match module {
        "nodes" => nodes::child(&role),
        "ranks" => ranks::child(&role),
        other => panic!("no module {other}"),
    }
}
