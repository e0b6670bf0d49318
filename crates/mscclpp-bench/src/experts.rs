//! `experts`: dispatch and combine of a mixture-of-experts layer between processes, each in graphs of calls. Beside them, the
//! collectives that do the same work without knowing about experts: all_gathers in a group, and a reduce_scatter.

mod gathered;
mod tokens;

use std::cell::RefCell;

use clap::ValueEnum;
use half::bf16;
use mscclpp::gpu::Abort;
use mscclpp_collectives::Collectives;
use mscclpp_ep::{Combine, Dispatch, Experts, ExpertsBuilder, Layout, NumberType, Quantisation, Routed};

use self::{gathered::Gathered, tokens::Tokens};
use crate::{
    collectives::{Calls, What},
    nccl,
    prelude::*,
    report::{Measured, Nccl},
    stopwatch::LIMIT,
    watchdog::within,
};

#[derive(Args)]
pub(crate) struct Options {
    /// The numbers of tokens of each rank; each gives a group of lines [default: 1,8,32,128,1024,4096,8192; on simulated devices
    /// 1,8].
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
    /// The seed of the choices. All runs with the same one have the same choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
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
    #[command(flatten)]
    compare: nccl::Compare,
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
    let library = options.compare.open(on_sim)?;
    let default: &[u32] = if on_sim { &[1, 8] } else { &[1, 8, 32, 128, 1024, 4096, 8192] };
    let tokens = if options.tokens.is_empty() { default } else { &options.tokens };
    let pair = options.measuring.join(options.ranks.into(), joining)?;
    let shape = Shape {
        ranks: pair.ranks.count(),
        hidden: options.hidden.unwrap_or(if on_sim { 256 } else { 7168 }) as usize,
        experts: options.experts.unwrap_or(if on_sim { 16 } else { 256 }) as usize,
        top_k: options.top_k as usize,
    };
    let nccl = library.as_ref().map(|library| nccl::Comm::join(library, &pair, LIMIT)).transpose()?;
    let collectives = Collectives::new(&pair.ranks.comm, &pair.gpu)?;
    table.begin(pair.machine(Transport::CUDA_IPC), tokens.len() * options.layouts.len())?;
    for count in tokens {
        let bench = Bench::new(options, shape, &pair, (&collectives, nccl.as_ref()), *count as usize)?;
        for layout in &options.layouts {
            bench.rows(table, *layout)?.into_iter().try_for_each(|row| table.push(row))?;
        }
        // No rank frees the memory while another rank's calls use it.
        pair.ranks.meet()?;
    }
    let Shape { hidden, experts, top_k, .. } = shape;
    table.note(format!(
        "{hidden} numbers, {top_k} of {experts} experts; sizes are the bytes that the rank that sends most sends to others; the \
         time of a dispatch is that of a dispatch and a combine, less that of a combine alone; each call waits for the slowest \
         rank; the baseline is this library's all_gathers in a group, and its reduce_scatter"
    ));
    table.note(format!(
        "{} of {} calls, timed by the device's events; the rows that came, their counts and the sums compared for each time",
        if options.eager { "rounds" } else { "graphs" },
        options.calls
    ));
    if let Some(nccl) = &nccl {
        table.note(nccl.note());
        table.note("NCCL makes the same all_gathers in a group, and the reduce_scatter, in plain memory");
    }
    pair.ranks.meet()
}

type Call<'a> = &'a dyn Fn(&Stream) -> Result<()>;

struct Bench<'a> {
    options: &'a Options,
    shape: Shape,
    pair: &'a Pair,
    collectives: &'a Collectives,
    nccl: Option<&'a nccl::Comm<'a>>,
    experts: Experts,
    tokens: Tokens,
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
        (collectives, nccl): (&'a Collectives, Option<&'a nccl::Comm<'a>>),
        tokens: usize,
    ) -> Result<Self> {
        let (gpu, Shape { ranks, hidden, experts: n_experts, top_k }) = (&pair.gpu, shape);
        let builder = Experts::builder(&pair.ranks.comm, gpu).experts(n_experts).top_k(top_k).hidden(hidden);
        let builder = builder.number_type(NumberType::Bf16).capacity(tokens).exact(options.exact);
        let quantisation = (!options.bf16).then_some(Quantisation::E4m3);
        let builder = quantisation.into_iter().fold(builder, ExpertsBuilder::quantise);
        let experts = options.blocks.into_iter().fold(builder, ExpertsBuilder::max_blocks).connect()?;
        let choices: Vec<_> = (0..ranks as u64)
            .map(|rank| tokens::choices(options, shape, tokens, options.seed.wrapping_add(rank)))
            .collect();
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
            nccl,
            rows: allocate(2 * tokens * hidden)?,
            ids,
            weights,
            came,
            made: ones(rows * hidden)?,
            sums: allocate(2 * tokens * hidden)?,
            experts,
            tokens: Tokens { shape, rank: pair.ranks.rank, count: tokens, as_bf16: options.bf16, choices },
        })
    }

    fn rows(&self, table: &mut Table, layout: AskedLayout) -> Result<[Row; 2]> {
        let Self { options, shape, pair, tokens, .. } = self;
        let stopwatch = Stopwatch::of_others(pair, LIMIT, |reason| {
            Abort::abort(&self.experts, reason);
            self.collectives.abort(reason);
            self.nccl.into_iter().for_each(nccl::Comm::abort);
        })?;
        let stream = stopwatch.stream();
        let routed = self.dispatch(layout.layout(), stream)?;
        self.combine(&routed, stream)?;
        self.experts.synchronize(stream)?;
        let gathered = Gathered::new(self)?;
        // The routing of the last dispatch: with graphs, of the last one that was captured.
        let last = RefCell::new(None);
        // A dispatch may need the combine of the one before. So both are timed together, and a combine alone.
        let both = |stream: &Stream| {
            let routed = self.dispatch(layout.layout(), stream)?;
            self.combine(&routed, stream)?;
            last.replace(Some(routed));
            Ok(())
        };
        let (gathers, scatter) = (gathered.gathers(), [gathered.scatters()]);
        let calls: [Call<'_>; 4] = [
            &both,
            &|stream| self.combine(&routed, stream),
            &|stream| gathered.put(&gathers, stream),
            &|stream| gathered.put(&scatter, stream),
        ];
        let measuring = &options.measuring;
        let [down, up] = tokens.bytes(pair, options.exact)?;
        let rounds = measuring.rounds(pair, down).next_multiple_of(options.calls);
        // Without graphs, a launch has as many calls as a graph.
        let (replays, of_a_graph, of_a_launch) = match options.eager {
            true => (rounds / options.calls, 0, options.calls),
            false => (rounds, options.calls, 1),
        };
        let launches = calls.map(|call| {
            let launch = move |stream: &Stream| (0..of_a_launch).try_for_each(|_| call(stream));
            // SAFETY: what the calls use is dropped behind the stopwatch, or kept by them, and the stopwatch waits for them.
            unsafe { Launches::capture(stream, replays, of_a_graph, launch) }
        });
        let mut launches = launches.into_iter().collect::<Result<Vec<_>>>()?;
        if let Some(nccl) = self.nccl {
            let calls = Calls { rounds, of_a_graph };
            // SAFETY: `gathered` has the memory, and is dropped behind the launches.
            unsafe {
                let gathers = nccl.group(What::AllGather, &gathers)?;
                launches.push(nccl.capture("NCCL's all_gathers", calls, &stopwatch, gathers)?);
                let scatter = nccl.call(What::ReduceScatter, scatter[0])?;
                launches.push(nccl.capture("NCCL's reduce_scatter", calls, &stopwatch, scatter)?);
            }
        }
        let format = if options.bf16 { "bf16" } else { "e4m3" };
        let blocks = options.blocks.map_or(String::new(), |blocks| format!(", {blocks} blocks"));
        let name = crate::call::name_of(&layout);
        let said = [(options.skewed, ", skewed"), (options.eager, ", eager"), (options.halves, ", halves")];
        let said: String = said.into_iter().filter(|(is, _)| *is).map(|(_, name)| name).collect();
        let row = |what: &str, format: &str, bytes| {
            let variant = format!(
                "{what} {format}, {} tokens, {name}{said}{blocks}, {} ranks",
                tokens.count, shape.ranks
            );
            Row::new("experts", variant, (bytes, SizeOf::Bytes), rounds)
        };
        let is_simulated = pair.gpu.platform() == Platform::Sim;
        let dispatches = row("dispatch", format, down);
        let combines = row("combine", if options.exact { "exact" } else { "bf16" }, up);
        let contender = |n: usize, row: &Row| {
            let launches = &launches[n];
            let (stopwatch, last) = (&stopwatch, &last);
            let once = move |time: Time| {
                if n == 0 {
                    self.rows.write(0, &tokens.rows(time.n))?;
                    self.came.iter().try_for_each(|came| came.fill(0, came.len(), 0xa5))?;
                }
                self.sums.fill(0, self.sums.len(), 0)?;
                let count = launches.count();
                let is_nccl = n >= 4;
                // On simulated devices, a call of a stand-in for NCCL is complete when it returns.
                let measure = || match is_nccl && is_simulated {
                    true => stopwatch.time_of_waits(|stream| launches.submit(stream, 0..count)),
                    false => stopwatch.time(count, |stream, range| launches.submit(stream, range)),
                };
                let us = if is_nccl { within(2 * LIMIT, "a time of NCCL", measure)? } else { measure()? };
                let right = match n {
                    0 => self.rows_are_right(layout, last.borrow().as_ref(), stopwatch.stream(), time)?,
                    _ => true,
                };
                let right = right && (n > 1 || self.sums_are_right(layout, time.spoils && n == 1)?);
                // The others' times begin while they wait for rank 0. No rank goes on while another compares.
                let of_rank_0 = pair.ranks.say(&us)?.first().copied().flatten();
                Ok(of_rank_0.filter(|_| us.is_some() && right))
            };
            Contender::new(row.clone(), Box::new(once))
        };
        let rows = [&dispatches, &combines].into_iter().cycle().take(launches.len()).enumerate();
        let contenders = rows.map(|(n, row)| contender(n, row)).collect();
        let measured = table.measure_in_turns(measuring.repeats, Some(&pair.ranks), contenders)?;
        let [(both, times), (combine, combines), (gather, _), (scatter, _), nccl @ ..] = &measured[..] else {
            return Err("each contender has a row".into());
        };
        let times: Vec<f64> = times.iter().zip(combines).map(|(both, combine)| both - combine).collect();
        let are_right = both.times.is_some() && combine.times.is_some();
        let dispatch = both.clone().with(Times::of(times).filter(|_| are_right), Some(1.0));
        let of_nccl = |n: usize| nccl.get(n).map(|(row, _)| Some(Measured { times: row.times }));
        Ok([(dispatch, gather, of_nccl(0)), (combine.clone(), scatter, of_nccl(1))].map(
            |(row, other, plain)| Row {
                baseline: other.times.map(|times| times.median),
                nccl: plain.map(|plain| Nccl { plain, windows: None }),
                ..row
            },
        ))
    }

    fn dispatch(&self, layout: Layout, stream: &Stream) -> Result<Routed> {
        let mut dispatch = Dispatch::new(self.tokens.count, &self.ids, &self.rows).weights(&self.weights);
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

    /// Whether the rows of that time came, and were counted, as the tokens' choices say.
    fn rows_are_right(
        &self,
        layout: AskedLayout,
        routed: Option<&Routed>,
        stream: &Stream,
        time: Time,
    ) -> Result<bool> {
        let routed = routed.ok_or("there was no dispatch")?;
        let counts = self.tokens.groups(AskedLayout::Expert);
        let mut right =
            routed.rows_of_experts()?.into_iter().eq(counts.iter().map(|(_, group)| group.len() as u32));
        let (kinds, groups) = (self.tokens.kinds(), self.tokens.groups(layout));
        for (part, came) in self.came.iter().enumerate() {
            let row_bytes = kinds[0].came[part].len();
            let (came, stride) = match layout {
                AskedLayout::Rank => {
                    let received = routed.received(part)?;
                    let copy = self.pair.gpu.allocate(received.rank_stride * self.shape.ranks as u64)?;
                    // SAFETY: the rows of all ranks lie behind each other, and no rank sends before all have compared.
                    unsafe { stream.copy(copy.ptr(), received.ptr, copy.len())? };
                    stream.synchronize()?;
                    (copy, received.row_stride as usize)
                }
                _ => (came.clone(), row_bytes),
            };
            for (begin, group) in &groups {
                let mut rows = vec![0; stride * group.len()];
                came.read((stride * begin) as u64, &mut rows)?;
                if time.spoils && !rows.is_empty() {
                    rows[row_bytes / 2] ^= 1;
                }
                right &= rows.chunks(stride.max(1)).zip(group).all(|(row, [rank, token])| {
                    row[..row_bytes] == kinds[Tokens::kind(*rank, *token, time.n)].came[part]
                });
            }
        }
        Ok(right)
    }

    /// Whether each number is the number of rows that were summed: experts make ones.
    fn sums_are_right(&self, layout: AskedLayout, spoil: bool) -> Result<bool> {
        let mut sums = vec![0; self.sums.len() as usize];
        self.sums.read(0, &mut sums)?;
        if spoil {
            sums[0] ^= 1;
        }
        let per_rank = matches!(layout, AskedLayout::Rank | AskedLayout::Token);
        let tokens = self.tokens.choices[self.pair.ranks.rank].chunks(self.shape.top_k);
        Ok(tokens.zip(sums.chunks(2 * self.shape.hidden)).all(|(choices, sums)| {
            let mut rows: Vec<usize> =
                choices.iter().filter_map(|expert| self.tokens.rank_of(*expert)).collect();
            if per_rank {
                rows.sort_unstable();
                rows.dedup();
            }
            let number = bf16::from_f32(rows.len() as f32).to_le_bytes();
            sums.chunks(2).all(|bytes| bytes == number)
        }))
    }
}
