//! The kernels in `memory_bench.cu` and their parameters: blocks and threads, how many of the blocks have work, and which put and
//! which unpack.

use clap::ValueEnum;
use mscclpp::gpu::KernelParam;

use super::{Barriers, Move, Options, Packets};
use crate::prelude::*;

#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) blocks: u32,
    pub(super) threads: u32,
    /// The bytes for each block that has work, if the user chose them.
    share: Option<u64>,
    /// Whether one warp of each block moves the bytes by bulk copies.
    pub(super) is_bulk: bool,
}

/// The bytes of a cache line of device memory.
const LINE: u64 = 128;

impl Shape {
    pub(super) fn new(options: &Options, gpu: &Gpu) -> Result<Self> {
        let on_sim = gpu.platform() == Platform::Sim;
        let (most_blocks, most_threads) = if on_sim { (4, 32) } else { (32, 1024) };
        let (blocks, threads) =
            (options.blocks.unwrap_or(most_blocks), options.threads.unwrap_or(most_threads));
        let at_once = gpu.properties().multiprocessors;
        if !on_sim && blocks > at_once {
            let why = format!(
                "--blocks {blocks}: blocks wait for each other, and {gpu} surely runs {at_once} at once, one on each \
                 multiprocessor"
            );
            return Err(why.into());
        }
        Ok(Self { blocks, threads, share: options.share, is_bulk: false })
    }

    /// Fails if the user chose more blocks than there are channels. By default there are fewer.
    pub(super) fn require_channels(options: &Options) -> Result<()> {
        match options.blocks {
            Some(blocks)
                if options.barriers.contains(&Barriers::None) && blocks as usize > OwnChannels::MOST =>
            {
                let most = OwnChannels::MOST;
                Err(format!("--barriers none with --blocks {blocks}: there are channels for {most} blocks")
                    .into())
            }
            _ => Ok(()),
        }
    }

    /// The shapes for bulk copies, one for each number of blocks: blocks of one warp, all of which have work.
    pub(super) fn bulk(options: &Options, gpu: &Gpu) -> Vec<Self> {
        let most = if gpu.platform() == Platform::Sim { 4 } else { 16 };
        let blocks = options.blocks.map_or_else(|| vec![1, 2, 4, 8, 16], |blocks| vec![blocks]);
        let fitting = blocks.into_iter().filter(|blocks| options.blocks.is_some() || *blocks <= most);
        fitting.map(|blocks| Self { blocks, threads: 32, share: Some(LINE), is_bulk: true }).collect()
    }

    /// The barriers that the user chose, or by default a channel for each block, if there are as many channels.
    pub(super) fn barriers(self, options: &Options) -> Vec<Barriers> {
        if !options.barriers.is_empty() {
            return options.barriers.clone();
        }
        let fit = self.blocks as usize <= OwnChannels::MOST;
        vec![if fit { Barriers::None } else { Barriers::Half }]
    }

    pub(super) fn channels(self, barriers: &[Barriers]) -> u32 {
        if barriers.contains(&Barriers::None) { self.blocks } else { 1 }
    }

    pub(super) fn workers(self, what: Move, barriers: Barriers, bytes: u64) -> u32 {
        let by_default = match what {
            Move::Put | Move::Get => 16,
            Move::PutPackets(_) => 2,
        };
        let share = self.share.unwrap_or(by_default * u64::from(self.threads));
        match barriers {
            Barriers::Full => self.blocks,
            // The value fits, because it is at most `blocks`.
            Barriers::Half | Barriers::None => bytes.div_ceil(share).clamp(1, u64::from(self.blocks)) as u32,
        }
    }

    /// The bytes that each of the `workers` puts or gets; the last one takes the rest. A part has whole cache lines, so that no
    /// two workers write to one.
    pub(super) fn part(workers: u32, bytes: u64) -> u64 {
        bytes.div_ceil(workers.into()).next_multiple_of(LINE)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Roles {
    /// All blocks put, and then all unpack.
    Together,
    /// Some of the blocks put while the others unpack.
    Split,
}

/// The size from which split roles are faster: the peer's packets are unpacked while they arrive, which gains more than
/// having more blocks for each task.
const SPLIT_FROM: u64 = 4 << 20;

impl Roles {
    /// The default roles for a size.
    pub(super) fn of(bytes: u64) -> Self {
        if bytes >= SPLIT_FROM { Self::Split } else { Self::Together }
    }

    /// The roles if only `workers` blocks have work: a single block does both.
    pub(super) fn among(self, workers: u32) -> Self {
        if workers < 2 { Self::Together } else { self }
    }

    /// The number of the `workers` that put, from the first on, and the index of the first that unpacks. With split roles,
    /// `putters` of them put if that is given; otherwise the number that was measured to be fastest, which is larger for
    /// packets of which flags are a larger part. At least one block has each role.
    pub(super) fn blocks(self, packets: Packets, workers: u32, putters: Option<u32>) -> (u32, u32) {
        if self.among(workers) == Self::Together {
            return (workers, 0);
        }
        let by_default = match packets {
            Packets::Ll8 | Packets::Ll16 => workers * 5 / 8,
            Packets::Ll128 => workers / 2,
        };
        let putters = putters.unwrap_or(by_default).clamp(1, workers - 1);
        (putters, putters)
    }
}

/// The parameters of a launch, which is one round, in the layout of the kernels' source.
#[derive(Debug, Clone, Copy, KernelParam)]
#[repr(C)]
pub(super) struct Round {
    pub(super) bytes: u64,
    pub(super) incoming: u64,
    /// The address of [`state::SIZE`] bytes of device memory, zero at first.
    pub(super) state: DevicePtr,
    pub(super) failed: DevicePtr,
    pub(super) workers: u32,
    pub(super) full: u32,
    pub(super) part: u64,
    pub(super) putters: u32,
    pub(super) first_unpacker: u32,
}

/// One channel for each block.
#[derive(Debug, Clone, Copy, KernelParam)]
#[repr(C)]
pub(super) struct OwnChannels {
    pub(super) of: [BaseMemoryChannelHandle; Self::MOST],
}

impl OwnChannels {
    pub(super) const MOST: usize = 64;
}

/// The bytes of shared memory of a block that moves by bulk copies: a `BulkStage<>` of the headers.
pub(super) const BULK_STAGE: u32 = (6 * 16384 + 6 * 8_u32).next_multiple_of(128);

/// The state that is kept from launch to launch: two barriers, each on a cache line of its own, and a flag for each block.
pub(super) mod state {
    pub(crate) const SIZE: u64 = 256 + 4 * MAX_BLOCKS as u64;
    pub(crate) const MAX_BLOCKS: u32 = 1024;
}

pub(super) fn kernel_name(what: Move, shape: Shape, barriers: Barriers) -> String {
    let entry = match what {
        Move::Put => "memory_put",
        Move::Get => "memory_get",
        Move::PutPackets(Packets::Ll8) => "memory_put_ll8",
        Move::PutPackets(Packets::Ll16) => "memory_put_ll16",
        Move::PutPackets(Packets::Ll128) => "memory_put_ll128",
    };
    let own = if barriers == Barriers::None { "_own" } else { "" };
    let bulk = if shape.is_bulk { "_bulk" } else { "" };
    format!("{entry}{bulk}{own}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKS: Shape = Shape { blocks: 32, threads: 1024, share: None, is_bulk: false };

    #[test]
    fn blocks_without_a_share_have_no_work_but_at_full_barriers() {
        let puts = |bytes| BLOCKS.workers(Move::Put, Barriers::Half, bytes);
        assert_eq!([1, 1 << 10, 16 << 10].map(puts), [1, 1, 1]);
        assert_eq!([(16 << 10) + 1, 64 << 10, 1 << 20, 128 << 20].map(puts), [2, 4, 32, 32]);
        let packets = |bytes| BLOCKS.workers(Move::PutPackets(Packets::Ll16), Barriers::None, bytes);
        assert_eq!([1, 2 << 10, 16 << 10, 64 << 10, 1 << 20].map(packets), [1, 1, 8, 32, 32]);
        assert_eq!(BLOCKS.workers(Move::Put, Barriers::Full, 1), 32);
        let shape = Shape { share: Some(100), ..BLOCKS };
        assert_eq!(shape.workers(Move::Get, Barriers::Half, 1000), 10);
    }

    #[test]
    fn parts_are_aligned_and_all_of_the_message() {
        assert_eq!([1, 128, 384, 385, 1000].map(|bytes| Shape::part(3, bytes)), [128, 128, 128, 256, 384]);
        assert_eq!(Shape::part(32, 128 << 20), 4 << 20);
        for (workers, bytes) in (1..40).zip((0..).step_by(97)) {
            assert!(Shape::part(workers, bytes) * u64::from(workers) >= bytes);
        }
    }

    #[test]
    fn split_roles_have_a_block_each() {
        let split = |packets, workers| Roles::Split.blocks(packets, workers, None);
        assert_eq!([2, 3, 4, 32].map(|n| split(Packets::Ll16, n).0), [1, 1, 2, 20]);
        assert_eq!(split(Packets::Ll128, 32), (16, 16), "the others unpack");
        assert_eq!(split(Packets::Ll128, 1), (1, 0), "both by one");
        let given = |putters| Roles::Split.blocks(Packets::Ll8, 4, Some(putters)).0;
        assert_eq!([0, 1, 3, 4, 4000].map(given), [1, 1, 3, 3, 3]);
        assert_eq!(Roles::Together.blocks(Packets::Ll8, 4, Some(1)), (4, 0));
    }

    #[test]
    fn large_messages_are_split_where_there_are_two_blocks() {
        assert_eq!(Roles::of((4 << 20) - 1), Roles::Together);
        assert_eq!(Roles::of(4 << 20).among(2), Roles::Split);
        assert_eq!(Roles::of(128 << 20).among(1), Roles::Together);
    }
}
