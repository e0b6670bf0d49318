//! Collectives that kernels of the program do.

use std::fmt;

use mscclpp::{Kernel, KernelArgs};

use crate::{DataType, Kind};

use super::selector::Query;

/// Does collectives in place of the library, with a kernel of its own, made with the header
/// `mscclpp/collective_own_device.hpp`. It is given to [`CollectivesBuilder::algorithm`](crate::CollectivesBuilder::algorithm),
/// and from then on does the calls that it has a plan for, eager and captured, in one order with all others.
///
/// A kernel has its own parameters, and behind them a `CollectiveHandle` and a `CollectiveCall`, which says what is to be sent
/// and where what comes goes. Load it before the ranks make calls: loading may wait for kernels that run on the device, and
/// those wait for other ranks.
///
/// To choose only how the library's kernels do it, a [`Selector`](crate::Selector) is enough; to go on with the sums of an
/// `all_reduce` in the same launch, there is [`Collectives::all_reduce_rows`](crate::Collectives::all_reduce_rows).
///
/// # Safety
/// All ranks plan alike. The kernel has these parameters, calls `ownCollective` once, by all its threads, and does what
/// that header says and what the [kind](Kind) promises: it reads and writes only memory of the call's segments, of the
/// scratch, and what its own parameters name, which lives as long as the launch.
///
/// ```
/// # #[cfg(feature = "cuda-ipc")]
/// # fn main() -> Result<(), mscclpp_collectives::Error> {
/// # use std::sync::Arc;
/// use mscclpp::prelude::*;
/// use mscclpp_collectives::{Algorithm, Asked, Collectives, DeviceSlice, Kind, Launch, ReduceOp};
///
/// const ONE_STEP: KernelSource<'_> = KernelSource::new("one_step.cu", r#"
/// #include <mscclpp/collective_own_device.hpp>
/// using namespace mscclpp;
///
/// extern "C" __global__ void __launch_bounds__(1024)
///     one_step(const MSCCLPP_GRID_CONSTANT CollectiveHandle comm, const MSCCLPP_GRID_CONSTANT CollectiveCall call) {
///   ownCollective(comm, call, [](const OwnCall& own) {
///     const CollectiveSegment mine = own.segment(own.rank());
///     const uint64_t bytes = mine.recvBytes, words = (bytes + 7) / 8;
///     for (uint64_t i = own.thread(); i < words; i += own.threads()) {
///       const uint64_t word = own.sent(own.word(mine.send, bytes, i));
///       for (uint32_t r = 0; r < own.ranks(); ++r) store8(own.scratch(r) + (own.rank() * words + i) * 8, word);
///     }
///     own.signalAll(0);
///     if (!own.waitForAll(0)) return false;
///     for (uint64_t i = own.thread(); i < words; i += own.threads()) {
///       uint64_t of[CollectiveMaxRanks];
///       for (uint32_t r = 0; r < own.ranks(); ++r) of[r] = load8(own.scratch(own.rank()) + (r * words + i) * 8);
///       own.storeWord(mine.recv, bytes, i, own.reduced(of));
///     }
///     return true;
///   });
/// }
/// "#);
///
/// #[derive(Debug)]
/// struct OneStep(Kernel);
///
/// // SAFETY: the kernel does an all_reduce as its header asks for; all ranks know the kind and the size.
/// unsafe impl Algorithm for OneStep {
///     fn plan(&self, asked: &Asked<'_>) -> Option<Launch> {
///         let words = asked.query.bytes.div_ceil(8) * asked.query.ranks as u64;
///         let is_mine = matches!(asked.kind, Kind::AllReduce(_)) && words <= asked.scratch_bytes / 8;
///         is_mine.then(|| Launch { kernel: self.0.clone(), args: KernelArgs::new(), blocks: 2, threads: 64 })
///     }
/// }
///
/// # use mscclpp_collectives::Result;
/// # let ranks = LocalBootstrap::group(2).into_iter().map(|bootstrap| std::thread::spawn(move || -> Result<()> {
/// # let comm = Communicator::with_context(Arc::new(bootstrap), Context::on(Platform::Sim));
/// # let rank = comm.bootstrap().rank();
/// let gpu = comm.context().gpu(rank)?;
/// let kernel = Module::load(&gpu, &ONE_STEP)?.kernel("one_step")?;
/// let collectives = Collectives::builder(&comm, &gpu).algorithm(OneStep(kernel)).connect()?;
/// # let stream = gpu.stream()?;
/// # let numbers = DeviceSlice::<f32>::new(&gpu.allocate(4096)?)?;
/// # numbers.write(&[1.0 + rank as f32; 1024])?;
/// collectives.all_reduce(&numbers, &numbers, ReduceOp::Sum, &stream)?;
/// # collectives.synchronize(&stream)?;
/// # assert_eq!(numbers.read()?, [3.0; 1024]);
/// # comm.bootstrap().barrier()?;
/// # Ok(())
/// # }));
/// # for rank in ranks.collect::<Vec<_>>() { rank.join().expect("a rank panicked")?; }
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "cuda-ipc"))]
/// # fn main() {}
/// ```
pub unsafe trait Algorithm: Send + Sync + fmt::Debug {
    /// How it does this call; none if it does not, so that the next algorithm or the library does it. Called by each call
    /// that moves something between ranks of one node, but for messages and rows.
    fn plan(&self, asked: &Asked<'_>) -> Option<Launch>;
}

/// The call that an [`Algorithm`] plans. All ranks have the same, but for counts that only pairs of ranks know and the factor of
/// [`ReduceOp::PreMulSum`](crate::ReduceOp::PreMulSum).
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Asked<'a> {
    /// Which collective. In a barrier, each rank gives each a word.
    pub kind: Kind<'a>,
    /// The type of the numbers.
    pub data_type: DataType,
    /// The size of the call, and the devices that it is between.
    pub query: Query,
    /// `own.scratchBytes()` in the kernel: how much there is on each rank for one call.
    pub scratch_bytes: u64,
}

/// The launch for a call.
#[derive(Debug)]
pub struct Launch {
    /// A kernel of this rank's device.
    pub kernel: Kernel,
    /// The kernel's own parameters. The library's two come behind them.
    pub args: KernelArgs,
    /// How many blocks, alike on all ranks. They are made fewer, also alike, if the device has no room for as many.
    pub blocks: u32,
    /// How many threads each has: a multiple of 32, up to 1024, and at least as many as there are ranks.
    pub threads: u32,
}
