//! How large the launches are, and how many of their blocks have work.

use mscclpp::prelude::*;

use super::{Barriers, Options, OwnChannels};
use crate::Result;

/// Of the launches.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) blocks: u32,
    pub(super) threads: u32,
    /// Bytes for each block that has work.
    share: u64,
}

impl Shape {
    pub(super) fn new(options: &Options, gpu: &Gpu) -> Result<Self> {
        let host = gpu.platform() == Platform::Host;
        let (most_blocks, most_threads) = if host { (4, 32) } else { (32, 1024) };
        let (blocks, threads) =
            (options.blocks.unwrap_or(most_blocks), options.threads.unwrap_or(most_threads));
        let at_once = gpu.properties().multiprocessors;
        if !host && blocks > at_once {
            let why = format!(
                "--blocks {blocks}: blocks wait for each other, and {gpu} surely runs {at_once} at once, one on each \
                 multiprocessor"
            );
            return Err(why.into());
        }
        if options.barriers.contains(&Barriers::None) && blocks as usize > OwnChannels::MOST {
            return Err(
                format!("--barriers none: there are channels for {} blocks", OwnChannels::MOST).into()
            );
        }
        Ok(Self { blocks, threads, share: options.share.unwrap_or(16 * u64::from(threads)) })
    }

    pub(super) fn channels(self, options: &Options) -> u32 {
        if options.barriers.contains(&Barriers::None) { self.blocks } else { 1 }
    }

    pub(super) fn workers(self, barriers: Barriers, bytes: u64) -> u32 {
        match barriers {
            Barriers::Full => self.blocks,
            // At most `blocks`, which fits.
            Barriers::Half | Barriers::None => {
                bytes.div_ceil(self.share).clamp(1, u64::from(self.blocks)) as u32
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_without_a_share_have_no_work_but_at_full_barriers() {
        let shape = Shape { blocks: 32, threads: 1024, share: 16 << 10 };
        let workers = |bytes| shape.workers(Barriers::Half, bytes);
        assert_eq!([1, 1 << 10, 16 << 10].map(workers), [1, 1, 1]);
        assert_eq!([(16 << 10) + 1, 64 << 10, 1 << 20, 128 << 20].map(workers), [2, 4, 32, 32]);
        assert_eq!(shape.workers(Barriers::Full, 1), 32);
    }
}
