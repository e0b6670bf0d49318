//! Tests of the headers. All need a C++ compiler, and are ignored where there is none.

mod emulation;
mod seeds;
mod sim_headers;

use std::process::ExitCode;

use libtest_mimic::Arguments;
use mscclpp_test_support::layout::with_compiler;

fn main() -> ExitCode {
    if let Some(code) = seeds::cases() {
        return code;
    }
    let mut trials = Vec::new();
    for program in emulation::PROGRAMS {
        trials.push(with_compiler(format!("emulation::{program}"), move |compiler| {
            emulation::test(compiler, program)
        }));
    }
    trials.extend(seeds::trials());
    trials.push(with_compiler("sim_headers::each_compiles_alone", sim_headers::every_header_compiles_alone));
    for program in sim_headers::PROGRAMS {
        trials.push(with_compiler(format!("sim_headers::{program}"), move |compiler| {
            sim_headers::run(compiler, program)
        }));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
