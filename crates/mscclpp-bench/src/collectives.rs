//! `all-reduce`, `all-gather`, `reduce-scatter` and `all-to-all`: calls of the library's collectives between two
//! processes, in a graph that is replayed. Numbers are f16, sizes are counted as nccl-tests do.

use std::borrow::Cow;

use clap::{Args, ValueEnum};
use half::f16;
use mscclpp::prelude::*;
use mscclpp_collectives::{
    Choice, Collectives, DataType, Kind, Question, ReduceOp, Request, Selector, Tuned, Way,
};

use crate::{
    Result,
    data::{Destination, GUARD},
    measuring::{Arrival, Messages, Subject},
    pair::Pair,
    progress::Progress,
    ranks::Joining,
    report::{Bandwidth, Known, Report, Row},
    sizes::Sizes,
    stopwatch::Stopwatch,
};

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    messages: Messages,
    /// The way of the messages, one row each [default: as the library chooses].
    #[arg(long, value_enum, value_delimiter = ',')]
    ways: Vec<AskedWay>,
    /// The blocks of a call, one row each [default: as the library chooses].
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1024))]
    blocks: Vec<u32>,
    /// The threads of a block, one row each [default: as the library chooses].
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(32..=1024))]
    threads: Vec<u32>,
    /// How many calls a graph has.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    calls: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum AskedWay {
    /// LL16 packets.
    Packets,
    /// LL128 lines.
    Lines,
    /// Plain stores, with a signal behind each piece.
    Pieces,
}

/// Which collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    AllReduce,
    AllGather,
    ReduceScatter,
    AllToAll,
}

/// Between two.
const RANKS: u64 = 2;
/// Of a number.
const SIZE: u64 = 2;

pub(crate) fn all_reduce(options: &Options, joining: &Joining) -> Result<Option<Report>> {
    run(What::AllReduce, options, joining)
}

pub(crate) fn all_gather(options: &Options, joining: &Joining) -> Result<Option<Report>> {
    run(What::AllGather, options, joining)
}

pub(crate) fn reduce_scatter(options: &Options, joining: &Joining) -> Result<Option<Report>> {
    run(What::ReduceScatter, options, joining)
}

pub(crate) fn all_to_all(options: &Options, joining: &Joining) -> Result<Option<Report>> {
    run(What::AllToAll, options, joining)
}

/// What was asked for, and the library's choice for the rest.
#[derive(Debug, Clone, Copy, Default)]
struct Asked {
    way: Option<AskedWay>,
    blocks: Option<u32>,
    threads: Option<u32>,
}

impl Selector for Asked {
    fn choose(&self, question: &Question) -> Choice {
        let tuned = Tuned.choose(question);
        let way = match self.way {
            Some(AskedWay::Packets) => Way::Packets,
            Some(AskedWay::Lines) => Way::Lines,
            Some(AskedWay::Pieces) => Way::Pieces,
            None => tuned.way,
        };
        let (blocks, threads) = (self.blocks.unwrap_or(tuned.blocks), self.threads.unwrap_or(tuned.threads));
        Choice { way, blocks, threads, ..tuned }
    }
}

fn run(what: What, options: &Options, joining: &Joining) -> Result<Option<Report>> {
    let on_host = Platform::detect_or_host()? == Platform::Host;
    let default = match on_host {
        true => Sizes { begin: 1 << 10, end: 64 << 10, factor: 8 },
        false => Sizes { begin: 1 << 10, end: 1 << 30, factor: 4 },
    };
    let Messages { sizes, measuring } = &options.messages;
    let sizes = sizes.or(default, SIZE * RANKS)?;
    let pair = measuring.join(joining)?;
    let all = asked(options);
    let mut progress = Progress::new(all.len() * sizes.count() * measuring.launches(), !joining.reports());
    let mut rows = Vec::new();
    for asked in all {
        let most = asked.blocks.unwrap_or(if on_host { 4 } else { 128 });
        let collectives =
            Collectives::builder(&pair.ranks.comm, &pair.gpu).max_blocks(most).selector(asked).connect()?;
        for bytes in sizes.iter() {
            let bench = Bench { what, options, pair: &pair, collectives: &collectives };
            rows.push(bench.row(&mut progress, asked, bytes)?);
        }
        // Nobody takes the memory away under the other's calls.
        pair.ranks.meet()?;
    }
    drop(progress);
    let notes = vec![
        "sums and moves of random f16, out of place; sizes, algorithm and bus bandwidth as in nccl-tests"
            .to_owned(),
        format!(
            "graphs of {} calls, timed by the device's events; the result compared for each time",
            options.calls
        ),
    ];
    pair.report(Transport::CUDA_IPC, rows, notes)
}

/// All that was asked for, in all combinations.
fn asked(options: &Options) -> Vec<Asked> {
    fn each<T: Copy>(of: &[T]) -> Vec<Option<T>> {
        if of.is_empty() { vec![None] } else { of.iter().copied().map(Some).collect() }
    }
    let mut all = Vec::new();
    for way in each(&options.ways) {
        for blocks in each(&options.blocks) {
            all.extend(each(&options.threads).into_iter().map(|threads| Asked { way, blocks, threads }));
        }
    }
    all
}

struct Bench<'a> {
    what: What,
    options: &'a Options,
    pair: &'a Pair,
    collectives: &'a Collectives,
}

impl Bench<'_> {
    fn row(&self, progress: &mut Progress, asked: Asked, bytes: u64) -> Result<Row> {
        let (what, pair, measuring) = (self.what, self.pair, &self.options.messages.measuring);
        let rank = pair.ranks.rank;
        let given = pair.ranks.random_messages(what.sent(bytes))?.map(moderate);
        // In the order of the ranks.
        let given = if rank == 0 {
            given
        } else {
            let [mine, others] = given;
            [others, mine]
        };
        let expected = what.result(&given, rank);

        let send = pair.gpu.allocate(given[rank].len() as u64)?;
        send.write(0, &given[rank])?;
        let recv = pair.gpu.allocate(expected.len() as u64 + 2 * GUARD)?;
        let request = Request {
            kind: what.kind(),
            send: send.ptr(),
            recv: recv.ptr().add(GUARD),
            count: what.count(bytes),
            data_type: DataType::F16,
        };
        let choice = self.collectives.choice(&request)?.ok_or("a call of no bytes")?;

        let stopwatch = Stopwatch::new(pair, Vec::new())?;
        let stream = stopwatch.stream();
        stream.begin_capture()?;
        let requests = vec![request; self.options.calls as usize];
        // SAFETY: the memory is kept until the stopwatch, which is dropped first, has waited for all calls.
        let captured = unsafe { self.collectives.enqueue(&requests, stream) };
        let graph = stream.end_capture();
        captured?;
        let graph = graph?;
        let replays = measuring.rounds(pair, bytes).div_ceil(self.options.calls);
        let rounds = replays * self.options.calls;
        let known =
            if pair.is_of_two_gpus() && asked.way.is_none() { what.known(bytes) } else { (None, None) };
        let subject = Subject {
            workload: what.name(),
            variant: format!("{:?} {}x{}", choice.way, choice.blocks, choice.threads).to_lowercase(),
            bytes,
            rounds,
            parts: 1,
            known,
        };
        let destination = Destination { memory: &recv, offset: GUARD };
        let row = Arrival { stopwatch: &stopwatch, destination }.row(
            measuring,
            progress,
            subject,
            // SAFETY: as above.
            |stream, _| (0..replays).try_for_each(|_| unsafe { graph.launch(stream) }),
            |_| Cow::Borrowed(&expected),
        )?;
        let bandwidth = row
            .bandwidth
            .map(|Bandwidth { algorithm, .. }| Bandwidth { algorithm, bus: algorithm * what.bus() });
        Ok(Row { bandwidth, ..row })
    }
}

impl What {
    fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all-reduce",
            Self::AllGather => "all-gather",
            Self::ReduceScatter => "reduce-scatter",
            Self::AllToAll => "all-to-all",
        }
    }

    fn kind(self) -> Kind<'static> {
        match self {
            Self::AllReduce => Kind::AllReduce(ReduceOp::Sum),
            Self::AllGather => Kind::AllGather,
            Self::ReduceScatter => Kind::ReduceScatter(ReduceOp::Sum),
            Self::AllToAll => Kind::AllToAll,
        }
    }

    /// What a rank gives, of a size as nccl-tests count it.
    fn sent(self, bytes: u64) -> u64 {
        if self == Self::AllGather { bytes / RANKS } else { bytes }
    }

    /// The numbers of a request.
    fn count(self, bytes: u64) -> u64 {
        if self == Self::AllReduce { bytes / SIZE } else { bytes / RANKS / SIZE }
    }

    /// The bus bandwidth in terms of the algorithm bandwidth.
    fn bus(self) -> f64 {
        let ranks = RANKS as f64;
        let once = (ranks - 1.0) / ranks;
        if self == Self::AllReduce { 2.0 * once } else { once }
    }

    /// What `rank` has when all have given this.
    fn result(self, given: &[Vec<u8>; 2], rank: usize) -> Vec<u8> {
        let part = |bytes: &[u8]| bytes[bytes.len() / 2 * rank..bytes.len() / 2 * (rank + 1)].to_vec();
        let [first, second] = given;
        match self {
            Self::AllReduce => sum(first, second),
            Self::AllGather => [first.as_slice(), second].concat(),
            Self::ReduceScatter => sum(&part(first), &part(second)),
            Self::AllToAll => [part(first), part(second)].concat(),
        }
    }

    /// The best of NCCL 2.28.9 and 2.32.3, each plain and with registered windows, and of the reference; and the goal.
    #[allow(clippy::approx_constant, reason = "3.14 was measured")]
    fn known(self, bytes: u64) -> Known {
        const KIB: u64 = 1 << 10;
        const MIB: u64 = 1 << 20;
        const GIB: u64 = 1 << 30;
        const SIZES: [u64; 9] = [KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, GIB];
        let (best, goal) = match self {
            Self::AllReduce => (
                [2.62, 3.26, 4.53, 6.07, 13.3, 20.9, 60.9, 222.0, 3183.0],
                [2.2, 2.5, 2.9, 3.6, 6.4, 17.0, 57.5, 204.0, 3040.0],
            ),
            Self::AllGather => (
                [3.14, 3.60, 3.96, 6.65, 7.57, 13.2, 34.0, 111.0, 1664.0],
                [2.2, 2.4, 2.65, 3.2, 4.6, 10.0, 32.5, 113.0, 1690.0],
            ),
            Self::ReduceScatter => (
                [3.42, 4.01, 4.32, 6.74, 9.17, 19.9, 50.7, 163.0, 2005.0],
                [2.2, 2.4, 2.65, 3.2, 4.7, 9.8, 31.5, 107.0, 1540.0],
            ),
            Self::AllToAll => (
                [6.05, 7.39, 7.79, 8.09, 13.4, 18.2, 35.5, 106.0, 1477.0],
                [2.2, 2.4, 2.65, 3.2, 4.6, 10.0, 33.5, 113.0, 1620.0],
            ),
        };
        let at = SIZES.iter().position(|size| *size == bytes);
        (at.map(|at| best[at]), at.map(|at| goal[at]))
    }
}

/// As f16, each less than 2 and finite.
fn moderate(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.chunks_exact_mut(2).for_each(|number| number[1] &= 0xbf);
    bytes
}

fn sum(a: &[u8], b: &[u8]) -> Vec<u8> {
    let number = |bytes: &[u8]| f16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
    let sums = a.chunks_exact(2).zip(b.chunks_exact(2)).map(|(a, b)| f16::from_f32(number(a) + number(b)));
    sums.flat_map(f16::to_le_bytes).collect()
}
