//! `ethernet-bw`: one process puts into the other's memory over Ethernet connections. A plain socket sends as many bytes in
//! the same run, for comparison.

mod socket;

use self::socket::PlainSocket;
use crate::{
    ethernet::Tuning,
    machine::{Machine, UsedDevice},
    one_way::{Named, OneWay},
    prelude::*,
    puts::Puts,
};

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    messages: Messages,
    /// Put from one device's memory to the other's, instead of from host memory to host memory.
    #[arg(long)]
    device_memory: bool,
    /// The number of connections that share each message; several numbers give one row each.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1",
        value_parser = clap::value_parser!(u32).range(1..=64))]
    connections: Vec<u32>,
    #[command(flatten)]
    tuning: Tuning,
}

const TRANSPORT: Transport = Transport::ETHERNET;
const DEFAULT: Sizes = Sizes { begin: 64 << 20, end: 64 << 20, factor: 2 };
const MOST_ROUNDS: u32 = 1000;
/// The size from which messages count as large; and the time that one connection should take with them: the plain socket's,
/// divided by the part of its bandwidth that is the goal.
const LARGE: u64 = 64 << 20;
const GOAL: Goal = |plain| plain / 0.9;
const GOAL_OF_GPUS: Goal = |plain| plain / 0.8;

pub(crate) fn run(options: &Options, joining: &Joining, table: &mut Table) -> Result<()> {
    let Messages { sizes, measuring } = &options.messages;
    let sizes = sizes.or(DEFAULT, 1)?;
    let most = sizes.end;
    let numbers = || options.connections.iter().copied();
    if options.device_memory {
        let pair = Pair::join(2, &measuring.devices, |platform| options.tuning.context(platform), joining)?;
        let puts =
            numbers().map(|n| Puts::between_gpus(&pair, TRANSPORT, n, most)).collect::<Result<Vec<_>>>()?;
        let goal = pair.is_of_two_gpus().then_some(GOAL_OF_GPUS);
        measure(options, &pair.ranks, sizes, ("GPU to GPU", goal), &puts, &pair.devices, table)
    } else {
        measuring.require_no_devices(
            joining,
            "choose devices for --device-memory; from host to host there are none",
        )?;
        let ranks = Ranks::join(2, options.tuning.context(Platform::Sim), joining)?;
        let config = EndpointConfig::new(TRANSPORT, Device::CPU);
        let puts =
            numbers().map(|n| Puts::between_nodes(&ranks, &config, n, most)).collect::<Result<Vec<_>>>()?;
        measure(options, &ranks, sizes, ("host to host", Some(GOAL)), &puts, &[], table)
    }
}

/// Measures all transfers. `puts` has one entry for each number of connections, `what` says between which kinds of memory they
/// are, and `goal` is that of one connection.
fn measure(
    options: &Options,
    ranks: &Ranks,
    sizes: Sizes,
    (what, goal): (&str, Option<Goal>),
    puts: &[Puts<'_>],
    devices: &[UsedDevice],
    table: &mut Table,
) -> Result<()> {
    let plain = PlainSocket::new(ranks, sizes.end)?;
    let mut transfers: Vec<Named<'_>> = vec![("plain socket".to_owned(), &plain, None)];
    for (puts, n) in puts.iter().zip(&options.connections) {
        transfers.push((format!("{what} x{n}"), puts, goal.filter(|_| *n == 1)));
    }
    let one_way = OneWay {
        workload: "ethernet-bw",
        ranks,
        measuring: &options.messages.measuring,
        baseline: "the plain socket's",
        most_rounds: MOST_ROUNDS,
        goals_from: LARGE,
    };
    table.note(format!(
        "one way from rank 0 to rank 1, {what}, {}; a time is that of all rounds and one flush behind them, by the sender's \
         clock",
        ranks.way()
    ));
    table.note(
        "plain socket: one connection, writes of 1 MiB, host to host, in turns with the others in the same run; it is the \
         baseline of the rows behind it",
    );
    table.note("random data, compared by the receiver after each time");
    one_way.run(sizes, &transfers, Machine::of(devices, &TRANSPORT.to_string()), table)
}
