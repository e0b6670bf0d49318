use std::sync::Arc;

use mscclpp_gpu::{Abort, DevicePtr, KernelObject, KernelWait, Owner};

use crate::{
    BaseMemoryChannelHandle, Connection, DeviceToDeviceSemaphore, Error, LL16Packet, LL128Packet,
    MemoryChannelHandle, Packet, RegisteredMemory, Result, Semaphore, provider::RemoteRegion,
};

/// A channel that only synchronises two kernels; it moves no data.
///
/// Any number of channels may share a semaphore; they then share its tokens, as [`Semaphore`] says. A channel's waits
/// see only signals from the peer's kernels. They do not see signals that come over the link, from a host or from a
/// port channel's proxy. If some signals of a semaphore may come that way, wait on it through a port channel or a
/// [`HostToDeviceSemaphore`](crate::HostToDeviceSemaphore).
#[derive(Debug, Clone)]
pub struct BaseMemoryChannel {
    semaphore: DeviceToDeviceSemaphore,
}

impl BaseMemoryChannel {
    /// Makes a channel over `semaphore`.
    ///
    /// # Errors
    /// The same as [`DeviceToDeviceSemaphore::new`].
    pub fn new(semaphore: &Semaphore) -> Result<Self> {
        Ok(Self { semaphore: DeviceToDeviceSemaphore::new(semaphore)? })
    }

    /// The channel's semaphore, for [`Semaphore::check`] and [`Semaphore::abort`].
    #[must_use]
    pub fn semaphore(&self) -> &Semaphore {
        self.semaphore.semaphore()
    }

    /// The handle that kernels need, as plain data. `self` must live until the kernels that use it are complete. As
    /// an argument of a launch, give `&self` instead ([`KernelArgs::with`](mscclpp_gpu::KernelArgs::with)), which the
    /// launch keeps alive.
    #[must_use]
    pub fn device_handle(&self) -> BaseMemoryChannelHandle {
        BaseMemoryChannelHandle { semaphore: self.semaphore.device_handle() }
    }
}

/// A channel over which kernels move data: they copy between this side's memory and the peer's, or send packets. They
/// signal and wait as over a [`BaseMemoryChannel`].
///
/// Cheap to clone. It keeps its memories, the mapping of the peer's memory and its semaphore. Any number of channels
/// may share a semaphore (they then share its tokens) and memories.
///
/// For packets, make a channel whose `dst` is the peer's packet buffer and whose `packet_buffer` is this side's,
/// which is the peer's `dst`. [`Packet::buffer_size`] says how large it must be for data of some size. With a buffer
/// of twice that size, whose halves are used in turn, a round can be put while the peer still reads the last one. A
/// packet buffer starts as zeros.
///
/// ```
/// # use mscclpp_core::{LL16Packet, MemoryChannel, Packet, RegisteredMemory, Result, Semaphore};
///
/// /// Two channels over one semaphore: one for `put` and `get`, one for packets.
/// fn channels(
///     semaphore: &Semaphore,
///     (ours, theirs): (&RegisteredMemory, &RegisteredMemory),
///     (our_packets, their_packets): (&RegisteredMemory, &RegisteredMemory),
/// ) -> Result<[MemoryChannel; 2]> {
///     assert!(LL16Packet::buffer_size(ours.size()) <= our_packets.size());
///     Ok([
///         MemoryChannel::new(semaphore, theirs, ours, None)?,
///         MemoryChannel::new(semaphore, their_packets, ours, Some(our_packets))?,
///     ])
/// }
/// ```
#[derive(Clone)]
pub struct MemoryChannel {
    /// Everything that the handle points to.
    parts: Arc<Parts>,
    handle: MemoryChannelHandle,
}

/// The parts of a channel, which a launch keeps alive, too.
struct Parts {
    // Declared before the semaphore, which keeps the connection: the peer's memory is unmapped before the connection
    // is closed.
    _mapping: Arc<dyn RemoteRegion>,
    memories: Memories,
    base: BaseMemoryChannel,
}

impl KernelObject for Parts {
    fn peers(&self) -> Vec<String> {
        vec![self.base.semaphore().connection().label()]
    }

    fn waits(&self) -> Vec<KernelWait> {
        Abort::waits(self.base.semaphore())
    }

    fn may_have_failed(&self) -> bool {
        self.base.semaphore().owner().may_have_failed()
    }

    fn check(&self) -> mscclpp_gpu::Result<()> {
        self.base.semaphore().owner().check()
    }
}

#[derive(Debug)]
struct Memories {
    dst: RegisteredMemory,
    src: RegisteredMemory,
    packet_buffer: Option<RegisteredMemory>,
}

impl MemoryChannel {
    /// Makes a channel over `semaphore`, between `dst`, a memory of the process at the semaphore's other end, and
    /// `src`, which was registered here and is on the semaphore's device. Packets of the peer arrive in
    /// `packet_buffer`, on this device too. `src` and `packet_buffer` are registered for the transport, or for no
    /// transport, for local use.
    ///
    /// Maps `dst` at its first use, which may block for some seconds.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a `dst` of another process, a `src` or `packet_buffer` of a peer's or another
    /// device, and a `packet_buffer` or a `dst` for packets that is not aligned to 16 bytes; [`Error::NotRegistered`]
    /// for a memory that is not registered for the transport; [`Error::Unreachable`] over a transport that does not map
    /// memory; errors of mapping; [`Error::PeerLost`] and the like.
    pub fn new(
        semaphore: &Semaphore,
        dst: &RegisteredMemory,
        src: &RegisteredMemory,
        packet_buffer: Option<&RegisteredMemory>,
    ) -> Result<Self> {
        let base = BaseMemoryChannel::new(semaphore)?;
        let connection = semaphore.connection();
        connection.check()?;
        let src_ptr = local(connection, "the source memory", src)?;
        let packets_ptr = match packet_buffer {
            Some(buffer) => local(connection, "the packet buffer", buffer)?,
            None => DevicePtr::NULL,
        };
        let mapping = connection.map("the destination memory", dst)?;
        let dst_ptr = mapping.ptr().ok_or_else(|| connection.is_not_mapped())?;
        if packet_buffer.is_some() {
            aligned("the packet buffer", packets_ptr, LL16Packet::SIZE)?;
            aligned("the destination memory, the peer's packet buffer,", dst_ptr, LL16Packet::SIZE)?;
        }
        let lines = mapping.whole_lines()
            && [dst_ptr, packets_ptr].iter().all(|ptr| ptr.0.is_multiple_of(LL128Packet::SIZE));
        let handle = MemoryChannelHandle {
            base: base.device_handle(),
            dst: dst_ptr.as_mut_ptr(),
            src: src_ptr.as_mut_ptr(),
            packet_buffer: packets_ptr.as_mut_ptr(),
            flags: if lines { MemoryChannelHandle::LINES_ARRIVE_WHOLE } else { 0 },
            reserved: 0,
        };
        let memories = Memories { dst: dst.clone(), src: src.clone(), packet_buffer: packet_buffer.cloned() };
        Ok(Self { parts: Arc::new(Parts { _mapping: mapping, memories, base }), handle })
    }

    /// The channel's semaphore, for [`Semaphore::check`] and [`Semaphore::abort`].
    #[must_use]
    pub fn semaphore(&self) -> &Semaphore {
        self.parts.base.semaphore()
    }

    pub(crate) fn owner(&self) -> Owner {
        self.parts.clone()
    }

    /// The same semaphore as a channel that moves no data.
    #[must_use]
    pub fn base(&self) -> &BaseMemoryChannel {
        &self.parts.base
    }

    /// The peer's memory.
    #[must_use]
    pub fn dst(&self) -> &RegisteredMemory {
        &self.parts.memories.dst
    }

    /// This side's memory.
    #[must_use]
    pub fn src(&self) -> &RegisteredMemory {
        &self.parts.memories.src
    }

    /// The buffer in which packets of the peer arrive.
    #[must_use]
    pub fn packet_buffer(&self) -> Option<&RegisteredMemory> {
        self.parts.memories.packet_buffer.as_ref()
    }

    /// Checks whether kernels may use [`LL128Packet`]s on this channel. Ask at both ends: each end knows only about
    /// its own stores.
    ///
    /// # Errors
    /// [`Error::PacketsRefused`] with the reason.
    pub fn check_lines(&self) -> Result<()> {
        if self.handle.flags & MemoryChannelHandle::LINES_ARRIVE_WHOLE != 0 {
            return Ok(());
        }
        let unaligned =
            [("destination memory", self.handle.dst), ("packet buffer", self.handle.packet_buffer)]
                .into_iter()
                .find(|(_, ptr)| !(ptr.addr() as u64).is_multiple_of(LL128Packet::SIZE));
        let reason = match unaligned {
            Some((what, ptr)) => format!(
                "the {what} is at {ptr:?}, and LL128 packets need one that is aligned to {} bytes",
                LL128Packet::SIZE
            ),
            None => {
                let connection = self.semaphore().connection();
                format!(
                    "lines of {} bytes need not arrive whole over {} from {}, which LL128 packets rely on; use LL16 \
                     packets",
                    LL128Packet::SIZE,
                    connection.transport(),
                    connection.local_device()
                )
            }
        };
        Err(Error::PacketsRefused { peer: self.semaphore().connection().label(), reason })
    }

    /// The handle that kernels need, as plain data. `self` must live until the kernels that use it are complete. As
    /// an argument of a launch, give `&self` instead ([`KernelArgs::with`](mscclpp_gpu::KernelArgs::with)), which the
    /// launch keeps alive.
    #[must_use]
    pub fn device_handle(&self) -> MemoryChannelHandle {
        self.handle
    }
}

mscclpp_os::debug_fields!(MemoryChannel, |this| semaphore: this.semaphore(), memories: this.parts.memories, ..);

/// Returns the address of a memory that is on the connection's own device.
fn local(connection: &Connection, what: &'static str, memory: &RegisteredMemory) -> Result<DevicePtr> {
    let region = memory.local_region(what, connection.transport())?;
    let uuid = |gpu: &mscclpp_gpu::Gpu| gpu.properties().uuid;
    match (region.gpu(), connection.local_gpu()) {
        (Some(owner), Some(gpu)) if uuid(owner) == uuid(gpu) => Ok(region.ptr()),
        (owner, _) => Err(Error::InvalidArgument(format!(
            "{what} is on {}, the semaphore's kernels run on {}; it must be of the same device",
            owner.map_or("the host".to_owned(), ToString::to_string),
            connection.local_device()
        ))),
    }
}

fn aligned(what: &str, ptr: DevicePtr, align: u64) -> Result<()> {
    match ptr.0.is_multiple_of(align) {
        true => Ok(()),
        false => Err(Error::InvalidArgument(format!(
            "{what} is at {ptr:?}; packets need an address that is a multiple of {align}"
        ))),
    }
}
