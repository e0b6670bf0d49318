use std::sync::Arc;

use mscclpp_gpu::{DevicePtr, KernelObject, KernelWait, Owner, fork::OfProcess};
use parking_lot::{Mutex, MutexGuard};

use crate::{
    Connection, DeviceToDeviceSemaphoreHandle, Error, RegisteredMemory, Result, SemaphoreStub,
    monitor::Abortable,
    provider::RemoteRegion,
    slab::{EXPECTED, INBOUND, INBOUND_BY_LINK, OUTBOUND, StatusBlock, TokenBlock},
    waits::Waits,
    wire::Kind,
};

/// A pair of tokens, one at each end of a connection, by which the ends signal and wait for each other.
///
/// Cheap to clone. When its connection fails, it is aborted (see [`Semaphore::abort`]).
///
/// Any number of objects may be made of it, of one kind or of several: [`DeviceToDeviceSemaphore`]s and memory channels,
/// [`HostToDeviceSemaphore`](crate::HostToDeviceSemaphore)s, [`HostToHostSemaphore`](crate::HostToHostSemaphore)s, and the
/// port channels of one proxy service. They are views of the same tokens: each signal through any of them adds one, and
/// each wait through any of them, here or in a kernel, takes one. Only two things do not go together:
/// 1. A wait of a [`DeviceToDeviceSemaphore`] or memory channel does not see signals that came over the link, from a host
///    or a proxy. Where some may come that way, wait through a port channel or a host semaphore.
/// 2. Only one sender at a time signals over the link. While a proxy service (or a [`Signaller`](crate::Signaller) of yours) has the semaphore, a
///    host's `signal` is an error, and a second service is refused.
#[derive(Clone)]
pub struct Semaphore {
    inner: OfProcess<Arc<Inner>>,
}

struct Inner {
    // Declared before the connection: the peer's memory is unmapped before the link is closed.
    remote_region: Arc<dyn RemoteRegion>,
    remote: SemaphoreStub,
    block: TokenBlock,
    waits: Arc<Waits>,
    link_signals: Mutex<LinkSignals>,
    connection: Connection,
}

/// The signals that this side sends over the link, which [`crate::retired`] keeps in their order.
pub(crate) enum LinkSignals {
    /// Host semaphores send them, any number of these, through the connection's own queue.
    ByHosts { sent: u64, last: Last },
    /// A signaller counts them.
    BySignaller,
}

/// Where the last signals are.
#[derive(Clone, Copy)]
pub(crate) enum Last {
    /// All have landed.
    Landed,
    /// In the connection's own queue.
    InOwnQueue,
    /// In the retired queue of this number.
    InRetired(u64),
}

impl KernelObject for Inner {
    fn peers(&self) -> Vec<String> {
        vec![self.connection.label()]
    }

    /// Nobody waits for long through what was aborted, though claims of waits are left there.
    fn waits(&self) -> Vec<KernelWait> {
        let Some(gpu) = self.connection.local_gpu().filter(|_| self.waits.aborted().is_none()) else {
            return Vec::new();
        };
        let arrived = [INBOUND, INBOUND_BY_LINK].map(|word| self.block.word(word));
        let (claimed, owner) = (self.block.word(EXPECTED), Arc::new(self.block.clone()));
        // SAFETY: words of the block, which keeps their memory; kernels of that device use them.
        vec![unsafe { KernelWait::counted(self.connection.label(), gpu, claimed, arrived, owner) }]
    }

    fn may_have_failed(&self) -> bool {
        self.waits.have_said_something()
    }

    fn check(&self) -> mscclpp_gpu::Result<()> {
        self.waits.check().map_err(Error::of_a_wait)
    }
}

impl KernelObject for TokenBlock {}

impl Drop for Inner {
    fn drop(&mut self) {
        self.connection.monitor().unwatch(&raw const *self.waits);
    }
}

impl Semaphore {
    /// Joins a stub made here with the one that the peer made over the other end of the same connection.
    ///
    /// Maps the peer's token, which may block for some seconds the first time.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `local` came from a peer or has made a semaphore already, or the stubs are of
    /// different connections; errors of mapping the peer's memory; what the connection failed with, if it did.
    pub fn new(local: &SemaphoreStub, remote: &SemaphoreStub) -> Result<Self> {
        let Some((connection, block)) = &local.local else {
            return Err(Error::InvalidArgument(
                "the local semaphore stub was made by a peer; give the one of this process first".to_owned(),
            ));
        };
        let peer = connection.remote_endpoint();
        let theirs = (remote.memory.process(), remote.endpoint, remote.peer_endpoint);
        if theirs != (peer.process, peer.id, local.endpoint) {
            return Err(Error::InvalidArgument(format!(
                "the remote semaphore stub belongs to a different connection than the local one (to {}); were stubs of \
                 several connections exchanged in different orders?",
                connection.label()
            )));
        }
        let remote_region = connection.map("the peer's semaphore", &remote.memory)?;
        // The peer chose where its memory starts, and kernels use atomics there.
        let token = remote_region.ptr().map(|base| base.add(remote.offset + INBOUND));
        if let Some(token) = token.filter(|token| !token.0.is_multiple_of(8)) {
            return Err(Error::Malformed {
                what: Kind::SemaphoreStub.name(),
                problem: format!("its token is at {token:?}, which is not 8-byte aligned"),
            });
        }
        // First, as it may fail: the stub can then be tried again.
        let status = connection.context().status_words(connection.local_gpu())?;
        if !block.take() {
            return Err(Error::InvalidArgument(format!(
                "the local stub has made a semaphore of the connection to {} already; clone that, or make another stub",
                connection.label()
            )));
        }
        let waits = Arc::new(Waits::new(status, connection.monitor().clone()));
        let inner = OfProcess::new(Arc::new(Inner {
            remote_region,
            // Without the connection that a stub of this very process was made over: that is its own side's to keep.
            remote: SemaphoreStub { local: None, ..remote.clone() },
            block: block.clone(),
            waits: waits.clone(),
            link_signals: Mutex::new(LinkSignals::ByHosts { sent: 0, last: Last::Landed }),
            connection: connection.clone(),
        }));
        let target: Arc<dyn Abortable> = waits;
        connection.monitor().watch(&target);
        connection.check()?;
        tracing::debug!(target: "mscclpp::conn", peer = %connection.label(), "semaphore built");
        Ok(Self { inner })
    }

    /// That the calling process made it, and is no fork of the one that did.
    pub(crate) fn here(&self) -> Result<()> {
        self.inner.here()?;
        Ok(())
    }

    pub(crate) fn is_here(&self) -> bool {
        self.inner.is_here()
    }

    /// Its connection.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        &self.inner.connection
    }

    /// The memory of its local token (shared with other semaphores of the context).
    #[must_use]
    pub fn local_memory(&self) -> &RegisteredMemory {
        self.inner.block.memory()
    }

    /// The memory of the peer's token.
    #[must_use]
    pub fn remote_memory(&self) -> &RegisteredMemory {
        &self.inner.remote.memory
    }

    /// Ends every wait on it on this side, for ever: device waits return false within about a millisecond, later ones at once.
    /// Does not block. The peer is not told.
    pub fn abort(&self, reason: &str) {
        // In a forked child nobody waits, and its parent's words are not its own.
        if !self.is_here() {
            return;
        }
        self.inner.waits.abort(&Error::Aborted { reason: reason.to_owned() });
    }

    /// Why it was aborted, if it was: by the host, because its connection failed, or because a kernel used a port channel over
    /// it with an offset, size or id that does not fit into a trigger. Does not block, and changes nothing.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        if let Err(error) = self.here() {
            return Some(error);
        }
        self.inner.waits.failure()
    }

    /// Whether something went wrong with waits on it. Ask after the kernel that waited is complete.
    ///
    /// # Errors
    /// [`Semaphore::failure`], in every call. Otherwise, once for what happened since the last call, and since a synchronize of
    /// a stream told of it ([`Stream::synchronize`](mscclpp_gpu::Stream::synchronize)):
    /// [`Error::PacketsRefused`] if a kernel used packets that cannot be used here, or [`Error::DeviceWaitTimedOut`] if a
    /// device wait reached its bound.
    pub fn check(&self) -> Result<()> {
        if let Some(error) = self.failure() {
            return Err(error);
        }
        // A connection that is failing at this moment is about to abort this.
        self.inner.connection.check()?;
        self.inner.waits.check_bounds()
    }

    /// See [`mscclpp_gpu::Abort::check`].
    pub(crate) fn check_waits(&self) -> Result<()> {
        self.here()?;
        self.inner.waits.check()
    }

    pub(crate) fn link_signals(&self) -> Result<MutexGuard<'_, LinkSignals>> {
        Ok(self.inner.here()?.link_signals.lock())
    }

    /// Whether the other is a clone of this.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// All that handles of it point to, for launches whose kernels get a handle as a plain value
    /// ([`KernelArgs::with_owner`](mscclpp_gpu::KernelArgs::with_owner)): they keep it, and their stream's synchronize says
    /// what became of waits through it.
    #[must_use]
    pub fn owner(&self) -> Owner {
        Arc::clone(&self.inner) as Owner
    }

    /// The word of the peer's token that this side's link writes: its region, and the offset in it.
    pub(crate) fn remote_token_by_link(&self) -> (&Arc<dyn RemoteRegion>, u64) {
        (&self.inner.remote_region, self.inner.remote.offset + INBOUND_BY_LINK)
    }

    /// The word of the peer's token that device code of this side adds to, where it can reach it with atomics.
    pub(crate) fn remote_token_by_device(&self) -> Option<DevicePtr> {
        let base = self.inner.remote_region.ptr().filter(|_| self.inner.remote_region.native_atomics())?;
        Some(base.add(self.inner.remote.offset + INBOUND))
    }

    pub(crate) fn block(&self) -> &TokenBlock {
        &self.inner.block
    }

    pub(crate) fn status(&self) -> &StatusBlock {
        &self.inner.waits.status
    }

    fn at_local(&self, line: u64) -> DevicePtr {
        self.inner.block.word(line)
    }
}

mscclpp_os::debug_fields!(Semaphore, |this|
    connection: this.inner.connection, aborted: this.inner.waits.aborted()
);

/// A semaphore with kernels at both ends: `MemoryDevice2DeviceSemaphore` of the C++ and Python API. Several objects of one
/// [`Semaphore`] share its tokens.
#[derive(Debug, Clone)]
pub struct DeviceToDeviceSemaphore {
    semaphore: Semaphore,
    handle: DeviceToDeviceSemaphoreHandle,
}

impl DeviceToDeviceSemaphore {
    /// Made of a semaphore over a transport that lets device code reach the peer's memory.
    ///
    /// # Errors
    /// [`Error::Unreachable`] over a transport that does not; [`Error::InvalidArgument`] for a local endpoint on the CPU.
    pub fn new(semaphore: &Semaphore) -> Result<Self> {
        let inner = semaphore.inner.here()?;
        if inner.connection.local_gpu().is_none() {
            return Err(Error::InvalidArgument(format!(
                "the local endpoint of the connection to {} is on the CPU; use a HostToHostSemaphore",
                inner.connection.label()
            )));
        }
        let remote = inner.remote_region.ptr().ok_or_else(|| inner.connection.is_not_mapped())?;
        let lock = match inner.remote_region.native_atomics() {
            true => DevicePtr::NULL,
            false => semaphore.at_local(OUTBOUND),
        };
        let handle = DeviceToDeviceSemaphoreHandle {
            inbound_token: semaphore.at_local(INBOUND).as_mut_ptr(),
            expected_inbound_token: semaphore.at_local(EXPECTED).as_mut_ptr(),
            remote_inbound_token: remote.add(inner.remote.offset + INBOUND).as_mut_ptr(),
            outbound_lock: lock.as_mut_ptr(),
            status: inner.waits.status.ptr().as_mut_ptr(),
        };
        Ok(Self { semaphore: semaphore.clone(), handle })
    }

    /// Its semaphore.
    #[must_use]
    pub fn semaphore(&self) -> &Semaphore {
        &self.semaphore
    }

    /// What kernels need, as plain data. `self` must live until the kernels that use it are complete. As an argument of a
    /// launch, give `&self` instead ([`KernelArgs::with`](mscclpp_gpu::KernelArgs::with)), which the launch keeps alive.
    #[must_use]
    pub fn device_handle(&self) -> DeviceToDeviceSemaphoreHandle {
        self.handle
    }
}
