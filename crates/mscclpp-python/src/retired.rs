//! Device memory that programs have dropped.
//!
//! Programs drop arrays when a kernel that works on them has been launched, or even between packing its arguments and
//! launching it: with other libraries, whose memory goes back to a pool, nothing comes of it. So memory that was dropped is
//! kept, and freed when more is asked for, or kernels have been waited for.

use mscclpp::{DeviceBuffer, gpu::RetiredBuffers};

static RETIRED: RetiredBuffers = RetiredBuffers::new();

/// A buffer that is retired when it is dropped.
pub(crate) struct RetireOnDrop(pub(crate) DeviceBuffer);

impl Drop for RetireOnDrop {
    fn drop(&mut self) {
        RETIRED.retire(self.0.clone());
    }
}

/// Frees what no kernel can use any more.
pub(crate) fn sweep() {
    RETIRED.free();
}
