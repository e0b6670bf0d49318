//! The sides of a row, which are measured in turns.

use std::time::Duration;

use super::{ResultPlace, task::Task};
use crate::{data::Memory, prelude::*, watchdog::within};

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
