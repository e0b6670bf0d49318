//! Signals over a connection's link: who counts them, and the place of the last of them (see [`crate::retired`]).

use std::{sync::Arc, time::Duration};

use crate::{
    Connection, Error, Result, Semaphore,
    connection::ROOM_TIMEOUT,
    provider::{Operation, RemoteRegion, RouteId},
    semaphore::{Last, LinkSignals},
};

/// How long a signaller waits until the signals of other senders have landed.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(30);

impl Semaphore {
    /// Takes the object that counts signals sent through a [`SendQueue`](crate::SendQueue). There is one at a time,
    /// and while it exists, host semaphores of this semaphore cannot signal. Its queue must not overtake earlier
    /// signals. So this call blocks, for 30 seconds at most, until the signals of hosts are at the peer, and, if the
    /// last signaller's queue was dropped, everything that queue was given.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] while somebody else, such as a proxy service, has taken it; [`Error::Timeout`]:
    /// nothing was taken; [`Error::PeerLost`] and the like.
    pub fn signaller(&self) -> Result<Signaller> {
        let mut signals = self.link_signals()?;
        let LinkSignals::ByHosts { sent, last } = *signals else { return Err(self.has_a_signaller()) };
        match last {
            Last::Landed => {}
            Last::InOwnQueue => self.connection().flush(FLUSH_TIMEOUT)?,
            Last::InRetired(number) => self.connection().await_retired(number, FLUSH_TIMEOUT)?,
        }
        *signals = LinkSignals::BySignaller;
        Ok(Signaller { semaphore: self.clone(), sent, last: Last::Landed })
    }

    /// Signals the peer through the connection's own queue, behind its earlier writes.
    pub(crate) fn signal_from_host(&self) -> Result<()> {
        let mut signals = self.link_signals()?;
        let LinkSignals::ByHosts { sent, last } = &mut *signals else {
            return Err(self.has_a_signaller());
        };
        if let Last::InRetired(number) = *last {
            self.connection().await_retired(number, ROOM_TIMEOUT)?;
            *last = Last::Landed;
        }
        let (region, offset) = self.remote_token_by_link();
        let update = |route| Operation::Update { route, offset, value: *sent + 1, previous: Some(*sent) };
        // SAFETY: the token is inside the peer's memory, which was checked when its stub was read.
        unsafe { self.connection().start(ROOM_TIMEOUT, region, None, update)? };
        *sent += 1;
        *last = Last::InOwnQueue;
        Ok(())
    }

    fn has_a_signaller(&self) -> Error {
        Error::InvalidArgument(format!(
            "a proxy service, or another signaller, signals over this semaphore of the connection to {} already; signal \
             through its port channels, or build another semaphore",
            self.connection().label()
        ))
    }
}

/// Counts the signals of a [`Semaphore`] that are sent by the [`SendQueue`](crate::SendQueue) to which it is
/// attached. Each semaphore has one signaller at a time ([`Semaphore::signaller`]). When it is dropped, a new one may
/// be taken, which goes on counting, or host semaphores may signal.
///
/// A signal is the number of signals so far. It is stored at the peer behind everything that the queue was given before, so it
/// needs no atomic operation at the peer. Several queues would not keep these numbers in order. So if its queue is dropped
/// before all that it was given is at the peer, whoever signals next waits for that.
pub struct Signaller {
    semaphore: Semaphore,
    sent: u64,
    /// The place of its last signals, for those who signal next.
    last: Last,
}

impl Signaller {
    /// The semaphore whose signals it counts.
    #[must_use]
    pub fn semaphore(&self) -> &Semaphore {
        &self.semaphore
    }

    pub(crate) fn connection(&self) -> &Connection {
        self.semaphore.connection()
    }

    /// The peer's region that signals are stored in, and the offset there.
    pub(crate) fn target(&self) -> (&Arc<dyn RemoteRegion>, u64) {
        self.semaphore.remote_token_by_link()
    }

    /// Returns the operation that sends the next signal, along a route to [`Signaller::target`].
    pub(crate) fn next(&self, route: RouteId) -> Operation {
        Operation::Update { route, offset: self.target().1, value: self.sent + 1, previous: Some(self.sent) }
    }

    /// Counts a signal that was given to a queue.
    pub(crate) fn count(&mut self) {
        self.sent += 1;
    }

    /// Notes that its queue, with its signals, was retired.
    pub(crate) fn set_retired(&mut self, number: u64) {
        self.last = Last::InRetired(number);
    }
}

impl Drop for Signaller {
    fn drop(&mut self) {
        // In a forked child this does nothing: another thread of the parent may have held the lock.
        if let Ok(mut signals) = self.semaphore.link_signals() {
            *signals = LinkSignals::ByHosts { sent: self.sent, last: self.last };
        }
    }
}

mscclpp_os::debug_fields!(Signaller, |this| semaphore: this.semaphore, sent: this.sent);
