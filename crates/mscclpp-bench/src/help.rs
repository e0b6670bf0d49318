//! Completes the help of each workload: the columns of its rows, and the defaults of options that several workloads share.

use clap::{Arg, Command};

/// A workload, and the defaults of some of its options.
type Own = (&'static str, &'static [(&'static str, &'static str)]);

const ROUNDS: &str =
    "1000, fewer of large messages; 20 on simulated devices, 10 where both ranks are on one GPU";
const ONE_ELEMENT_OF_4: &[(&str, &str)] =
    &[("begin", "4"), ("end", "4, or --begin"), ("factor", "2"), ("iters", ROUNDS)];
const ONE_ELEMENT_OF_8: &[(&str, &str)] =
    &[("begin", "8"), ("end", "8, or --begin"), ("factor", "2"), ("iters", ROUNDS)];
const END: &str = "128M, 64K on simulated devices";
const MEMORY: &[(&str, &str)] =
    &[("begin", "1K"), ("end", END), ("factor", "1024, 8 on simulated devices"), ("iters", ROUNDS)];

const OWN: &[Own] = &[
    ("ll8-pingpong", ONE_ELEMENT_OF_4),
    ("ll16-pingpong", ONE_ELEMENT_OF_8),
    ("memory-put", MEMORY),
    ("memory-get", MEMORY),
    ("memory-put-packets", MEMORY),
    (
        "port-put",
        &[
            ("begin", "1K"),
            ("end", END),
            ("factor", "1024, 4 with --in-kernel, 8 on simulated devices"),
            ("iters", ROUNDS),
        ],
    ),
    ("port-pingpong", ONE_ELEMENT_OF_4),
    ("port-packet-pingpong", ONE_ELEMENT_OF_8),
    (
        "ethernet-bw",
        &[
            ("begin", "64M"),
            ("end", "64M, or --begin"),
            ("factor", "2"),
            ("iters", "as many as 1 GiB takes, at most 1000"),
        ],
    ),
    (
        "ib-bw",
        &[
            ("begin", "64K"),
            ("end", "64K, or --begin"),
            ("factor", "2"),
            ("iters", "as many as 1 GiB takes, at most 5000"),
        ],
    ),
    ("ib-lat", &[("iters", "1000")]),
];

/// Printed below the help of the program and of each workload.
pub(crate) const COLUMNS: &str = "\
Columns:
  platform  cuda; host: devices simulated on the CPU; cpu: no device involved
  workload, variant
            what ran; for memory workloads the kind of packet and the roles of the blocks, the kind of
            barriers, blocks x threads
  size      the size of the message that a side sends; in other workloads the number of rounds, ranks or
            threads, or milliseconds without work; exact in the JSON
  rounds    how many rounds were timed together
  unit      the unit of all times in the row
  median, min, max
            the time of one round, over all measurements (for ll8-, ll16- and signal-pingpong the time of one hop,
            which is half a round)
  algbw     algorithm bandwidth in GB/s: the size divided by the median
  busbw     bus bandwidth in GB/s: the load on one direction of the link. Each side sends its size to the other, so
            it equals algbw; the flags of packets do not count
  baseline  the reference implementation on two H200 of one host; for ethernet-bw, the plain socket of this run;
            for ib-bw and ib-lat, the bare verbs of this run; for launches, the driver's call of this run
  goal      what this project aims at; baseline and goal are given only where the row is comparable
  check     ok, or FAILED if data or signals were wrong: then there are no times, and the program exits with 1";

/// `command` with the columns in the help of each workload, and its own defaults.
pub(crate) fn complete(command: Command) -> Command {
    let mut command = command.mut_subcommands(|it| match it.get_name() {
        "doctor" | "plot" => it,
        _ => it.after_help(COLUMNS),
    });
    for &(workload, defaults) in OWN {
        command = command.mut_subcommand(workload, |mut workload| {
            for &(option, default) in defaults {
                workload = workload.mut_arg(option, |option| with_default(option, default));
            }
            workload
        });
    }
    command
}

fn with_default(option: Arg, default: &str) -> Arg {
    let help = option.get_help().map(ToString::to_string).unwrap_or_default();
    option.help(format!("{help} [default: {default}]"))
}
