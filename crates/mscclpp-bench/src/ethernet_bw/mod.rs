//! `ethernet-bw`: one process puts into the other's memory over Ethernet connections. A plain socket sends as many bytes in
//! the same run, for comparison.

mod socket;

use clap::Args;
use mscclpp::prelude::*;

use self::socket::PlainSocket;
use crate::{
    Result,
    ethernet::Tuning,
    machine::{Machine, UsedDevice},
    measuring::Messages,
    one_way::{Contender, OneWay},
    pair::Pair,
    puts::Puts,
    ranks::{Joining, Ranks},
    sizes::Sizes,
    table::Table,
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
/// The size from which messages count as large; and the part of a plain socket's bandwidth that one connection should reach
/// with them.
const LARGE: u64 = 64 << 20;
const GOAL: f64 = 0.9;
const GOAL_OF_GPUS: f64 = 0.8;

pub(crate) fn run(options: &Options, joining: &Joining, table: &mut Table) -> Result<()> {
    let Messages { sizes, measuring } = &options.messages;
    let sizes = sizes.or(DEFAULT, 1)?;
    let most = sizes.iter().max().unwrap_or(0);
    let numbers = || options.connections.iter().copied();
    if options.device_memory {
        let pair = Pair::join(2, &measuring.devices, |platform| options.tuning.context(platform), joining)?;
        let transfers =
            numbers().map(|n| Puts::between_gpus(&pair, TRANSPORT, n, most)).collect::<Result<Vec<_>>>()?;
        let goal = pair.is_of_two_gpus().then_some(GOAL_OF_GPUS);
        let bench = Bench { options, ranks: &pair.ranks, what: "GPU to GPU", goal };
        bench.run(sizes, &transfers, &pair.devices, table)
    } else {
        if measuring.devices.are_given() || joining.gpu.is_some() {
            return Err(
                "--devices and --gpu choose devices for --device-memory; from host to host there are none"
                    .into(),
            );
        }
        let ranks = Ranks::join(2, options.tuning.context(Platform::Sim), joining)?;
        let config = EndpointConfig::new(TRANSPORT, Device::CPU);
        let transfers =
            numbers().map(|n| Puts::between_nodes(&ranks, &config, n, most)).collect::<Result<Vec<_>>>()?;
        let bench = Bench { options, ranks: &ranks, what: "host to host", goal: Some(GOAL) };
        bench.run(sizes, &transfers, &[], table)
    }
}

struct Bench<'a> {
    options: &'a Options,
    ranks: &'a Ranks,
    /// The kinds of memory between which data is put.
    what: &'static str,
    /// The goal of one connection, as a part of the plain socket's bandwidth.
    goal: Option<f64>,
}

impl Bench<'_> {
    /// Measures all contenders. `puts` has one entry for each number of connections.
    fn run(&self, sizes: Sizes, puts: &[Puts<'_>], devices: &[UsedDevice], table: &mut Table) -> Result<()> {
        let plain = PlainSocket::new(self.ranks, sizes.iter().max().unwrap_or(0))?;
        let mut contenders =
            vec![Contender { variant: "plain socket".to_owned(), transfer: &plain, goal: None }];
        contenders.extend(puts.iter().zip(&self.options.connections).map(|(puts, n)| Contender {
            variant: format!("{} x{n}", self.what),
            transfer: puts,
            goal: self.goal.filter(|_| *n == 1),
        }));
        let one_way = OneWay {
            workload: "ethernet-bw",
            ranks: self.ranks,
            measuring: &self.options.messages.measuring,
            baseline: "the plain socket's",
            most_rounds: MOST_ROUNDS,
            goals_from: LARGE,
        };
        let notes = vec![
            format!(
                "one way from rank 0 to rank 1, {}, {}; a time is that of all rounds and one flush behind them, by the \
                 sender's clock",
                self.what,
                self.ranks.way()
            ),
            "plain socket: one connection, writes of 1 MiB, host to host, in turns with the others in the same run; it \
             is the baseline of the rows behind it"
                .to_owned(),
            "random data, compared by the receiver after each time".to_owned(),
        ];
        let machine = Machine::of(devices, &TRANSPORT.to_string());
        one_way.run(sizes, &contenders, machine, notes, table)
    }
}
