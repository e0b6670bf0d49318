//! The arguments of a rank: as text that two ranks compare, and as words with which the workload can be started again.

use clap::{Arg, ArgMatches, Command, CommandFactory, ValueEnum, parser::ValueSource};

use crate::{Arguments, help};

/// Options that differ between the ranks. Of those with a value for each rank, a rank started by hand uses only its own.
const OWN: [&str; 6] = ["rank", "address", "gpu", "devices", "transports", "json"];
/// Options that do not change what is measured.
const OF_THE_OUTPUT: [&str; 2] = ["json", "peer"];
/// Subcommands that measure nothing by themselves.
const NO_WORKLOADS: [&str; 3] = ["doctor", "plot", "hold"];

/// The workload and its options, in the order in which the program declares them. Options that differ between the ranks
/// are left out, and so are options that have their default.
pub(crate) fn text(program: &Command, matches: &ArgMatches) -> String {
    words(program, matches, &OWN).join(" ")
}

/// The arguments of this process, as the words of a call that measures the same.
pub(crate) fn arguments() -> Vec<String> {
    let program = help::complete(Arguments::command());
    words(&program, &program.clone().get_matches(), &OF_THE_OUTPUT)
}

/// Fails with the reason if `words` are not a call of a workload that could be repeated.
pub(crate) fn require_repeatable(words: &[String]) -> Result<(), String> {
    let call = words.join(" ");
    let program = help::complete(Arguments::command());
    let all = ["mscclpp-bench"].into_iter().chain(words.iter().map(String::as_str));
    let matches = program
        .try_get_matches_from(all)
        .map_err(|error| format!("this program cannot run {call:?}: {}", error.to_string().trim()))?;
    let Some((workload, matches)) = matches.subcommand() else {
        return Err(format!("{call:?} is no workload"));
    };
    if NO_WORKLOADS.contains(&workload) {
        return Err(format!("{call:?} measures nothing"));
    }
    let of_a_rank = ["json", "rank", "peer"].into_iter().find(|option| {
        matches.try_contains_id(option).unwrap_or(false)
            && matches.value_source(option) == Some(ValueSource::CommandLine)
    });
    of_a_rank.map_or(Ok(()), |option| Err(format!("{call:?}: --{option} has no place in a file")))
}

/// The workload and its options, except those in `left_out` and those that have their default.
fn words(program: &Command, matches: &ArgMatches, left_out: &[&str]) -> Vec<String> {
    let Some((workload, matches)) = matches.subcommand() else { return Vec::new() };
    let known = program.find_subcommand(workload).into_iter().flat_map(Command::get_arguments);
    let options = known.filter(|option| !left_out.contains(&option.get_id().as_str()));
    let given = options.flat_map(|option| given(option, matches));
    [workload.to_owned()].into_iter().chain(given).collect()
}

/// A value as it is written on the command line.
pub(crate) fn name_of(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// An option with its values; empty if it was not given, or has its default.
fn given(option: &Arg, matches: &ArgMatches) -> Vec<String> {
    let id = option.get_id().as_str();
    if matches.value_source(id) != Some(ValueSource::CommandLine) {
        return Vec::new();
    }
    let name = format!("--{}", option.get_long().unwrap_or(id));
    if !option.get_action().takes_values() {
        return vec![name];
    }
    let values: Vec<_> = matches.get_raw(id).into_iter().flatten().collect();
    if values == option.get_default_values() {
        return Vec::new();
    }
    let values = values.into_iter().map(|value| value.to_string_lossy().into_owned());
    let values: Vec<_> = match option.get_value_delimiter() {
        Some(between) => vec![values.collect::<Vec<_>>().join(&between.to_string())],
        None => values.collect(),
    };
    [name].into_iter().chain(values).collect()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn of(arguments: &str) -> String {
        let program = crate::Arguments::command();
        let words = ["mscclpp-bench"].into_iter().chain(arguments.split(' '));
        let matches = program.clone().try_get_matches_from(words).expect("arguments that are right");
        text(&program, &matches)
    }

    #[test]
    fn the_order_and_the_spelling_do_not_matter() {
        assert_eq!(of("memory-put"), "memory-put");
        let full = "memory-put --begin 8 --end 1K --iters 5 --barriers full,none --bulk";
        assert_eq!(of("memory-put --bulk --barriers full --barriers none -e1K --iters=5 -b 8"), full);
        assert_eq!(of(full), full);
        assert_eq!(of("memory-put --warmup 1 --repeats 7"), "memory-put");
        let staging = "port-put --transport ethernet --staging 4K,2 --checksums";
        assert_eq!(of(staging), staging);
        assert_eq!(of("port-put --transport cuda-ipc"), "port-put");
    }

    #[test]
    fn what_is_each_ranks_own_does_not_count() {
        let own = "--rank 1 --address h:1 --gpu 1 --json x.json --devices 0 1";
        assert_eq!(of(&format!("ll8-pingpong {own} --iters 7")), "ll8-pingpong --iters 7");
        assert_eq!(of("ib-lat --transports IB0 IB3 --mode host"), "ib-lat --mode host");
    }

    #[test]
    fn a_call_that_is_kept_can_be_made_again() {
        let program = help::complete(crate::Arguments::command());
        let kept = |call: &str| {
            let all = ["mscclpp-bench"].into_iter().chain(call.split(' '));
            let matches = program.clone().try_get_matches_from(all).expect("arguments that are right");
            words(&program, &matches, &OF_THE_OUTPUT)
        };
        // This workload has another default of `--repeats`.
        let tune = kept("tune --repeats 7 --json x.json --devices 1 0 --kinds all-gather,all-reduce");
        assert_eq!(
            tune,
            ["tune", "--devices", "1", "0", "--kinds", "all-gather,all-reduce", "--repeats", "7"]
        );
        assert_eq!(kept(&tune.join(" ")), tune);
        require_repeatable(&tune).expect("a workload");
        for (call, why) in [
            ("hold --write x.json", "measures nothing"),
            ("memory-put --json x.json", "--json has no place"),
            ("memory-put --rank 0 --address h:1", "--rank has no place"),
            ("memory-put --no-such-option", "--no-such-option"),
            ("no-such-workload", "no-such-workload"),
        ] {
            let words: Vec<_> = call.split(' ').map(str::to_owned).collect();
            let problem = require_repeatable(&words).expect_err(why);
            assert!(problem.contains(why), "{problem}");
        }
    }

    #[test]
    fn every_other_option_counts() {
        for (call, other) in [
            ("memory-put", "memory-get"),
            ("memory-put --iters 5", "memory-put --iters 7"),
            ("memory-put --warmup 0", "memory-put"),
            ("signal-pingpong --relaxed", "signal-pingpong"),
            ("ethernet-bw --connections 1,3", "ethernet-bw --connections 1"),
        ] {
            assert_ne!(of(call), of(other));
        }
    }
}
