//! NCCL's side of a row.

use mscclpp::{DevicePtr, Platform};

use super::Comm;
use crate::{
    Result,
    collectives::{Calls, Side, Task},
    data::Memory,
    stopwatch::Stopwatch,
    watchdog::within,
};

impl Comm<'_> {
    /// Its side of a row, in a memory that begins at `base` and was loaded. All ranks make this call.
    ///
    /// On GPUs, the calls of a time are graphs as for the library. Simulated devices have no streams that other code could
    /// use: there each call is complete when it returns. Only what stands in for NCCL in tests can do that.
    pub(crate) fn side<'a>(
        &'a self,
        name: &str,
        (memory, base): (&'a dyn Memory, DevicePtr),
        task: &Task,
        calls: Calls,
        stopwatch: &Stopwatch<'_>,
    ) -> Result<Side<'a>> {
        let (request, what, limit, numbers) = (task.request(base), task.what, self.limit, task.numbers);
        let watched = format!("{name} ({})", what.name());
        let call = {
            let watched = watched.clone();
            move |stream: &mscclpp::Stream| {
                // SAFETY: the memory outlives the side, and who times the calls waits for them.
                within(limit, &watched, || unsafe { self.call(what, &request, stream) })
            }
        };
        // The first call connects the ranks, which no capture may contain.
        stopwatch.time_of_waits(&call)?;
        // Not queued before the other rank begins: on simulated devices calls wait, and on GPUs NCCL's graphs fill the
        // driver's queue, where a launch then waits for kernels that wait for the other rank.
        let side = |calls| Side {
            name: name.to_owned(),
            memory,
            calls,
            are_queued: false,
            call: Box::new(call.clone()),
            like: Box::new(move |found, expected| numbers.are_near(found, expected)),
        };
        let stream = stopwatch.stream();
        if stream.gpu().platform() == Platform::Host {
            let call = call.clone();
            return Ok(side(Box::new(move |stream| (0..calls.rounds()).try_for_each(|_| call(stream)))));
        }
        stream.begin_capture()?;
        let captured = within(limit, &watched, || {
            // SAFETY: as above.
            (0..calls.of_a_graph).try_for_each(|_| unsafe { self.call(what, &request, stream) })
        });
        let graph = stream.end_capture();
        captured?;
        let graph = graph?;
        Ok(side(Box::new(move |stream| {
            // SAFETY: as above.
            Ok((0..calls.replays).try_for_each(|_| unsafe { graph.launch(stream) })?)
        })))
    }
}
