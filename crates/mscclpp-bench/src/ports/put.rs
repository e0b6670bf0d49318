//! `port-put`: both devices put to each other at once, one thread each: signal, wait, put with signal, wait.

use std::borrow::Cow;

use clap::Args;
use mscclpp::prelude::*;

use super::{Carriage, Common, Ports};
use crate::{
    Result,
    kernels::PORT_BENCH,
    launches::Launches,
    measuring::{Messages, Subject},
    pair::Pair,
    progress::Progress,
    ranks::Joining,
    report::{Row, SizeOf},
    sizes::Sizes,
    table::Table,
};

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    common: Common,
    /// Run all rounds in one launch, instead of a launch for each.
    #[arg(long)]
    in_kernel: bool,
    #[command(flatten)]
    carriage: Carriage,
}

const WORKLOAD: &str = "port-put";

pub(crate) fn put(options: &Options, joining: &Joining, table: &mut Table) -> Result<()> {
    let Options { common, in_kernel, carriage: Carriage { carrier, tuning } } = options;
    // Wrong sizes are reported before there is a second process, which would report them again.
    let default = match Platform::detect_or_sim()? {
        Platform::Sim => Sizes { begin: 1 << 10, end: 64 << 10, factor: 8 },
        _ if *in_kernel => Sizes { begin: 1 << 10, end: 128 << 20, factor: 4 },
        _ => Sizes { begin: 1 << 10, end: 128 << 20, factor: 1 << 10 },
    };
    let Messages { sizes, measuring } = &common.messages;
    let sizes = sizes.or(default, 1)?;
    let pair = Pair::join(2, &measuring.devices, |platform| tuning.context(platform), joining)?;
    let module = Module::load(&pair.gpu, &PORT_BENCH)?;
    let kernel = module.kernel("port_put")?;
    let ports = Ports::new(&pair, common, *carrier, sizes.end)?;
    let bench = Bench { options, pair: &pair, kernel, ports: &ports };

    table.begin(pair.machine(carrier.transport()), sizes.count() * measuring.launches())?;
    let mut notes = vec![
        match in_kernel {
            true => "one round, two processes with a thread and a proxy each; the rounds in one launch; timed by the \
                     device's events"
                .to_owned(),
            false => "one round, two processes with a thread and a proxy each; a launch is a round, in a graph of as \
                      many launches as there are rounds, or of 1000 that is replayed; timed by the device's events"
                .to_owned(),
        },
        "random data, compared on both sides for each time".to_owned(),
    ];
    for bytes in sizes.iter() {
        let before = ports.service.stats();
        let row = bench.row(&mut table.progress, bytes).map_err(|error| ports.explain(error))?;
        notes.push(ports.remark(&SizeOf::Bytes.show(bytes), &before));
        table.push(row)?;
    }
    ports.finish(&pair, table, notes)
}

struct Bench<'a> {
    options: &'a Options,
    pair: &'a Pair,
    kernel: Kernel,
    ports: &'a Ports<'a>,
}

impl Bench<'_> {
    fn row(&self, progress: &mut Progress, bytes: u64) -> Result<Row> {
        let Self { options: Options { common, in_kernel, .. }, pair, kernel, ports } = self;
        let measuring = &common.messages.measuring;
        let rounds = measuring.rounds(pair, bytes);
        let [mine, expected] = pair.ranks.random_messages(bytes)?;
        ports.source.write(0, &mine)?;

        let of_a_launch = if *in_kernel { rounds } else { 1 };
        let args = KernelArgs::new()
            .with(ports.channel.device_handle())
            .with(0u64)
            .with(0u64)
            .with(bytes)
            .with(of_a_launch as i32)
            .with(ports.stopwatch.failed());
        // SAFETY: these are the kernel's arguments. The stopwatch is dropped before the memory that the kernels use, and
        // waits for the kernels' end.
        let launch = |stream: &Stream| unsafe { kernel.launch(stream, LaunchConfig::linear(1, 1), &args) };
        let launches = Launches::capture(ports.stopwatch.stream(), rounds / of_a_launch, launch)?;
        let variant = if *in_kernel { "in kernel" } else { "launches" };
        ports.arrival().row(
            measuring,
            progress,
            Subject::of_launches(WORKLOAD, variant.to_owned(), bytes, rounds, launches.count()),
            // SAFETY: as above.
            |stream, _, range| unsafe { launches.submit(stream, range) },
            |_| Cow::Borrowed(&expected),
        )
    }
}
