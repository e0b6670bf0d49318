//! The number of calls in each time of a row, and how they are submitted.

use std::time::Duration;

use mscclpp_collectives::Collectives;

use super::{Side, task::Task};
use crate::prelude::*;

/// The duration of the calls in a time between nodes, where the speed of the network is not known beforehand.
const OF_A_TIME: Duration = Duration::from_millis(100);

/// The number of calls in a time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Calls {
    /// A multiple of the calls in a graph.
    pub(crate) rounds: u32,
    /// The number of calls in a graph; 0 if each call is made by itself.
    pub(crate) of_a_graph: u32,
}

impl Calls {
    /// At least `rounds` calls in graphs of `of_a_graph`, or, if they are `eager`, as many without graphs.
    pub(crate) fn new(rounds: u32, of_a_graph: u32, eager: bool) -> Self {
        let rounds = rounds.next_multiple_of(of_a_graph);
        Self { rounds, of_a_graph: if eager { 0 } else { of_a_graph } }
    }

    /// The calls of `us` microseconds each that fill a time: at most `most`, of which at most `of_a_graph` are in a graph.
    pub(super) fn that_take(us: f64, most: u32, of_a_graph: u32, eager: bool) -> Self {
        let fit = (OF_A_TIME.as_secs_f64() * 1e6 / us.max(0.1)) as u32;
        let all = fit.clamp(1, most.max(1));
        let of_a_graph = of_a_graph.min(all);
        Self::new(all / of_a_graph * of_a_graph, of_a_graph, eager)
    }

    /// Prepares the calls.
    ///
    /// # Safety
    /// The same as for [`Launches::capture`].
    pub(crate) unsafe fn capture<'a>(
        self,
        stream: &Stream,
        call: impl Fn(&Stream) -> Result<()> + 'a,
    ) -> Result<Launches<'a>> {
        // SAFETY: the caller's promise.
        unsafe { Launches::capture(stream, self.rounds, self.of_a_graph, call) }
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
        // SAFETY: as above.
        launches: unsafe { calls.capture(stream, call)? },
        limit: None,
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
            let Calls { rounds, of_a_graph } = Calls::that_take(us, most, 20, false);
            (of_a_graph, rounds / of_a_graph)
        };
        assert_eq!(calls(130.0, 1000), (20, 38));
        assert_eq!(calls(1.0, 1000), (20, 50));
        assert_eq!(calls(9_000.0, 1000), (11, 1));
        assert_eq!(calls(400_000.0, 1000), (1, 1));
        assert_eq!(calls(0.0, 20), (20, 1));
    }
}
