//! Measures the sides of a row in turns, one time of each after the other, so that changes on a machine during the
//! measurement affect all sides.

use std::ops::Range;

use mscclpp::prelude::*;

use super::{ResultPlace, task::Task};
use crate::{
    Result, data::Memory, measuring::Measuring, progress::Progress, report::Times, stopwatch::Stopwatch,
};

type Like<'a> = Box<dyn Fn(&[u8], &[u8]) -> bool + 'a>;
pub(crate) type Submit<'a> = Box<dyn Fn(&Stream) -> Result<()> + 'a>;
pub(crate) type SubmitMany<'a> = Box<dyn Fn(&Stream, Range<u32>) -> Result<()> + 'a>;

/// One way to carry out the task: this library, or another.
pub(crate) struct Side<'a> {
    pub(crate) name: String,
    /// The side's memory, with the task loaded.
    pub(crate) memory: &'a dyn Memory,
    /// Submits launches of a time, each of one call or of a graph of calls: those of a range.
    pub(crate) launches: SubmitMany<'a>,
    /// How many launches a time has.
    pub(crate) n_launches: u32,
    /// Whether a launch returns before the other ranks make theirs.
    pub(crate) are_queued: bool,
    /// Submits one call.
    pub(crate) call: Submit<'a>,
    /// Whether the bytes found are equivalent to those expected.
    pub(crate) like: Like<'a>,
}

/// The times of each side, in microseconds for one call; a time is measured over `rounds` calls together. A side has none
/// if a result was wrong on any rank, at any time.
pub(crate) fn in_turns(
    (task, rounds): (&Task, u32),
    sides: &[Side<'_>],
    stopwatch: &Stopwatch<'_>,
    measuring: &Measuring,
    progress: &mut Progress,
) -> Result<Vec<Option<Times>>> {
    let mut times = vec![Vec::new(); sides.len()];
    let mut right = vec![true; sides.len()];
    for launch in 0..measuring.launches() {
        for (n, side) in sides.iter().enumerate() {
            let (name, what, bytes) = (&side.name, task.what.name(), task.bytes);
            let label = format!("{name}, {what} of {bytes} B, time {launch} of {rounds} calls");
            progress.step(&label);
            let one = side.one(task, stopwatch, measuring.spoil).map_err(|error| {
                let error = mscclpp::Report(&*error);
                format!("{}, {} of {} bytes: {error}", side.name, task.what.name(), task.bytes)
            });
            let (us, ok) = one?;
            right[n] &= ok;
            if measuring.counts(launch) {
                times[n].extend(us.map(|us| us / f64::from(rounds)));
            }
        }
    }
    let mut all = Vec::new();
    for (times, right) in times.into_iter().zip(right) {
        let right = stopwatch.ranks().all(right)?;
        all.push(Times::of(times).filter(|_| right));
    }
    Ok(all)
}

impl Side<'_> {
    /// Measures one time. Returns it, and whether the result was right. Calls in place have changed their own input, so one
    /// more call is made and checked instead.
    fn one(&self, task: &Task, stopwatch: &Stopwatch<'_>, spoil: bool) -> Result<(Option<f64>, bool)> {
        task.prepare(self.memory)?;
        let us = match self.are_queued {
            true => stopwatch.time(self.n_launches, &self.launches)?,
            false => stopwatch.time_of_waits(|stream| (self.launches)(stream, 0..self.n_launches))?,
        };
        if task.place == ResultPlace::In {
            task.prepare(self.memory)?;
            stopwatch.time_of_waits(&self.call)?;
        }
        if spoil {
            task.spoil(self.memory)?;
        }
        Ok((us, us.is_some() && task.is_done(self.memory, &self.like)?))
    }
}
