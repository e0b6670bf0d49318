use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use mscclpp_core::is_an_envelope;
use mscclpp_os::waiting::LongWait;
use parking_lot::Mutex;

use crate::{
    Error, Result,
    members::Members,
    receive_queue::{PendingReceive, ReceiveQueue, Stopped},
};

/// A connection, a memory or a semaphore for which the other rank's part has still to come.
///
/// No thread works in the background: [`Pending::wait`] or [`Pending::poll`] receives the part and makes the object.
/// Clones are the same pending object, and any number of threads may wait for it at once. It keeps its result, and the
/// bootstrap, until the last clone is dropped. A pending object that is dropped without a wait keeps its place: the part
/// that the peer sent for it is thrown away in its turn, so the order of later calls does not change.
#[must_use = "what the peer sent is only received by wait() or poll()"]
pub struct Pending<T> {
    item: Arc<Item<T>>,
}

type Make<T> = Box<dyn FnOnce(&[u8]) -> mscclpp_core::Result<T> + Send>;

struct Item<T> {
    what: &'static str,
    position: u64,
    queue: Arc<ReceiveQueue>,
    members: Arc<Members>,
    make: Mutex<Option<Make<T>>>,
    outcome: OnceLock<Result<T>>,
}

impl<T: Clone + Send + Sync + 'static> Pending<T> {
    /// Takes the next place on `queue`. The caller must have its turn on the queue.
    pub(crate) fn enqueue(
        what: &'static str,
        queue: &Arc<ReceiveQueue>,
        members: &Arc<Members>,
        make: impl FnOnce(&[u8]) -> mscclpp_core::Result<T> + Send + 'static,
    ) -> Self {
        let item = Arc::new(Item {
            what,
            position: queue.next_position(),
            queue: Arc::clone(queue),
            members: Arc::clone(members),
            make: Mutex::new(Some(Box::new(make))),
            outcome: OnceLock::new(),
        });
        let call: Arc<dyn PendingReceive> = item.clone();
        queue.enqueue(Arc::downgrade(&call));
        Self { item }
    }

    /// Receives the part that the peer sent, and makes the object. Before that it completes earlier calls for the same
    /// peer and tag, in their order. Blocks until the peer has made the matching call. Ends with an error when a rank is
    /// lost, when any rank aborts, and when the peer leaves ([`Communicator::explain`](crate::Communicator::explain) says
    /// which of these is reported). The result is kept for all clones.
    ///
    /// # Ranks that wait for each other
    /// The peer's part is sent when the peer makes its call, and not when it waits. So a rank makes all its calls before
    /// its first wait; otherwise two ranks may wait for each other for ever. In a ring in which each rank connects with the next
    /// one and waits, and then with the one before it, nobody gets to the second call: rank 0 waits for rank 1, which
    /// waits for rank 2, and so on to the last, which waits for rank 0. [`Communicator::connect_all`] and
    /// [`Communicator::mesh`] make the calls in an order in which that cannot happen.
    ///
    /// A wait of more than ten seconds is logged, and then again at growing intervals: `waiting for rank 2: connect, tag
    /// 0, call 1`, with calls counted from 0 for each peer and tag. The line is a warning of target `mscclpp::wait`, on
    /// standard error in a process without a log subscriber. [`ContextBuilder::log_waits_after`] sets another time.
    ///
    /// [`Communicator::connect_all`]: crate::Communicator::connect_all
    /// [`Communicator::mesh`]: crate::Communicator::mesh
    /// [`ContextBuilder::log_waits_after`]: crate::ContextBuilder::log_waits_after
    ///
    /// # Errors
    /// [`Error::Bootstrap`] if a rank is lost or leaves or the job is aborted; [`Error::Exchange`] with the peer, the tag
    /// and the position if the peer sent something else than this call needs, or if the object could not be made of it.
    pub fn wait(&self) -> Result<T> {
        self.wait_until(None)
    }

    /// Waits as [`Pending::wait`] does, but no longer than `timeout` for the peer's part. The work that follows
    /// (connecting, mapping) has limits of its own, of some seconds.
    ///
    /// # Errors
    /// [`Error::PeerNotReady`] if the time is up: nothing was consumed, and the call can be repeated. Also the errors of
    /// [`Pending::wait`].
    pub fn wait_timeout(&self, timeout: Duration) -> Result<T> {
        self.wait_until(Some(timeout))
    }

    /// Returns the result if the peer's part has come, and nothing if it has not. Does not wait for the peer. The work
    /// that follows when it has come (connecting, mapping) can take some seconds.
    ///
    /// With it one thread can bring up several ranks, which need each other's parts. Since this rank's part was sent by
    /// the call that made this object, the thread may also wait for each rank in turn.
    ///
    /// # Errors
    /// The same as [`Pending::wait`].
    pub fn poll(&self) -> Result<Option<T>> {
        match self.wait_timeout(Duration::ZERO) {
            Ok(value) => Ok(Some(value)),
            Err(Error::PeerNotReady { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether [`wait`](Self::wait) has a result or an error to return at once.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.item.outcome.get().is_some()
    }

    fn wait_until(&self, timeout: Option<Duration>) -> Result<T> {
        let Item { what, position, queue, members, outcome, .. } = &*self.item;
        members.check_process()?;
        let long = LongWait::begin(members.log_waits_after());
        let stopped = queue.complete_up_to(&*self.item, &**members.bootstrap(), timeout, long).err();
        match (outcome.get(), stopped) {
            (Some(Ok(value)), _) => Ok(value.clone()),
            (Some(Err(error)), _) => Err(members.explain(error.clone())),
            (None, Some(Stopped::Failed(error))) => Err(members.explain(error.into())),
            (None, Some(Stopped::TimedOut) | None) => Err(Error::PeerNotReady {
                what,
                peer: queue.peer,
                tag: queue.tag,
                position: *position,
                after: timeout.unwrap_or_default(),
            }),
        }
    }
}

impl<T: Send + Sync> PendingReceive for Item<T> {
    fn complete(&self, bytes: &[u8]) {
        let panicked = OnPanic(self);
        let make = self.make.lock().take();
        if let Some(make) = make {
            let made = make(bytes).map_err(|source| self.error(self.with_hint(source, bytes)));
            // It is not set before: the queue completes each call once.
            let _ = self.outcome.set(made);
        }
        drop(panicked);
    }

    fn is_complete(&self) -> bool {
        self.outcome.get().is_some()
    }

    fn name(&self) -> (&'static str, u64) {
        (self.what, self.position)
    }
}

/// Completes a call whose completion panicked, so that other waiters do not look for its bytes.
struct OnPanic<'a, T>(&'a Item<T>);

impl<T> Drop for OnPanic<'_, T> {
    fn drop(&mut self) {
        let reason = "the thread that was making it panicked".to_owned();
        // Does nothing if there is an outcome.
        let _ = self.0.outcome.set(Err(self.0.error(mscclpp_core::Error::Aborted { reason })));
    }
}

impl<T> Item<T> {
    /// Adds a hint to an error about bytes that no communicator sent: most often they are a message of the program's own.
    fn with_hint(&self, source: mscclpp_core::Error, bytes: &[u8]) -> mscclpp_core::Error {
        match source {
            mscclpp_core::Error::Malformed { what, problem } if !is_an_envelope(bytes) => {
                let ReceiveQueue { peer, tag, .. } = &*self.queue;
                let problem = format!(
                    "{problem}; if rank {peer} sends messages of its own with tag {tag}, give them another tag, for the \
                     communicator's exchanges use this one"
                );
                mscclpp_core::Error::Malformed { what, problem }
            }
            source => source,
        }
    }

    fn error(&self, source: mscclpp_core::Error) -> Error {
        let Self { what, position, queue, .. } = self;
        Error::Exchange {
            what,
            peer: queue.peer,
            tag: queue.tag,
            position: *position,
            source: Box::new(source),
        }
    }
}

impl<T> Clone for Pending<T> {
    fn clone(&self) -> Self {
        Self { item: Arc::clone(&self.item) }
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Item { what, position, queue, outcome, .. } = &*self.item;
        f.debug_struct("Pending")
            .field("what", what)
            .field("peer", &queue.peer)
            .field("tag", &queue.tag)
            .field("position", position)
            .field("complete", &outcome.get().is_some())
            .finish()
    }
}
