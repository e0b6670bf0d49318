//! Completes the help of each workload: the columns of its rows, and the defaults of options that several workloads share.

use clap::{Arg, Command};

/// A workload, and its defaults of the options `begin`, `end`, `factor` and `iters`.
type Own = (&'static str, [&'static str; 4]);

const OPTIONS: [&str; 4] = ["begin", "end", "factor", "iters"];
const ROUNDS: &str =
    "1000, fewer of large messages; 20 on simulated devices, 10 where both ranks are on one GPU";
const ELEMENT_OF_4: [&str; 4] = ["4", "4, or --begin", "2", ROUNDS];
const ELEMENT_OF_8: [&str; 4] = ["8", "8, or --begin", "2", ROUNDS];
const END: &str = "128M, 64K on simulated devices";
const MEMORY: [&str; 4] = ["1K", END, "1024, 8 on simulated devices", ROUNDS];

const COLLECTIVE: [&str; 4] =
    ["1K", "1G, 64K on simulated devices", "4, 8 on simulated devices", ROUNDS_OF_COLLECTIVES];
const ROUNDS_OF_COLLECTIVES: &str = "1000, fewer of large messages; 20 on simulated devices, 10 where ranks share a GPU; between nodes no more \
     than take 0.1 s";

const OWN: [Own; 15] = [
    ("ll8-pingpong", ELEMENT_OF_4),
    ("ll16-pingpong", ELEMENT_OF_8),
    ("memory-put", MEMORY),
    ("memory-get", MEMORY),
    ("memory-put-packets", MEMORY),
    ("port-put", ["1K", END, "1024, 4 with --in-kernel, 8 on simulated devices", ROUNDS]),
    ("port-pingpong", ELEMENT_OF_4),
    ("port-packet-pingpong", ELEMENT_OF_8),
    ("all-reduce", COLLECTIVE),
    ("all-gather", COLLECTIVE),
    ("reduce-scatter", COLLECTIVE),
    ("all-to-all", COLLECTIVE),
    (
        "tune",
        [
            "1K",
            "1G, 64M with --quick, 16K on simulated devices",
            "2, 4 with --quick or on simulated devices",
            "200, fewer of large messages; 1 on simulated devices",
        ],
    ),
    ("ethernet-bw", ["64M", "64M, or --begin", "2", "as many as 1 GiB takes, at most 1000"]),
    ("ib-bw", ["64K", "64K, or --begin", "2", "as many as 1 GiB takes, at most 5000"]),
];

/// The workloads that have only the last of these options, with its default.
const ROUNDS_OF_OTHERS: [(&str, &str); 3] =
    [("ib-lat", "1000"), ("experts", ROUNDS), ("all-reduce-rmsnorm", ROUNDS)];

const MEMORIES: &[&str] = &["memory-put", "memory-get", "memory-put-packets"];
const HOPS: &[&str] = &["ll8-pingpong", "ll16-pingpong", "signal-pingpong"];
const COLLECTIVES: &[&str] =
    &["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "tune", "all-reduce-rmsnorm"];
const COMPARED: &[&str] = &["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "experts"];
const BESIDE: &[&str] = &["ethernet-bw", "ib-bw", "ib-lat", "launches", "experts"];
/// The workloads whose size is no message's.
const OTHER_SIZES: &[&str] = &["signal-pingpong", "fifo", "launches", "proxy-idle", "bootstrap"];

/// The columns of the table: a paragraph for each, and the workloads that it is for; all, if none are named.
const COLUMNS: [(&str, &[&str]); 14] = [
    ("  platform  cuda; sim: devices simulated on the CPU; cpu: no device involved", &[]),
    ("  workload, variant\n            what ran", &[]),
    (
        "            for memory workloads the kind of packet and the roles of the blocks, the kind of\n            barriers, blocks x \
         threads",
        MEMORIES,
    ),
    ("            for collectives the protocol, blocks x threads", COLLECTIVES),
    ("  size      the size of the message that a side sends; exact in the JSON", &[]),
    (
        "            for signals, the FIFO, launches, the proxy and the bootstrap, the number of rounds, threads or ranks,\n            \
         or milliseconds without work",
        OTHER_SIZES,
    ),
    (
        "  rounds    how many rounds were timed together\n  unit      the unit of all times in the row\n  median, min, max\n            \
         the time of one round, over all measurements",
        &[],
    ),
    ("            for ll8-, ll16- and signal-pingpong the time of one hop, which is half a round", HOPS),
    ("  algbw     algorithm bandwidth in GB/s: the size divided by the median", &[]),
    (
        "  busbw     bus bandwidth in GB/s: the load on one direction of the link. Each side sends its size to the other, so\n            \
         it equals algbw; the flags of packets do not count. For collectives it is counted as in nccl-tests",
        &[],
    ),
    (
        "  per SM    for collectives, algbw divided by the blocks of a call, each of which takes a multiprocessor",
        COLLECTIVES,
    ),
    (
        "  NCCL, windows, ratio\n            with --compare, NCCL's medians with plain memory and with registered windows, and the better of \
         them divided by\n            the row's own: above 1 this library is faster",
        COMPARED,
    ),
    (
        "  baseline  for ethernet-bw, the plain socket of this run; for ib-bw and ib-lat, the bare verbs of this run; for\n            \
         launches, the driver's call of this run; for experts, the collectives of this run\n  goal      the time that this project aims at, computed from the baseline; `hold \
         --baseline FILE` shows goals of other rows",
        BESIDE,
    ),
    (
        "  check     ok, or FAILED if data or signals were wrong: then there are no times, and the program exits with 1;\n            \
         NCCL FAILED if only NCCL's results were",
        &[],
    ),
];

/// The columns, as they are printed below the help of a workload, or of the program.
pub(crate) fn columns(workload: Option<&str>) -> String {
    let is_due = |of: &[&str]| of.is_empty() || workload.is_none_or(|workload| of.contains(&workload));
    let due = COLUMNS.iter().filter(|(_, of)| is_due(of)).map(|(text, _)| *text);
    std::iter::once("Columns:").chain(due).collect::<Vec<_>>().join("\n")
}

/// Adds to `command` the columns in the help of each workload, and the workload's own defaults.
pub(crate) fn complete(command: Command) -> Command {
    let mut command = command.mut_subcommands(|it| match it.get_name() {
        "doctor" | "plot" | "hold" => it,
        workload => {
            let columns = columns(Some(workload));
            it.after_help(columns)
        }
    });
    for (workload, defaults) in OWN {
        command = command.mut_subcommand(workload, |workload| {
            let own = OPTIONS.into_iter().zip(defaults);
            own.fold(workload, |it, (option, default)| it.mut_arg(option, |it| with_default(it, default)))
        });
    }
    for (workload, rounds) in ROUNDS_OF_OTHERS {
        command =
            command.mut_subcommand(workload, |it| it.mut_arg("iters", |option| with_default(option, rounds)));
    }
    // So many candidates are measured that the best of them need few repeats.
    for (workload, option, default) in
        [("tune", "repeats", "3"), ("launches", "warmup", "5"), ("launches", "repeats", "51")]
    {
        command = command.mut_subcommand(workload, |it| it.mut_arg(option, |it| it.default_value(default)));
    }
    command
}

fn with_default(option: Arg, default: &str) -> Arg {
    let help = option.get_help().map(ToString::to_string).unwrap_or_default();
    option.help(format!("{help} [default: {default}]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workload_has_the_columns_of_its_rows_alone() {
        let of = |workload| columns(Some(workload));
        assert!(
            of("all-reduce").contains("with --compare") && !of("all-reduce").contains("roles of the blocks")
        );
        assert!(
            of("memory-put").contains("roles of the blocks") && !of("memory-put").contains("NCCL, windows")
        );
        assert!(
            of("bootstrap").contains("milliseconds without work") && !of("bootstrap").contains("baseline")
        );
        let all = columns(None);
        assert!(COLUMNS.iter().all(|(text, _)| all.contains(text)));
        // Every workload that is named exists.
        let named = COLUMNS.iter().flat_map(|(_, of)| *of);
        let program = <crate::Arguments as clap::CommandFactory>::command();
        named.for_each(|name| assert!(program.find_subcommand(name).is_some(), "{name}"));
    }
}
