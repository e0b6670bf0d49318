use std::{
    mem::ManuallyDrop,
    time::{Duration, Instant},
};

use mscclpp_gpu::DevicePtr;
use mscclpp_os::waiting::Backoff;

use crate::{
    Connection, Error, OutOfBounds, RegisteredMemory, Report, Result, Route, Signaller,
    provider::{Memories, Operation, Queue, RouteId},
};

/// The operations of one connection for one owner, in the order in which they are given.
///
/// Made for the thread of a proxy: nothing here blocks or takes a lock, memories are looked up once
/// ([`SendQueue::route`]), and in the long run nothing is allocated. Opened by [`Connection::open_queue`]; keeps the
/// connection. Operations of different queues of a connection are not ordered among each other.
///
/// [`SendQueue::write`] and the like put operations behind those that wait here. [`SendQueue::submit`] hands as many
/// as the transport takes over to it, together; so do [`SendQueue::request_flush`] and [`SendQueue::progress`].
/// Operations for which the transport has no room wait here until a later call.
///
/// When it is dropped, it waits for 5 seconds at most until the transport has taken everything. If the transport does
/// not, the connection fails, because signals were counted that will not be sent. Operations that were taken are
/// carried out after the drop. If there may be signals among them, the drop waits for a second until they are
/// complete; if they are not by then, the next to signal over one of the queue's semaphores waits for the rest
/// ([`Semaphore::signaller`](crate::Semaphore::signaller)).
///
/// ```
/// # use mscclpp_core::{Connection, RegisteredMemory, Result, Semaphore};
///
/// /// Sends all of `ours` in chunks, and signals when all of it has arrived.
/// fn send(
///     connection: &Connection,
///     semaphore: &Semaphore,
///     theirs: &RegisteredMemory,
///     ours: &RegisteredMemory,
/// ) -> Result<()> {
///     const PIECE: u64 = 1 << 20;
///     let mut queue = connection.open_queue()?;
///     let route = queue.route(theirs, ours)?;
///     let signaller = queue.attach(semaphore.signaller()?)?;
///     for at in (0..ours.size()).step_by(PIECE as usize) {
///         while !queue.has_room_for(1) {
///             queue.progress()?;
///         }
///         queue.write(route, at, at, PIECE.min(ours.size() - at))?;
///     }
///     queue.signal(signaller)?;
///     let ticket = queue.request_flush()?;
///     while queue.progress()? < ticket {}
///     Ok(())
/// }
/// ```
pub struct SendQueue {
    // Dropped in this order: first the queue, in `drop`, then the signallers, which by then know behind which retired
    // queue their last signals are (invariant 2 of `retired`); the connection is closed last.
    queue: ManuallyDrop<Box<dyn Queue>>,
    signallers: Vec<(Signaller, RouteId)>,
    routes: Vec<Option<Prepared>>,
    /// The operations given to this queue. The transport has taken those before `taken`. They are removed when all
    /// have been taken, or when the taken ones are the greater part.
    operations: Vec<Operation>,
    taken: usize,
    /// The last flush's ticket, and whether no operation came after it.
    ticket: u64,
    is_flushed: bool,
    /// The transport's answer to [`Queue::stores_completions`], asked for once.
    stores_completions: bool,
    connection: Connection,
}

/// A route that was prepared, and the memories it keeps.
struct Prepared {
    sizes: [u64; 2],
    _memories: [RegisteredMemory; 2],
}

/// A [`Signaller`] that belongs to a [`SendQueue`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SignallerId(u32);

/// How long a queue that is dropped tries to hand over the operations that wait.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a dropped queue then waits until they have landed, if signals may be among them. Most have by then, and
/// the queue need not be retired.
const LANDING: Duration = Duration::from_secs(1);
/// The number of operations that fit without a further allocation.
const USUALLY_WAITING: usize = 96;

impl Connection {
    /// Opens a queue of operations with an order and a flush of its own, for one owner, such as the thread of a
    /// proxy. May block for some seconds.
    ///
    /// # Errors
    /// [`Error::PeerLost`] and the like, or the provider's own error.
    pub fn open_queue(&self) -> Result<SendQueue> {
        self.check()?;
        Ok(SendQueue::new(self.clone(), self.link_queue()?))
    }
}

impl SendQueue {
    /// The most operations that may wait here for the transport. `docs/design/queues.md` explains the limit.
    pub const MAX_WAITING: usize = 3 * 512;

    pub(crate) fn new(connection: Connection, queue: Box<dyn Queue>) -> Self {
        Self {
            stores_completions: queue.stores_completions(),
            queue: ManuallyDrop::new(queue),
            signallers: Vec::new(),
            routes: Vec::new(),
            operations: Vec::with_capacity(USUALLY_WAITING),
            taken: 0,
            ticket: 0,
            is_flushed: true,
            connection,
        }
    }

    /// The connection that the queue belongs to.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Prepares writes from `src`, registered here, to the peer's `dst`, and keeps both. The number that it returns
    /// is for this queue only. Maps `dst` the first time, which may block for some seconds.
    ///
    /// # Errors
    /// [`Error::NotRegistered`]; [`Error::InvalidArgument`] for a memory of the wrong process; errors of mapping;
    /// [`Error::PeerLost`] and the like.
    pub fn route(&mut self, dst: &RegisteredMemory, src: &RegisteredMemory) -> Result<RouteId> {
        let route = Route::new(&self.connection, dst, src)?;
        let id = RouteId::new(self.routes.len());
        self.queue.prepare(id, Memories { dst: route.dst(), src: Some(route.src()) })?;
        let memories = [dst.clone(), src.clone()];
        self.routes.push(Some(Prepared { sizes: route.sizes(), _memories: memories }));
        Ok(id)
    }

    /// Takes over the signaller of a semaphore of this connection, for [`SendQueue::signal`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a semaphore of another connection; the provider's own error.
    pub fn attach(&mut self, signaller: Signaller) -> Result<SignallerId> {
        if !signaller.connection().is(&self.connection) {
            return Err(Error::InvalidArgument(format!(
                "the semaphore belongs to the connection to {}, the queue to that to {}",
                signaller.connection().label(),
                self.connection.label()
            )));
        }
        let id = RouteId::new(self.routes.len());
        self.queue.prepare(id, Memories { dst: signaller.target().0, src: None })?;
        self.routes.push(None);
        self.signallers.push((signaller, id));
        Ok(SignallerId(self.signallers.len() as u32 - 1))
    }

    /// Returns the semaphore of a signaller that was attached.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for the number of another queue.
    pub fn semaphore(&self, signaller: SignallerId) -> Result<&crate::Semaphore> {
        let found = self.signallers.get(signaller.0 as usize);
        found.map(|(signaller, _)| signaller.semaphore()).ok_or_else(foreign)
    }

    /// Copies `size` bytes along `route`. The source must not change until a later flush is reached.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]; [`Error::InvalidArgument`] for the route of another queue; [`Error::QueueFull`] if there
    /// is no room; [`Error::PeerLost`] and the like once the connection has failed.
    pub fn write(&mut self, route: RouteId, dst_offset: u64, src_offset: u64, size: u64) -> Result<()> {
        let Some(Some(Prepared { sizes, .. })) = self.routes.get(route.index()) else {
            return Err(foreign());
        };
        OutOfBounds::check("write: destination", dst_offset, size, sizes[0])?;
        OutOfBounds::check("write: source", src_offset, size, sizes[1])?;
        self.add(Operation::Write { route, dst_offset, src_offset, len: size })
    }

    /// Signals the peer, behind everything that this queue was given before.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for the signaller of another queue; [`Error::QueueFull`]; [`Error::PeerLost`] and the
    /// like.
    pub fn signal(&mut self, signaller: SignallerId) -> Result<()> {
        let index = signaller.0 as usize;
        let Some((signaller, route)) = self.signallers.get(index) else { return Err(foreign()) };
        let operation = signaller.next(*route);
        self.add(operation)?;
        self.signallers[index].0.count();
        Ok(())
    }

    /// Stores `value` in the 8 bytes of local device memory at `word` once everything given so far is complete at the
    /// peer. Kernels may wait there for the value.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if [`SendQueue::stores_completions`] is false; [`Error::QueueFull`];
    /// [`Error::PeerLost`] and the like.
    ///
    /// # Safety
    /// `word` must be 8-byte aligned, and valid until the store is done.
    pub unsafe fn store_when_complete(&mut self, word: DevicePtr, value: u64) -> Result<()> {
        if !self.stores_completions {
            return Err(Error::InvalidArgument(format!(
                "{} cannot store {value} at {word:?} by itself; ask it with request_flush and progress",
                self.connection.transport()
            )));
        }
        self.add(Operation::Complete { word, value })
    }

    /// Whether the transport can tell kernels by itself that operations are complete.
    #[must_use]
    pub fn stores_completions(&self) -> bool {
        self.stores_completions
    }

    fn add(&mut self, operation: Operation) -> Result<()> {
        self.connection.check()?;
        if !self.has_room_for(1) {
            return Err(Error::QueueFull { peer: self.connection.label(), waiting: self.waiting() });
        }
        self.operations.push(operation);
        self.is_flushed = false;
        Ok(())
    }

    /// Whether that many more operations may wait here.
    #[must_use]
    pub fn has_room_for(&self, operations: usize) -> bool {
        self.waiting() + operations <= Self::MAX_WAITING
    }

    /// The number of operations that wait here for room at the transport.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.operations.len() - self.taken
    }

    /// Hands the waiting operations over to the transport, as many as it takes, in one call. Returns how many still
    /// wait.
    ///
    /// # Errors
    /// [`Error::PeerLost`] and the like. The same error comes again from the next call.
    pub fn submit(&mut self) -> Result<usize> {
        let batch = &self.operations[self.taken..];
        if batch.is_empty() {
            return Ok(0);
        }
        self.connection.check()?;
        // SAFETY: routes are those of `routes` and `signallers`, which are prepared and kept; `write` has checked the
        // ranges, a signal's token is inside its memory, and words are as the callers promise.
        self.taken += unsafe { self.queue.submit(batch)? };
        if self.taken == self.operations.len() {
            self.operations.clear();
            self.taken = 0;
        } else if self.taken > self.operations.len() / 2 {
            // Each move of an operation is paid for by one that was taken, so operations are moved once on average,
            // at most.
            self.operations.drain(..self.taken);
            self.taken = 0;
        }
        Ok(self.waiting())
    }

    /// Begins a flush of everything given so far, and hands the waiting operations over, as many as the transport
    /// takes. Returns a ticket: when [`SendQueue::progress`] has reached it, everything is complete at the peer.
    /// Later tickets are never lower.
    ///
    /// # Errors
    /// [`Error::PeerLost`] and the like.
    pub fn request_flush(&mut self) -> Result<u64> {
        let ticket = self.add_flush()?;
        self.submit()?;
        Ok(ticket)
    }

    /// The same as [`SendQueue::request_flush`], but hands nothing over: that is left to [`SendQueue::submit`].
    ///
    /// # Errors
    /// The same as [`SendQueue::request_flush`].
    pub fn add_flush(&mut self) -> Result<u64> {
        self.connection.check()?;
        // At most one flush follows each operation, so that flushes which time out and are repeated do not pile up.
        if !self.is_flushed {
            self.ticket += 1;
            self.operations.push(Operation::Flush { ticket: self.ticket });
            self.is_flushed = true;
        }
        Ok(self.ticket)
    }

    /// Returns the highest ticket that has been reached. Call it again and again while you wait for one: it also
    /// hands waiting operations over, and lets the transport go on.
    ///
    /// # Errors
    /// [`Error::PeerLost`] and the like.
    pub fn progress(&mut self) -> Result<u64> {
        self.submit()?;
        self.connection.check()?;
        self.queue.progress()
    }
}

fn foreign() -> Error {
    Error::InvalidArgument("that is a number of another queue".to_owned())
}

impl SendQueue {
    /// Hands over all waiting operations. Returns whether they have landed, or true if no signals can be among them.
    fn finish(&mut self) -> Result<bool> {
        let ticket = if self.signallers.is_empty() { 0 } else { self.add_flush()? };
        let (start, mut backoff) = (Instant::now(), Backoff::default());
        let mut handed_over = None;
        loop {
            let waiting = self.submit()?;
            if waiting == 0 && ticket == 0 {
                return Ok(true);
            }
            let reached = self.queue.progress()?;
            let now = Instant::now();
            if waiting == 0 {
                let has_landed = reached >= ticket;
                if has_landed || now - *handed_over.get_or_insert(now) >= LANDING {
                    return Ok(has_landed);
                }
            } else if now - start >= DRAIN_TIMEOUT {
                return Err(Error::Timeout {
                    operation: format!("handing over what was to be sent to {}", self.connection.label()),
                    after: DRAIN_TIMEOUT,
                });
            }
            backoff.wait();
        }
    }
}

impl Drop for SendQueue {
    fn drop(&mut self) {
        // In a forked child the queue is left alone: the parent goes on using it.
        if !self.connection.is_here() {
            return;
        }
        let has_landed = self.finish().unwrap_or_else(|error| {
            // If the connection has failed, the operations cannot reach the peer anyway.
            if self.connection.check().is_ok() {
                tracing::error!(
                    target: "mscclpp::conn", error = %Report(&error), waiting = self.waiting(),
                    peer = %self.connection.label(),
                    "a queue was dropped before the transport had taken all; its connection fails"
                );
                self.connection.tell_failure(&format!("queue: {}", Report(&error)));
                self.connection.fail(error);
            }
            true
        });
        // SAFETY: taken here and nowhere else, and not used afterwards.
        let queue = unsafe { ManuallyDrop::take(&mut self.queue) };
        if !has_landed {
            let number = self.connection.retire(queue, self.ticket);
            self.signallers.iter_mut().for_each(|(signaller, _)| signaller.set_retired(number));
        }
    }
}

mscclpp_os::debug_fields!(SendQueue, |this| connection: this.connection, waiting: this.waiting(), ..);
