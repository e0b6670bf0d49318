//! Tests of the program. No time is asserted.

mod adapters;
mod collectives;
mod compare;
mod doctor;
mod hold;
mod jobs;
mod memory;
mod nodes;
mod ports;
mod program;
mod results;
mod rows;
mod runs;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};

fn main() -> ExitCode {
    let mut trials = Vec::new();
    for of_module in [
        adapters::trials,
        compare::trials,
        doctor::trials,
        hold::trials,
        nodes::trials,
        rows::trials,
        runs::trials,
    ] {
        trials.extend(of_module());
    }
    let mut arguments = Arguments::from_args();
    // Some tests wait for a run to take long.
    arguments.test_threads.get_or_insert(4);
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// A test that runs the program. It is reported as ignored where the program is missing because only tests were copied.
fn trial(name: &str, test: impl FnOnce() -> Result<(), Failed> + Send + 'static) -> Trial {
    let missing = !program::program().exists();
    let name = if missing { format!("{name} (the program is not there)") } else { name.to_owned() };
    Trial::test(name, test).with_ignored_flag(missing)
}
