//! The number of calls in each time of a row, and how they are submitted.

use std::time::Duration;

use mscclpp::prelude::*;
use mscclpp_collectives::Collectives;

use super::{Side, SubmitMany, task::Task};
use crate::{Result, stopwatch::Stopwatch};

/// The duration of the calls in a time between nodes, where the speed of the network is not known beforehand.
const OF_A_TIME: Duration = Duration::from_millis(100);

/// The number of calls in a time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Calls {
    pub(crate) of_a_graph: u32,
    pub(crate) replays: u32,
    /// Whether each call is made by itself, without graphs.
    pub(crate) are_eager: bool,
}

impl Calls {
    /// The calls of `us` microseconds each that fill a time: at most `most`, of which at most `of_a_graph` are in a graph.
    pub(super) fn that_take(us: f64, most: u32, of_a_graph: u32) -> Self {
        let fit = (OF_A_TIME.as_secs_f64() * 1e6 / us.max(0.1)) as u32;
        let all = fit.clamp(1, most.max(1));
        let of_a_graph = of_a_graph.min(all);
        Self { of_a_graph, replays: all / of_a_graph, are_eager: false }
    }

    pub(crate) fn rounds(self) -> u32 {
        self.of_a_graph * self.replays
    }

    /// How many launches these are.
    pub(crate) fn launches(self) -> u32 {
        if self.are_eager { self.rounds() } else { self.replays }
    }

    /// Returns a function that submits launches, each of one call by `call` or of a graph of such calls.
    pub(crate) fn submit<'a>(
        self,
        call: impl Fn(&Stream) -> Result<()> + 'a,
        stream: &Stream,
    ) -> Result<SubmitMany<'a>> {
        if self.are_eager {
            return Ok(Box::new(move |stream, mut range| range.try_for_each(|_| call(stream))));
        }
        stream.begin_capture()?;
        let captured = (0..self.of_a_graph).try_for_each(|_| call(stream));
        let graph = stream.end_capture();
        captured?;
        let graph = graph?;
        // SAFETY: the memory that was captured outlives the side, and who times the calls waits for them.
        Ok(Box::new(move |stream, mut range| Ok(range.try_for_each(|_| unsafe { graph.launch(stream) })?)))
    }
}

/// This library's side of a row, in a memory into which the task was loaded.
pub(super) fn ours<'a>(
    collectives: &'a Collectives,
    task: &Task,
    memory: &'a DeviceBuffer,
    calls: Calls,
    stream: &Stream,
) -> Result<Side<'a>> {
    let request = task.request(memory.ptr());
    // SAFETY: the memory outlives the side, and the code that times the calls waits for them.
    let call = move |stream: &Stream| Ok(unsafe { collectives.enqueue(&[request], stream) }?);
    Ok(Side {
        name: "the library".to_owned(),
        memory,
        launches: calls.submit(call, stream)?,
        n_launches: calls.launches(),
        are_queued: true,
        call: Box::new(call),
        like: Box::new(|found, expected| found == expected),
    })
}

/// The microseconds that one call of the library takes: those of the slowest rank's second call.
pub(super) fn us_of_a_call(
    collectives: &Collectives,
    task: &Task,
    memory: &DeviceBuffer,
    stopwatch: &Stopwatch<'_>,
) -> Result<f64> {
    let request = task.request(memory.ptr());
    let mut us = None;
    for _ in 0..2 {
        // SAFETY: the memory is there until the stopwatch has waited for the call.
        us = stopwatch
            .time_of_waits(|stream| unsafe { collectives.enqueue(&[request], stream) }.map_err(Into::into))?;
    }
    let all = stopwatch.ranks().say(&us.unwrap_or(0.0))?;
    Ok(all.into_iter().fold(0.0, f64::max))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_of_no_more_calls_than_fit() {
        let calls = |us, most| {
            let Calls { of_a_graph, replays, .. } = Calls::that_take(us, most, 20);
            (of_a_graph, replays)
        };
        assert_eq!(calls(130.0, 1000), (20, 38));
        assert_eq!(calls(1.0, 1000), (20, 50));
        assert_eq!(calls(9_000.0, 1000), (11, 1));
        assert_eq!(calls(400_000.0, 1000), (1, 1));
        assert_eq!(calls(0.0, 20), (20, 1));
    }
}
