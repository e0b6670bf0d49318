//! What a rank was started with, as text that two ranks compare.

use clap::{Arg, ArgMatches, Command, ValueEnum, parser::ValueSource};

/// Options that are each rank's own. Of those with a value for each rank, a rank started by hand uses only its own value.
const OWN: [&str; 6] = ["rank", "address", "gpu", "devices", "transports", "json"];

/// The workload and its options, in the order in which the program declares them. What is each rank's own is left out, and
/// so is what says no more than the default.
pub(crate) fn text(program: &Command, matches: &ArgMatches) -> String {
    let Some((workload, matches)) = matches.subcommand() else { return String::new() };
    let known = program.find_subcommand(workload).into_iter().flat_map(Command::get_arguments);
    let options = known.filter(|option| !OWN.contains(&option.get_id().as_str()));
    let given: String = options.filter_map(|option| given(option, matches)).collect();
    format!("{workload}{given}")
}

/// A value as the command line has it.
pub(crate) fn name_of(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// An option with its values, behind a space.
fn given(option: &Arg, matches: &ArgMatches) -> Option<String> {
    let id = option.get_id().as_str();
    if matches.value_source(id) != Some(ValueSource::CommandLine) {
        return None;
    }
    let name = option.get_long().unwrap_or(id);
    if !option.get_action().takes_values() {
        return Some(format!(" --{name}"));
    }
    let values: Vec<_> = matches.get_raw(id)?.collect();
    if values == option.get_default_values() {
        return None;
    }
    let values: Vec<_> = values.iter().map(|value| value.to_string_lossy()).collect();
    let between = option.get_value_delimiter().unwrap_or(' ').to_string();
    Some(format!(" --{name} {}", values.join(&between)))
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
