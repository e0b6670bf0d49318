//! `signal-pingpong`: two devices signal each other in turns, from inside one kernel each.

use mscclpp::kernels;

use crate::{pair::Devices, prelude::*};

#[derive(Args)]
pub(crate) struct Options {
    /// Run only the pair of calls that orders execution but not memory [default: both pairs].
    #[arg(long)]
    relaxed: bool,
    /// Rounds in a launch; a round is two hops [default: 1000; 20 on simulated devices, 10 where both ranks are on one
    /// GPU].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    iters: Option<u32>,
    /// The number of places in memory that are measured, each by one launch after one that does not count. In addition, the
    /// fastest of as many further places (at most 64) is chosen, and measured by 7 launches.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=400))]
    repeats: u32,
    #[command(flatten)]
    devices: Devices,
}

/// A pair of device functions: its name, its kernel, and the places of the tokens.
struct Variant(&'static str, &'static str, Places);

/// The places of the tokens.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Places {
    /// A new pair of memory pages for each repeat.
    All,
    /// The place at which `Communicator::build_fastest_semaphore` found signals to be fastest.
    Chosen,
}

/// The number of launches that count at the chosen place.
const REPEATS_OF_CHOSEN: usize = 7;

/// The pairs, each followed by the bare instructions, whose time differs between pairs of devices and addresses.
const VARIANTS: [Variant; 6] = [
    Variant("release/acquire", "signal_ping_pong", Places::All),
    Variant("release/acquire, chosen", "signal_ping_pong", Places::Chosen),
    Variant("bare", "bare_ping_pong", Places::All),
    Variant("relaxed", "relaxed_ping_pong", Places::All),
    Variant("relaxed, chosen", "relaxed_ping_pong", Places::Chosen),
    Variant("bare relaxed", "bare_relaxed_ping_pong", Places::All),
];

pub(crate) fn run(options: &Options, joining: &Joining, table: &mut Table) -> Result<()> {
    let pair = Pair::join(2, &options.devices, Context::on, joining)?;
    let module = Module::load(&pair.gpu, &kernels::SIGNAL_PING_PONG)?;
    let iters = options.iters.unwrap_or_else(|| pair.most_rounds());

    let connection = pair.connect(Transport::CUDA_IPC)?;
    let mut semaphores = pair.scattered_semaphores(&connection, options.repeats)?;
    let (other, places_to_try) = (pair.ranks.other(), options.repeats.min(64) as usize);
    let chosen = pair.ranks.comm.build_fastest_semaphore_with(&connection, other, 0, places_to_try)?;
    semaphores.push(chosen);
    let channels = semaphores.iter().map(BaseMemoryChannel::new).collect::<mscclpp::Result<Vec<_>, _>>()?;
    let (chosen, all) = channels.split_last().expect("one was pushed");
    let places = |of: Places| match of {
        Places::All => all.iter().collect(),
        Places::Chosen => vec![chosen; REPEATS_OF_CHOSEN],
    };
    let variants: Vec<_> =
        VARIANTS.iter().filter(|Variant(name, ..)| !options.relaxed || name.contains("relaxed")).collect();
    let stopwatch = Stopwatch::new(&pair, semaphores)?;
    table.begin(pair.machine(Transport::CUDA_IPC), variants.len())?;
    for &Variant(name, kernel, of) in variants {
        let (kernel, places) = (module.kernel(kernel)?, places(of));
        let once = |time: Time| {
            let args = KernelArgs::new()
                .with::<BaseMemoryChannelHandle>(places[time.n % places.len()].device_handle())
                .with(iters as i32)
                .with(i32::from(pair.ranks.rank == 0))
                .with(stopwatch.failed());
            stopwatch.time(1, |stream, _| {
                // SAFETY: these are the kernel's arguments. The stopwatch, dropped before the channels, waits
                // for the kernel's end.
                unsafe { kernel.launch(stream, LaunchConfig::linear(1, 1), &args) }.map_err(Into::into)
            })
        };
        // The first pass over all places does not count: the devices' clocks rise, and each place is touched once.
        let count = places.len() as u32;
        let repeats = Repeats { warmup: count, repeats: count, spoil: false };
        let row = Row::new("signal-pingpong", name, (iters.into(), SizeOf::Rounds), iters);
        let contender =
            Contender { per: 2.0 * f64::from(iters), bus: None, ..Contender::new(row, Box::new(once)) };
        let row = table.measure(repeats, &pair.ranks, contender)?;
        table.push(row)?;
    }
    for note in [
        "one hop, two processes, one thread each; timed by the device's events",
        "each repeat has its tokens in other pages: median, min and max are over places in memory",
        "chosen: at the place that build_fastest_semaphore found, of as many others",
        "before, each place is played as often uncounted",
    ] {
        table.note(note);
    }
    pair.ranks.meet()
}
