//! The costs of a job, and of its parts.

use std::time::Duration;

/// The number of bytes that each rank contributes to `all_gather`.
pub(super) const PIECE: usize = 256;

/// The cost of a part of a job's life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cost {
    /// The part: `initialise`, `all_gather` or `barrier`.
    pub what: &'static str,
    /// The time from when the last rank begins until the last has ended, if only the way between nodes takes time.
    pub time: Duration,
    /// The same time, as a number of ways between nodes that follow each other.
    pub hops: u32,
    /// The traffic that rank 0 writes.
    pub rank_0: Traffic,
    /// The traffic of the rank that writes the most bytes apart from rank 0.
    pub most_of_others: Traffic,
}

/// The traffic that a rank writes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// The number of frames.
    pub frames: u64,
    /// The number of bytes.
    pub bytes: u64,
}

/// The costs of a job, and the most connections that a rank had at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Costs {
    /// The costs of initialisation, an all_gather and a barrier.
    pub parts: Vec<Cost>,
    /// The most connections of rank 0.
    pub connections_of_rank_0: usize,
    /// The most connections of another rank.
    pub most_connections_of_others: usize,
}

impl Cost {
    pub(super) fn new(
        what: &'static str,
        hops: u32,
        latency: Duration,
        rank_0: Traffic,
        most_of_others: Traffic,
    ) -> Self {
        Self { what, time: latency * hops, hops, rank_0, most_of_others }
    }
}

impl Traffic {
    pub(super) fn since(&self, before: Self) -> Self {
        Self { frames: self.frames - before.frames, bytes: self.bytes - before.bytes }
    }
}
