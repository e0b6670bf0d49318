//! NCCL's side of a row.

use super::Comm;
use crate::{
    collectives::{Calls, Side, Task},
    data::Memory,
    prelude::*,
    watchdog::within,
};

impl Comm<'_> {
    /// NCCL's side of a row, in a memory that begins at `base` and was loaded. All ranks make this call.
    ///
    /// On GPUs, the calls of a time are graphs like the library's. Simulated devices have no streams that other code could
    /// use, so each call there is complete when it returns. Only the replacement of NCCL in tests can do that.
    pub(crate) fn side<'a>(
        &'a self,
        name: &str,
        (memory, base): (&'a dyn Memory, DevicePtr),
        task: &Task,
        calls: Calls,
        stopwatch: &Stopwatch<'_>,
    ) -> Result<Side<'a>> {
        let (request, what, limit) = (task.request(base), task.what, self.limit);
        let (numbers, ranks) = (task.numbers, task.ranks);
        let watched = format!("{name} ({})", what.name());
        // SAFETY: the memory outlives the side, and the code that times the calls waits for them.
        let call = move |stream: &Stream| unsafe { self.call(what, &request, stream) };
        let stream = stopwatch.stream();
        let is_simulated = stream.gpu().platform() == Platform::Sim;
        let of_a_graph = if is_simulated { 0 } else { calls.of_a_graph };
        let one = {
            let watched = watched.clone();
            move |stream: &Stream| within(limit, &watched, || call(stream))
        };
        // The first call connects the ranks, which no capture may contain.
        stopwatch.time_of_waits(&one)?;
        // SAFETY: as above.
        let launches =
            within(limit, &watched, || unsafe { Launches::capture(stream, calls.rounds, of_a_graph, call) })?;
        Ok(Side {
            name: name.to_owned(),
            memory,
            launches,
            // The calls are watched from outside of the time, which has the same limit for their work on the device.
            limit: (of_a_graph == 0).then_some(2 * limit),
            // On simulated devices a call is complete when it returns.
            are_queued: !is_simulated,
            call: Box::new(one),
            like: Box::new(move |found, expected| numbers.are_near(ranks, found, expected)),
        })
    }
}
