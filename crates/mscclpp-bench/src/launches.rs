//! Many launches that are timed together.

use std::ops::Range;

use mscclpp::gpu::Graph;

use crate::prelude::*;

/// The most launches in a graph of rounds.
pub(crate) const OF_A_GRAPH: u32 = 1000;

/// A function that submits one launch.
pub(crate) type Submit<'a> = Box<dyn Fn(&Stream) -> Result<()> + 'a>;

/// Repetitions of one launch: graphs of them, or single launches.
pub(crate) struct Launches<'a> {
    launch: Submit<'a>,
    /// The graph of most launches, and one of those that are left; none for single launches.
    graphs: Vec<Graph>,
    /// The number of times that the first graph, or the launch, is submitted.
    replays: u32,
}

impl<'a> Launches<'a> {
    /// Prepares `rounds` repetitions of the launch that `launch` submits: in graphs of up to `of_a_graph` launches, or one by one
    /// if that is 0.
    ///
    /// # Safety
    /// The memory that the launches use must be kept until who submits them has waited for them.
    pub(crate) unsafe fn capture(
        stream: &Stream,
        rounds: u32,
        of_a_graph: u32,
        launch: impl Fn(&Stream) -> Result<()> + 'a,
    ) -> Result<Self> {
        if of_a_graph == 0 {
            return Ok(Self { launch: Box::new(launch), graphs: Vec::new(), replays: rounds });
        }
        let of_a_graph = of_a_graph.min(rounds);
        let graph = |launches: u32| -> Result<Graph> {
            stream.begin_capture()?;
            let launched = (0..launches).try_for_each(|_| launch(stream));
            // The capture ends even after an error, so that the stream can be used again.
            let graph = stream.end_capture();
            launched.and_then(|()| Ok(graph?))
        };
        let left = Some(rounds % of_a_graph).filter(|left| *left > 0);
        let graphs = [of_a_graph].into_iter().chain(left).map(graph).collect::<Result<_>>()?;
        Ok(Self { launch: Box::new(launch), graphs, replays: rounds / of_a_graph })
    }

    /// The number of times that something is submitted.
    pub(crate) fn count(&self) -> u32 {
        self.replays + self.graphs.len().saturating_sub(1) as u32
    }

    /// Submits those of a range.
    pub(crate) fn submit(&self, stream: &Stream, mut range: Range<u32>) -> Result<()> {
        range.try_for_each(|n| match self.graphs.get(usize::from(n >= self.replays)) {
            // SAFETY: by the contract of `capture`, the memory is kept.
            Some(graph) => Ok(unsafe { graph.launch(stream) }?),
            None => (self.launch)(stream),
        })
    }
}
