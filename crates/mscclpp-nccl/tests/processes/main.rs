//! Ranks that are processes. This program starts itself as the ranks of jobs.

#[path = "../support/mod.rs"]
mod support;

mod fallback;
mod job;
mod jobs;
mod nodes;
mod variables;

use std::process::ExitCode;

use libtest_mimic::Arguments;

fn main() -> ExitCode {
    if let Some((role, rank)) = job::role() {
        let known = jobs::run(&role, rank)
            || variables::run(&role, rank)
            || fallback::run(&role, rank)
            || nodes::run(&role, rank);
        assert!(known, "no role: {role}");
        return ExitCode::SUCCESS;
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads = arguments.test_threads.or(Some(4));
    let trials = [jobs::trials(), variables::trials(), fallback::trials(), nodes::trials()]
        .into_iter()
        .flatten()
        .collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}
