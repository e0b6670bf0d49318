//! The order of the calls of an engine, which may be made on different streams.
//!
//! - O1. An event is recorded behind every call, in its stream, by the thread that made it. So the next call waits for the call
//!   before it and for nothing that the program has put into that call's stream since.
//! - O2. No event is recorded in a stream that is being captured, but for the graph's own order: calls of one capture follow each
//!   other, and calls outside of it neither wait for it nor it for them.
//! - O3. Whether the calls are complete is asked of the event, and never of a stream, which may be gone or another thread's.

use std::sync::atomic::{AtomicBool, Ordering};

use mscclpp_gpu::{Event, Stream};
use parking_lot::Mutex;

use crate::{Error, Result};

/// Puts the calls of an engine into an order, whatever streams they are made on: each begins when the one before it is complete.
/// Calls of one capture follow each other in its graph. The program orders graphs, and what runs beside them.
#[derive(Default)]
pub struct CallOrder {
    /// Held while a call is put into its stream.
    calls: Mutex<Calls>,
    /// Whether a call is being put. It changes only while its thread holds the lock. If the lock is taken and this is false, the
    /// holder only looks, or is about to begin a call, or has just ended one: each releases the lock, or sets this, soon.
    is_putting: AtomicBool,
}

impl CallOrder {
    /// Makes a call: `put` puts its launches into `stream`, behind the calls before it. Other threads' calls wait meanwhile.
    ///
    /// # Errors
    /// The errors of `put`; [`Error::Gpu`] for a stream that has failed. Launches that are in the stream come before later calls
    /// also if something behind them failed.
    pub fn put<T, E: From<Error>>(
        &self,
        stream: &Stream,
        put: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let mut calls = self.calls.lock();
        self.is_putting.store(true, Ordering::Relaxed);
        let put = calls.before(stream).map_err(E::from).and_then(|()| {
            let put = put();
            calls.after(stream)?;
            put
        });
        self.is_putting.store(false, Ordering::Relaxed);
        put
    }

    /// Whether all calls that were made are complete, but for those in graphs. Does not block.
    ///
    /// # Errors
    /// [`Error::Gpu`] if the work in a stream failed.
    pub fn is_complete(&self) -> Result<bool> {
        loop {
            if let Some(calls) = self.calls.try_lock() {
                return Ok(calls.last.as_ref().map_or(Ok(true), |(event, _)| event.query())?);
            }
            // A call that is being put into its stream is not complete.
            if self.is_putting.load(Ordering::Relaxed) {
                return Ok(false);
            }
            std::thread::yield_now();
        }
    }

    /// The last call that is not in a graph. Does not block. The event of a call that is under way still marks that call when
    /// others have followed.
    #[must_use]
    pub fn last(&self) -> LastCall {
        let Some(mut calls) = self.calls.try_lock() else { return LastCall::BeingPut };
        match &calls.last {
            Some((event, _)) if !event.query().unwrap_or(true) => {
                let event = event.clone();
                calls.is_followed = true;
                LastCall::UnderWay(event)
            }
            _ => LastCall::Complete,
        }
    }

    /// Whether a stream is being captured that has the last call, or calls of a capture. (Of streams that
    /// [other code made](Stream::from_raw) it is not known.)
    ///
    /// # Errors
    /// [`Error::Gpu`] if the driver does not say it.
    pub fn is_in_capture(&self) -> Result<bool> {
        let calls = self.calls.lock();
        let last = calls.last.iter().map(|(_, stream)| stream);
        // A stream of others may be gone at any time.
        let streams = calls.captured.iter().map(|captured| &captured.stream).chain(last);
        for stream in streams.filter(|stream| !stream.is_foreign()) {
            if stream.is_capturing()? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

mscclpp_os::debug_fields!(CallOrder, ..);

/// The state of the last call of a [`CallOrder`].
#[derive(Debug, Clone)]
pub enum LastCall {
    /// There is no call, it is complete, or its work has failed.
    Complete,
    /// The call is not complete. The event is behind it in its stream.
    UnderWay(Event),
    /// A thread is putting a call into its stream, which takes long if the device's queue is full.
    BeingPut,
}

/// The last call, and the last calls of captures.
#[derive(Default)]
struct Calls {
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

impl Calls {
    /// Makes later work in `stream` come after the last call.
    fn before(&self, stream: &Stream) -> Result<()> {
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

    /// Notes that the last call is in `stream`.
    fn after(&mut self, stream: &Stream) -> Result<()> {
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
}

impl Captured {
    /// Whether the capture may be under way.
    fn may_go_on(&self) -> bool {
        self.stream.is_foreign() || self.stream.capture_id().is_ok_and(|id| id == Some(self.capture))
    }
}
