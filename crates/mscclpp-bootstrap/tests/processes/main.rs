//! Tests of ranks that are processes: this program starts itself once for each.

mod descriptors;
mod generations;
mod ids;
mod lost;
mod network;
#[path = "../ranks/mod.rs"]
mod ranks;
mod two_jobs;

use std::process::ExitCode;

use libtest_mimic::Arguments;
use mscclpp_test_support::{child, of_modules};

fn main() -> ExitCode {
    if let Some(role) = child::role() {
        let (module, role) = role.split_first().expect("a module and its role");
        return match module.as_str() {
            "descriptors" => descriptors::be_rank(role),
            "generations" => generations::be_rank(role),
            "ids" => ids::be_rank(role),
            "lost" => lost::be_rank(role),
            "network" => network::be_rank(role),
            "two_jobs" => two_jobs::be_rank(role),
            other => panic!("no module {other}"),
        };
    }
    let trials = of_modules([
        ("descriptors", descriptors::trials()),
        ("generations", generations::trials()),
        ("ids", ids::trials()),
        ("lost", lost::trials()),
        ("network", network::trials()),
        ("two_jobs", two_jobs::trials()),
    ]);
    let mut arguments = Arguments::from_args();
    // Processes of a trial wait nearly all the time.
    arguments.test_threads.get_or_insert(16);
    libtest_mimic::run(&arguments, trials).exit_code()
}
