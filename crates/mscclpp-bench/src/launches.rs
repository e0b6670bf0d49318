//! Many launches that are timed together.

use std::ops::Range;

use mscclpp::{errors::GpuError, gpu::Graph, prelude::*};

/// How many launches a graph holds.
const OF_A_GRAPH: u32 = 1000;

/// The same launch again and again: a graph of them, or replays of one.
pub(crate) struct Launches<L> {
    graph: Graph,
    /// How often the graph is launched.
    replays: u32,
    /// How many launches follow it.
    rest: u32,
    launch: L,
}

impl<L: Fn(&Stream) -> Result<(), GpuError>> Launches<L> {
    /// Of `rounds` times what `launch` submits.
    pub(crate) fn capture(stream: &Stream, rounds: u32, launch: L) -> Result<Self, GpuError> {
        stream.begin_capture()?;
        let launched = (0..rounds.min(OF_A_GRAPH)).try_for_each(|_| launch(stream));
        // Also after an error: the stream is to be usable again.
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
