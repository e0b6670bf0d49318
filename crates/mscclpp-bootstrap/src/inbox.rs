//! Messages that have arrived, and the waits for them.
//!
//! One mutex guards the state of a rank (messages, who left, whether the job failed); one condition variable signals
//! every change. A waiter checks and sleeps under the mutex and every change is made under it, so none is missed.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mscclpp_net::wire_enum;
use mscclpp_os::waiting::LongWait;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::{Error, FailureHook, Result};

/// The purpose of a message. Streams of different channels never mix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Channel {
    /// Messages of the user's `send` and `recv`.
    User,
    /// Collectives along the tree of all ranks.
    Tree,
    /// Barriers of groups; the tag names the group.
    Group,
}

wire_enum!(Channel or "a message is for no known channel" { 0 => User, 1 => Tree, 2 => Group });

/// The stream that a message belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stream {
    pub peer: usize,
    pub channel: Channel,
    pub tag: u64,
}

/// The progress of a message whose sender waits until it is written. Nobody but the sender reads the flags.
#[derive(Default)]
pub struct Sending {
    /// Whether the thread of the rank has taken the message: see [`Inbox::begin_send`].
    pub taken: AtomicBool,
    /// Whether the message was handed to the system.
    pub written: AtomicBool,
}

#[derive(Default)]
struct State {
    messages: HashMap<Stream, VecDeque<Vec<u8>>>,
    gone: BTreeMap<usize, Error>,
    failure: Option<Error>,
    hooks: Vec<FailureHook>,
    retired: bool,
}

impl State {
    fn forget_retryable(&mut self, peer: usize) {
        if self.gone.get(&peer).is_some_and(is_retryable) {
            self.gone.remove(&peer);
        }
    }
}

/// Returns whether a later call that needs the peer may succeed in spite of this error.
fn is_retryable(error: &Error) -> bool {
    !matches!(error, Error::PeerClosed { .. })
}

/// The deadline of a caller's wait, and the time at which it is logged. One call may wait several times with one of
/// these.
pub struct Wait {
    rank: Option<usize>,
    timeout: Option<Duration>,
    deadline: Option<Instant>,
    long: LongWait,
}

impl Wait {
    /// Makes a wait for at most `timeout` that is logged for the first time after `log_after`.
    pub fn of_rank(rank: usize, timeout: Option<Duration>, log_after: Duration) -> Self {
        // A deadline that cannot be represented is never reached.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        Self { rank: Some(rank), timeout, deadline, long: LongWait::begin(log_after) }
    }

    /// Makes a wait that is never logged, because it is short or because another wait is logged for it.
    pub fn quiet(deadline: Instant) -> Self {
        Self { rank: None, timeout: None, deadline: Some(deadline), long: LongWait::begin(Duration::MAX) }
    }

    /// Returns the error of a wait whose time is up.
    pub fn timed_out(&self, operation: String, missing: Vec<usize>) -> Error {
        let after = self.timeout.unwrap_or_default();
        Error::Timeout { operation, after, missing, attempts: Vec::new() }
    }

    /// Returns the same wait with an earlier end, for a part of it.
    pub fn cut_at(&self, at: Instant) -> Self {
        let deadline = Some(self.deadline.map_or(at, |deadline| deadline.min(at)));
        Self { rank: self.rank, timeout: self.timeout, deadline, long: self.long.clone() }
    }

    /// Continues after a part of the wait has ended.
    pub fn go_on_after(&mut self, part: Self) {
        self.long = part.long;
    }

    pub fn is_over(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| now >= deadline)
    }

    /// Returns the time at which to check again even if nothing has changed.
    pub fn wake_at(&self) -> Option<Instant> {
        self.deadline.into_iter().chain(self.long.wake_at()).min()
    }

    /// Logs the wait if it is due. Must be called with no lock held.
    pub fn log(&mut self, now: Instant, what: &dyn Fn() -> String) {
        self.long.log(now, self.rank, what);
    }

    fn is_due(&self, now: Instant) -> bool {
        self.long.wake_at().is_some_and(|at| now >= at)
    }
}

/// The messages that have arrived for a rank's callers, and the events that they wait for.
#[derive(Default)]
pub struct Inbox {
    state: Mutex<State>,
    changed: Condvar,
}

impl Inbox {
    pub fn deliver(&self, stream: Stream, bytes: Vec<u8>) {
        let mut state = self.state.lock();
        if state.retired {
            return;
        }
        state.messages.entry(stream).or_default().push_back(bytes);
        self.changed.notify_all();
    }

    /// Waits for a message. Returns `None` when the deadline passes. The failure of the job takes precedence over
    /// messages that have arrived, and these over the departure of a peer. `what` describes the wait.
    pub fn take(
        &self,
        stream: Stream,
        wait: &mut Wait,
        what: &dyn Fn() -> String,
    ) -> Result<Option<Vec<u8>>> {
        self.wait(wait, what, |state| {
            if let Some(queue) = state.messages.get_mut(&stream) {
                let message = queue.pop_front();
                if queue.is_empty() {
                    state.messages.remove(&stream);
                }
                if let Some(message) = message {
                    return Some(Ok(message));
                }
            }
            state.gone.get(&stream.peer).map(|error| Err(error.clone()))
        })
    }

    /// Waits until `done`. Returns `false` when the deadline passes, and the reason when the job fails.
    pub fn wait_until(
        &self,
        wait: &mut Wait,
        what: &dyn Fn() -> String,
        done: impl Fn() -> bool,
    ) -> Result<bool> {
        let outcome = self.wait(wait, what, |_| done().then_some(Ok(())))?;
        Ok(outcome.is_some())
    }

    /// Waits until a message to `peer` is written, or the deadline passes. Ends early, with the reason, when the job fails or
    /// `peer` is gone. Before the message is taken, a time-out recorded for the peer belongs to an earlier call and is ignored.
    pub fn wait_sent(
        &self,
        peer: usize,
        wait: &mut Wait,
        what: &dyn Fn() -> String,
        sending: &Sending,
    ) -> Result<()> {
        let outcome = self.wait(wait, what, |state| {
            if sending.written.load(Ordering::Acquire) {
                return Some(Ok(()));
            }
            let gone = state.gone.get(&peer)?;
            (sending.taken.load(Ordering::Acquire) || !is_retryable(gone)).then(|| Err(gone.clone()))
        });
        outcome.map(drop)
    }

    /// Marks a message to `peer` as taken by the thread of the rank.
    pub fn begin_send(&self, peer: usize, sending: &Sending) {
        let mut state = self.state.lock();
        state.forget_retryable(peer);
        sending.taken.store(true, Ordering::Release);
    }

    fn wait<T>(
        &self,
        wait: &mut Wait,
        what: &dyn Fn() -> String,
        mut ready: impl FnMut(&mut State) -> Option<Result<T>>,
    ) -> Result<Option<T>> {
        let mut state = self.state.lock();
        loop {
            if let Some(error) = &state.failure {
                return Err(error.clone());
            }
            if let Some(outcome) = ready(&mut state) {
                return outcome.map(Some);
            }
            let now = Instant::now();
            if wait.is_over(now) {
                return Ok(None);
            }
            if wait.is_due(now) {
                // A log subscriber may be slow, and must not delay messages that arrive.
                MutexGuard::unlocked(&mut state, || wait.log(now, what));
                continue;
            }
            match wait.wake_at() {
                None => self.changed.wait(&mut state),
                Some(at) => {
                    self.changed.wait_until(&mut state, at);
                }
            }
        }
    }

    /// Waits until `done` or the deadline, whatever happens to the job.
    pub fn wait_for(&self, deadline: Instant, done: impl Fn() -> bool) {
        let mut state = self.state.lock();
        while !done() && Instant::now() < deadline {
            self.changed.wait_until(&mut state, deadline);
        }
    }

    /// Makes waiters check again. `change` is made under the lock.
    pub fn update(&self, change: impl FnOnce()) {
        let _state = self.state.lock();
        change();
        self.changed.notify_all();
    }

    /// Makes calls that need `peer` fail from now on, once its messages are used up. The departure of the peer replaces a
    /// time-out of an earlier search for it: the next call forgets the time-out, but not the departure.
    pub fn peer_gone(&self, peer: usize, error: Error) {
        let mut state = self.state.lock();
        state.forget_retryable(peer);
        state.gone.entry(peer).or_insert(error);
        self.changed.notify_all();
    }

    /// Undoes [`peer_gone`](Self::peer_gone) for errors in spite of which a later call may succeed.
    pub fn forget_retryable(&self, peer: usize) {
        self.state.lock().forget_retryable(peer);
    }

    pub fn gone(&self, peer: usize) -> Option<Error> {
        self.state.lock().gone.get(&peer).cloned()
    }

    pub fn failure(&self) -> Option<Error> {
        self.state.lock().failure.clone()
    }

    /// Fails everything, once; later failures are ignored. Returns whether this was the first.
    pub fn fail(&self, error: &Error) -> bool {
        let hooks = {
            let mut state = self.state.lock();
            if state.failure.is_some() {
                return false;
            }
            state.failure = Some(error.clone());
            state.messages.clear();
            self.changed.notify_all();
            std::mem::take(&mut state.hooks)
        };
        notify(hooks, error);
        true
    }

    pub fn on_failure(&self, hook: FailureHook) {
        let failure = {
            let mut state = self.state.lock();
            match &state.failure {
                Some(error) => error.clone(),
                None => {
                    state.hooks.push(hook);
                    return;
                }
            }
        };
        notify(vec![hook], &failure);
    }

    /// Drops all messages and hooks, because the owner is being dropped.
    pub fn retire(&self) {
        let (hooks, messages) = {
            let mut state = self.state.lock();
            state.retired = true;
            (std::mem::take(&mut state.hooks), std::mem::take(&mut state.messages))
        };
        drop((hooks, messages));
    }
}

/// Calls the hooks on a thread of their own, so that they delay nothing here.
fn notify(hooks: Vec<FailureHook>, error: &Error) {
    if hooks.is_empty() {
        return;
    }
    let error = error.clone();
    let call_all = Arc::new(move || hooks.iter().for_each(|hook| hook(&error)));
    let on_thread = Arc::clone(&call_all);
    if std::thread::Builder::new().name("mscclpp-notify".to_owned()).spawn(move || on_thread()).is_err() {
        call_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_send_does_not_fail_by_the_time_out_of_an_earlier_call() {
        let inbox = Inbox::default();
        let sending = Sending::default();
        let wait = || {
            let mut wait = Wait::quiet(Instant::now());
            inbox.wait_sent(1, &mut wait, &String::new, &sending)
        };
        let search_over =
            || inbox.peer_gone(1, Wait::quiet(Instant::now()).timed_out(String::new(), vec![1]));
        // The search ends between the call and the moment when the thread takes it.
        search_over();
        wait().expect("it is that of the search before");
        inbox.begin_send(1, &sending);
        wait().expect("nothing has become of it yet");
        search_over();
        assert!(matches!(wait(), Err(Error::Timeout { .. })), "its own");
        sending.written.store(true, Ordering::Release);
        wait().expect("it is with the system");
    }

    #[test]
    fn a_send_to_who_has_left_fails_at_once() {
        let inbox = Inbox::default();
        let sending = Sending::default();
        inbox.peer_gone(1, Error::PeerClosed { rank: 1 });
        let mut wait = Wait::of_rank(0, None, Duration::MAX);
        let outcome = inbox.wait_sent(1, &mut wait, &String::new, &sending);
        assert!(matches!(outcome, Err(Error::PeerClosed { rank: 1 })), "{outcome:?}");
    }

    #[test]
    fn who_leaves_after_a_search_has_timed_out_is_known_to_have_left() {
        let inbox = Inbox::default();
        inbox.peer_gone(1, Wait::quiet(Instant::now()).timed_out(String::new(), vec![1]));
        inbox.peer_gone(1, Error::PeerClosed { rank: 1 });
        inbox.forget_retryable(1);
        assert!(matches!(inbox.gone(1), Some(Error::PeerClosed { rank: 1 })), "{:?}", inbox.gone(1));
    }
}
