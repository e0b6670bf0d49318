use std::{any::Any, sync::Arc, time::Instant};

use parking_lot::Mutex;

use super::queue::{CaptureToken, Mark, Op, Queue};
use crate::{Error, Result, backend::EventBackend};

/// An event, which has the last point of a stream that was recorded in it.
pub(super) struct SimEvent {
    with_timing: bool,
    last: Mutex<Recorded>,
}

#[derive(Default)]
enum Recorded {
    #[default]
    Never,
    At(Arc<Mark>),
    /// The event was recorded in a stream that was capturing: an edge of the graph, at which nothing happens.
    Captured(CaptureToken),
}

impl SimEvent {
    pub(super) fn new(with_timing: bool) -> Self {
        Self { with_timing, last: Mutex::default() }
    }

    pub(super) fn of(backend: &dyn EventBackend) -> Result<&Self> {
        (backend as &dyn Any)
            .downcast_ref()
            .ok_or_else(|| Error::invalid("an event of another platform was given to a simulated stream"))
    }

    /// Marks the end of what `queue` holds now.
    pub(super) fn record(&self, queue: &Queue) -> Result<()> {
        // The lock is held while submitting, so that of two threads that record, the later one submits later too.
        let mut last = self.last.lock();
        let mark = Arc::new(Mark::default());
        *last = match queue.submit_outside_capture(Op::Record(Arc::clone(&mark)))? {
            Some(capture) => Recorded::Captured(capture),
            None => Recorded::At(mark),
        };
        Ok(())
    }

    /// Lets later work of `queue` wait for the last mark.
    pub(super) fn wait_on(&self, queue: &Queue) -> Result<()> {
        let refused = |why: &str| Err(Error::invalid(format!("a stream cannot wait for this event: {why}")));
        match &*self.last.lock() {
            Recorded::Never => Ok(()),
            // Work of one stream is ordered anyway.
            Recorded::Captured(capture) if queue.is_in(capture) => Ok(()),
            Recorded::Captured(_) => refused(
                "it was recorded in a capture that has ended or is another stream's (simulated devices capture one stream)",
            ),
            Recorded::At(mark) => match queue.submit_outside_capture(Op::Wait(Arc::clone(mark)))? {
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
