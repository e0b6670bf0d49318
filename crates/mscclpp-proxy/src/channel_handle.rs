//! The device handle of a channel between two memories, laid out as in the CUDA headers, with host twins.

use std::{
    ops::Deref,
    sync::atomic::{Ordering, fence},
};

use mscclpp_gpu::{DevicePtr, KernelParam, host::copy};

use crate::{BasePortChannelHandle, MemoryId, base_channel_handle::DirectCount};

/// What kernels do with a [`crate::PortChannel`]: `PortChannelDeviceHandle` in the headers. Also has the methods of
/// [`BasePortChannelHandle`], to which the same applies.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct PortChannelHandle {
    /// The channel below.
    pub base: BasePortChannelHandle,
    /// Number of the peer's memory in the service.
    pub dst: MemoryId,
    /// Number of this side's.
    pub src: MemoryId,
    /// The peer's memory as mapped here; null where it is not, and where `src_ptr` is.
    pub dst_ptr: *mut u8,
    /// This side's memory; null if it is not on the service's device.
    pub src_ptr: *mut u8,
    /// Bytes of the peer's memory.
    pub dst_size: u64,
    /// Bytes of this side's.
    pub src_size: u64,
    /// Up to how many bytes a thread copies itself; 0 for none.
    pub direct_put_max: u32,
    /// 0.
    pub reserved: u32,
}

const _: () = assert!(size_of::<PortChannelHandle>() == 152, "as in the header");

// SAFETY: pointers and numbers, plain data, laid out as in the header.
unsafe impl KernelParam for PortChannelHandle {}
// SAFETY: its pointers are to memory that is only touched with atomic operations, the two memories included.
unsafe impl Send for PortChannelHandle {}
// SAFETY: as above.
unsafe impl Sync for PortChannelHandle {}

impl Deref for PortChannelHandle {
    type Target = BasePortChannelHandle;
    fn deref(&self) -> &Self::Target {
        &self.base
    }
}

impl PortChannelHandle {
    /// Copies `size` bytes from `src_offset` of this side's memory to `dst_offset` of the peer's, or has the proxy do
    /// so. The source must keep its contents until a flush. Waits while the FIFO is full.
    ///
    /// # Safety
    /// The handle must be one of a live channel of the Host platform, both memories must be live, and nobody may
    /// access them meanwhile other than with atomics; so for all methods below.
    #[must_use]
    pub unsafe fn put(&self, dst_offset: u64, src_offset: u64, size: u64) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            if self.may_put_directly(dst_offset, src_offset, size) && self.progress().nothing_pending() {
                self.put_directly(dst_offset, src_offset, size);
                return true;
            }
            self.base.put(self.dst, dst_offset, self.src, src_offset, size)
        }
    }

    /// [`Self::put`], then [`BasePortChannelHandle::signal`].
    ///
    /// # Safety
    /// As [`Self::put`].
    #[must_use]
    pub unsafe fn put_with_signal(&self, dst_offset: u64, src_offset: u64, size: u64) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            if self.may_put_directly(dst_offset, src_offset, size) && self.may_signal_directly() {
                self.put_directly(dst_offset, src_offset, size);
                self.signal_directly();
                return true;
            }
            self.base.put_with_signal(self.dst, dst_offset, self.src, src_offset, size)
        }
    }

    /// [`Self::put_with_signal`], then [`BasePortChannelHandle::flush`].
    ///
    /// # Safety
    /// As [`Self::put`].
    #[must_use]
    pub unsafe fn put_with_signal_and_flush(
        &self,
        dst_offset: u64,
        src_offset: u64,
        size: u64,
        max_spins: i64,
    ) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            if self.may_put_directly(dst_offset, src_offset, size) && self.may_signal_directly() {
                self.put_directly(dst_offset, src_offset, size);
                self.signal_directly();
                fence(Ordering::SeqCst);
                return true;
            }
            self.base.put_with_signal_and_flush(self.dst, dst_offset, self.src, src_offset, size, max_spins)
        }
    }

    /// Whether a thread could copy that itself, if nothing is pending.
    fn may_put_directly(&self, dst_offset: u64, src_offset: u64, size: u64) -> bool {
        let inside = |offset: u64, len: u64| offset.checked_add(size).is_some_and(|end| end <= len);
        // Offsets that fit no trigger are refused whatever is pending.
        let fits = |offset: u64| offset >> 32 == 0;
        !self.dst_ptr.is_null()
            && size <= u64::from(self.direct_put_max)
            && fits(dst_offset)
            && fits(src_offset)
            && inside(dst_offset, self.dst_size)
            && inside(src_offset, self.src_size)
            && (self.at_dst(dst_offset).0 ^ self.at_src(src_offset).0).is_multiple_of(8)
    }

    fn at_dst(&self, offset: u64) -> DevicePtr {
        DevicePtr::from_ptr(self.dst_ptr).add(offset)
    }

    fn at_src(&self, offset: u64) -> DevicePtr {
        DevicePtr::from_ptr(self.src_ptr).add(offset)
    }

    /// # Safety
    /// As [`Self::put`], and `may_put_directly`.
    unsafe fn put_directly(&self, dst_offset: u64, src_offset: u64, size: u64) {
        // SAFETY: inside both memories, which are mapped: `may_put_directly`. Its accesses are relaxed; what publishes
        // them is the signal, or the trigger that follows.
        unsafe { copy(self.at_dst(dst_offset), self.at_src(src_offset), size) };
        // SAFETY: the caller's promise.
        unsafe {
            self.count(DirectCount::Puts, 1);
            self.count(DirectCount::Bytes, size);
        }
    }
}
