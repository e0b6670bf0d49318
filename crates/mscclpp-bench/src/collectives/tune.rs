//! `tune`: measures which protocol, steps, blocks and threads are fastest for each collective and size, as a table for the
//! library.

mod candidates;
mod table;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use mscclpp_collectives::{Collectives, Protocol, Query, Selection, Selector, Tuned};
use parking_lot::Mutex;

use self::{
    candidates::Candidates,
    table::{Best, best, rust},
};
use super::{Calls, Common, ResultPlace, Side, Task, What, ours, parse_protocol, variant};
use crate::{memory::parse_threads, prelude::*};

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    messages: Messages,
    /// Try fewer sizes, blocks and threads, and begin nothing new after two and a half minutes.
    #[arg(long)]
    quick: bool,
    /// The collectives. An all-to-all is an exchange like an all-gather, for which the library makes the same choice.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_values_t = [What::AllReduce, What::ReduceScatter, What::AllGather]
    )]
    kinds: Vec<What>,
    /// The protocols that are tried [default: all that fit a size].
    #[arg(long, value_delimiter = ',', value_parser = parse_protocol)]
    protocols: Vec<Protocol>,
    /// The numbers of blocks that are tried [default: up to 256, 4 on simulated devices].
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1024))]
    blocks: Vec<u32>,
    /// The numbers of threads of a block that are tried, multiples of 32 [default: up to 1024, 64 on simulated devices].
    #[arg(long, value_delimiter = ',', value_parser = parse_threads)]
    threads: Vec<u32>,
    /// The number of ranks. Sizes are rounded down to multiples that the ranks can share evenly.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(2..=32))]
    ranks: u8,
    #[command(flatten)]
    common: Common,
    /// Report everything that was measured, instead of only the best of each size.
    #[arg(long)]
    all: bool,
}

/// The bytes that the calls of a time move by default, and the most calls in a time.
const BYTES_OF_A_TIME: u64 = 4 << 30;
const MOST_ROUNDS: u64 = 200;
/// The time after which a quick run begins nothing new.
const QUICK: Duration = Duration::from_secs(150);

pub(crate) fn tune(options: &Options, joining: &Joining, table: &mut Table) -> Result<()> {
    let on_sim = Platform::detect_or_sim()? == Platform::Sim;
    let default = match (on_sim, options.quick) {
        (true, _) => Sizes { begin: 1 << 10, end: 16 << 10, factor: 4 },
        (false, true) => Sizes { begin: 1 << 10, end: 64 << 20, factor: 4 },
        (false, false) => Sizes { begin: 1 << 10, end: 1 << 30, factor: 2 },
    };
    let (Messages { sizes, measuring }, numbers) = (&options.messages, options.common.dtype);
    let ranks = u64::from(options.ranks);
    let sizes = sizes.or(default, numbers.size())?.in_units_of(numbers.size() * ranks);
    let pair = measuring.join(ranks as usize, joining)?;
    let candidates = options.candidates(on_sim);

    let trial = Trial::default();
    let most = candidates.blocks.iter().max().copied().unwrap_or(1);
    let builder = Collectives::builder(&pair.ranks.comm, &pair.gpu).max_blocks(most).selector(trial.clone());
    let collectives = options.common.builder(builder).connect()?;
    let whats = &options.kinds;
    let room = |what: &What| Task::room(*what, ResultPlace::Out, sizes.end, ranks);
    let memory = pair.gpu.allocate(whats.iter().map(room).max().unwrap_or(0))?;
    let tuner = Tuner { options, pair: &pair, collectives: &collectives, trial: &trial, memory: &memory };

    // The largest sizes come last, because the table needs them least.
    let cells = || sizes.iter().flat_map(|bytes| whats.iter().map(move |what| (*what, bytes)));
    let machine = pair.machine(Transport::CUDA_IPC);
    let comment = format!(
        "{}; driver {}, commit {}, `mscclpp-bench tune`.",
        machine.devices.join(" and "),
        machine.driver,
        machine.commit
    );
    table.begin(machine, cells().count())?;
    let (mut chosen, mut measured, mut done) = (Vec::new(), 0, 0);
    let begun = Instant::now();
    for (what, bytes) in cells() {
        // All ranks follow rank 0's clock.
        if options.quick && pair.ranks.say(&(begun.elapsed() > QUICK))?[0] {
            break;
        }
        done += 1;
        let between = what.counted(bytes, ranks);
        let tried = tuner.cell(what, bytes, &candidates.of(what, between, ranks), table)?;
        measured += tried.len();
        let times: Vec<_> =
            tried.iter().map(|(it, row)| (*it, row.times.map(|times| times.median))).collect();
        let best = best(&times);
        chosen.extend(best.map(|best| Best { what, bytes: between, selection: tried[best].0 }));
        // Rows with a wrong result are shown too.
        for (n, (_, row)) in tried.into_iter().enumerate() {
            if options.all || best == Some(n) || row.times.is_none() {
                table.push(row)?;
            }
        }
    }
    table.note(format!(
        "{measured} combinations of protocol, steps, blocks and threads for {done} of {} combinations of kind and size",
        cells().count()
    ));
    table.note(
        "each row is the fastest combination, or one with fewer blocks that is at most 2 % slower; combinations were measured \
         in turns, in graphs of out-of-place calls",
    );
    if !chosen.is_empty() {
        table.text(rust(&chosen, sizes.factor, &comment));
    }
    pair.ranks.meet()
}

impl Options {
    fn candidates(&self, on_sim: bool) -> Candidates {
        let (protocols, blocks, threads): (_, &[u32], &[u32]) = match (on_sim, self.quick) {
            (true, _) => ([Protocol::Ll16, Protocol::Simple].to_vec(), &[1, 2, 4], &[32, 64]),
            (false, true) => (PROTOCOLS.to_vec(), &[1, 4, 8, 16, 32, 64, 128, 256], &[128, 256, 512]),
            (false, false) => {
                (PROTOCOLS.to_vec(), &[1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256], &[128, 256, 512, 1024])
            }
        };
        let or =
            |given: &[u32], default: &[u32]| if given.is_empty() { default.to_vec() } else { given.to_vec() };
        Candidates {
            protocols: if self.protocols.is_empty() { protocols } else { self.protocols.clone() },
            blocks: or(&self.blocks, blocks),
            threads: or(&self.threads, threads),
        }
    }
}

const PROTOCOLS: [Protocol; 3] = [Protocol::Ll16, Protocol::Ll128, Protocol::Simple];

/// A selector that chooses the current candidate. All ranks try the same candidates in the same order.
#[derive(Debug, Clone, Default)]
struct Trial(Arc<Mutex<Option<Selection>>>);

impl Selector for Trial {
    fn choose(&self, query: &Query) -> Selection {
        self.0.lock().unwrap_or_else(|| Tuned.choose(query))
    }
}

struct Tuner<'a> {
    options: &'a Options,
    pair: &'a Pair,
    collectives: &'a Collectives,
    trial: &'a Trial,
    memory: &'a DeviceBuffer,
}

impl Tuner<'_> {
    /// Measures all candidates that the library can run. Returns each with its row.
    fn cell(
        &self,
        what: What,
        bytes: u64,
        candidates: &[Selection],
        table: &mut Table,
    ) -> Result<Vec<(Selection, Row)>> {
        let Self { options, pair, memory, .. } = *self;
        let (measuring, Common { dtype: numbers, calls, .. }) = (&options.messages.measuring, options.common);
        let task = Task::random(what, numbers, ResultPlace::Out, bytes, &pair.ranks)?;
        task.load(memory)?;
        let most = if pair.gpu.platform() == Platform::Sim { 1 } else { MOST_ROUNDS };
        let rounds = measuring.rounds_or((BYTES_OF_A_TIME / bytes).clamp(1, most) as u32);
        let calls = Calls::new(rounds, calls, false);
        let stopwatch =
            Stopwatch::of_others(pair, options.common.limit(), |reason| self.collectives.abort(reason))?;

        let (mut tried, mut sides) = (Vec::new(), Vec::new());
        for candidate in candidates {
            *self.trial.0.lock() = Some(*candidate);
            let selection = self.collectives.selection(&task.request(memory.ptr()))?;
            if selection == Some(*candidate) {
                let side = ours(self.collectives, &task, memory, calls, stopwatch.stream())?;
                sides.push(Side { name: variant(*candidate), ..side });
                tried.push(*candidate);
            }
        }
        let contenders = sides
            .iter()
            .map(|side| side.contender(side.name.clone(), calls.rounds, &task, &stopwatch))
            .collect();
        let rows = table.measure_in_turns(measuring.repeats, Some(&pair.ranks), contenders)?;
        let with_blocks = |(it, (row, _)): (Selection, _)| (it, Row { blocks: Some(it.blocks), ..row });
        Ok(tried.into_iter().zip(rows).map(with_blocks).collect())
    }
}
