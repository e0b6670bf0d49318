//! The order of what is received from one peer with one tag.
//!
//! Invariants:
//! 1. `queue` holds the receiving calls whose bytes have not been taken, in the order of the calls; `position` numbers
//!    the first of them. Bytes are only taken for the first, by the one thread that has set `busy`.
//! 2. A call whose [`Pending`](crate::Pending) is gone keeps its place: its bytes are taken and thrown away.
//! 3. A failure to receive completes no call: it takes no bytes, and the bootstrap gives it to each waiter anew.
//! 4. `busy` is reset, and everyone woken, after each step; whoever waits looks at its own outcome first. So nobody
//!    waits for more than the calls up to its own, and waits for these even if no other thread does.

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
    /// Makes of the bytes what was called for and keeps it, or keeps the error. Called once; complete also if it panics.
    fn complete(&self, bytes: &[u8]);

    /// Whether `complete` is done.
    fn is_complete(&self) -> bool;

    /// What it makes, and its position in the queue.
    fn name(&self) -> (&'static str, u64);
}

/// How long a single wait for a message is.
const PART: Duration = Duration::from_secs(5);

/// The calls that receive from one peer with one tag. See the module.
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

/// Why [`ReceiveQueue::complete_up_to`] did not get there. Nothing was taken.
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

    /// The turn of a call: others of this queue wait until the guard is gone.
    pub(crate) fn turn(&self) -> MutexGuard<'_, ()> {
        self.calling.lock()
    }

    /// The position that the next call gets. To be called in the caller's turn, as `enqueue`.
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
                // A subscriber may take its time, and others wait for the lock.
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
            // Also when time is up: what has arrived is taken.
            let stepped = MutexGuard::unlocked(&mut state, || self.step(step, bootstrap, look_again));
            match stepped {
                Err(Stopped::TimedOut) if deadline.is_none_or(|deadline| Instant::now() < deadline) => {}
                stepped => stepped?,
            }
        }
    }

    /// What a call waits for, for the log. `first` is the position of the first call that has not had its bytes.
    fn awaited(&self, call: &dyn PendingReceive, first: u64) -> String {
        let Self { peer, tag, .. } = self;
        let (what, position) = call.name();
        let before = match first < position {
            true => format!(" (call {first} comes first)"),
            false => String::new(),
        };
        format!("rank {peer}: {what}, tag {tag}, call {position}{before}")
    }

    /// Takes the bytes of the first call and completes it. `busy` is set and no lock held.
    fn step(
        &self,
        mut step: Step<'_>,
        bootstrap: &dyn Bootstrap,
        until: Option<Instant>,
    ) -> Result<(), Stopped> {
        // In parts that are shorter than the time after which a bootstrap logs a wait of its own: what this wait is for is
        // known better here.
        let began = Instant::now();
        let left = until.map_or(PART, |until| until.saturating_duration_since(began).min(PART));
        let bytes = bootstrap.recv_timeout(self.peer, self.tag, left).map_err(|error| match error {
            // Sooner, or with addresses that were tried, it is another time that is up: that of connecting to the peer.
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

/// Ends a step however it ends, a panic included: the first call has had its bytes, or keeps its place.
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
