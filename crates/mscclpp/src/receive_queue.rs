//! The order of what is received from one peer with one tag.
//!
//! Invariants:
//! 1. `queue` holds the receiving calls whose bytes have not been taken, in the order of the calls; `position` numbers
//!    the first of them. Bytes are only taken for the first, by the one thread that has set `busy`.
//! 2. A call whose [`Pending`](crate::Pending) is gone keeps its place: its bytes are taken and thrown away.
//! 3. A failure to receive completes no call: it takes no bytes, and the bootstrap gives it to each waiter anew.
//! 4. After each step `busy` is reset and all waiting threads are woken; each looks at its own outcome first. So no
//!    thread waits for calls after its own, and a thread waits for its calls even if no other does.

use std::{
    collections::VecDeque,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use mscclpp_bootstrap::{Bootstrap, Error as BootstrapError};
use mscclpp_os::waiting::LongWait;
use parking_lot::{Condvar, Mutex, MutexGuard};

/// A receiving call that waits for its bytes.
pub(crate) trait PendingReceive: Send + Sync {
    /// Makes the object of the bytes and keeps it, or keeps the error. Called once; the call is complete even if this
    /// panics.
    fn complete(&self, bytes: &[u8]);

    /// Whether `complete` is done.
    fn is_complete(&self) -> bool;

    /// Returns the name of the object's call, and its position in the queue.
    fn name(&self) -> (&'static str, u64);
}

/// The longest single wait for a message.
const PART: Duration = Duration::from_secs(5);

/// The calls that receive from one peer with one tag. The module's comment lists the invariants.
pub(crate) struct ReceiveQueue {
    pub(crate) peer: usize,
    pub(crate) tag: u32,
    /// Held while a call sends its part and takes its place, so that calls of several threads send and receive in one
    /// order.
    calling: Mutex<()>,
    state: Mutex<State>,
    stepped: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Weak<dyn PendingReceive>>,
    position: u64,
    busy: bool,
}

/// The reason why [`ReceiveQueue::complete_up_to`] stopped early. No bytes were taken by the step that stopped.
pub(crate) enum Stopped {
    /// The time given to it ran out.
    TimedOut,
    /// The job or the peer is gone, or cannot be reached now.
    Failed(BootstrapError),
}

impl ReceiveQueue {
    pub(crate) fn new(peer: usize, tag: u32) -> Self {
        Self { peer, tag, calling: Mutex::new(()), state: Mutex::default(), stepped: Condvar::new() }
    }

    /// Takes the turn of a call: other calls of this queue wait until the guard is dropped.
    pub(crate) fn turn(&self) -> MutexGuard<'_, ()> {
        self.calling.lock()
    }

    /// Returns the position that the next call gets. The caller must have its turn on the queue, as for `enqueue`.
    pub(crate) fn next_position(&self) -> u64 {
        let state = self.state.lock();
        state.position + state.queue.len() as u64
    }

    /// Whether no call waits for its bytes.
    pub(crate) fn is_empty(&self) -> bool {
        self.state.lock().queue.is_empty()
    }

    pub(crate) fn enqueue(&self, call: Weak<dyn PendingReceive>) {
        self.state.lock().queue.push_back(call);
    }

    /// Completes the calls up to `call`, one after the other, unless other threads do. Logs when that takes long.
    pub(crate) fn complete_up_to(
        &self,
        call: &dyn PendingReceive,
        bootstrap: &dyn Bootstrap,
        timeout: Option<Duration>,
        mut long: LongWait,
    ) -> Result<(), Stopped> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut state = self.state.lock();
        loop {
            if call.is_complete() {
                return Ok(());
            }
            let now = Instant::now();
            let first = state.position;
            if long.wake_at().is_some_and(|at| now >= at) {
                // The log subscriber may take its time while other threads wait for the lock, so the lock is released.
                MutexGuard::unlocked(&mut state, || {
                    long.log(now, Some(bootstrap.rank()), || self.awaited(call, first));
                });
                continue;
            }
            let look_again = deadline.into_iter().chain(long.wake_at()).min();
            if state.busy {
                if deadline.is_some_and(|deadline| now >= deadline) {
                    return Err(Stopped::TimedOut);
                }
                match look_again {
                    None => self.stepped.wait(&mut state),
                    Some(at) => drop(self.stepped.wait_until(&mut state, at)),
                }
                continue;
            }
            state.busy = true;
            let step = Step { queue: self, taken: false };
            // The step is made also when the time is up, so that bytes that have arrived are taken.
            let stepped = MutexGuard::unlocked(&mut state, || self.step(step, bootstrap, look_again));
            match stepped {
                Err(Stopped::TimedOut) if deadline.is_none_or(|deadline| Instant::now() < deadline) => {}
                stepped => stepped?,
            }
        }
    }

    /// Describes for the log what a call waits for. `first` is the position of the first call whose bytes have not come.
    fn awaited(&self, call: &dyn PendingReceive, first: u64) -> String {
        let Self { peer, tag, .. } = self;
        let (what, position) = call.name();
        let before = match first < position {
            true => format!(" (call {first} comes first)"),
            false => String::new(),
        };
        format!("rank {peer}: {what}, tag {tag}, call {position}{before}")
    }

    /// Takes the bytes of the first call and completes it. `busy` must be set, and the lock not held.
    fn step(
        &self,
        mut step: Step<'_>,
        bootstrap: &dyn Bootstrap,
        until: Option<Instant>,
    ) -> Result<(), Stopped> {
        // A wait is shorter than the time after which a bootstrap logs a wait of its own: the log lines of this wait are
        // made here, where its purpose is known.
        let began = Instant::now();
        let left = until.map_or(PART, |until| until.saturating_duration_since(began).min(PART));
        let bytes = bootstrap.recv_timeout(self.peer, self.tag, left).map_err(|error| match error {
            // A time-out that comes sooner, or that lists addresses that were tried, is that of connecting to the peer.
            BootstrapError::Timeout { ref attempts, .. }
                if attempts.is_empty() && began.elapsed() >= left =>
            {
                Stopped::TimedOut
            }
            error => Stopped::Failed(error),
        })?;
        step.taken = true;
        let first: Option<Arc<dyn PendingReceive>> = self.state.lock().queue.front().and_then(Weak::upgrade);
        if let Some(first) = first {
            first.complete(&bytes);
        }
        Ok(())
    }
}

/// Ends a step, also after a panic: the first call has either had its bytes or keeps its place.
struct Step<'a> {
    queue: &'a ReceiveQueue,
    taken: bool,
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.state.lock();
        state.busy = false;
        if self.taken {
            state.queue.pop_front();
            state.position += 1;
        }
        self.queue.stepped.notify_all();
    }
}

#[cfg(test)]
mod tests;
