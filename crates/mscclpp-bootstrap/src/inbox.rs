//! Messages that have arrived, and the waits for them.
//!
//! One mutex guards what a rank knows (messages, who left, whether the job failed); one condition variable tells of
//! every change. A waiter checks and sleeps under the mutex and every change is made under it, so none is missed.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use crate::{Error, FailureHook, Result};

/// What a message is for. Streams of different channels never mix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Channel {
    /// `send` and `recv` of the user.
    User,
    /// Collectives along the tree of all ranks.
    Tree,
    /// Barriers of groups; the tag names the group.
    Group,
}

/// Which stream of messages one belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Stream {
    pub(crate) peer: usize,
    pub(crate) channel: Channel,
    pub(crate) tag: u64,
}

#[derive(Default)]
struct State {
    messages: HashMap<Stream, VecDeque<Vec<u8>>>,
    gone: BTreeMap<usize, Error>,
    failure: Option<Error>,
    hooks: Vec<FailureHook>,
    retired: bool,
}

/// What has arrived for a rank's callers, and what they wait for.
#[derive(Default)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    changed: Condvar,
}

impl Inbox {
    pub(crate) fn deliver(&self, stream: Stream, bytes: Vec<u8>) {
        let mut state = self.state.lock();
        if state.retired {
            return;
        }
        state.messages.entry(stream).or_default().push_back(bytes);
        self.changed.notify_all();
    }

    /// Waits for a message; `None` when the deadline passes. A job's failure goes before messages that are there, a
    /// peer's departure after them.
    pub(crate) fn take(&self, stream: Stream, deadline: Option<Instant>) -> Result<Option<Vec<u8>>> {
        self.wait(deadline, |state| {
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

    /// Waits until `done`; `false` when the deadline passes. Ends early, with the reason, when the job fails or `peer`
    /// is gone.
    pub(crate) fn wait_until(
        &self,
        peer: Option<usize>,
        deadline: Option<Instant>,
        done: impl Fn() -> bool,
    ) -> Result<bool> {
        let outcome = self.wait(deadline, |state| {
            if done() {
                return Some(Ok(()));
            }
            peer.and_then(|peer| state.gone.get(&peer)).map(|error| Err(error.clone()))
        })?;
        Ok(outcome.is_some())
    }

    fn wait<T>(
        &self,
        deadline: Option<Instant>,
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
            match deadline {
                None => self.changed.wait(&mut state),
                Some(deadline) if Instant::now() >= deadline => return Ok(None),
                Some(deadline) => {
                    self.changed.wait_until(&mut state, deadline);
                }
            }
        }
    }

    /// Waits until `done` or the deadline, whatever happens to the job.
    pub(crate) fn wait_for(&self, deadline: Instant, done: impl Fn() -> bool) {
        let mut state = self.state.lock();
        while !done() && Instant::now() < deadline {
            self.changed.wait_until(&mut state, deadline);
        }
    }

    /// Makes waiters look again at what they wait for. `change` is made under the lock.
    pub(crate) fn update(&self, change: impl FnOnce()) {
        let _state = self.state.lock();
        change();
        self.changed.notify_all();
    }

    /// Calls that need `peer` fail from now on, once its messages are used up.
    pub(crate) fn peer_gone(&self, peer: usize, error: Error) {
        self.state.lock().gone.entry(peer).or_insert(error);
        self.changed.notify_all();
    }

    /// Undoes [`peer_gone`](Self::peer_gone) for errors that a later call may not meet again.
    pub(crate) fn forget_retryable(&self, peer: usize) {
        let mut state = self.state.lock();
        if !matches!(state.gone.get(&peer), None | Some(Error::PeerClosed { .. })) {
            state.gone.remove(&peer);
        }
    }

    pub(crate) fn gone(&self, peer: usize) -> Option<Error> {
        self.state.lock().gone.get(&peer).cloned()
    }

    pub(crate) fn failure(&self) -> Option<Error> {
        self.state.lock().failure.clone()
    }

    /// Fails everything, once; later failures are ignored. Says whether this was the first.
    pub(crate) fn fail(&self, error: &Error) -> bool {
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

    pub(crate) fn on_failure(&self, hook: FailureHook) {
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

    /// The owner is being dropped: keep nothing, call nobody.
    pub(crate) fn retire(&self) {
        let (hooks, messages) = {
            let mut state = self.state.lock();
            state.retired = true;
            (std::mem::take(&mut state.hooks), std::mem::take(&mut state.messages))
        };
        drop((hooks, messages));
    }
}

/// Calls the hooks on a thread of their own, so that whatever they do delays nothing here.
fn notify(hooks: Vec<FailureHook>, error: &Error) {
    if hooks.is_empty() {
        return;
    }
    let hooks = Arc::new(hooks);
    let for_thread = Arc::clone(&hooks);
    let for_error = error.clone();
    let spawned = std::thread::Builder::new().name("mscclpp-notify".to_owned()).spawn(move || {
        for hook in for_thread.iter() {
            hook(&for_error);
        }
    });
    if spawned.is_err() {
        for hook in hooks.iter() {
            hook(error);
        }
    }
}
