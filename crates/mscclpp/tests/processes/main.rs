//! Jobs whose ranks are processes, and programs that end or that log: this program again, or examples.

mod connections;
mod exits;
mod logging;
mod lost_waits;
mod nodes;
mod ports;
#[path = "../support/program.rs"]
mod program;
#[path = "../support/mod.rs"]
mod support;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};
use mscclpp::prelude::*;
use mscclpp_test_support::child::role;
use support::{
    children::{Role, run_if_child},
    platform,
};

fn main() -> mscclpp::Result<ExitCode> {
    match role().as_deref() {
        Some([module, name]) if module == "exits" => return exits::main(name),
        Some([module, what]) if module == "logging" => return Ok(logging::main(what)),
        _ => {}
    }
    if let Some(code) = run_if_child(child) {
        return Ok(code);
    }
    let of_module =
        |name: &'static str, trials: Vec<Trial>| trials.into_iter().map(move |trial| trial.with_kind(name));
    let trials = of_module("connections", connections::trials())
        .chain(of_module("exits", exits::trials()))
        .chain(of_module("logging", logging::trials()))
        .chain(of_module("lost_waits", lost_waits::trials()))
        .chain(of_module("nodes", nodes::trials()))
        .chain(of_module("ports", ports::trials()))
        .collect();
    let mut arguments = Arguments::from_args();
    // Each trial is several processes, and drivers may block a set-up while a kernel waits.
    let at_once = if platform() == Platform::Sim { 4 } else { 1 };
    arguments.test_threads.get_or_insert(at_once);
    Ok(libtest_mimic::run(&arguments, trials).exit_code())
}

/// The roles are `MODULE ROLE`.
fn child(role: &Role) {
    let (module, name) = role.name.split_once(' ').expect("a module and a role");
    let role = Role { name: name.to_owned(), ..*role };
    match module {
        "connections" => connections::child(&role),
        "lost_waits" => lost_waits::survive(&role),
        "ports" => ports::child(&role),
        other => panic!("no module {other}"),
    }
}
