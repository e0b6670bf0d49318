//! Under a schedule that is made by a seed, wrong kernels also have wrong results, and right ones have the right results. A
//! process has one seed, so these tests start this program again.

use std::{
    env,
    fmt::Write,
    process::{Command, ExitCode},
};

use libtest_mimic::{Failed, Trial};
use mscclpp_gpu::KernelSource;

use super::mutants::{EXCHANGE, FLAGS, GRID, MUTANTS, mutated, run};

/// The first argument of a process that prints the results of the kernel that the second one names.
const RESULTS_OF: &str = "--results-of";

/// The most runs in which a seed may give the right results: launches that the host begins late meet in another order.
const RUNS: usize = 10;

struct Right {
    file: &'static str,
    source: &'static str,
    kernel: &'static str,
    /// Returns the n-th result of a launch.
    result: fn(usize) -> u64,
    count: usize,
}

#[rustfmt::skip]
const RIGHT: [Right; 7] = [
    Right { file: "exchange.cu", source: EXCHANGE, kernel: "exchange", result: |_| 120, count: 64 },
    Right { file: "flags.cu", source: FLAGS, kernel: "flags", result: |_| 120, count: 1 },
    Right { file: "flags.cu", source: FLAGS, kernel: "fences", result: |_| 120, count: 1 },
    Right { file: "grid.cu", source: GRID, kernel: "blocks", result: |_| 1, count: 192 },
    Right { file: "grid.cu", source: GRID, kernel: "last", result: |_| 3, count: 1 },
    Right { file: "grid.cu", source: GRID, kernel: "threads", result: |n| 63 - n as u64, count: 64 },
    Right { file: "grid.cu", source: GRID, kernel: "warps", result: |n| n as u64 ^ 1, count: 64 },
];

/// Mutants, each with a seed that gives wrong results.
const WRONG: [(&str, u64); 10] = [
    ("a_signal_is_relaxed", 1),
    ("no_barrier_stands_in_front_of_the_signal", 1),
    ("no_barrier_stands_behind_the_wait", 1),
    ("scratch_is_not_doubled", 1),
    ("a_flag_is_stored_relaxed", 1),
    ("a_flag_is_used_again", 1),
    ("the_fence_in_front_is_missing", 1),
    ("blocks_do_not_meet", 1),
    ("a_count_releases_nothing", 3),
    ("threads_do_not_meet", 1),
];

pub(crate) fn trials() -> Vec<Trial> {
    let right = (1..=3).map(|seed| {
        Trial::test(format!("results_are_right_with_seed_{seed}"), move || results_are_right(seed))
    });
    let wrong = WRONG.map(|(name, seed)| {
        Trial::test(format!("{name}_and_gives_wrong_results_with_seed_{seed}"), move || {
            results_are_wrong(name, seed)
        })
    });
    right.chain(wrong).chain([Trial::test("a_failing_seed_replays", a_failing_seed_replays)]).collect()
}

/// Prints the results that a process with a seed was started for. None if this is no such process.
pub(crate) fn results() -> Option<ExitCode> {
    let mut arguments = env::args().skip(1).skip_while(|argument| argument != RESULTS_OF).skip(1);
    let name = arguments.next()?;
    let mutant = MUTANTS.iter().find(|mutant| mutant.name == name);
    let (file, text, kernel) = match mutant {
        Some(mutant) => (format!("{name}.cu"), mutated(mutant), mutant.kernel),
        None => {
            let right = RIGHT.iter().find(|right| right.kernel == name)?;
            (right.file.to_owned(), right.source.to_owned(), right.kernel)
        }
    };
    let (said, results) = run(&KernelSource::new(&file, &text), kernel, 1);
    let mut printed = said.join("\n");
    let count = RIGHT.iter().find(|right| right.kernel == kernel)?.count;
    for results in results {
        write!(printed, "\nresults {:?}", &results[..count]).expect("a string takes all");
    }
    println!("{printed}");
    Some(ExitCode::SUCCESS)
}

/// Returns the output of such a process, and the results of both devices.
fn start(name: &str, seed: u64) -> (String, Vec<String>) {
    let mut this = Command::new(env::current_exe().expect("this program"));
    this.args([RESULTS_OF, name]).env("MSCCLPP_SIM_SCHEDULE", seed.to_string());
    let output = this.output().expect("this program starts");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    let results = printed.lines().filter_map(|line| line.strip_prefix("results ")).map(str::to_owned);
    (printed.clone(), results.collect())
}

/// Returns the right results of both devices.
fn right(kernel: &str) -> Vec<String> {
    let right = RIGHT.iter().find(|right| right.kernel == kernel).expect("it is there");
    let right: Vec<u64> = (0..right.count).map(right.result).collect();
    vec![format!("{right:?}"); 2]
}

fn results_are_right(seed: u64) -> Result<(), Failed> {
    for Right { kernel, .. } in RIGHT {
        let (said, results) = start(kernel, seed);
        assert!(results == right(kernel) && !said.contains("race"), "{kernel}: {said}");
    }
    Ok(())
}

fn results_are_wrong(name: &str, seed: u64) -> Result<(), Failed> {
    let kernel = MUTANTS.iter().find(|mutant| mutant.name == name).expect("it is there").kernel;
    for _ in 0..RUNS {
        let (said, results) = start(name, seed);
        // A report tells how to repeat the schedule.
        assert!(
            !said.contains("race in") || said.contains(&format!("MSCCLPP_SIM_SCHEDULE={seed}")),
            "{said}"
        );
        if results != right(kernel) {
            return Ok(());
        }
    }
    Err(format!("the results were right {RUNS} times").into())
}

/// The wrong numbers depend on many decisions. If the seed did not make them, no two runs would agree.
fn a_failing_seed_replays() -> Result<(), Failed> {
    let (name, seed) = WRONG[0];
    let mut all: Vec<Vec<String>> = Vec::new();
    for _ in 0..RUNS {
        let (_, results) = start(name, seed);
        if all.contains(&results) {
            return Ok(());
        }
        all.push(results);
    }
    Err(format!("{RUNS} runs, and no results came twice: {all:?}").into())
}
