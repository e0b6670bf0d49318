//! What a proxy service, its channels and its thread share.

use std::{
    sync::{Arc, OnceLock, atomic::Ordering},
    time::Instant,
};

use mscclpp_core::{Connection, HostToDeviceSemaphoreHandle, RegisteredMemory, Report, Semaphore, Signaller};
use mscclpp_gpu::{Abort, DeviceBuffer, DevicePtr, Gpu, KernelWait, PinnedBuffer, Probe};
use mscclpp_os::waiting::Backoff;
use parking_lot::Mutex;

use crate::{
    Error, FifoShared, MAX_MEMORIES, MAX_SEMAPHORES, Result, SemaphoreId,
    connection::{CONNECTION_WORDS, Completed, ServiceConnection},
    table::Table,
};

/// What a service, its channels and its proxy's thread share.
pub(crate) struct ServiceState {
    pub(crate) gpu: Gpu,
    pub(crate) fifo: Arc<FifoShared>,
    pub(crate) direct_put_max: u32,
    pub(crate) bulk_put_max: u32,
    pub(crate) semaphores: Table<SemaphoreEntry>,
    pub(crate) memories: Table<RegisteredMemory>,
    pub(crate) connections: Table<ServiceConnection>,
    pub(crate) probe: Probe,
    /// What the proxy failed with.
    failure: Arc<OnceLock<Error>>,
    /// What the service's owner did with it last.
    serving: Mutex<Serving>,
    /// Of all connections.
    pub(crate) words: DeviceBuffer,
    /// Of all semaphores: the parts of a channel's handle that a kernel does not see in its fields.
    ports: PinnedBuffer,
}

/// Whether a service takes triggers. A service that has failed says so by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Serving {
    NotStarted,
    Started,
    Stopped,
    Dropped,
}

/// How what is passed on of a peer's failure begins.
const BECAUSE: &str = "proxy has stopped because of ";

/// Bytes that each semaphore has in `ports`: three addresses.
const PORT_BYTES: u64 = 32;

/// A semaphore of a service.
pub(crate) struct SemaphoreEntry {
    pub(crate) semaphore: Semaphore,
    pub(crate) handle: HostToDeviceSemaphoreHandle,
    /// The number of its connection.
    pub(crate) connection: u32,
    pub(crate) signaller: EntrySignaller,
}

/// What signals over a semaphore of a service.
pub(crate) enum EntrySignaller {
    /// On its way to the proxy's thread, which has it from the first trigger on.
    Own(Mutex<Option<Signaller>>),
    /// The signaller of the semaphore with this number: the same semaphore was added before.
    Of(u32),
}

impl ServiceState {
    pub(crate) fn new(
        gpu: Gpu,
        fifo: &Arc<FifoShared>,
        direct_put_max: u32,
        bulk_put_max: u32,
        failure: Arc<OnceLock<Error>>,
    ) -> Result<Self> {
        Ok(Self {
            failure,
            serving: Mutex::new(Serving::NotStarted),
            probe: Probe::new(&gpu),
            words: gpu.allocate(CONNECTION_WORDS * u64::from(MAX_SEMAPHORES))?,
            ports: gpu.allocate_pinned(PORT_BYTES * u64::from(MAX_SEMAPHORES))?,
            gpu,
            fifo: fifo.clone(),
            direct_put_max,
            bulk_put_max,
            semaphores: Table::new("semaphores", MAX_SEMAPHORES),
            memories: Table::new("memories", MAX_MEMORIES),
            // No more than semaphores.
            connections: Table::new("connections", MAX_SEMAPHORES),
        })
    }

    /// Where kernels find the parts of channel handles over this semaphore that are not in the handles' own fields.
    pub(crate) fn port(&self, semaphore: SemaphoreId, parts: [DevicePtr; 3]) -> Result<DevicePtr> {
        let at = PORT_BYTES * u64::from(semaphore.raw());
        for (word, part) in (at..).step_by(8).zip(parts) {
            // Always the same value. A kernel that reads it starts later.
            self.ports.word(word)?.store(part.0, Ordering::Relaxed);
        }
        Ok(self.ports.ptr().add(at))
    }

    pub(crate) fn check_device(&self, connection: &Connection) -> Result<()> {
        let device = connection.local_device();
        let Some(id) = device.id else { return Ok(()) };
        let gpu = connection.context().gpu(id)?;
        match gpu.properties().uuid == self.gpu.properties().uuid {
            true => Ok(()),
            false => Err(Error::InvalidArgument(format!(
                "the connection to {} is from {gpu}, the service for {}; a service serves kernels of one device",
                connection.label(),
                self.gpu
            ))),
        }
    }

    /// What the proxy failed with, or one of the semaphores.
    pub(crate) fn failure(&self) -> Option<Error> {
        let of_semaphore = |entry: &SemaphoreEntry| match entry.semaphore.failure() {
            Some(mscclpp_core::Error::PeerClosed { .. }) => None,
            other => other.map(Error::from),
        };
        self.failure.get().cloned().or_else(|| self.semaphores.iter().find_map(of_semaphore))
    }

    /// The error with which the proxy itself failed.
    pub(crate) fn own_failure(&self) -> Option<Error> {
        self.failure.get().cloned()
    }

    /// Gives what it was before.
    pub(crate) fn set_serving(&self, serving: Serving) -> Serving {
        std::mem::replace(&mut self.serving.lock(), serving)
    }

    /// That triggers wait for a service that does not serve, if they do.
    pub(crate) fn idle_service(&self) -> Option<String> {
        let why = match *self.serving.lock() {
            Serving::Started => return None,
            Serving::NotStarted => "was not started (call start_proxy())",
            Serving::Stopped => "was stopped (call start_proxy())",
            Serving::Dropped => "was dropped (keep it as long as kernels use its channels)",
        };
        self.fifo.has_waiting().then(|| format!("the proxy service of {}, which {why}", self.gpu))
    }

    /// The service that leaves what kernels pushed, if it does. One that was stopped carries it out after its next start.
    fn not_served(&self) -> Option<String> {
        let is_stopped = *self.serving.lock() == Serving::Stopped;
        self.idle_service().filter(|_| !is_stopped)
    }

    /// Whether [`ServiceState::check_waits`] may fail. Does not block.
    pub(crate) fn may_have_failed(&self, semaphore: &Semaphore) -> bool {
        self.failure.get().is_some() || semaphore.owner().may_have_failed() || self.not_served().is_some()
    }

    /// Checks what complete kernels met that used a channel over `semaphore`: first that the service works.
    pub(crate) fn check_waits(&self, semaphore: &Semaphore) -> Result<()> {
        self.own_failure().map_or(Ok(()), Err)?;
        Abort::check(semaphore)?;
        self.not_served().map_or(Ok(()), |service| Err(Error::NotServed { service }))
    }

    /// Checks that somebody serves complete kernels: what they pushed, and, before the first start, also what they did by
    /// themselves. That the next call, or a larger put, would wait for ever is found now.
    pub(crate) fn check_is_served(&self) -> Result<()> {
        self.not_served().map_or(Ok(()), |service| Err(Error::NotServed { service }))?;
        if *self.serving.lock() == Serving::NotStarted {
            let done = self.stats(None).total;
            if done.direct_puts + done.direct_signals > 0 {
                return Err(Error::NotStarted { gpu: self.gpu.to_string() });
            }
        }
        Ok(())
    }

    /// Waits until the proxy has taken what complete kernels pushed and has handed it over to the transports, or has failed;
    /// until `deadline` at most. False if it takes longer.
    pub(crate) fn settle(&self, deadline: Instant) -> bool {
        // Nothing beyond was pushed by then. What others push meanwhile may come without an end.
        let end = self.fifo.tail() + self.fifo.size();
        let until = |done: &dyn Fn() -> bool| {
            let mut backoff = Backoff::default();
            // Nobody works on it: that is for `check` to say.
            while !done() && self.failure().is_none() && *self.serving.lock() == Serving::Started {
                if Instant::now() >= deadline {
                    return false;
                }
                backoff.wait();
            }
            true
        };
        // The tail was stored behind what the proxy noted of the triggers before it.
        until(&|| !self.fifo.has_waiting() || self.fifo.tail() >= end)
            && self.connections.iter().all(|connection| {
                let counts = &connection.counts;
                let taken = counts.taken.load(Ordering::Relaxed);
                until(&|| counts.handed_over.load(Ordering::Relaxed) >= taken)
            })
    }

    /// For whom kernels wait: the service first, if that is what keeps them.
    pub(crate) fn peers(&self) -> Vec<String> {
        let connections = self.connections.iter().map(|entry| entry.connection.label());
        self.idle_service().into_iter().chain(connections).collect()
    }

    /// Tells the peers of all connections that the proxy has failed, so that nobody waits there for what will not come. Not of
    /// an abort, which is the decision of this side alone.
    pub(crate) fn tell_peers(&self, error: &Error) {
        let reason = match error.core() {
            _ if matches!(error, Error::Aborted { .. }) => return,
            // What it said goes on round a ring, and does not grow: its own peers' words come behind the first colon.
            Some(mscclpp_core::Error::PeerFailed { reason, .. }) if reason.starts_with(BECAUSE) => {
                reason.clone()
            }
            Some(mscclpp_core::Error::PeerFailed { peer, reason }) => format!("{BECAUSE}{peer}'s {reason}"),
            _ => format!("proxy: {}", Report(error)),
        };
        for entry in self.connections.iter() {
            // Which says nothing to a peer that failed first.
            entry.connection.tell_failure(&reason);
        }
    }

    /// The waits of kernels through `semaphores`: for the service first, if that is what keeps them.
    pub(crate) fn waits<'a>(&self, semaphores: impl IntoIterator<Item = &'a Semaphore>) -> Vec<KernelWait> {
        let idle = self.idle_service().map(KernelWait::certain);
        idle.into_iter().chain(semaphores.into_iter().flat_map(Abort::waits)).collect()
    }

    /// Ends all waits, because of `error`. A semaphore that has failed by itself keeps its own reason.
    pub(crate) fn abort_semaphores(&self, error: &Error) {
        for entry in self.semaphores.iter() {
            entry.semaphore.abort(&format!("the proxy service has stopped: {}", Report(error)));
        }
    }

    /// The queues are closed. If a transport may still store completions, the memory for them is kept for ever.
    pub(crate) fn words_may_go(&self) {
        let (mut at, mut expected) = (Vec::new(), Vec::new());
        for connection in self.connections.iter() {
            let asked = connection.counts.asked.load(Ordering::Relaxed);
            if let Completed::ByTransport(word) = connection.completed
                && asked > 0
            {
                at.push(word);
                expected.push(asked);
            }
        }
        if at.is_empty() {
            return;
        }
        // SAFETY: words of `self.words`, which is kept for ever if that times out.
        let stored = unsafe { self.probe.read(&at) };
        if !stored.is_ok_and(|stored| stored.iter().zip(&expected).all(|(is, asked)| is >= asked)) {
            std::mem::forget(self.words.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use mscclpp_gpu::Platform;

    use super::*;
    use crate::ProxyService;

    fn service() -> ProxyService {
        ProxyService::new(&Platform::Host.gpu(0).unwrap()).unwrap()
    }

    #[test]
    fn what_is_said_of_the_thread_is_so_when_it_is_started_and_stopped_at_once() {
        let service = service();
        for _ in 0..100 {
            thread::scope(|scope| {
                let start = scope.spawn(|| service.start_proxy(false));
                service.stop_proxy().unwrap();
                start.join().unwrap().unwrap();
            });
            let is_started = *service.state.serving.lock() == Serving::Started;
            assert_eq!(is_started, service.is_running());
        }
    }

    #[test]
    fn a_start_that_fails_is_none() {
        let service = service();
        service.abort("enough");
        service.start_proxy(true).unwrap_err();
        assert_eq!(*service.state.serving.lock(), Serving::NotStarted);
    }
}
