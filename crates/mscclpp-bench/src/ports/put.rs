//! `port-put`: both devices put to each other at once, one thread each: signal, wait, put with signal, wait.

use std::borrow::Cow;

use super::{Carriage, Common, Ports};
use crate::{kernels::PORT_BENCH, prelude::*};

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

pub(crate) fn put(options: &Options, joining: &Joining, table: &mut Table) -> Result<()> {
    let Options { common, in_kernel, carriage: Carriage { transport, tuning } } = options;
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
    let ports = Ports::new(&pair, common, *transport, sizes.end)?;

    table.begin(pair.machine(*transport), sizes.count())?;
    table.note(if *in_kernel {
        "one round, two processes with a thread and a proxy each; the rounds in one launch; timed by the device's events"
    } else {
        "one round, two processes with a thread and a proxy each; a launch is a round, in a graph of as many launches as \
         there are rounds, or of 1000 that is replayed; timed by the device's events"
    });
    table.note("random data, compared on both sides for each time");
    let measure = |table: &mut Table, bytes: u64| {
        let rounds = measuring.rounds(&pair, bytes);
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
        let launches = unsafe {
            let launch = |stream: &Stream| Ok(kernel.launch(stream, LaunchConfig::linear(1, 1), &args)?);
            Launches::capture(ports.stopwatch.stream(), rounds / of_a_launch, OF_A_GRAPH, launch)?
        };
        let once = ports.arrival().once(
            launches.count(),
            |stream, _, range| launches.submit(stream, range),
            |_| Cow::Borrowed(&expected),
        );
        let variant = if *in_kernel { "in kernel" } else { "launches" };
        let row = Row::new("port-put", variant, (bytes, SizeOf::Bytes), rounds);
        table.measure(measuring.repeats, &pair.ranks, Contender::new(row, once))
    };
    for bytes in sizes.iter() {
        let before = ports.service.stats();
        let row = measure(table, bytes).map_err(|error| ports.explain(error))?;
        table.note(ports.remark(&SizeOf::Bytes.show(bytes), &before));
        table.push(row)?;
    }
    ports.finish(&pair)
}
