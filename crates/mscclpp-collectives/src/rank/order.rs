//! The order of the calls of a communicator, which may be made on different streams.
//!
//! - O1. An event is recorded behind every call, in its stream, by the thread that made it. So the next call waits for the call
//!   before it and for nothing that the program has put into that call's stream since.
//! - O2. No event is recorded in a stream that is being captured, but for the graph's own order: calls of one capture follow each
//!   other, and calls outside of it neither wait for it nor it for them.
//! - O3. Whether the calls are complete is asked of the event, and never of a stream, which may be gone or another thread's.

use mscclpp::{Event, Platform, Stream};

use crate::Result;

/// The last call, and the last calls of captures.
#[derive(Default)]
pub(crate) struct Order {
    /// The event behind the last call that was not captured, and the stream of that call. A stream of others may be
    /// gone: it is only compared.
    last: Option<(Event, Stream)>,
    /// Whether somebody follows the event of the last call, so that the next one has another.
    is_followed: bool,
    /// The captures that are under way, and some that have ended.
    captured: Vec<Captured>,
}

/// How many captures at once are kept in order: of those of streams of others it is not known whether they have ended.
const MOST_CAPTURES: usize = 16;

/// The last call of a capture. A stream of others may be gone: it is only compared.
struct Captured {
    capture: u64,
    /// The event behind the call.
    event: Event,
    stream: Stream,
}

impl Order {
    /// Makes later work in `stream` come after the last call.
    pub(crate) fn before(&self, stream: &Stream) -> Result<()> {
        let capture = if self.captured.is_empty() { None } else { stream.capture_id()? };
        if let Some(captured) = self.captured.iter().find(|captured| Some(captured.capture) == capture) {
            // Otherwise they would be branches of a graph that run at the same time.
            if captured.stream.raw() != stream.raw() {
                stream.wait_event(&captured.event)?;
            }
            return Ok(());
        }
        match &self.last {
            // A capture cannot wait for what is outside of it.
            Some((event, last)) if !last.is(stream) && !stream.is_capturing()? => {
                Ok(stream.wait_event(event)?)
            }
            _ => Ok(()),
        }
    }

    /// Whether the last call is complete that was not captured.
    pub(crate) fn is_complete(&self) -> Result<bool> {
        Ok(self.last.as_ref().map_or(Ok(true), |(event, _)| event.query())?)
    }

    /// The event behind the last call that was not captured, unless it is complete or its work has failed.
    pub(crate) fn follow(&mut self) -> Option<Event> {
        let (event, _) = self.last.as_ref()?;
        if event.query().unwrap_or(true) {
            return None;
        }
        self.is_followed = true;
        Some(event.clone())
    }

    /// Notes that the last call is in `stream`.
    pub(crate) fn after(&mut self, stream: &Stream) -> Result<()> {
        if stream.is_capturing()? {
            // None of a capture that has failed: nothing came into the stream then.
            let Some(capture) = stream.capture_id()? else { return Ok(()) };
            let event = stream.gpu().event(false)?;
            stream.record(&event)?;
            self.captured.retain(|it| it.capture != capture && it.may_go_on());
            if self.captured.len() == MOST_CAPTURES {
                self.captured.remove(0);
            }
            self.captured.push(Captured { capture, event, stream: stream.clone() });
            return Ok(());
        }
        // Who waits for an event waits for the point that it marked when the wait was submitted, so one is enough.
        let (event, last) = match self.last.take() {
            Some((event, last)) => {
                let event = if self.is_followed { stream.gpu().event(false)? } else { event };
                (event, if last.is(stream) { last } else { stream.clone() })
            }
            None => (stream.gpu().event(false)?, stream.clone()),
        };
        self.is_followed = false;
        let recorded = stream.record(&event);
        self.last = Some((event, last));
        Ok(recorded?)
    }

    /// Whether a stream of this library's is being captured that has the last call, or calls of a capture.
    pub(crate) fn is_in_capture(&self) -> Result<bool> {
        let last = self.last.iter().map(|(_, stream)| stream);
        // A stream of others may be gone at any time.
        let streams = self.captured.iter().map(|captured| &captured.stream).chain(last);
        for stream in streams.filter(|stream| !stream.is_foreign()) {
            if stream.is_capturing()? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Captured {
    /// Whether the capture may be under way.
    fn may_go_on(&self) -> bool {
        self.stream.is_foreign() || self.stream.capture_id().is_ok_and(|id| id == Some(self.capture))
    }
}

/// Whether work of a call in `stream` may go into `side`, too. A stream stays in a capture that it was forked into until that
/// ends, and is none for work outside of it or of another one. Simulated devices capture one stream alone.
pub(crate) fn can_fork(stream: &Stream, side: &Stream) -> Result<bool> {
    if stream.gpu().platform() == Platform::Sim {
        return Ok(!stream.is_capturing()?);
    }
    if !side.is_capturing()? {
        return Ok(true);
    }
    // None of a capture that has failed and was not ended yet.
    let capture = side.capture_id()?;
    Ok(capture.is_some() && capture == stream.capture_id()?)
}
