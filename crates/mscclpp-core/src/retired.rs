//! Queues that were dropped before all operations given to them had landed at the peer.
//!
//! A signal is sent as the number of signals so far, which the peer stores. So the signals of a semaphore must land
//! in their order, and behind the data sent before them, whichever queues they go through; and operations of
//! different queues are not ordered among each other.
//!
//! # Invariants
//! 1. At any time one sender counts the signals of a semaphore: its signaller, or, under the lock of its
//!    `LinkSignals`, a host. The count is passed to the next sender together with the right to signal.
//! 2. The place of the signals sent so far is passed on too: they have all landed; or they are in the connection's
//!    own queue, through which hosts signal too, and which a new signaller has flushed first; or they are in a queue
//!    that is retired here, for which both hosts and signallers wait.
//! 3. A queue counts as landed when the ticket of a flush behind everything that it was ever given is reached, or
//!    when the connection has failed. After a failure nobody signals over it any more.
//!
//! By 1 and 2, the signals of a semaphore before one that is given to a different queue have landed, with everything
//! that their queues were given before (3). Signals in one queue keep their order, by promise 1 of
//! [`crate::provider`]. So no signal overtakes another, or data, and the count at the peer never falls.

use std::{
    sync::{Arc, Weak},
    thread,
    time::Duration,
};

use mscclpp_gpu::Gpu;
use parking_lot::Mutex;

use crate::{
    Error, LinkMonitor, Report,
    provider::{Link, Queue},
};

/// The retired queues of a connection. A thread serves them as long as there are any.
pub(crate) struct Retired {
    monitor: LinkMonitor,
    gpu: Option<Gpu>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    queues: Vec<RetiredQueue>,
    /// How many queues have been retired so far.
    count: u64,
    /// Whether a thread runs that will look at `queues` again.
    has_thread: bool,
}

struct RetiredQueue {
    number: u64,
    /// Dropped by that thread, or by whoever drops the connection ([`Retired::clear`]), and by no other thread: the
    /// queue may be the last owner of a device's memory, and freeing that may wait for kernels, which may wait for
    /// other threads that call this module.
    queue: Box<dyn Queue>,
    ticket: u64,
    has_landed: bool,
    /// Declared last, so that the link outlives the queue.
    _link: Arc<dyn Link>,
}

/// How long the thread sleeps between two looks: at first, and at most.
const REST: Duration = Duration::from_micros(100);
const LONGEST_REST: Duration = Duration::from_millis(5);

impl Retired {
    /// Keeps retired queues of a connection from `gpu`, or from the host.
    pub(crate) fn new(monitor: LinkMonitor, gpu: Option<Gpu>) -> Arc<Self> {
        Arc::new(Self { monitor, gpu, state: Mutex::default() })
    }

    /// Serves `queue` until `ticket` is reached; nothing was given to it after that. Returns its number. Does not
    /// block.
    pub(crate) fn add(self: &Arc<Self>, queue: Box<dyn Queue>, link: Arc<dyn Link>, ticket: u64) -> u64 {
        let mut state = self.state.lock();
        state.count += 1;
        let number = state.count;
        state.queues.push(RetiredQueue { number, queue, ticket, has_landed: false, _link: link });
        if !state.has_thread {
            let (this, gpu) = (Arc::downgrade(self), self.gpu.clone());
            let work = move || {
                // Asking a stream for its progress must not end a capture that another thread makes. If this call fails,
                // `progress` returns the reason.
                let _ = gpu.map(|gpu| gpu.adopt_thread());
                go_on_with(&this);
            };
            let started = thread::Builder::new().name("mscclpp-retired".to_owned()).spawn(work);
            state.has_thread = started.is_ok();
            if let Err(error) = started {
                // Without a thread, whoever waits for the queue drives it, and it is dropped with the connection.
                tracing::warn!(target: "mscclpp::conn", %error, "no thread to go on with a queue that was dropped");
            }
        }
        number
    }

    /// Whether everything given to the queue of that number has landed. Does not block.
    pub(crate) fn has_landed(&self, number: u64) -> bool {
        let mut state = self.state.lock();
        self.look(&mut state);
        state.queues.iter().all(|retired| retired.number != number || retired.has_landed)
    }

    fn look(&self, state: &mut State) {
        for retired in state.queues.iter_mut().filter(|retired| !retired.has_landed) {
            retired.has_landed = match self.monitor.check().and_then(|()| retired.queue.progress()) {
                Ok(reached) => reached >= retired.ticket,
                Err(error) => self.failed(error),
            };
        }
    }

    #[cold]
    fn failed(&self, error: Error) -> bool {
        if self.monitor.check().is_ok() {
            let peer = self.monitor.label();
            tracing::error!(
                target: "mscclpp::conn", error = %Report(&error), %peer,
                "what a queue that was dropped had been given did not all arrive; its connection fails"
            );
            self.monitor.fail(error.naming(&peer));
        }
        true
    }

    /// Drops all queues. Operations given to them are left to the transport.
    pub(crate) fn clear(&self) {
        let queues = std::mem::take(&mut self.state.lock().queues);
        drop(queues);
    }
}

fn go_on_with(retired: &Weak<Retired>) {
    let mut rest = REST;
    loop {
        let Some(this) = retired.upgrade() else { return };
        let mut state = this.state.lock();
        this.look(&mut state);
        let landed: Vec<_> = state.queues.extract_if(.., |retired| retired.has_landed).collect();
        if state.queues.is_empty() {
            state.has_thread = false;
        }
        let is_over = state.queues.is_empty();
        drop(state);
        drop((landed, this));
        if is_over {
            return;
        }
        thread::sleep(rest);
        rest = (2 * rest).min(LONGEST_REST);
    }
}
