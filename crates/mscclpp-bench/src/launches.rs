//! Many launches that are timed together.

use std::ops::Range;

use mscclpp::{errors::GpuError, gpu::Graph, prelude::*};

/// The number of launches in a graph.
const OF_A_GRAPH: u32 = 1000;

/// Repetitions of one launch: a graph of them, which is replayed.
pub(crate) struct Launches<L> {
    graph: Graph,
    /// The number of times that the graph is launched.
    replays: u32,
    /// The number of single launches after the graph's.
    rest: u32,
    launch: L,
}

impl<L: Fn(&Stream) -> Result<(), GpuError>> Launches<L> {
    /// Captures a graph for `rounds` repetitions of the launch that `launch` submits.
    pub(crate) fn capture(stream: &Stream, rounds: u32, launch: L) -> Result<Self, GpuError> {
        stream.begin_capture()?;
        let launched = (0..rounds.min(OF_A_GRAPH)).try_for_each(|_| launch(stream));
        // The capture ends even after an error, so that the stream can be used again.
        let graph = stream.end_capture();
        let graph = launched.and(graph)?;
        let (replays, rest) =
            if rounds < OF_A_GRAPH { (1, 0) } else { (rounds / OF_A_GRAPH, rounds % OF_A_GRAPH) };
        Ok(Self { graph, replays, rest, launch })
    }

    /// How often something is submitted: the graph, and then single launches.
    pub(crate) fn count(&self) -> u32 {
        self.replays + self.rest
    }

    /// Submits those of a range.
    ///
    /// # Safety
    /// What the launches use must be kept until they are over.
    pub(crate) unsafe fn submit(&self, stream: &Stream, mut range: Range<u32>) -> Result<(), GpuError> {
        range.try_for_each(|n| match n < self.replays {
            // SAFETY: the caller's promise.
            true => unsafe { self.graph.launch(stream) },
            false => (self.launch)(stream),
        })
    }
}
