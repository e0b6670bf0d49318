//! Tests of the race detector of simulated devices: kernels without races run as usual, and each of their mutants is found,
//! with its lines. The detector is switched on here, for all that this program does.

mod data;
mod mutants;
mod outside;
mod words;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    // SAFETY: this is the only thread, and nothing has read the environment.
    unsafe { std::env::set_var("MSCCLPP_SIM_RACES", "1") };
    if let Some(code) = data::results() {
        return code;
    }
    let mut trials: Vec<Trial> = mutants::trials();
    trials.extend(outside::trials());
    trials.extend(data::trials());
    trials.extend(words::trials());
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
