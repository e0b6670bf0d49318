//! The state that a proxy service, its channels and its thread share.

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

/// The state that a service, its channels and its proxy's thread share.
pub(crate) struct ServiceState {
    pub(crate) gpu: Gpu,
    pub(crate) fifo: Arc<FifoShared>,
    pub(crate) direct_put_max: u32,
    pub(crate) bulk_put_max: u32,
    pub(crate) semaphores: Table<SemaphoreEntry>,
    pub(crate) memories: Table<RegisteredMemory>,
    pub(crate) connections: Table<ServiceConnection>,
    pub(crate) probe: Probe,
    /// The error that the proxy failed with.
    failure: Arc<OnceLock<Error>>,
    /// The last thing that the service's owner did with it.
    serving: Mutex<Serving>,
    /// The words of all connections in device memory.
    pub(crate) words: DeviceBuffer,
    /// The parts of channel handles that are not in the handles' fields, for all semaphores.
    ports: PinnedBuffer,
}

/// Whether a service takes triggers. The failure of a service is kept elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Serving {
    NotStarted,
    Started,
    Stopped,
    Dropped,
}

/// The beginning of the text with which a peer's failure is passed on to other peers.
const BECAUSE: &str = "proxy has stopped because of ";

/// The bytes that each semaphore has in `ports`: three addresses.
const PORT_BYTES: u64 = 32;

/// A semaphore of a service.
pub(crate) struct SemaphoreEntry {
    pub(crate) semaphore: Semaphore,
    pub(crate) handle: HostToDeviceSemaphoreHandle,
    /// The number of the semaphore's connection.
    pub(crate) connection: u32,
    pub(crate) signaller: EntrySignaller,
}

/// The object that signals over a semaphore of a service.
pub(crate) enum EntrySignaller {
    /// The semaphore's own signaller, until the proxy's thread takes it at the first trigger.
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
            // There are no more connections than semaphores.
            connections: Table::new("connections", MAX_SEMAPHORES),
        })
    }

    /// Returns the address at which kernels find the parts of channel handles over this semaphore that are not in the
    /// handles' fields.
    pub(crate) fn port(&self, semaphore: SemaphoreId, parts: [DevicePtr; 3]) -> Result<DevicePtr> {
        let at = PORT_BYTES * u64::from(semaphore.raw());
        for (word, part) in (at..).step_by(8).zip(parts) {
            // The value is always the same, and a kernel that reads it starts later.
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

    /// Returns the error of the proxy, or else that of the first semaphore that has failed.
    pub(crate) fn failure(&self) -> Option<Error> {
        let of_semaphore = |entry: &SemaphoreEntry| match entry.semaphore.failure() {
            Some(mscclpp_core::Error::PeerClosed { .. }) => None,
            other => other.map(Error::from),
        };
        self.failure.get().cloned().or_else(|| self.semaphores.iter().find_map(of_semaphore))
    }

    /// Returns the error with which the proxy itself failed.
    pub(crate) fn own_failure(&self) -> Option<Error> {
        self.failure.get().cloned()
    }

    /// Sets what the owner did last, and returns what it was before.
    pub(crate) fn set_serving(&self, serving: Serving) -> Serving {
        std::mem::replace(&mut self.serving.lock(), serving)
    }

    /// Describes the service if triggers wait for it and it does not serve.
    pub(crate) fn idle_service(&self) -> Option<String> {
        let why = match *self.serving.lock() {
            Serving::Started => return None,
            Serving::NotStarted => "was not started (call start_proxy())",
            Serving::Stopped => "was stopped (call start_proxy())",
            Serving::Dropped => "was dropped (keep it as long as kernels use its channels)",
        };
        self.fifo.has_waiting().then(|| format!("the proxy service of {}, which {why}", self.gpu))
    }

    /// Describes the service if it leaves triggers that kernels pushed. A stopped service carries them out after its
    /// next start.
    fn not_served(&self) -> Option<String> {
        let is_stopped = *self.serving.lock() == Serving::Stopped;
        self.idle_service().filter(|_| !is_stopped)
    }

    /// Whether [`ServiceState::check_waits`] may fail. Does not block.
    pub(crate) fn may_have_failed(&self, semaphore: &Semaphore) -> bool {
        self.failure.get().is_some() || semaphore.owner().may_have_failed() || self.not_served().is_some()
    }

    /// Checks how complete kernels fared that used a channel over `semaphore`, after checking that the service works.
    pub(crate) fn check_waits(&self, semaphore: &Semaphore) -> Result<()> {
        self.own_failure().map_or(Ok(()), Err)?;
        Abort::check(semaphore)?;
        self.not_served().map_or(Ok(()), |service| Err(Error::NotServed { service }))
    }

    /// Checks that the service serves complete kernels: the triggers that they pushed, and, before the first start,
    /// also their direct operations. So it is found now that the next call, or a larger put, would wait for ever.
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

    /// Waits until the proxy has taken the triggers that complete kernels pushed and has handed them over to the
    /// transports, or has failed; until `deadline` at most. Returns false if it takes longer.
    pub(crate) fn settle(&self, deadline: Instant) -> bool {
        // Nothing beyond this position was pushed by then. Triggers that others push meanwhile may come without end.
        let end = self.fifo.tail() + self.fifo.size();
        let until = |done: &dyn Fn() -> bool| {
            let mut backoff = Backoff::default();
            // If no thread works on the triggers, `check` reports that.
            while !done() && self.failure().is_none() && *self.serving.lock() == Serving::Started {
                if Instant::now() >= deadline {
                    return false;
                }
                backoff.wait();
            }
            true
        };
        // The tail was stored after the proxy counted the triggers before it.
        until(&|| !self.fifo.has_waiting() || self.fifo.tail() >= end)
            && self.connections.iter().all(|connection| {
                let counts = &connection.counts;
                let taken = counts.taken.load(Ordering::Relaxed);
                until(&|| counts.handed_over.load(Ordering::Relaxed) >= taken)
            })
    }

    /// Returns the peers that kernels wait for: the service first, if kernels wait because it does not serve.
    pub(crate) fn peers(&self) -> Vec<String> {
        let connections = self.connections.iter().map(|entry| entry.connection.label());
        self.idle_service().into_iter().chain(connections).collect()
    }

    /// Notifies the peers of all connections that the proxy has failed, so that nobody there waits for signals that
    /// will not come. Does nothing after an abort, which is the decision of this side alone.
    pub(crate) fn tell_peers(&self, error: &Error) {
        let reason = match error.core() {
            _ if matches!(error, Error::Aborted { .. }) => return,
            // A text that is passed on from peer to peer does not grow: only the first adds its beginning.
            Some(mscclpp_core::Error::PeerFailed { reason, .. }) if reason.starts_with(BECAUSE) => {
                reason.clone()
            }
            Some(mscclpp_core::Error::PeerFailed { peer, reason }) => format!("{BECAUSE}{peer}'s {reason}"),
            _ => format!("proxy: {}", Report(error)),
        };
        for entry in self.connections.iter() {
            // This does nothing if the peer failed first.
            entry.connection.tell_failure(&reason);
        }
    }

    /// Returns the waits of kernels through `semaphores`; first one for the service, if kernels wait because it does
    /// not serve.
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

    /// Called when the queues are closed. If a transport may still store completions, the memory for them is kept for
    /// ever.
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
        // SAFETY: these are words of `self.words`, which is kept for ever if the read times out.
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
        ProxyService::new(&Platform::Sim.gpu(0).unwrap()).unwrap()
    }

    #[test]
    fn the_serving_state_matches_the_thread_after_a_start_and_a_stop_at_once() {
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
    fn a_start_that_fails_leaves_the_service_not_started() {
        let service = service();
        service.abort("enough");
        service.start_proxy(true).unwrap_err();
        assert_eq!(*service.state.serving.lock(), Serving::NotStarted);
    }
}
