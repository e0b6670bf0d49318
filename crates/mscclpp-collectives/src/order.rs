//! The order of calls that are made on different streams.

use mscclpp::{Event, Gpu, Stream};

use crate::Result;

/// What the next call comes after, and what was captured last.
#[derive(Default)]
pub(crate) struct Order {
    last: Last,
    captured: Option<Stream>,
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

impl Order {
    /// Makes later work in `stream` come after the last call.
    pub(crate) fn before(&self, gpu: &Gpu, stream: &Stream) -> Result<()> {
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
            Last::Stream(last) => {
                let event = gpu.event(false)?;
                last.record(&event)?;
                stream.wait_event(&event)?;
            }
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
    pub(crate) fn after(&mut self, gpu: &Gpu, stream: &Stream) -> Result<()> {
        if stream.is_capturing()? {
            // A foreign one may be gone at any time.
            self.captured = (!stream.is_foreign()).then(|| stream.clone());
            return Ok(());
        }
        self.last = if stream.is_foreign() {
            // Who waits for an event waits for what it was when the wait was submitted, so one is enough.
            let event = match &self.last {
                Last::Event(event, _) => event.clone(),
                _ => gpu.event(false)?,
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
        for stream in last.into_iter().chain(&self.captured) {
            if stream.is_capturing()? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
