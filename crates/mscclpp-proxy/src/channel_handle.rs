//! The device handle of a channel between two memories, laid out as in the CUDA headers.

use std::ops::Deref;

use mscclpp_gpu::KernelParam;

use crate::{BasePortChannelHandle, MemoryId};

/// The device handle of a [`PortChannel`](crate::PortChannel): `PortChannelDeviceHandle` in the headers.
///
/// It holds no reference: the channel must outlive the kernels that use it.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct PortChannelHandle {
    /// The handle of the channel without its memories.
    pub base: BasePortChannelHandle,
    /// The number of the peer's memory in the service.
    pub dst: MemoryId,
    /// The number of this side's memory in the service.
    pub src: MemoryId,
    /// The peer's memory as mapped here; null if it is not mapped, or if `src_ptr` is null.
    pub dst_ptr: *mut u8,
    /// This side's memory; null if it is not on the service's device.
    pub src_ptr: *mut u8,
    /// Size of the peer's memory in bytes.
    pub dst_size: u64,
    /// Size of this side's memory in bytes.
    pub src_size: u64,
    /// The largest put, in bytes, that a thread copies itself word by word; 0 for none.
    pub direct_put_max: u32,
    /// The largest put, in bytes, that a thread copies itself by bulk copies; 0 for none.
    pub bulk_put_max: u32,
}

const _: () = assert!(size_of::<PortChannelHandle>() == 168, "as in the header");

// SAFETY: pointers and numbers, plain data, laid out as in the header.
unsafe impl KernelParam for PortChannelHandle {}
// SAFETY: addresses and numbers. No safe function goes where they point; a kernel or unsafe code that does answers for
// its accesses itself, whichever thread the handle came from.
unsafe impl Send for PortChannelHandle {}
// SAFETY: as above.
unsafe impl Sync for PortChannelHandle {}

impl Deref for PortChannelHandle {
    type Target = BasePortChannelHandle;
    fn deref(&self) -> &Self::Target {
        &self.base
    }
}
