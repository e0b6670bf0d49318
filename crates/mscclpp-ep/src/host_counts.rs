//! The counts of a dispatch in memory of the host.

use std::sync::atomic::{AtomicU32, Ordering};

use mscclpp::gpu::{KernelArgs, LaunchConfig, PinnedBuffer, Stream};

use crate::{Error, Result, Routed};

/// How many rows came in a dispatch, in pinned memory of the host: made by [`Routed::counts_to_host`].
///
/// The counts are there when the work of the stream up to that call is complete: behind an event, or a synchronisation. If the
/// call was captured, each replay of the graph stores them anew. Before that, they are 0, or those of the replay before.
#[derive(Debug, Clone)]
pub struct HostCounts {
    pinned: PinnedBuffer<AtomicU32>,
    local: usize,
    ranks: usize,
}

impl HostCounts {
    /// How many rows came for each expert of this rank. Does not block.
    #[must_use]
    pub fn rows_of_experts(&self) -> Vec<u32> {
        self.words(0, self.local)
    }

    /// How many rows came from each rank. Does not block.
    #[must_use]
    pub fn rows_of_ranks(&self) -> Vec<u32> {
        self.words(self.local, self.ranks)
    }

    fn words(&self, first: usize, n: usize) -> Vec<u32> {
        let word = |i: usize| self.pinned.word(4 * i as u64).map_or(0, |word| word.load(Ordering::Relaxed));
        (first..first + n).map(word).collect()
    }
}

impl Routed {
    /// Has the counts of the dispatch stored into memory of the host, behind the work in the stream. Does not block, and may be
    /// captured. A program that needs the counts on the host waits for an event behind this call, and not for later work.
    ///
    /// ```
    /// # use {mscclpp::Stream, mscclpp_ep::{Dispatch, Experts, Result}};
    /// # fn count(experts: &Experts, dispatch: &Dispatch, stream: &Stream) -> Result<()> {
    /// let routed = experts.dispatch(dispatch, stream)?;
    /// let counts = routed.counts_to_host(stream)?;
    /// experts.synchronize(stream)?;
    /// println!("{:?} rows came for this rank's experts", counts.rows_of_experts());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the experts that made the routing were dropped; [`Error::Below`] without pinned memory; the
    /// errors of a launch.
    pub fn counts_to_host(&self, stream: &Stream) -> Result<HostCounts> {
        let engine = self.engine()?;
        let (local, ranks) = (self.handle.local as usize, self.handle.ranks as usize);
        let pinned = engine.gpu.allocate_pinned_words(4 * (local + ranks) as u64).map_err(Error::from)?;
        let args = KernelArgs::new().with(&self.tables.buffer).with(&pinned);
        let args = args.with(self.handle.local).with(self.handle.ranks);
        self.launch(&engine, &engine.host_counts, LaunchConfig::linear(1, 64), args, stream)?;
        Ok(HostCounts { pinned, local, ranks })
    }
}
