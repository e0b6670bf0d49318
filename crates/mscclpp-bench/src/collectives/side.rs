//! The sides of a row, which are measured in turns, and the number of their calls in each time.

use std::time::Duration;

use mscclpp_collectives::Collectives;

use super::{ResultPlace, task::Task};
use crate::{data::Memory, prelude::*, watchdog::within};

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

type Like<'a> = Box<dyn Fn(&[u8], &[u8]) -> bool + 'a>;

/// One way to carry out the task: this library, or another.
pub(crate) struct Side<'a> {
    pub(crate) name: String,
    /// The side's memory, with the task loaded.
    pub(crate) memory: &'a dyn Memory,
    /// The launches of a time, each of one call or of a graph of calls.
    pub(crate) launches: Launches<'a>,
    /// The time after which this process ends if a time is not over, where a call may not return.
    pub(crate) limit: Option<Duration>,
    /// Whether a launch only queues the work, and does not wait for the other ranks.
    pub(crate) are_queued: bool,
    /// Submits one call.
    pub(crate) call: Submit<'a>,
    /// Whether the bytes found are equivalent to those expected.
    pub(crate) like: Like<'a>,
}

impl Side<'_> {
    /// Measures one time. Calls in place have changed their own input, so one more call is made and checked instead.
    fn once(&self, task: &Task, stopwatch: &Stopwatch<'_>, time: Time) -> Result<Option<f64>> {
        task.prepare(self.memory)?;
        let (launches, count) = (&self.launches, self.launches.count());
        let measure = || match self.are_queued {
            true => stopwatch.time(count, |stream, range| launches.submit(stream, range)),
            false => stopwatch.time_of_waits(|stream| launches.submit(stream, 0..count)),
        };
        let us = match self.limit {
            Some(limit) => within(limit, &format!("{} ({})", self.name, task.what.name()), measure)?,
            None => measure()?,
        };
        if task.place == ResultPlace::In {
            task.prepare(self.memory)?;
            stopwatch.time_of_waits(&self.call)?;
        }
        if time.spoils {
            task.spoil(self.memory)?;
        }
        Ok(if us.is_some() && task.is_done(self.memory, &self.like)? { us } else { None })
    }

    /// This side as a contender with that variant. A time is that of `rounds` calls.
    pub(super) fn contender<'a>(
        &'a self,
        variant: String,
        rounds: u32,
        task: &'a Task,
        stopwatch: &'a Stopwatch<'_>,
    ) -> Contender<'a> {
        let (what, bytes) = (task.what.name(), task.bytes);
        let once = move |time| {
            let explain = |error: crate::Error| {
                let error = mscclpp::Report(&*error);
                format!("{}, {what} of {bytes} bytes: {error}", self.name).into()
            };
            self.once(task, stopwatch, time).map_err(explain)
        };
        let row = Row::new(what, variant, (bytes, SizeOf::Bytes), rounds);
        Contender {
            label: format!("{}, {what} of {bytes} B, {rounds} calls in a time", self.name),
            bus: Some(task.what.bus(task.ranks)),
            ..Contender::new(row, Box::new(once))
        }
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
