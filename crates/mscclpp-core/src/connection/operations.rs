//! The operations of a connection on its own queue: writes, updates of words, and flushes.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use mscclpp_os::waiting::{Backoff, LongWait};

use super::{
    Connection,
    own_queue::{OwnQueue, ROOM_TIMEOUT},
};
use crate::{
    Error, OutOfBounds, RegisteredMemory, Result,
    provider::{Memories, Operation, Registration, RemoteRegion, RouteId},
};

impl Connection {
    /// Starts copying `size` bytes from `src` (registered here, for this transport or for local use) to `dst` (the
    /// peer's). Returns at once, unless the transport is full: then it waits for room, for 30 seconds at most.
    ///
    /// The contents of `src` must not change until [`Connection::flush`] returns.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], [`Error::NotRegistered`], [`Error::InvalidArgument`] for a memory of the wrong process;
    /// [`Error::PeerLost`] and the like once the connection has failed; [`Error::Timeout`] if the transport stays full;
    /// errors of mapping `dst` for the first time, which may block for some seconds.
    pub fn write(
        &self,
        dst: &RegisteredMemory,
        dst_offset: u64,
        src: &RegisteredMemory,
        src_offset: u64,
        size: u64,
    ) -> Result<()> {
        self.write_timeout(dst, dst_offset, src, src_offset, size, ROOM_TIMEOUT)
    }

    /// The same as [`Connection::write`], but waits for room for at most `timeout`.
    ///
    /// # Errors
    /// The same as [`Connection::write`]. On [`Error::Timeout`] nothing was started, and the call can be repeated.
    pub fn write_timeout(
        &self,
        dst: &RegisteredMemory,
        dst_offset: u64,
        src: &RegisteredMemory,
        src_offset: u64,
        size: u64,
        timeout: Duration,
    ) -> Result<()> {
        OutOfBounds::check("write: destination", dst_offset, size, dst.size())?;
        OutOfBounds::check("write: source", src_offset, size, src.size())?;
        let registration = self.source(src)?;
        let region = self.map("the destination", dst)?;
        let write = |route| Operation::Write { route, dst_offset, src_offset, len: size };
        // SAFETY: the ranges are inside both memories.
        unsafe { self.start(timeout, &region, Some(&registration), write) }
    }

    /// Stores `new_value` in the 8 bytes at `dst_offset` of the peer's `dst` and in `src`, the sender's copy of it.
    ///
    /// The peer sees the value only after the data of every earlier [`Connection::write`] of this connection. Blocks
    /// as [`Connection::write`] does.
    ///
    /// # Errors
    /// The same as [`Connection::write`]; [`Error::InvalidArgument`] if `dst_offset` is no multiple of 8.
    pub fn update_and_sync(
        &self,
        dst: &RegisteredMemory,
        dst_offset: u64,
        src: &mut u64,
        new_value: u64,
    ) -> Result<()> {
        self.update_and_sync_timeout(dst, dst_offset, src, new_value, ROOM_TIMEOUT)
    }

    /// The same as [`Connection::update_and_sync`], but waits for room for at most `timeout`.
    ///
    /// # Errors
    /// The same as [`Connection::update_and_sync`]. On [`Error::Timeout`] nothing was started, and the call can be
    /// repeated.
    pub fn update_and_sync_timeout(
        &self,
        dst: &RegisteredMemory,
        dst_offset: u64,
        src: &mut u64,
        new_value: u64,
        timeout: Duration,
    ) -> Result<()> {
        self.update(dst, dst_offset, new_value, None, timeout)?;
        *src = new_value;
        Ok(())
    }

    /// Stores a word as [`Connection::update_and_sync`] does, where the word's value before is known to be
    /// `previous`, as with tokens ([`Operation::Update`]). For the conformance suite.
    #[doc(hidden)]
    pub fn raise(&self, dst: &RegisteredMemory, dst_offset: u64, previous: u64, value: u64) -> Result<()> {
        self.update(dst, dst_offset, value, Some(previous), ROOM_TIMEOUT)
    }

    fn update(
        &self,
        dst: &RegisteredMemory,
        offset: u64,
        value: u64,
        previous: Option<u64>,
        timeout: Duration,
    ) -> Result<()> {
        OutOfBounds::check("update_and_sync", offset, 8, dst.size())?;
        if !offset.is_multiple_of(8) {
            return Err(Error::InvalidArgument(format!(
                "update_and_sync: offset {offset} is no multiple of 8 bytes"
            )));
        }
        let region = self.map("the destination", dst)?;
        // SAFETY: the word is inside the memory.
        unsafe {
            self.start(timeout, &region, None, |route| Operation::Update { route, offset, value, previous })
        }
    }

    /// Blocks until every earlier operation of this connection is complete at the peer, for at most `timeout`. A wait
    /// of more than ten seconds is logged.
    ///
    /// # Errors
    /// [`Error::Timeout`]: the call can be repeated; [`Error::PeerLost`] and the like.
    pub fn flush(&self, timeout: Duration) -> Result<()> {
        let (mut asked, mut ticket) = (false, 0);
        let operation = || format!("flush of the connection to {}", self.label());
        self.attempt("flush", timeout, operation, |own| {
            if !asked {
                let Some(for_all) = own.request_flush()? else { return Ok(false) };
                (asked, ticket) = (true, for_all);
            }
            Ok(own.queue.progress()? >= ticket)
        })
    }

    /// Submits an operation to the connection's own queue, along a route between the memories. Waits for room, for
    /// `timeout` at most.
    ///
    /// # Safety
    /// The same as [`Queue::submit`](crate::provider::Queue::submit); the operation is no [`Operation::Complete`].
    pub(crate) unsafe fn start(
        &self,
        timeout: Duration,
        dst: &Arc<dyn RemoteRegion>,
        src: Option<&Arc<dyn Registration>>,
        operation: impl FnOnce(RouteId) -> Operation,
    ) -> Result<()> {
        // The lock of the queue is held, so one route is prepared at a time.
        let route = RouteId::new(0);
        let operation = operation(route);
        let waiting = || format!("waiting for room in the queue to {}", self.label());
        self.attempt("room in its queue", timeout, waiting, |own| {
            own.queue.prepare(route, Memories { dst, src })?;
            // SAFETY: the caller's promise; the route was just prepared.
            let taken = unsafe { own.queue.submit(&[operation]) };
            own.queue.release(route);
            if taken? == 0 {
                own.queue.progress()?;
                return Ok(false);
            }
            own.is_flushed = false;
            Ok(true)
        })
    }

    /// Calls `body` with the connection's own queue until it returns true, for at most `timeout` and once at least.
    /// Others may use the queue between the calls.
    fn attempt(
        &self,
        what: &'static str,
        timeout: Duration,
        operation: impl FnOnce() -> String,
        mut body: impl FnMut(&mut OwnQueue) -> Result<bool>,
    ) -> Result<()> {
        self.until(what, timeout, operation, || {
            let mut queue = self.inner.queue.lock();
            let queue = match &mut *queue {
                Some(queue) => queue,
                none => none.insert(OwnQueue::new(self.link_queue()?)),
            };
            body(queue)
        })
    }

    /// Calls `done` until it returns true, for at most `timeout` and once at least, as long as the connection works.
    /// Logs name the wait `what`, a time-out names it `operation`.
    pub(super) fn until(
        &self,
        what: &'static str,
        timeout: Duration,
        operation: impl FnOnce() -> String,
        mut done: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        let (start, mut backoff) = (Instant::now(), Backoff::default());
        let mut long = LongWait::since(start, self.inner.context.waits_are_logged_after());
        loop {
            self.check()?;
            if done()? {
                return Ok(());
            }
            let now = Instant::now();
            if now - start >= timeout {
                return Err(Error::Timeout { operation: operation(), after: timeout });
            }
            long.log(now, None, || {
                format!(
                    "{}: {what}, over {}, which gives up after {timeout:?}",
                    self.label(),
                    self.transport()
                )
            });
            backoff.wait();
        }
    }
}
