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
/// Cheap to clone. It is aborted when its connection fails (see [`Semaphore::abort`]).
///
/// Any number of objects may be made from it, of one kind or of several: [`DeviceToDeviceSemaphore`]s and memory
/// channels, [`HostToDeviceSemaphore`](crate::HostToDeviceSemaphore)s,
/// [`HostToHostSemaphore`](crate::HostToHostSemaphore)s, and the port channels of one proxy service. They are views
/// of the same tokens: each signal through any of them adds one, and each wait through any of them, here or in a
/// kernel, takes one. There are two exceptions:
/// 1. A wait of a [`DeviceToDeviceSemaphore`] or memory channel does not see signals that came over the link, from a
///    host or a proxy. If some may come that way, wait through a port channel or a host semaphore.
/// 2. Only one sender at a time signals over the link. While a proxy service (or a [`Signaller`](crate::Signaller) of
///    yours) has the semaphore, a host's `signal` is an error, and a second service is refused.
#[derive(Clone)]
pub struct Semaphore {
    inner: OfProcess<Arc<SemaphoreState>>,
}

struct SemaphoreState {
    // Declared before the connection: the peer's memory is unmapped before the link is closed.
    remote_region: Arc<dyn RemoteRegion>,
    remote: SemaphoreStub,
    block: TokenBlock,
    waits: Arc<Waits>,
    link_signals: Mutex<LinkSignals>,
    connection: Connection,
}

/// The sender of this side's signals over the link, which [`crate::retired`] keeps in order.
pub(crate) enum LinkSignals {
    /// Host semaphores, any number of them, send signals through the connection's own queue.
    ByHosts { sent: u64, last: Last },
    /// A signaller sends and counts the signals.
    BySignaller,
}

/// The place of the last signals that were sent.
#[derive(Clone, Copy)]
pub(crate) enum Last {
    /// All signals have landed.
    Landed,
    /// They are in the connection's own queue.
    InOwnQueue,
    /// They are in the retired queue of this number.
    InRetired(u64),
}

impl KernelObject for SemaphoreState {
    fn peers(&self) -> Vec<String> {
        vec![self.connection.label()]
    }

    /// Reports no waits after an abort, which ends them soon, though their claims stay in the words.
    fn waits(&self) -> Vec<KernelWait> {
        let Some(gpu) = self.connection.local_gpu().filter(|_| self.waits.aborted().is_none()) else {
            return Vec::new();
        };
        let arrived = [INBOUND, INBOUND_BY_LINK].map(|word| self.block.word(word));
        let (claimed, owner) = (self.block.word(EXPECTED), Arc::new(self.block.clone()));
        // SAFETY: the words are in the block, which keeps their memory; kernels of that device use them.
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

impl Drop for SemaphoreState {
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
    /// different connections; errors of mapping the peer's memory; the error of a connection that has failed.
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
        // The peer chose the address at which its memory starts, and kernels use atomics there.
        let token = remote_region.ptr().map(|base| base.add(remote.offset + INBOUND));
        if let Some(token) = token.filter(|token| !token.0.is_multiple_of(8)) {
            return Err(Error::Malformed {
                what: Kind::SemaphoreStub.name(),
                problem: format!("its token is at {token:?}, which is not 8-byte aligned"),
            });
        }
        // This comes first, as it may fail: the stub can then be tried again.
        let status = connection.context().status_words(connection.local_gpu())?;
        if !block.take() {
            return Err(Error::InvalidArgument(format!(
                "the local stub has made a semaphore of the connection to {} already; clone that, or make another stub",
                connection.label()
            )));
        }
        let waits = Arc::new(Waits::new(status, connection.monitor().clone()));
        let inner = OfProcess::new(Arc::new(SemaphoreState {
            remote_region,
            // A stub of this same process holds the connection it was made over, which is the other side's to keep
            // open.
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

    /// Checks that the calling process made the semaphore, and is no fork of the process that did.
    pub(crate) fn here(&self) -> Result<()> {
        self.inner.here()?;
        Ok(())
    }

    pub(crate) fn is_here(&self) -> bool {
        self.inner.is_here()
    }

    /// The connection that the semaphore is over.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        &self.inner.connection
    }

    /// The memory of the local token (shared with other semaphores of the context).
    #[must_use]
    pub fn local_memory(&self) -> &RegisteredMemory {
        self.inner.block.memory()
    }

    /// The memory of the peer's token.
    #[must_use]
    pub fn remote_memory(&self) -> &RegisteredMemory {
        &self.inner.remote.memory
    }

    /// Ends every wait on the semaphore on this side, for ever: device waits return false within about a millisecond,
    /// later ones at once. Does not block. The peer is not notified.
    pub fn abort(&self, reason: &str) {
        // In a forked child nobody waits, and the words belong to its parent.
        if !self.is_here() {
            return;
        }
        self.inner.waits.abort(&Error::Aborted { reason: reason.to_owned() });
    }

    /// Returns the reason why the semaphore was aborted, if it was: by the host, because its connection failed, or
    /// because a kernel used a port channel over it with an offset, size or id that does not fit into a trigger. Does
    /// not block, and changes nothing.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        if let Err(error) = self.here() {
            return Some(error);
        }
        self.inner.waits.failure()
    }

    /// Checks whether something went wrong with waits on the semaphore. Call it after the kernel that waited is
    /// complete.
    ///
    /// # Errors
    /// [`Semaphore::failure`], in every call. Otherwise, once for each event since the last call that was not
    /// reported by a stream's synchronize ([`Stream::synchronize`](mscclpp_gpu::Stream::synchronize)):
    /// [`Error::PacketsRefused`] if a kernel used packets that cannot be used here, or [`Error::DeviceWaitTimedOut`]
    /// if a device wait reached its bound.
    pub fn check(&self) -> Result<()> {
        if let Some(error) = self.failure() {
            return Err(error);
        }
        // A connection that is failing at this moment is about to abort this semaphore.
        self.inner.connection.check()?;
        self.inner.waits.check_bounds()
    }

    /// Checks the waits, as [`mscclpp_gpu::Abort::check`] does.
    pub(crate) fn check_waits(&self) -> Result<()> {
        self.here()?;
        self.inner.waits.check()
    }

    pub(crate) fn link_signals(&self) -> Result<MutexGuard<'_, LinkSignals>> {
        Ok(self.inner.here()?.link_signals.lock())
    }

    /// Whether `other` is a clone of this semaphore.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// The object that owns everything that the semaphore's handles point to, for launches whose kernels get a handle
    /// as a plain value ([`KernelArgs::with_owner`](mscclpp_gpu::KernelArgs::with_owner)): they keep it, and their
    /// stream's synchronize reports waits through it that failed.
    #[must_use]
    pub fn owner(&self) -> Owner {
        Arc::clone(&self.inner) as Owner
    }

    /// The word of the peer's token that this side's link writes: its region, and its offset there.
    pub(crate) fn remote_token_by_link(&self) -> (&Arc<dyn RemoteRegion>, u64) {
        (&self.inner.remote_region, self.inner.remote.offset + INBOUND_BY_LINK)
    }

    /// The word of the peer's token that device code of this side adds to, if it can reach the word with atomics.
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

/// A semaphore with kernels at both ends: `MemoryDevice2DeviceSemaphore` of the C++ and Python API. Several objects
/// made from one [`Semaphore`] share its tokens.
#[derive(Debug, Clone)]
pub struct DeviceToDeviceSemaphore {
    semaphore: Semaphore,
    handle: DeviceToDeviceSemaphoreHandle,
}

impl DeviceToDeviceSemaphore {
    /// Makes one from a semaphore over a transport that lets device code reach the peer's memory.
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

    /// The semaphore that this one was made from.
    #[must_use]
    pub fn semaphore(&self) -> &Semaphore {
        &self.semaphore
    }

    /// The handle that kernels need, as plain data. `self` must live until the kernels that use it are complete. As
    /// an argument of a launch, give `&self` instead ([`KernelArgs::with`](mscclpp_gpu::KernelArgs::with)), which the
    /// launch keeps alive.
    #[must_use]
    pub fn device_handle(&self) -> DeviceToDeviceSemaphoreHandle {
        self.handle
    }
}
