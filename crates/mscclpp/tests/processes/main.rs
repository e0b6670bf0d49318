//! Tests that start processes: ranks of jobs, programs that end while a kernel waits, and programs that log. The processes are
//! this program again, or examples.

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

use libtest_mimic::Arguments;
use mscclpp::prelude::*;
use mscclpp_test_support::{child::role, of_modules};
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
    let trials = of_modules([
        ("connections", connections::trials()),
        ("exits", exits::trials()),
        ("logging", logging::trials()),
        ("lost_waits", lost_waits::trials()),
        ("nodes", nodes::trials()),
        ("ports", ports::trials()),
    ]);
    let mut arguments = Arguments::from_args();
    // Most trials are several processes, and drivers may block a set-up while a kernel waits.
    let at_once = if platform() == Platform::Sim { 4 } else { 1 };
    arguments.test_threads.get_or_insert(at_once);
    Ok(libtest_mimic::run(&arguments, trials).exit_code())
}

fn child(role: &Role) {
    let (module, role) = role.of_module();
    match module {
        "connections" => connections::child(&role),
        "lost_waits" => lost_waits::survive(&role),
        "ports" => ports::child(&role),
        other => panic!("no module {other}"),
    }
}
