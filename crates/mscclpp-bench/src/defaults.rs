//! Adds to each workload's help the defaults of options that several workloads share.

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

/// `command` with the defaults of each workload in its own help.
pub(crate) fn in_help(mut command: Command) -> Command {
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
