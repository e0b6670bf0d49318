//! Tests of the headers. All need a C++ compiler, and are ignored where there is none.

mod emulation;
mod seeds;
mod sim_headers;

use std::{
    env,
    ffi::{OsStr, OsString},
    process::{Command, ExitCode},
};

use libtest_mimic::{Arguments, Failed, Trial};

/// Returns `CXX`, or the first usual C++ compiler that runs, if any.
fn compiler() -> Option<OsString> {
    env::var_os("CXX")
        .into_iter()
        .chain(["c++", "g++", "clang++"].map(OsString::from))
        .find(|name| Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success()))
}

/// A test, which gets the compiler.
type Test = Box<dyn Fn(&OsStr) -> Result<(), Failed> + Send>;

fn main() -> ExitCode {
    if let Some(code) = seeds::cases() {
        return code;
    }
    let compiler = compiler();
    let mut trials = Vec::new();
    let mut add = |name: String, test: Test| {
        trials.push(match compiler.clone() {
            Some(compiler) => Trial::test(name, move || test(&compiler)),
            None => Trial::test(name, || Err("there is no C++ compiler; set CXX".into()))
                .with_kind("no C++ compiler")
                .with_ignored_flag(true),
        });
    };
    for program in emulation::PROGRAMS {
        add(format!("emulation::{program}"), Box::new(move |compiler| emulation::test(compiler, program)));
    }
    for (name, test) in seeds::trials() {
        add(format!("seeds::{name}"), test);
    }
    add("sim_headers::each_compiles_alone".to_owned(), Box::new(sim_headers::every_header_compiles_alone));
    for program in sim_headers::PROGRAMS {
        add(format!("sim_headers::{program}"), Box::new(move |compiler| sim_headers::run(compiler, program)));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
