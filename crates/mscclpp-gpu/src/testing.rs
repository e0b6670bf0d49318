//! The data races that simulated devices have found, for tests of kernels.

pub use crate::sim::races::{Race, RaceAccess};

/// Declares that the calling thread works for that rank, which reports of races then name for its streams and memory. A
/// communicator does so for the thread that makes it. Without `MSCCLPP_SIM_RACES=1` it does nothing.
pub fn this_thread_is_rank(rank: usize) {
    crate::sim::races::this_thread_is_rank(rank);
}

/// Returns the races that simulated devices have found in this process so far, each pair of lines once; none unless
/// `MSCCLPP_SIM_RACES=1` is set.
///
/// A kernel with a race fails with the same text when it ends, and so its stream does. This is for tests that check all
/// of them, also those of kernels that still run.
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
