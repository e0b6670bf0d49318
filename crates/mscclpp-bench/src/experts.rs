//! `experts`: dispatch and combine of a mixture-of-experts layer between processes, each in graphs of calls. Beside them, the
//! collectives that do the same work without knowing about experts: all_gathers in a group, and a reduce_scatter.

mod gathered;

use clap::{Args, ValueEnum};
use half::bf16;
use mscclpp::prelude::*;
use mscclpp_collectives::Collectives;
use mscclpp_ep::{Combine, Dispatch, Experts, Layout, NumberType, Quantisation, Routed};

use self::gathered::Gathered;
use crate::{
    Result,
    collectives::Calls,
    measuring::Measuring,
    pair::Pair,
    progress::Progress,
    ranks::Joining,
    report::{Bandwidth, Row, SizeOf, Times},
    stopwatch::Stopwatch,
    table::Table,
};

#[derive(Args)]
pub(crate) struct Options {
    /// The numbers of tokens of each rank; each gives a group of lines [default: 1,8,32,128,1024,4096; on simulated devices 1,8].
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    tokens: Vec<u32>,
    /// The numbers of a token [default: 7168; on simulated devices 256].
    #[arg(long, value_parser = clap::value_parser!(u32).range(8..=1 << 16))]
    hidden: Option<u32>,
    /// The number of experts of all ranks [default: 256; on simulated devices 16].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1 << 12))]
    experts: Option<u32>,
    /// The choices of a token.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    top_k: u32,
    /// The layouts of the received rows, one group of rows each.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [AskedLayout::Rank])]
    layouts: Vec<AskedLayout>,
    /// Sends tokens as bf16, instead of e4m3 with scales.
    #[arg(long)]
    bf16: bool,
    /// Brings the row of every choice back. Needs the layouts expert or flat.
    #[arg(long)]
    exact: bool,
    /// Lets a quarter of all choices fall on one expert.
    #[arg(long)]
    skewed: bool,
    /// Makes each call by itself, without graphs.
    #[arg(long)]
    eager: bool,
    /// Does each dispatch and combine by two launches, one that sends and one that receives.
    #[arg(long)]
    halves: bool,
    /// The most blocks of a call [default: the library's].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    blocks: Option<u32>,
    /// The number of calls in a graph.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    calls: u32,
    /// The number of ranks.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=16))]
    ranks: u8,
    #[command(flatten)]
    measuring: Measuring,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum AskedLayout {
    /// Rows stay where they arrive.
    Rank,
    /// Rows side by side, by rank and token.
    Token,
    /// Rows by expert, each with room for all.
    Expert,
    /// Rows by expert, side by side.
    Flat,
}

impl AskedLayout {
    fn layout(self) -> Layout {
        match self {
            Self::Rank => Layout::Rank,
            Self::Token => Layout::Token,
            Self::Expert => Layout::Expert,
            Self::Flat => Layout::Flat { alignment: 128 },
        }
    }
}

/// The sizes of a run.
#[derive(Clone, Copy)]
struct Shape {
    ranks: usize,
    hidden: usize,
    experts: usize,
    top_k: usize,
}

pub(crate) fn run(options: &Options, joining: &Joining, table: &mut Table) -> Result<()> {
    let on_sim = Platform::detect_or_sim()? == Platform::Sim;
    let default: &[u32] = if on_sim { &[1, 8] } else { &[1, 8, 32, 128, 1024, 4096] };
    let tokens = if options.tokens.is_empty() { default } else { &options.tokens };
    let pair = options.measuring.join(options.ranks.into(), joining)?;
    let shape = Shape {
        ranks: pair.ranks.count(),
        hidden: options.hidden.unwrap_or(if on_sim { 256 } else { 7168 }) as usize,
        experts: options.experts.unwrap_or(if on_sim { 16 } else { 256 }) as usize,
        top_k: options.top_k as usize,
    };
    let collectives = Collectives::new(&pair.ranks.comm, &pair.gpu)?;
    let steps = tokens.len() * options.layouts.len() * options.measuring.launches() * 4;
    table.begin(pair.machine(Transport::CUDA_IPC), steps)?;
    for count in tokens {
        let bench = Bench::new(options, shape, &pair, &collectives, *count as usize)?;
        for layout in &options.layouts {
            for row in bench.rows(&mut table.progress, *layout)? {
                table.push(row)?;
            }
        }
        // No rank frees the memory while another rank's calls use it.
        pair.ranks.meet()?;
    }
    let Shape { hidden, experts, top_k, .. } = shape;
    let notes = vec![
        format!(
            "{hidden} numbers, {top_k} of {experts} experts; sizes are the bytes that the rank that sends most sends to others; \
             a dispatch takes what it adds to a combine; the baseline is this library's all_gathers in a group, and its reduce_scatter"
        ),
        format!(
            "{} of {} calls, timed by the device's events; counts and sums compared for each time",
            if options.eager { "rounds" } else { "graphs" },
            options.calls
        ),
    ];
    pair.end(table, notes)
}

/// A call that is put into a stream.
type Call<'a> = &'a dyn Fn(&Stream) -> Result<()>;

struct Bench<'a> {
    options: &'a Options,
    shape: Shape,
    pair: &'a Pair,
    collectives: &'a Collectives,
    experts: Experts,
    tokens: usize,
    /// The choices of all ranks' tokens.
    choices: Vec<Vec<i32>>,
    rows: DeviceBuffer,
    ids: DeviceBuffer,
    weights: DeviceBuffer,
    /// Memory for what comes and for what experts make of it, and the sums.
    came: Vec<DeviceBuffer>,
    made: DeviceBuffer,
    sums: DeviceBuffer,
}

impl<'a> Bench<'a> {
    fn new(
        options: &'a Options,
        shape: Shape,
        pair: &'a Pair,
        collectives: &'a Collectives,
        tokens: usize,
    ) -> Result<Self> {
        let (gpu, Shape { ranks, hidden, experts: n_experts, top_k }) = (&pair.gpu, shape);
        let builder = Experts::builder(&pair.ranks.comm, gpu).experts(n_experts).top_k(top_k).hidden(hidden);
        let mut builder = builder.number_type(NumberType::Bf16).capacity(tokens).exact(options.exact);
        if !options.bf16 {
            builder = builder.quantise(Quantisation::E4m3);
        }
        if let Some(blocks) = options.blocks {
            builder = builder.max_blocks(blocks);
        }
        let experts = builder.connect()?;
        let seed = pair.ranks.seed_of_rank_0()?;
        let choices =
            (0..ranks).map(|rank| choices(options, shape, tokens, seed + rank as u64)).collect::<Vec<_>>();
        let most = ranks * tokens;
        let local = experts.n_local();
        let rows_of = |layout: &AskedLayout| match layout {
            AskedLayout::Rank | AskedLayout::Token => most,
            AskedLayout::Expert => local * most,
            AskedLayout::Flat => most * top_k.min(local) + 128 * local,
        };
        let rows = options.layouts.iter().map(rows_of).max().unwrap_or(most);
        let allocate = |bytes: usize| gpu.allocate((bytes as u64).max(16));
        let came = if options.bf16 { vec![2 * hidden] } else { vec![hidden, 4 * hidden.div_ceil(128)] };
        let came = came.into_iter().map(|bytes| allocate(rows * bytes)).collect::<Result<Vec<_>, _>>()?;
        let ones = |count: usize| -> Result<DeviceBuffer> {
            let buffer = allocate(2 * count)?;
            buffer.write(0, &bf16::ONE.to_le_bytes().repeat(count))?;
            Ok(buffer)
        };
        let ids = allocate(4 * tokens * top_k)?;
        ids.write_params(0, &choices[pair.ranks.rank])?;
        let weights = allocate(4 * tokens * top_k)?;
        weights.write_params(0, &vec![1.0f32; tokens * top_k])?;
        Ok(Self {
            options,
            shape,
            pair,
            collectives,
            tokens,
            rows: ones(tokens * hidden)?,
            ids,
            weights,
            came,
            made: ones(rows * hidden)?,
            sums: allocate(2 * tokens * hidden)?,
            experts,
            choices,
        })
    }

    /// The rows of a dispatch and a combine.
    fn rows(&self, progress: &mut Progress, layout: AskedLayout) -> Result<[Row; 2]> {
        let Self { options, shape, pair, tokens, .. } = self;
        let limit = crate::device_clock::LIMIT;
        let stopwatch = Stopwatch::of_others(pair, limit, |reason| {
            mscclpp::gpu::Abort::abort(&self.experts, reason);
            self.collectives.abort(reason);
        })?;
        let stream = stopwatch.stream();
        let routed = self.dispatch(layout.layout(), stream)?;
        self.combine(&routed, stream)?;
        self.experts.synchronize(stream)?;
        let gathered = Gathered::new(self)?;
        // A dispatch may need the combine of the one before. So both are timed together, and a combine alone.
        let calls: [Call<'_>; 4] = [
            &|stream| self.combine(&self.dispatch(layout.layout(), stream)?, stream),
            &|stream| self.combine(&routed, stream),
            &|stream| gathered.gather(stream),
            &|stream| gathered.scatter(stream),
        ];
        let measuring = &options.measuring;
        let [down, up] = self.bytes()?;
        let replays = measuring.rounds(pair, down).div_ceil(options.calls);
        // Without graphs, a launch has as many calls as a graph.
        let (of_a_graph, of_a_launch) = if options.eager { (1, options.calls) } else { (options.calls, 1) };
        let launches = Calls { of_a_graph, replays, are_eager: options.eager };
        let submits = calls.into_iter().map(|call| {
            launches.submit(move |stream| (0..of_a_launch).try_for_each(|_| call(stream)), stream)
        });
        let submits = submits.collect::<Result<Vec<_>>>()?;
        let mut times = [const { Vec::new() }; 4];
        let mut right = true;
        for launch in 0..measuring.launches() {
            for (n, submit) in submits.iter().enumerate() {
                progress.step(&format!("experts, {tokens} tokens, time {launch}"));
                self.sums.fill(0, self.sums.len(), 0)?;
                let us = stopwatch.time(launches.launches(), submit)?;
                // The others' times begin while they wait for rank 0.
                let us = pair.ranks.say(&us)?.first().copied().flatten();
                right &= us.is_some() && (n > 1 || self.sums_are_right(layout, measuring.spoil)?);
                if measuring.counts(launch) {
                    times[n].extend(us.map(|us| us / f64::from(replays * options.calls)));
                }
            }
            let [both, combines, ..] = &mut times;
            if let (true, Some(both), Some(combine)) =
                (measuring.counts(launch), both.last_mut(), combines.last())
            {
                *both -= combine;
            }
        }
        right &= routed.rows_of_experts()? == self.counts();
        let right = pair.ranks.all(right)?;
        let format = if options.bf16 { "bf16" } else { "e4m3" };
        let blocks = options.blocks.map_or(String::new(), |blocks| format!(", {blocks} blocks"));
        let layout = crate::call::name_of(&layout);
        let said = [(options.skewed, ", skewed"), (options.eager, ", eager"), (options.halves, ", halves")];
        let said: String = said.into_iter().filter(|(is, _)| *is).map(|(_, name)| name).collect();
        let kinds =
            [(0, "dispatch", format, down), (1, "combine", if options.exact { "exact" } else { "bf16" }, up)];
        Ok(kinds.map(|(n, what, format, bytes)| {
            let variant =
                format!("{what} {format}, {tokens} tokens, {layout}{said}{blocks}, {} ranks", shape.ranks);
            let rounds = replays * options.calls;
            let of = Times::of(times[n].clone());
            let row = Row::new("experts", &variant, (bytes, SizeOf::Bytes), rounds, measuring.repeats());
            let baseline = Times::of(times[n + 2].clone()).map(|times| times.median);
            let bandwidth = of.map(|times| Bandwidth::of(bytes, times.median));
            Row { bandwidth, baseline, ..row.with(of) }.only_if(right)
        }))
    }

    fn dispatch(&self, layout: Layout, stream: &Stream) -> Result<Routed> {
        let mut dispatch = Dispatch::new(self.tokens, &self.ids, &self.rows).weights(&self.weights);
        if layout != Layout::Rank {
            dispatch = dispatch.into(layout, &self.came[0]);
            dispatch = self.came[1..].iter().fold(dispatch, Dispatch::and);
        }
        if !self.options.halves {
            return Ok(self.experts.dispatch(&dispatch, stream)?);
        }
        let (routed, receive) = self.experts.dispatch_send(&dispatch, stream)?;
        receive.receive(stream)?;
        Ok(routed)
    }

    fn combine(&self, routed: &Routed, stream: &Stream) -> Result<()> {
        let combine = Combine::new(routed, &self.made, &self.sums);
        let combine = if self.options.exact { combine.exact() } else { combine };
        if !self.options.halves {
            return Ok(self.experts.combine(&combine, stream)?);
        }
        Ok(self.experts.combine_send(&combine, stream)?.receive(stream)?)
    }

    /// The rank that has an expert; none for a choice that is none.
    fn rank_of(&self, expert: i32) -> Option<usize> {
        Some(usize::try_from(expert).ok()? * self.shape.ranks / self.shape.experts)
    }

    /// The bytes that the rank that sends most sends to others, in a dispatch and in a combine.
    fn bytes(&self) -> Result<[u64; 2]> {
        let (rank, hidden) = (self.pair.ranks.rank, self.shape.hidden as u64);
        let (mut rows, mut choices) = ([0; 2], 0);
        for (source, of) in self.choices.iter().enumerate() {
            for token in of.chunks(self.shape.top_k) {
                for to in (0..self.shape.ranks).filter(|to| *to != source) {
                    let here =
                        token.iter().filter(|expert| self.rank_of(**expert) == Some(to)).count() as u64;
                    rows[0] += u64::from(here > 0 && source == rank);
                    rows[1] += u64::from(here > 0 && to == rank);
                    choices += if to == rank { here } else { 0 };
                }
            }
        }
        let row = if self.options.bf16 { 2 * hidden } else { hidden + 4 * hidden.div_ceil(128) };
        let back = if self.options.exact { choices } else { rows[1] };
        let all = self.pair.ranks.say(&[rows[0] * row, back * 2 * hidden])?;
        Ok([0, 1].map(|i| all.iter().map(|bytes| bytes[i]).max().unwrap_or(0).max(1)))
    }

    /// How many rows each expert of this rank gets.
    fn counts(&self) -> Vec<u32> {
        let mut counts = vec![0; self.shape.experts];
        let chosen = self.choices.iter().flatten().filter_map(|expert| usize::try_from(*expert).ok());
        chosen.for_each(|expert| counts[expert] += 1);
        let own = Some(self.pair.ranks.rank);
        let own = (0..self.shape.experts).filter(|expert| self.rank_of(*expert as i32) == own);
        own.map(|expert| counts[expert]).collect()
    }

    /// Whether each number is the number of rows that were summed: experts make ones.
    fn sums_are_right(&self, layout: AskedLayout, spoil: bool) -> Result<bool> {
        let mut sums = vec![0; self.sums.len() as usize];
        self.sums.read(0, &mut sums)?;
        if spoil {
            sums[0] ^= 1;
        }
        let per_rank = matches!(layout, AskedLayout::Rank | AskedLayout::Token);
        let tokens = self.choices[self.pair.ranks.rank].chunks(self.shape.top_k);
        Ok(tokens.zip(sums.chunks(2 * self.shape.hidden)).all(|(choices, sums)| {
            let mut rows: Vec<usize> = choices.iter().filter_map(|expert| self.rank_of(*expert)).collect();
            if per_rank {
                rows.sort_unstable();
                rows.dedup();
            }
            let number = bf16::from_f32(rows.len() as f32).to_le_bytes();
            sums.chunks(2).all(|bytes| bytes == number)
        }))
    }
}

/// The choices of a rank's tokens: different experts for each token, and -1 behind them if there are fewer experts than choices.
fn choices(options: &Options, shape: Shape, tokens: usize, seed: u64) -> Vec<i32> {
    let mut random = fastrand::Rng::with_seed(seed);
    let token = |_| {
        let mut chosen: Vec<i32> = Vec::new();
        if options.skewed && random.u32(..4) < 1 {
            chosen.push(0);
        }
        while chosen.len() < shape.top_k.min(shape.experts) {
            let expert = random.usize(..shape.experts) as i32;
            if !chosen.contains(&expert) {
                chosen.push(expert);
            }
        }
        chosen.resize(shape.top_k, -1);
        chosen
    };
    (0..tokens).flat_map(token).collect()
}
