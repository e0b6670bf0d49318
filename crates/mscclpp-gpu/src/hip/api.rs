//! The HIP runtime, by the interface of [`crate::driver`].

use std::{
    ffi::{CStr, c_int, c_void},
    sync::Once,
};

use mscclpp_gpu_sys::hip::{self, DeviceProperties, Hip, HipResult};

use super::{Device, memory::Freer};
use crate::{
    DevicePtr, ExportKinds, GpuDirect, GpuProperties, Platform, Result, WritesOrdering,
    driver::{
        api::{Api, Process, Transfer, Values},
        device::attribute,
        failure::check,
        platform::ordinal,
        stream::Stream,
    },
};

/// The fields of a device that only HIP has.
pub(crate) struct Extra {
    /// The architecture that hiprtc compiles for, such as `gfx942:sramecc+:xnack-`.
    pub(super) architecture: String,
    pub(super) freer: Freer,
}

impl Api for Hip {
    const PLATFORM: Platform = Platform::Hip;
    const NO_DEVICE: &'static str = "the HIP runtime finds no device; see `rocminfo` and HIP_VISIBLE_DEVICES";
    const WHY_NO_PEER_ACCESS: &'static str =
        "the HIP runtime reports no peer access between them; see `rocm-smi --showtopo`";
    const NO_DMA_BUF: &'static str = "this release of ROCm has no hipMemGetHandleForAddressRange";
    const ON_SEVERAL_ALLOCATIONS: &'static str = "";
    const NAMES_UNKNOWN: &'static str = "HIP does not say what";
    const LAUNCHES_KEEP_MODULES: bool = true;

    const MULTIPROCESSOR_COUNT: u32 = hip::ATTRIBUTE_MULTIPROCESSOR_COUNT;
    const NATIVE_ATOMICS: u32 = hip::P2P_NATIVE_ATOMIC_SUPPORTED;
    const HOST_MEMORY: u32 = hip::HOST_MALLOC_PORTABLE | hip::HOST_MALLOC_MAPPED | hip::HOST_MALLOC_COHERENT;

    const PEER_ACCESS_ALREADY_ENABLED: HipResult = HipResult::PEER_ACCESS_ALREADY_ENABLED;
    const NO_PEER_ACCESS: &'static [HipResult] =
        &[HipResult::PEER_ACCESS_UNSUPPORTED, HipResult::INVALID_DEVICE];
    const UNKNOWN_ADDRESS: &'static [HipResult] =
        &[HipResult::INVALID_VALUE, HipResult::INVALID_DEVICE_POINTER];
    /// The results for a missing symbol, which differ between releases of ROCm.
    const NO_SYMBOL: &'static [HipResult] = &[HipResult::NOT_FOUND, HipResult::INVALID_VALUE];

    const NO_CONTEXT: c_int = -1;
    type Extra = Extra;

    fn process() -> &'static Process<Self> {
        static PROCESS: Process<Hip> = Process::new();
        &PROCESS
    }

    fn hint(code: HipResult) -> Option<&'static str> {
        Some(match code {
            HipResult::NO_DEVICE => {
                "see `rocminfo` and HIP_VISIBLE_DEVICES; /dev/kfd and /dev/dri must be open to this user (groups render \
                 and video)"
            }
            HipResult::INSUFFICIENT_DRIVER => "the kernel's amdgpu driver is older than this ROCm",
            HipResult::NO_BINARY_FOR_GPU => "the code was compiled for another architecture",
            HipResult::ILLEGAL_ADDRESS | HipResult::LAUNCH_FAILURE => {
                "a kernel or copy submitted before failed; the device cannot be used again in this process"
            }
            _ => return None,
        })
    }

    fn forget(&self) {
        // SAFETY: it takes nothing. It gives the result that it takes away.
        let _known = unsafe { (self.get_last_error)() };
    }

    /// Returns the number itself, which HIP takes.
    fn device(&self, id: usize) -> Result<c_int> {
        ordinal(id)
    }

    fn current_device(&self) -> Result<usize> {
        let mut current = 0;
        // SAFETY: `current` is valid for the write.
        check(self, unsafe { (self.common.get_current.1)(&raw mut current) }, "hipGetDevice")?;
        Ok(usize::try_from(current).unwrap_or(0))
    }

    fn retain(&self, device: c_int) -> Result<c_int> {
        Ok(device)
    }

    fn extra(&'static self, device: c_int, properties: &mut GpuProperties) -> Result<Extra> {
        static WARNED: Once = Once::new();
        WARNED.call_once(|| {
            tracing::warn!(
                target: "mscclpp::gpu", runtime = self.path(),
                "the HIP platform has been compiled and tested without a GPU: no AMD GPU has run it; see docs/src/hip.md"
            );
        });
        properties.export_kinds = ExportKinds { ipc_handle: true, ..ExportKinds::default() };
        // These properties are not available as attributes.
        let mut all = Box::<DeviceProperties>::default();
        // SAFETY: `all` is valid for the write, and larger than what is written.
        let result = unsafe { (self.get_device_properties)(&raw mut *all, device) };
        check(self, result, "hipGetDevicePropertiesR0600")?;
        let architecture = CStr::from_bytes_until_nul(&all.gcn_arch_name).unwrap_or_default();
        let architecture = architecture.to_string_lossy().into_owned();
        tracing::debug!(target: "mscclpp::gpu", ?properties, architecture, "opening a HIP device");
        Ok(Extra { architecture, freer: Freer::default() })
    }

    unsafe fn copy(&self, transfer: Transfer, stream: *mut c_void) -> (&'static str, HipResult) {
        let (dst, src) = (transfer.dst.as_mut_ptr(), transfer.src.as_mut_ptr::<c_void>());
        let bytes = transfer.bytes as usize;
        // SAFETY: the caller's promise.
        let result = unsafe { (self.memcpy_async)(dst, src, bytes, hip::MEMCPY_DEFAULT, stream) };
        ("hipMemcpyAsync", result)
    }

    fn stream_of_another(number: c_int, device: &str) -> String {
        format!("one of device {number}, not of {device}")
    }

    /// Returns the properties of GPUDirect. It reports no ordering, because HIP has no attribute for it.
    fn gpu_direct(device: &Device) -> Result<GpuDirect> {
        let which = hip::ATTRIBUTE_DMA_BUF_SUPPORTED;
        // Releases that do not know the attribute are taken to have no dmabuf.
        let dma_buf = attribute(device.driver(), device.context.device, which).is_ok_and(|has| has != 0);
        let writes_ordering = WritesOrdering::None;
        Ok(GpuDirect { rdma: dma_buf, dma_buf, writes_ordering, host_flush: false, stream_flush: false })
    }
}

impl Values<Self> for Hip {
    unsafe fn write_u64(stream: &Stream<Self>, dst: DevicePtr, value: u64) -> Result<()> {
        // SAFETY: the caller promises the 8 bytes until the write is complete.
        stream.submit(|hip| unsafe {
            let write = hip.stream_write_value64;
            ("hipStreamWriteValue64", write(stream.handle(), dst.as_mut_ptr(), value, 0))
        })
    }
}

#[cfg(test)]
#[test]
fn what_users_meet_first_comes_with_advice() {
    let cases = [
        (HipResult::NO_DEVICE, "/dev/kfd"),
        (HipResult::INSUFFICIENT_DRIVER, "amdgpu"),
        (HipResult::LAUNCH_FAILURE, "before"),
    ];
    crate::driver::failure::tests::comes_with_advice::<mscclpp_gpu_sys::hip::Hip>(&cases, HipResult(123_456));
}
