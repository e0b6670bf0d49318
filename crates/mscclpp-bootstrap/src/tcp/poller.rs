//! Waiting for sockets, for a time, or for another thread.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

/// What became possible on a socket.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ready {
    pub(crate) token: u64,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
}

/// Wakes a [`Poller`] from another thread.
pub(crate) struct Waker(OwnedFd);

impl Waker {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    pub(crate) fn wake(&self) {
        // The one error that can come, that the counter is full, means that the poller is about to wake.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    pub(crate) fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0_u8; 8]);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// An epoll instance. Level-triggered: what is not dealt with is told again.
pub(crate) struct Poller {
    epoll: OwnedFd,
}

fn flags(read: bool, write: bool) -> epoll::EventFlags {
    let mut flags = epoll::EventFlags::empty();
    flags.set(epoll::EventFlags::IN, read);
    flags.set(epoll::EventFlags::OUT, write);
    flags
}

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    pub(crate) fn add(&self, source: impl AsFd, token: u64, read: bool, write: bool) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, source, epoll::EventData::new_u64(token), flags(read, write))?)
    }

    pub(crate) fn modify(&self, source: impl AsFd, token: u64, read: bool, write: bool) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, source, epoll::EventData::new_u64(token), flags(read, write))?)
    }

    pub(crate) fn remove(&self, source: impl AsFd) {
        // Closing the descriptor, which follows, removes it in any case.
        let _ = epoll::delete(&self.epoll, source);
    }

    /// Waits, at most for `timeout`, and says what became possible.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> io::Result<Vec<Ready>> {
        let timeout = timeout.map(|t| {
            // Rounded up to what the system counts in, or a deadline just ahead would be waited for in a busy loop.
            let t = t.min(Duration::from_secs(3600)) + Duration::from_millis(1);
            Timespec { tv_sec: t.as_secs() as i64, tv_nsec: t.subsec_nanos().into() }
        });
        let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        }
        let failed = epoll::EventFlags::ERR | epoll::EventFlags::HUP;
        let ready = |event: &epoll::Event| {
            let flags = event.flags;
            Ready {
                token: event.data.u64(),
                readable: flags.intersects(epoll::EventFlags::IN | failed),
                writable: flags.intersects(epoll::EventFlags::OUT | failed),
            }
        };
        Ok(events.iter().map(ready).collect())
    }
}
