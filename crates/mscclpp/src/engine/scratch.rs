//! Memory that the kernels of all ranks of a group write to.

use std::sync::Arc;

use mscclpp_core::{Device, EndpointConfig, MemoryChannel, Transport};
use mscclpp_gpu::{Abort, DeviceBuffer, DevicePtr, Gpu, KernelArgument, KernelWait, Owner};

use super::Group;
use crate::{Error, Result};

/// Memory of one size at each rank of a group, mapped at all others: kernels write to that of their peers and read their
/// own. It is zero at first.
///
/// The scratch also ends the waits of its engine's kernels, if the program gives it to
/// [`Stream::synchronize_or_abort`](mscclpp_gpu::Stream::synchronize_or_abort). A kernel that waits for rank `r` polls with
/// `pollUntil` of `mscclpp/poll_device.hpp` and `statuses()[r]`: the wait ends when the rank is lost, the job is aborted,
/// or time is up. All later waits end at once, too.
pub struct Scratch {
    group: Group,
    memory: DeviceBuffer,
    channels: Vec<MemoryChannel>,
    at: Vec<DevicePtr>,
    statuses: Vec<DevicePtr>,
    lines: bool,
    owner: Owner,
}

impl Scratch {
    /// Allocates `bytes` bytes on `gpu`, and gives and takes with all ranks of `group`, which all make this call. Blocks
    /// until they do: nobody returns before every rank's memory is mapped at every other.
    ///
    /// # Errors
    /// [`Error::Gpu`] if there is no such memory, and [`Error::InvalidArgument`] that names the rank on the others;
    /// [`Error::Core`] or [`Error::Gpu`] if devices do not reach each other's: then other ranks may wait until this one leaves or
    /// aborts; the errors of [`Group::all_gather`].
    pub fn connect(group: &Group, gpu: &Gpu, bytes: u64) -> Result<Self> {
        let comm = group.comm();
        // Fresh memory is zero.
        let memory = group.all_have("the scratch", gpu.allocate(bytes).map_err(Error::from))?;
        let registered = comm.register_buffer(&memory, Transport::CUDA_IPC)?;
        let peers = group.others().map(|r| group.ranks()[r]);
        let config = EndpointConfig::new(Transport::CUDA_IPC, Device::gpu(gpu.id()));
        let mesh = comm.mesh(config).peers(peers).tag(group.tag()).memory(&registered).connect()?;
        let channels = mesh.memory_channels(&registered, Some(&registered))?;
        let lines = channels.iter().all(|channel| channel.check_lines().is_ok());
        // Everybody's memory is mapped before anybody writes.
        let lines = group.all(lines)?;
        let mut at = vec![memory.ptr(); group.ranks().len()];
        let mut statuses = vec![DevicePtr::NULL; at.len()];
        for (r, channel) in group.others().zip(&channels) {
            let theirs = channel.device_handle();
            at[r] = DevicePtr::from_ptr(theirs.dst);
            statuses[r] = DevicePtr::from_ptr(theirs.status);
        }
        let owners = channels.iter().filter_map(|channel| channel.owner()).chain((&memory).owner());
        let owner = Arc::new(owners.collect::<Vec<Owner>>());
        Ok(Self { group: group.clone(), memory, channels, at, statuses, lines, owner })
    }

    /// This rank's memory.
    #[must_use]
    pub fn memory(&self) -> &DeviceBuffer {
        &self.memory
    }

    /// The address of the memory of each rank, in the order of the group, as this rank's kernels reach it: its own, too.
    #[must_use]
    pub fn at(&self) -> &[DevicePtr] {
        &self.at
    }

    /// The `status` with which kernels wait for each rank, in the order of the group: see `StatusWord` in
    /// `mscclpp/poll_device.hpp`. Null for this rank.
    #[must_use]
    pub fn statuses(&self) -> &[DevicePtr] {
        &self.statuses
    }

    /// The channel to each other rank, in the order of the group: from this rank's memory to the peer's, packets too.
    #[must_use]
    pub fn channels(&self) -> &[MemoryChannel] {
        &self.channels
    }

    /// Whether packets of 128 bytes arrive whole between all ranks, as over NVLink: alike on all ranks.
    #[must_use]
    pub fn carries_lines(&self) -> bool {
        self.lines
    }

    /// The memory and connections that launches keep: see [`KernelArgs::with_owner`](mscclpp_gpu::KernelArgs::with_owner).
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.owner
    }
}

/// Ends the waits of the engine's calls for other ranks. The check names the rank that died.
impl Abort for Scratch {
    type Error = Error;

    fn abort(&self, reason: &str) {
        self.channels.as_slice().abort(reason);
    }

    fn check(&self) -> Result<()> {
        let checked = self.channels.as_slice().check();
        checked.map_err(|error| self.group.comm().explain(error))
    }

    fn peers(&self) -> Vec<String> {
        self.channels.as_slice().peers()
    }

    fn waits(&self) -> Vec<KernelWait> {
        self.channels.as_slice().waits()
    }
}

mscclpp_os::debug_fields!(Scratch, |this| ranks: this.group.ranks(), bytes: this.memory.len(), ..);
