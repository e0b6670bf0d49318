//! The data races that simulated devices have found, for tests of kernels.

pub use crate::sim::races::{Race, RaceAccess, races, this_thread_is_rank};
