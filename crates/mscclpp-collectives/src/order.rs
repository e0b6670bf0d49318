//! The order of calls that are made on different streams.

use mscclpp::{Event, Gpu, Stream};

use crate::Result;

/// What the next call comes after.
#[derive(Default)]
pub(crate) enum Order {
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
        match self {
            Self::Nothing => {}
            Self::Stream(last) | Self::Event(_, last) if last.is(stream) => {}
            // A capture cannot wait for what is outside of it, nor others for what is inside.
            _ if stream.is_capturing()? => {}
            Self::Stream(last) => {
                if !last.is_capturing()? {
                    let event = gpu.event(false)?;
                    last.record(&event)?;
                    stream.wait_event(&event)?;
                }
            }
            Self::Event(event, _) => stream.wait_event(event)?,
        }
        Ok(())
    }

    /// Whether the last call is complete.
    pub(crate) fn is_complete(&self) -> Result<bool> {
        Ok(match self {
            Self::Nothing => true,
            // It was complete before the capture could begin, or comes with the graph.
            Self::Stream(last) => last.is_capturing()? || last.query()?,
            Self::Event(event, _) => event.query()?,
        })
    }

    /// The last call is in `stream`.
    pub(crate) fn after(&mut self, gpu: &Gpu, stream: &Stream) -> Result<()> {
        if stream.is_capturing()? {
            return Ok(());
        }
        *self = if stream.is_foreign() {
            // Who waits for an event waits for what it was when the wait was submitted, so one is enough.
            let event = match self {
                Self::Event(event, _) => event.clone(),
                _ => gpu.event(false)?,
            };
            stream.record(&event)?;
            Self::Event(event, stream.clone())
        } else {
            Self::Stream(stream.clone())
        };
        Ok(())
    }
}
