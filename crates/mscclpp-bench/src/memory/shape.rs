//! The number of blocks and threads of the launches, and how many of the blocks have work.

use super::{Barriers, Move, Options, OwnChannels};
use crate::prelude::*;

/// The shape of the launches.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Packets;

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
}
