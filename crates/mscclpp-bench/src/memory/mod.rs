//! `memory-put`, `memory-get` and `memory-put-packets`: both devices move the same number of bytes at once. A launch is
//! one round, which `memory_bench.cu` describes.

mod shape;

use std::borrow::Cow;

use clap::ValueEnum;
use mscclpp::channels::{LL8Packet, LL16Packet, LL128Packet, Packet};

use self::shape::{BULK_STAGE, OwnChannels, Roles, Round, Shape, kernel_name, state};
use crate::{call::name_of, exchange::Exchange, kernels::MEMORY_BENCH, prelude::*, sizes};

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    messages: Messages,
    /// Blocks of a launch [default: 32, 4 on simulated devices].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=i64::from(state::MAX_BLOCKS)))]
    blocks: Option<u32>,
    /// Threads of a block, a multiple of 32 [default: 1024, 32 on simulated devices].
    #[arg(long, value_parser = parse_threads)]
    threads: Option<u32>,
    /// How the blocks of a launch, and the launches of both sides, wait for each other; one row each [default: none;
    /// half with more than 64 blocks, because there are 64 channels].
    #[arg(long, value_enum, value_delimiter = ',')]
    barriers: Vec<Barriers>,
    /// The number of bytes for which one more block gets work; with full barriers all blocks have work [default: 16 for each
    /// thread of a block; for packets 2].
    #[arg(long, value_name = "SIZE", value_parser = sizes::parse_bytes)]
    share: Option<u64>,
}

#[derive(Args)]
pub(crate) struct CopyOptions {
    #[command(flatten)]
    options: Options,
    /// Add rows of bulk copies, made by 1, 2, 4, 8 and 16 blocks of one warp, or by as many blocks as --blocks says. They need
    /// devices of compute capability 9.0, or simulated ones.
    #[arg(long)]
    bulk: bool,
}

#[derive(Args)]
pub(crate) struct PacketOptions {
    /// The kinds of packets, one row each [default: ll16, and ll128 if the interconnect writes whole lines].
    #[arg(long, value_enum, value_delimiter = ',')]
    packets: Vec<Packets>,
    /// Which blocks put and which unpack, one row each [default: together, and split from 4 MiB on].
    #[arg(long, value_enum, value_delimiter = ',')]
    roles: Vec<Roles>,
    /// With split roles, the number of blocks that put [default: half of those with work for LL128, otherwise five of eight].
    #[arg(long, value_name = "BLOCKS")]
    putters: Option<u32>,
    #[command(flatten)]
    options: Options,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Barriers {
    /// Two barriers of the whole grid; one thread of it signals and waits.
    Full,
    /// Only blocks with work take part; after a put the last block signals, and the others do not wait for it.
    Half,
    /// Each block with work signals and waits on a channel of its own.
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Packets {
    Ll8,
    Ll16,
    Ll128,
}

/// The kind of transfer in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Move {
    Put,
    Get,
    PutPackets(Packets),
}

pub(crate) fn parse_threads(text: &str) -> std::result::Result<u32, String> {
    match text.parse() {
        Ok(n @ 1..=1024) if n % 32 == 0 => Ok(n),
        _ => Err("threads are whole warps: a multiple of 32, at most 1024".to_owned()),
    }
}

impl Move {
    fn workload(self) -> &'static str {
        match self {
            Self::Put => "memory-put",
            Self::Get => "memory-get",
            Self::PutPackets(_) => "memory-put-packets",
        }
    }

    /// The bytes of memory that the packets of a message take.
    fn packets(self, bytes: u64) -> u64 {
        match self {
            Self::Put | Self::Get => 0,
            Self::PutPackets(Packets::Ll8) => LL8Packet::buffer_size(bytes),
            Self::PutPackets(Packets::Ll16) => LL16Packet::buffer_size(bytes),
            Self::PutPackets(Packets::Ll128) => LL128Packet::buffer_size(bytes),
        }
    }

    /// The name of the variant. `putters` is the number of blocks that put, if the user chose it.
    fn variant(self, barriers: Barriers, roles: Roles, putters: Option<u32>, shape: Shape) -> String {
        let blocks = format!("{} {}x{}", name_of(&barriers), shape.blocks, shape.threads);
        match self {
            Self::Put | Self::Get if shape.is_bulk => format!("bulk {blocks}"),
            Self::Put | Self::Get => blocks,
            Self::PutPackets(packets) => {
                let (name, roles_name) = (name_of(&packets).to_uppercase(), name_of(&roles));
                match (roles, putters) {
                    (Roles::Split, Some(putters)) => format!("{name} {roles_name} {putters} {blocks}"),
                    _ => format!("{name} {roles_name} {blocks}"),
                }
            }
        }
    }
}

pub(crate) fn put(options: &CopyOptions, joining: &Joining, table: &mut Table) -> Result<()> {
    run(&[Move::Put], options.bulk, true, (&[], None), &options.options, (joining, table))
}

pub(crate) fn get(options: &CopyOptions, joining: &Joining, table: &mut Table) -> Result<()> {
    run(&[Move::Get], options.bulk, true, (&[], None), &options.options, (joining, table))
}

pub(crate) fn put_packets(options: &PacketOptions, joining: &Joining, table: &mut Table) -> Result<()> {
    let asked = !options.packets.is_empty();
    let packets = if asked { &options.packets[..] } else { &[Packets::Ll16, Packets::Ll128] };
    let moves: Vec<_> = packets.iter().copied().map(Move::PutPackets).collect();
    run(&moves, false, asked, (&options.roles, options.putters), &options.options, (joining, table))
}

/// Measures all rows; with `bulk`, those of bulk copies too. Packets that the interconnect does not carry are an error if the
/// user `asked` for them. Without `roles`, the roles suit the size; where they are split, `putters` blocks put.
fn run(
    moves: &[Move],
    bulk: bool,
    asked: bool,
    (roles, putters): (&[Roles], Option<u32>),
    options: &Options,
    (joining, table): (&Joining, &mut Table),
) -> Result<()> {
    // Wrong options are reported before there is a second process, which would report them again.
    let default = match Platform::detect_or_sim()? {
        Platform::Sim => Sizes { begin: 1 << 10, end: 64 << 10, factor: 8 },
        _ => Sizes { begin: 1 << 10, end: 128 << 20, factor: 1 << 10 },
    };
    let Messages { sizes, measuring } = &options.messages;
    let sizes = sizes.or(default, 1)?;
    Shape::require_channels(options)?;
    let pair = measuring.join(2, joining)?;
    let shape = Shape::new(options, &pair.gpu)?;
    let barriers = shape.barriers(options);
    table.note(
        "one round, two processes that both send and receive; a launch is a round, in a graph of as many launches \
         as there are rounds, or of 1000 that is replayed; timed by the device's events",
    );
    table.note("random data, compared on both sides for each time");

    let module = Module::load(&pair.gpu, &MEMORY_BENCH)?;
    // The state is declared before the exchange, whose drop waits for the kernels that use it.
    let state = pair.gpu.allocate(state::SIZE)?;
    let packets = moves.iter().map(|what| what.packets(sizes.end)).max().unwrap_or(0);
    let shapes = if bulk { Shape::bulk(options, &pair.gpu) } else { Vec::new() };
    let shapes = [vec![shape], shapes].concat();
    let channels = shape.channels(&barriers).max(if bulk { 16 } else { 0 });
    let exchange = Exchange::new(&pair, sizes.end, packets, channels)?;
    let mut moves = moves.to_vec();
    if moves.contains(&LINES)
        && let Some(reason) = lines_refused(&pair, &exchange)?
    {
        if asked {
            return Err(reason.into());
        }
        table.note(format!("LL128 is left out: {reason}"));
        moves.retain(|what| *what != LINES);
    }
    let roles: Vec<_> = if roles.is_empty() { vec![None] } else { roles.iter().copied().map(Some).collect() };
    let kinds: Vec<_> =
        moves.iter().flat_map(|what| shapes.iter().map(move |shape| (*what, *shape))).collect();
    let cells = kinds.len() * barriers.len() * roles.len() * sizes.count();
    table.begin(pair.machine(Transport::CUDA_IPC), cells)?;
    for (what, shape) in kinds {
        for (&barriers, &roles) in barriers.iter().flat_map(|of| roles.iter().map(move |roles| (of, roles))) {
            for bytes in sizes.iter() {
                let workers = shape.workers(what, barriers, bytes);
                let roles = roles.unwrap_or(Roles::of(bytes)).among(workers);
                let (n_putters, first_unpacker) = match what {
                    Move::Put | Move::Get => (0, 0),
                    Move::PutPackets(packets) => roles.blocks(packets, workers, putters),
                };
                let round = Round {
                    bytes,
                    incoming: exchange.incoming,
                    state: state.ptr(),
                    failed: exchange.stopwatch.failed(),
                    workers,
                    full: u32::from(barriers == Barriers::Full),
                    part: Shape::part(workers, bytes),
                    putters: n_putters,
                    first_unpacker,
                };
                let rounds = measuring.rounds(&pair, bytes);
                let messages = pair.ranks.random_bytes_of_each(bytes)?;
                let (mine, expected) = (&messages[pair.ranks.rank], &messages[pair.ranks.other()]);
                exchange.load(mine)?;
                // The flags start again with the packets, and an aborted barrier would have left its counters changed.
                state.fill(0, state.len(), 0)?;

                let kernel = module.kernel(&kernel_name(what, shape, barriers))?;
                let shared_bytes = if shape.is_bulk { BULK_STAGE } else { 0 };
                let config =
                    LaunchConfig { shared_bytes, ..LaunchConfig::linear(shape.blocks, shape.threads) };
                let args = arguments(&exchange.channels, barriers, round);
                // SAFETY: these are the kernel's arguments. The exchange, which has the memory and the channels, is dropped
                // before the state, and waits for the kernels' end. All blocks of the grid fit on the device at once.
                let launches = unsafe {
                    let launch = |stream: &Stream| Ok(kernel.launch(stream, config, &args)?);
                    Launches::capture(exchange.stopwatch.stream(), rounds, OF_A_GRAPH, launch)?
                };
                let variant = what.variant(barriers, roles, putters.map(|_| n_putters), shape);
                let row = Row::new(what.workload(), variant, (bytes, SizeOf::Bytes), rounds);
                let once = exchange.arrival().once(
                    launches.count(),
                    |stream, _, range| launches.submit(stream, range),
                    |_| Cow::Borrowed(expected),
                );
                let row = table.measure(measuring.repeats, &pair.ranks, Contender::new(row, once))?;
                table.push(row)?;
            }
        }
    }
    pair.ranks.meet()
}

fn arguments(channels: &[MemoryChannel], barriers: Barriers, round: Round) -> KernelArgs {
    let args = KernelArgs::new().with(channels[0].device_handle()).with(round);
    match barriers {
        Barriers::Full | Barriers::Half => args,
        // There are as many channels as blocks; the rest of the array is not read.
        Barriers::None => {
            let of = std::array::from_fn(|n| channels[n.min(channels.len() - 1)].device_handle().base);
            args.with(OwnChannels { of })
        }
    }
}

/// The packets that not every interconnect carries.
const LINES: Move = Move::PutPackets(Packets::Ll128);

/// The reason why LL128 packets cannot be used, in one direction or the other; the answer is the same on both sides.
fn lines_refused(pair: &Pair, exchange: &Exchange<'_>) -> Result<Option<String>> {
    let refused = exchange.channels[0].check_lines().err();
    let allowed = pair.ranks.all(refused.is_none())?;
    let elsewhere = || "the other rank's link does not carry LL128 packets".to_owned();
    Ok((!allowed).then(|| refused.map_or_else(elsewhere, |error| error.to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_whole_warps() {
        assert_eq!(["32", "1024"].map(parse_threads), [Ok(32), Ok(1024)]);
        assert!(["0", "-32", "33", "1056", "many"].iter().all(|text| parse_threads(text).is_err()));
    }
}
