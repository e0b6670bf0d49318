//! One thread that owns sockets, waits until one is ready, and takes commands from other threads.
//!
//! # Invariants
//! 1. A command is queued before the event descriptor is set, and [`EventLoop::wait_until`] clears the descriptor
//!    before its caller takes the queue. So a command is either taken in this turn, or the descriptor is still set
//!    for the next one.
//! 2. Forked children do not keep a watched socket open, so that a peer learns when this process ends.
//! 3. A socket is reported for as long as it is ready: an event that the caller leaves unhandled is reported again.
//!
//! The errors are those of the system: no descriptor, memory or thread is left.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Weak},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crossbeam_queue::SegQueue;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

use crate::{Report, SystemCall, SystemError};

/// The queue through which other threads send commands to the thread that runs an [`EventLoop`].
pub struct Commands<C> {
    queue: SegQueue<C>,
    event: OwnedFd,
}

impl<C> Commands<C> {
    /// Makes an empty queue.
    pub fn new() -> Result<Self, SystemError> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .during("making an event descriptor")?;
        Ok(Self { queue: SegQueue::new(), event })
    }

    /// Queues a command and wakes the thread. Never blocks.
    pub fn send(&self, command: C) {
        self.queue.push(command);
        // The only possible error is that the counter is full, and then the thread is about to wake anyway.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    /// Takes the commands queued so far, oldest first.
    pub fn take(&self) -> impl Iterator<Item = C> + '_ {
        // Takes only the commands that are queued now, so that a thread that keeps sending cannot starve the sockets.
        (0..self.queue.len()).map_while(|_| self.queue.pop())
    }
}

/// A socket on which something has become possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ready {
    /// The socket's token.
    pub token: u64,
    /// The socket has bytes to read, or the connection has ended or failed.
    pub readable: bool,
    /// The socket takes bytes, or has failed.
    pub writable: bool,
}

/// Returns the events of a socket to report: that it can be read, and, if `write`, that it can be written. A failure is always
/// reported.
fn flags(write: bool) -> epoll::EventFlags {
    let mut flags = epoll::EventFlags::IN;
    flags.set(epoll::EventFlags::OUT, write);
    flags
}

/// The token of the listener.
pub const LISTENER: u64 = 0;
/// The token of the event descriptor.
const WAKE: u64 = u64::MAX;

/// How long [`EventLoop::wait_or_retry`] pauses when the system refuses a wait.
const RETRY_PAUSE: Duration = Duration::from_millis(10);

/// Waits for sockets, for a time to pass, or for a command.
pub struct EventLoop<C> {
    epoll: OwnedFd,
    commands: Arc<Commands<C>>,
    next_token: u64,
}

impl<C> EventLoop<C> {
    /// Makes a loop that watches no socket yet.
    pub fn new(commands: Arc<Commands<C>>) -> Result<Self, SystemError> {
        mscclpp_os::raise_descriptors();
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).during("making an event loop")?;
        let this = Self { epoll, commands, next_token: LISTENER + 1 };
        this.register(&this.commands.event, WAKE, epoll::EventFlags::IN)?;
        Ok(this)
    }

    fn register(&self, socket: impl AsFd, token: u64, flags: epoll::EventFlags) -> Result<(), SystemError> {
        let data = epoll::EventData::new_u64(token);
        epoll::add(&self.epoll, socket, data, flags).during("watching a socket")
    }

    /// Watches the one listener of this loop, whose token is [`LISTENER`].
    ///
    /// Unlike other sockets, the listener is reported once for each connection that comes (an exception to invariant
    /// 3). A caller that does not accept all waiting connections, because there are too many or no descriptors left,
    /// must remember to go on later.
    pub fn add_listener(&self, listener: impl AsFd) -> Result<(), SystemError> {
        mscclpp_os::keep_from_children(&listener);
        self.register(listener, LISTENER, epoll::EventFlags::IN | epoll::EventFlags::ET)
    }

    /// Watches a socket for bytes to read. Returns its token, which is larger than all tokens before it.
    pub fn add(&mut self, socket: impl AsFd) -> Result<u64, SystemError> {
        let token = self.next_token;
        self.watch(socket, token, false)?;
        self.next_token += 1;
        Ok(token)
    }

    /// Watches a socket under a token that the caller chooses: for bytes to read and, if `write`, for room to write. A caller
    /// uses either this or [`add`](Self::add), not both. The token must not be [`LISTENER`] or `u64::MAX`.
    pub fn watch(&self, socket: impl AsFd, token: u64, write: bool) -> Result<(), SystemError> {
        mscclpp_os::keep_from_children(&socket);
        self.register(socket, token, flags(write))
    }

    /// Changes whether room to write is reported about a socket.
    pub fn modify(&self, socket: impl AsFd, token: u64, write: bool) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, socket, epoll::EventData::new_u64(token), flags(write))?)
    }

    /// Stops watching a socket. Closing the socket does the same, unless another descriptor keeps it open.
    pub fn remove(&self, socket: impl AsFd) {
        // This fails for a socket that is not watched, and then there is nothing to do.
        let _ = epoll::delete(&self.epoll, socket);
    }

    /// Waits until a socket is ready or a command has come, or until `deadline`. Returns the sockets that are ready.
    pub fn wait_until(&self, deadline: Option<Instant>) -> Result<Vec<Ready>, SystemError> {
        let timeout = deadline.map(|at| {
            let t = at.saturating_duration_since(Instant::now());
            // `epoll` is given whole milliseconds, so the time is rounded up: rounded down, the last one would be a
            // busy loop.
            let t = t.min(Duration::from_secs(3600)) + Duration::from_millis(1);
            Timespec { tv_sec: t.as_secs() as i64, tv_nsec: t.subsec_nanos().into() }
        });
        let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).during("waiting for sockets"),
        }
        let failed = epoll::EventFlags::ERR | epoll::EventFlags::HUP;
        let mut ready = Vec::with_capacity(events.len());
        for event in &events {
            let (token, flags) = (event.data.u64(), event.flags);
            if token == WAKE {
                let _ = rustix::io::read(&self.commands.event, &mut [0_u8; 8]);
                continue;
            }
            ready.push(Ready {
                token,
                readable: flags.intersects(epoll::EventFlags::IN | failed),
                writable: flags.intersects(epoll::EventFlags::OUT | failed),
            });
        }
        Ok(ready)
    }

    /// Waits like [`EventLoop::wait_until`], for a service that goes on when the system refuses a wait. The refusal
    /// is logged. After a pause of 10 milliseconds this returns no ready socket, so that the caller looks after its
    /// commands and deadlines and then tries again.
    pub fn wait_or_retry(&self, deadline: Option<Instant>) -> Vec<Ready> {
        self.wait_until(deadline).unwrap_or_else(|error| {
            let error = Report(&error).to_string();
            tracing::warn!(target: "mscclpp::conn", error, "cannot wait for sockets; trying again");
            std::thread::sleep(RETRY_PAUSE);
            Vec::new()
        })
    }
}

/// Returns the service that `running` refers to, or starts one with `start` if nobody uses that service any more.
pub fn get_or_start<T, E>(
    running: &Mutex<Weak<T>>,
    start: impl FnOnce() -> Result<Arc<T>, E>,
) -> Result<Arc<T>, E> {
    let mut running = running.lock();
    if let Some(service) = running.upgrade() {
        return Ok(service);
    }
    let service = start()?;
    *running = Arc::downgrade(&service);
    Ok(service)
}

/// The thread of a service. Dropping this tells the thread to stop and waits for it, unless the thread itself drops
/// it, as the last user of its own service.
pub struct ServiceThread<C> {
    commands: Arc<Commands<C>>,
    stop: fn() -> C,
    thread: Option<JoinHandle<()>>,
}

impl<C> ServiceThread<C> {
    /// Starts the thread. `stop` makes the command on which `run` returns.
    pub fn start(
        name: &str,
        commands: &Arc<Commands<C>>,
        stop: fn() -> C,
        run: impl FnOnce() + Send + 'static,
    ) -> Result<Self, SystemError> {
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
        let thread = Some(thread.during("starting the thread that serves peers")?);
        Ok(Self { commands: commands.clone(), stop, thread })
    }
}

impl<C> Drop for ServiceThread<C> {
    fn drop(&mut self) {
        self.commands.send((self.stop)());
        let thread = self.thread.take().filter(|thread| thread.thread().id() != std::thread::current().id());
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!(target: "mscclpp::conn", "the thread that serves peers had panicked");
        }
    }
}

/// How long peers wait when there are too many, or the system has no descriptor or memory for them.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The listener of an event loop. It is reported once for each peer, so it remembers that some peers still wait.
pub struct Listener<L> {
    socket: L,
    /// The time at which to go on accepting even if no new peer comes, after a pause because there were too many
    /// peers, or the system had no descriptor or memory.
    pub resume_at: Option<Instant>,
    /// Whether the pause was logged and nobody has been accepted since.
    pause_reported: bool,
}

impl<L: AsFd> Listener<L> {
    /// Adds `socket` to `events` as its listener.
    pub fn new<C>(events: &EventLoop<C>, socket: L) -> Result<Self, SystemError> {
        events.add_listener(&socket)?;
        Ok(Self { socket, resume_at: None, pause_reported: false })
    }

    /// Returns whether it is time to accept peers: some have come, or a pause is over.
    pub fn is_due(&self, ready: &[Ready], now: Instant) -> bool {
        // While accepting pauses, new peers do not count.
        let has_news = || ready.iter().any(|ready| ready.token == LISTENER);
        self.resume_at.map_or_else(has_news, |at| at <= now)
    }

    /// Accepts the next peer by `call`, which returns `None` if nobody waits. If `call` fails, accepting pauses for
    /// [`ACCEPT_PAUSE`].
    pub fn accept<S>(&mut self, now: Instant, call: fn(&L) -> io::Result<Option<S>>) -> Option<S> {
        self.resume_at = None;
        let accepted = call(&self.socket).unwrap_or_else(|error| {
            self.resume_at = Some(now + ACCEPT_PAUSE);
            if !std::mem::replace(&mut self.pause_reported, true) {
                tracing::warn!(target: "mscclpp::conn", %error, "peers that want to connect have to wait");
            }
            None
        });
        self.pause_reported &= accepted.is_none();
        accepted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_wait_pauses_and_says_that_nothing_is_ready() {
        let mut events = EventLoop::<()>::new(Arc::new(Commands::new().unwrap())).unwrap();
        // The system refuses to wait on a descriptor that is not of epoll.
        events.epoll = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        assert!(events.wait_until(None).is_err());
        let began = Instant::now();
        assert_eq!(events.wait_or_retry(None), []);
        assert!(began.elapsed() >= RETRY_PAUSE, "a refused wait would be a busy loop");
    }
}
