//! Device memory that programs have dropped.
//!
//! Programs drop an array while a kernel that they have launched still uses it, or even between packing its arguments
//! and launching the kernel. With other libraries this does no harm, because their memory goes back to a pool. So
//! memory that was dropped is kept here. It is freed when more memory is asked for, or when the program has waited
//! for its kernels.

use mscclpp::{DeviceBuffer, gpu::RetiredBuffers};

static RETIRED: RetiredBuffers = RetiredBuffers::new();

/// A buffer that goes to the retired buffers when this is dropped.
pub(crate) struct RetireOnDrop(pub(crate) DeviceBuffer);

impl Drop for RetireOnDrop {
    fn drop(&mut self) {
        RETIRED.retire(self.0.clone());
    }
}

/// Frees the memory that no kernel can use any more.
pub(crate) fn sweep() {
    RETIRED.free();
}
