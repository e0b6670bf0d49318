//! `all-reduce`, `all-gather`, `reduce-scatter` and `all-to-all`: calls of the library's collectives between processes, in
//! a graph that is replayed, and NCCL's in turns with them. Sizes are counted as by nccl-tests.

mod numbers;
mod side;
mod task;
mod tune;
mod what;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use mscclpp_collectives::{
    Collectives, CollectivesBuilder, Devices, Protocol, Query, Selection, Selector, Tuned,
};

pub(crate) use self::{
    numbers::Numbers,
    side::{Calls, Side},
    task::{ResultPlace, Task},
    tune::{Options as TuneOptions, tune},
    what::What,
};
use crate::{
    nccl::{self, Compare},
    prelude::*,
    report::{Measured, Nccl},
    sizes::parse_bytes,
};
use side::{ours, us_of_a_call};

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    messages: Messages,
    /// The protocol of the messages, one row each [default: the library's selection].
    #[arg(long, value_delimiter = ',', value_parser = parse_protocol)]
    protocols: Vec<Protocol>,
    /// The blocks of a call, one row each [default: the library's selection].
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1024))]
    blocks: Vec<u32>,
    /// The threads of a block, one row each [default: the library's choice].
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(32..=1024))]
    threads: Vec<u32>,
    /// The number of calls that can run on a device at the same time; with 1, a call may use the whole device.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=32))]
    calls_at_once: u32,
    /// Registers the memory of the library's calls, so that peers write into it.
    #[arg(long)]
    registered: bool,
    /// Registers the memory like --registered, as symmetric memory, so that copy engines write into it.
    #[arg(long)]
    symmetric: bool,
    /// Makes each call by itself instead of in graphs: rows then show the host's time for a call, if that is longer.
    #[arg(long)]
    eager: bool,
    #[command(flatten)]
    common: Common,
    /// The place of the result, one row each: out of place, or in place.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [ResultPlace::Out])]
    place: Vec<ResultPlace>,
    /// The number of ranks. With 1, a single device suffices to see that everything works. Sizes are rounded down to
    /// multiples that the ranks can share evenly.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=32))]
    ranks: u8,
    /// Prints on standard error what each rank is doing, and ends the run after this many seconds with an error that says
    /// what it was doing.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u16).range(1..))]
    watch: Option<u16>,
    /// The transport between ranks on different nodes: Ethernet, or IB0 to IB7.
    #[arg(long, default_value_t = Transport::ETHERNET, value_name = "TRANSPORT")]
    between_nodes: Transport,
    /// The number of connections that carry data between nodes [default: the library's].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=16))]
    connections: Option<u32>,
    #[command(flatten)]
    compare: Compare,
}

/// The options of every workload with collectives.
#[derive(Args, Clone, Copy)]
struct Common {
    /// The device memory of a rank's communicator: bytes, or a number followed by K, M or G [default: the library's].
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    scratch: Option<u64>,
    /// The number of calls in a graph.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    calls: u32,
    /// The type of the numbers.
    #[arg(long, value_enum, default_value_t)]
    dtype: Numbers,
    /// The seconds after which a call that has not ended is an error.
    #[arg(long, default_value_t = 120, value_name = "SECONDS", value_parser = clap::value_parser!(u16).range(1..))]
    limit: u16,
}

impl Common {
    fn builder(&self, builder: CollectivesBuilder) -> CollectivesBuilder {
        self.scratch.into_iter().fold(builder, CollectivesBuilder::scratch)
    }

    fn limit(&self) -> Duration {
        Duration::from_secs(self.limit.into())
    }
}

/// Parses a protocol by the name that rows have for it.
fn parse_protocol(text: &str) -> Result<Protocol, String> {
    let found = Protocol::ALL.into_iter().find(|protocol| protocol.to_string() == text);
    found
        .ok_or_else(|| format!("there are {}", Protocol::ALL.map(|protocol| protocol.to_string()).join(", ")))
}

/// The selections of the user; the library chooses the rest.
#[derive(Debug, Clone, Copy, Default)]
struct Asked {
    protocol: Option<Protocol>,
    blocks: Option<u32>,
    threads: Option<u32>,
}

/// Chooses as the user asked, and notes whether the library's selections were predictions.
#[derive(Debug, Clone)]
struct Chooser {
    asked: Asked,
    predicted: Arc<AtomicBool>,
}

impl Selector for Chooser {
    fn choose(&self, query: &Query) -> Selection {
        if query.devices != Devices::Sim && !Tuned::is_measured(query) {
            self.predicted.store(true, Ordering::Relaxed);
        }
        let (tuned, asked) = (Tuned.choose(query), self.asked);
        let protocol = asked.protocol.unwrap_or(tuned.protocol);
        let blocks = asked.blocks.unwrap_or(tuned.blocks);
        let threads = asked.threads.unwrap_or_else(|| tuned.threads_in(blocks));
        Selection { protocol, blocks, threads, ..tuned }
    }
}

pub(crate) fn run(what: What, options: &Options, joining: &Joining, table: &mut Table) -> Result<()> {
    let on_sim = Platform::detect_or_sim()? == Platform::Sim;
    let library = options.compare.open(on_sim)?;
    let default = match on_sim {
        true => Sizes { begin: 1 << 10, end: 64 << 10, factor: 8 },
        false => Sizes { begin: 1 << 10, end: 1 << 30, factor: 4 },
    };
    let (Messages { sizes, measuring }, numbers) = (&options.messages, options.common.dtype);
    let ranks = u64::from(options.ranks);
    let sizes = sizes.or(default, numbers.size())?.in_units_of(numbers.size() * ranks);
    table.progress.watch(options.watch.map(|limit| Duration::from_secs(limit.into())));
    table.progress.part("meeting the other ranks");
    let pair = measuring.join(options.ranks.into(), joining)?;

    let limit = options.common.limit();
    let largest =
        options.place.iter().map(|place| Task::room(what, *place, sizes.end, ranks)).max().unwrap_or(0);
    // The memory is dropped after NCCL's communicator, which remembers it.
    let memory = pair.gpu.allocate(largest)?;
    if library.is_some() {
        table.progress.part("setting up NCCL");
    }
    let comm = library.as_ref().map(|library| nccl::Comm::join(library, &pair, limit)).transpose()?;
    let windows = comm.as_ref().map(|comm| nccl::Windows::new(comm, &pair, largest)).transpose()?;
    let nccl = comm.as_ref().zip(windows.as_ref());

    let all = asked(options);
    let predicted = Arc::new(AtomicBool::new(false));
    let cells = all.len() * options.place.len() * sizes.count();
    for (n, asked) in all.into_iter().enumerate() {
        let chooser = Chooser { asked, predicted: Arc::clone(&predicted) };
        let builder = Collectives::builder(&pair.ranks.comm, &pair.gpu).calls_at_once(options.calls_at_once);
        let builder = builder.overlap(asked.protocol == Some(Protocol::SimpleByBulk));
        let builder = builder.between_nodes(options.between_nodes);
        let builder = options.connections.into_iter().fold(builder, CollectivesBuilder::connections);
        let builder = asked.blocks.into_iter().fold(builder, CollectivesBuilder::max_blocks);
        let builder = options.common.builder(builder);
        table.progress.part("setting up the library's collectives");
        let collectives = builder.selector(chooser).connect()?;
        if n == 0 {
            let transport =
                if collectives.n_nodes() > 1 { options.between_nodes } else { Transport::CUDA_IPC };
            table.begin(pair.machine(transport), cells)?;
        }
        let _registered = match (options.symmetric, options.registered) {
            (true, _) => Some(collectives.register_symmetric(&memory)?),
            (false, true) => Some(collectives.register(&memory)?),
            (false, false) => None,
        };
        let bench =
            Bench { what, options, limit, pair: &pair, collectives: &collectives, memory: &memory, nccl };
        for place in &options.place {
            for bytes in sizes.iter() {
                let row = bench.row(table, *place, bytes)?;
                table.push(row)?;
            }
        }
        // No rank frees the memory while another rank's calls use it.
        pair.ranks.meet()?;
    }
    let timed = match options.eager {
        true => "calls one after the other".to_owned(),
        false => format!("graphs of {} calls", options.common.calls),
    };
    table.note(format!(
        "sums and moves of random {}; sizes, algorithm and bus bandwidth as in nccl-tests",
        crate::call::name_of(&numbers)
    ));
    table.note(format!("{timed}, timed by the device's events; the result compared for each time"));
    if predicted.load(Ordering::Relaxed) {
        table.note(
            "what the library chooses for these devices is a prediction; the workload `tune` measures it",
        );
    }
    if let Some((comm, windows)) = nccl {
        table.note(comm.note());
        table.note(windows.note());
    }
    pair.ranks.meet()
}

/// A selection in the words of the table: `ll128 64x256`, or `ll128, two steps, 64x256`.
fn variant(selection: Selection) -> String {
    let steps = if selection.two_steps { ", two steps," } else { "" };
    format!("{}{steps} {}x{}", selection.protocol, selection.blocks, selection.threads)
}

/// All combinations of the options.
fn asked(options: &Options) -> Vec<Asked> {
    fn each<T: Copy>(of: &[T]) -> Vec<Option<T>> {
        if of.is_empty() { vec![None] } else { of.iter().copied().map(Some).collect() }
    }
    let (protocols, blocks, threads) =
        (each(&options.protocols), each(&options.blocks), each(&options.threads));
    let shapes = blocks.iter().flat_map(|&blocks| threads.iter().map(move |&threads| (blocks, threads)));
    let shapes: Vec<_> = shapes.collect();
    let of = |protocol| move |&(blocks, threads)| Asked { protocol, blocks, threads };
    protocols.into_iter().flat_map(|protocol| shapes.iter().map(of(protocol))).collect()
}

struct Bench<'a> {
    what: What,
    options: &'a Options,
    limit: Duration,
    pair: &'a Pair,
    collectives: &'a Collectives,
    memory: &'a DeviceBuffer,
    nccl: Option<(&'a nccl::Comm<'a>, &'a nccl::Windows<'a>)>,
}

impl Bench<'_> {
    fn row(&self, table: &mut Table, place: ResultPlace, bytes: u64) -> Result<Row> {
        let Self { what, options, pair, memory, .. } = *self;
        let (measuring, Common { dtype: numbers, calls: of_a_graph, .. }) =
            (&options.messages.measuring, options.common);
        table.progress.part(&format!("{} of {bytes} B", what.name()));
        let task = Task::random(what, numbers, place, bytes, &pair.ranks)?;
        task.load(memory)?;
        let nodes = self.collectives.n_nodes();
        let stopwatch = Stopwatch::of_others(pair, self.limit, |reason| {
            self.collectives.abort(reason);
            if let Some((comm, _)) = self.nccl {
                comm.abort();
            }
        })?;
        let most = measuring.rounds(pair, bytes);
        let calls = if nodes > 1 && measuring.iters.is_none() {
            table.progress.step("the first calls of the library, of that size", 0.0);
            let us = us_of_a_call(self.collectives, &task, memory, &stopwatch)?;
            Calls::that_take(us, most, of_a_graph, options.eager)
        } else {
            Calls::new(most, of_a_graph, options.eager)
        };
        let selection = self.collectives.selection(&task.request(memory.ptr()))?;
        let mut sides = vec![ours(self.collectives, &task, memory, calls, stopwatch.stream())?];
        // NCCL has no all_to_all in place.
        let nccl = self.nccl.filter(|_| (what, place) != (What::AllToAll, ResultPlace::In));
        if let Some((comm, windows)) = nccl {
            sides.push(comm.side("NCCL", (memory, memory.ptr()), &task, calls, &stopwatch)?);
            if let Some(window) = windows.memory() {
                task.load(window)?;
                let place = (window as _, window.ptr());
                sides.push(comm.side("NCCL with windows", place, &task, calls, &stopwatch)?);
            }
        }
        let on_nodes = || if nodes > 1 { format!("{nodes} nodes") } else { "copy".to_owned() };
        let variant = selection.map_or_else(on_nodes, variant);
        let variant = if place == ResultPlace::In { format!("{variant}, in place") } else { variant };
        let contender = |side| Side::contender(side, variant.clone(), calls.rounds, &task, &stopwatch);
        let contenders = sides.iter().map(contender).collect();
        let mut measured = table
            .measure_in_turns(measuring.repeats, Some(&pair.ranks), contenders)?
            .into_iter()
            .map(|(row, _)| row);
        let row = measured.next().ok_or("the library is always measured")?;
        let mut of_nccl = || measured.next().map(|row| Measured { times: row.times });
        Ok(Row {
            blocks: selection.map(|selection| selection.blocks),
            nccl: self.nccl.map(|_| Nccl { plain: of_nccl(), windows: of_nccl() }),
            ..row
        })
    }
}
