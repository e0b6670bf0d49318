use std::{any::Any, sync::Arc, time::Instant};

use parking_lot::Mutex;

use super::queue::{CaptureToken, Mark, Op, Queue};
use crate::{Error, Result, backend::EventBackend};

/// An event, which has the last point of a stream that was recorded in it.
pub(super) struct SimEvent {
    with_timing: bool,
    /// Held while a thread records, which may wait for room in the stream: of two threads that record, the later one submits
    /// later too.
    recording: Mutex<()>,
    /// Locked for a moment only, so that no query waits for a stream.
    last: Mutex<Recorded>,
}

#[derive(Default, Clone)]
enum Recorded {
    #[default]
    Never,
    At(Arc<Mark>),
    /// The event was recorded in a stream that was capturing: an edge of the graph, at which nothing happens.
    Captured(CaptureToken),
}

impl SimEvent {
    pub(super) fn new(with_timing: bool) -> Self {
        Self { with_timing, recording: Mutex::default(), last: Mutex::default() }
    }

    pub(super) fn of(backend: &dyn EventBackend) -> Result<&Self> {
        (backend as &dyn Any)
            .downcast_ref()
            .ok_or_else(|| Error::invalid("an event of another platform was given to a simulated stream"))
    }

    /// Marks the end of what `queue` holds now.
    pub(super) fn record(&self, queue: &Queue) -> Result<()> {
        let _recording = self.recording.lock();
        let mark = Arc::new(Mark::default());
        let recorded = match queue.submit_outside_capture(Op::Record(Arc::clone(&mark)))? {
            Some(capture) => Recorded::Captured(capture),
            None => Recorded::At(mark),
        };
        *self.last.lock() = recorded;
        Ok(())
    }

    /// Lets later work of `queue` wait for the last mark.
    pub(super) fn wait_on(&self, queue: &Queue) -> Result<()> {
        let refused = |why: &str| Err(Error::invalid(format!("a stream cannot wait for this event: {why}")));
        let last = self.last.lock().clone();
        match last {
            Recorded::Never => Ok(()),
            // Work of one stream is ordered anyway.
            Recorded::Captured(capture) if queue.is_in(&capture) => Ok(()),
            Recorded::Captured(_) => refused(
                "it was recorded in a capture that has ended or is another stream's (simulated devices capture one stream)",
            ),
            Recorded::At(mark) => match queue.submit_outside_capture(Op::Wait(mark))? {
                None => Ok(()),
                Some(_) => {
                    refused("the stream is capturing, and the event was recorded outside that capture")
                }
            },
        }
    }

    fn time(&self) -> Result<Instant> {
        let unusable = |why: &str| Err(Error::invalid(format!("an event has no time: it {why}")));
        if !self.with_timing {
            return unusable("was made without timing");
        }
        match &*self.last.lock() {
            Recorded::Never => unusable("was never recorded"),
            Recorded::Captured(_) => unusable("was recorded in a capture"),
            Recorded::At(mark) => match mark.get() {
                Some(time) => time,
                None => unusable("is not complete; synchronise first"),
            },
        }
    }
}

impl EventBackend for SimEvent {
    fn query(&self) -> Result<bool> {
        match &*self.last.lock() {
            Recorded::Never => Ok(true),
            Recorded::Captured(_) => {
                Err(Error::invalid("the event was recorded in a capture, and is never reached"))
            }
            Recorded::At(mark) => mark.get().transpose().map(|time| time.is_some()),
        }
    }

    fn elapsed_ms(&self, start: &dyn EventBackend) -> Result<f32> {
        let (start, end) = (Self::of(start)?.time()?, self.time()?);
        let (sign, span) = match end.checked_duration_since(start) {
            Some(span) => (1.0, span),
            None => (-1.0, start.duration_since(end)),
        };
        Ok(sign * span.as_secs_f32() * 1e3)
    }
}

#[cfg(test)]
mod tests {
    use std::{thread, time::Duration};

    use mscclpp_test_support::until;

    use super::*;
    use crate::sim::queue::MOST_PENDING;

    #[test]
    fn an_event_is_queried_while_a_record_waits_for_room_in_its_stream() {
        let (queue, event, untold) = (Queue::new(0), SimEvent::new(false), Mutex::default());
        for _ in 0..MOST_PENDING {
            queue.submit(Op::Record(Arc::default())).unwrap();
        }
        let is_free = thread::scope(|scope| {
            let records = scope.spawn(|| event.record(&queue).unwrap());
            until("the record", || event.recording.is_locked());
            thread::sleep(Duration::from_millis(20));
            let is_free = event.last.try_lock_for(Duration::from_secs(5)).is_some();
            scope.spawn(|| queue.work(&untold));
            records.join().unwrap();
            queue.wait().unwrap();
            queue.close();
            is_free
        });
        assert!(is_free, "a query would wait for the stream");
        assert!(event.query().unwrap());
    }
}
