//! The order of calls that are made on different streams.

use mscclpp::{Event, Platform, Stream};

use crate::Result;

/// What the next call comes after, and what was captured last.
#[derive(Default)]
pub(crate) struct Order {
    last: Last,
    /// Of each capture that is under way, and of some that have ended.
    captured: Vec<Captured>,
}

#[derive(Default)]
enum Last {
    #[default]
    Nothing,
    /// All that is in this stream.
    Stream(Stream),
    /// This event, recorded in a stream of others. That one may be gone: it is only compared.
    Event(Event, Stream),
}

/// How many captures at once are kept in order: of those of streams of others it is not known whether they have ended.
const MOST_CAPTURES: usize = 16;

/// The last call of a capture. As [`Last`], it keeps no stream of others, which may be gone at any time.
struct Captured {
    capture: u64,
    /// Recorded behind it.
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
            Last::Nothing => {}
            Last::Stream(last) | Last::Event(_, last) if last.is(stream) => {}
            // A capture cannot wait for what is outside of it, nor others for what is inside.
            _ if stream.is_capturing()? => {}
            // What was captured in it comes with the graph.
            Last::Stream(last) if last.is_capturing()? => {
                if let Some(event) = last.before_capture()? {
                    stream.wait_event(&event)?;
                }
            }
            Last::Stream(last) => stream.wait_stream(last)?,
            Last::Event(event, _) => stream.wait_event(event)?,
        }
        Ok(())
    }

    /// Whether the last call is complete.
    pub(crate) fn is_complete(&self) -> Result<bool> {
        Ok(match &self.last {
            Last::Nothing => true,
            Last::Stream(last) if last.is_capturing()? => {
                last.before_capture()?.map_or(Ok(true), |event| event.query())?
            }
            Last::Stream(last) => last.query()?,
            Last::Event(event, _) => event.query()?,
        })
    }

    /// The last call is in `stream`.
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
        self.last = if stream.is_foreign() {
            // Who waits for an event waits for what it was when the wait was submitted, so one is enough.
            let event = match &self.last {
                Last::Event(event, _) => event.clone(),
                _ => stream.gpu().event(false)?,
            };
            stream.record(&event)?;
            Last::Event(event, stream.clone())
        } else {
            Last::Stream(stream.clone())
        };
        Ok(())
    }

    /// Whether a stream of this library's is being captured into which calls were put.
    pub(crate) fn is_in_capture(&self) -> Result<bool> {
        let last = match &self.last {
            Last::Stream(last) => Some(last),
            _ => None,
        };
        // A foreign one may be gone at any time.
        let captured = self.captured.iter().map(|captured| &captured.stream).filter(|it| !it.is_foreign());
        for stream in last.into_iter().chain(captured) {
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
    if stream.gpu().platform() == Platform::Host {
        return Ok(!stream.is_capturing()?);
    }
    if !side.is_capturing()? {
        return Ok(true);
    }
    // None of a capture that has failed and was not ended yet.
    let capture = side.capture_id()?;
    Ok(capture.is_some() && capture == stream.capture_id()?)
}
