//! What tests of kernels ask the simulated platform.

pub use crate::sim::races::{Race, RaceAccess};

/// Says that the calling thread works for that rank, whose streams and memory are named by it in reports of races. A communicator says
/// so of the thread that makes it. Without `MSCCLPP_SIM_RACES=1` it does nothing.
pub fn this_thread_is_rank(rank: usize) {
    crate::sim::races::this_thread_is_rank(rank);
}

/// The races that the simulated platform has found in this process until now, each pair of lines once; none unless
/// `MSCCLPP_SIM_RACES=1` is set.
///
/// A kernel with a race fails with the same text when it ends, and so its stream does. This is for tests that look at all of
/// them, also at those of kernels that still run.
///
/// ```
/// for race in mscclpp_gpu::testing::races() {
///     eprintln!("{race}");
/// }
/// ```
#[must_use]
pub fn races() -> Vec<Race> {
    crate::sim::races::races()
}
