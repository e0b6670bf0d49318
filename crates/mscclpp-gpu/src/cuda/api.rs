//! CUDA's driver, by the interface of [`crate::driver`].

use std::{
    ffi::{c_int, c_void},
    ptr,
};

use mscclpp_gpu_sys::cuda::{
    CUcontext, CUctx_st, CUdevice_P2PAttribute as P2p, CUdevice_attribute as Attribute, CUstream_st,
    CuResult, DMA_BUF_SUPPORTED, Driver, FLUSH_OPTION_HOST, FLUSH_OPTION_MEMOPS,
    FLUSH_TARGET_CURRENT_CONTEXT, FLUSH_TO_ALL_DEVICES, FLUSH_TO_OWNER, MEMHOSTALLOC_DEVICEMAP,
    MEMHOSTALLOC_PORTABLE, WRITES_ORDERING_ALL_DEVICES, WRITES_ORDERING_OWNER,
};

use super::{Device, hint, values::ValueWrites, virtual_memory::Placement};
use crate::{
    ExportKinds, GpuDirect, GpuProperties, Platform, Result, WritesOrdering,
    driver::{
        api::{Api, Direction, Process, Transfer},
        device::{attribute, no_flush},
        failure::{check, log_failure},
        platform::{device_count, ordinal},
    },
};

/// The fields of a device that only CUDA has.
pub(crate) struct Extra {
    pub(super) placement: Placement,
    pub(super) value_writes: ValueWrites,
}

impl Api for Driver {
    const PLATFORM: Platform = Platform::Cuda;
    const NO_DEVICE: &'static str = "the driver finds no device; see `nvidia-smi` and CUDA_VISIBLE_DEVICES";
    const WHY_NO_PEER_ACCESS: &'static str =
        "the driver reports no peer access between them; see `nvidia-smi topo -p2p r`";
    const NO_DMA_BUF: &'static str = "the driver is older than CUDA 11.7 and has no dmabuf";
    const ON_SEVERAL_ALLOCATIONS: &'static str = "; memory made of several allocations (such as PyTorch's expandable \
         segments) is shared one allocation at a time";
    const NAMES_UNKNOWN: &'static str = "what is not known of compiled code";
    const LAUNCHES_KEEP_MODULES: bool = false;

    const MULTIPROCESSOR_COUNT: u32 = Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as u32;
    const NATIVE_ATOMICS: u32 = P2p::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED as u32;
    const HOST_MEMORY: u32 = MEMHOSTALLOC_PORTABLE | MEMHOSTALLOC_DEVICEMAP;

    const PEER_ACCESS_ALREADY_ENABLED: CuResult = CuResult::PEER_ACCESS_ALREADY_ENABLED;
    const NO_PEER_ACCESS: &'static [CuResult] =
        &[CuResult::PEER_ACCESS_UNSUPPORTED, CuResult::TOO_MANY_PEERS, CuResult::INVALID_DEVICE];
    const UNKNOWN_ADDRESS: &'static [CuResult] = &[CuResult::INVALID_VALUE];
    const NO_SYMBOL: &'static [CuResult] = &[CuResult::NOT_FOUND];

    const NO_CONTEXT: CUcontext = ptr::null_mut();
    type Extra = Extra;

    fn process() -> &'static Process<Self> {
        static PROCESS: Process<Driver> = Process::new();
        &PROCESS
    }

    fn hint(code: CuResult) -> Option<&'static str> {
        hint::hint(code)
    }

    fn device(&self, id: usize) -> Result<c_int> {
        let mut handle = 0;
        // SAFETY: `handle` is valid for the write.
        let result = unsafe { (self.device_get)(&raw mut handle, ordinal(id)?) };
        check(self, result, format_args!("cuDeviceGet({id})"))?;
        Ok(handle)
    }

    /// Returns the device whose context is current in the calling thread, else 0.
    fn current_device(&self) -> Result<usize> {
        let mut context = ptr::null_mut::<CUctx_st>();
        // SAFETY: `context` is valid for the write.
        check(self, unsafe { (self.common.get_current.1)(&raw mut context) }, "cuCtxGetCurrent")?;
        if context.is_null() {
            return Ok(0);
        }
        let mut current = 0;
        // SAFETY: `current` is valid for the write, and a context is current.
        check(self, unsafe { (self.ctx_get_device)(&raw mut current) }, "cuCtxGetDevice")?;
        for id in 0..device_count::<Self>()? {
            if self.device(id)? == current {
                return Ok(id);
            }
        }
        Ok(0)
    }

    fn compute_capability(&self, device: c_int) -> Result<Option<(u32, u32)>> {
        let part = |which: Attribute| {
            attribute(self, device, which as u32).map(|value| u32::try_from(value).unwrap_or(0))
        };
        Ok(Some((
            part(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            part(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        )))
    }

    fn retain(&self, device: c_int) -> Result<CUcontext> {
        let mut context = ptr::null_mut();
        // SAFETY: `context` is valid for the write.
        let result = unsafe { (self.device_primary_ctx_retain)(&raw mut context, device) };
        check(self, result, format_args!("cuDevicePrimaryCtxRetain(device {device})"))?;
        Ok(context)
    }

    fn release(&self, device: c_int) {
        // SAFETY: retained once by `retain`; what was made in it is gone or was never made.
        let result = unsafe { (self.device_primary_ctx_release)(device) };
        log_failure(self, result, "cuDevicePrimaryCtxRelease");
    }

    fn extra(&'static self, device: c_int, properties: &mut GpuProperties) -> Result<Extra> {
        let placement = Placement::probe(self, device)?;
        properties.export_kinds = ExportKinds {
            // Integrated GPUs share their memory with the host, and have no legacy IPC.
            ipc_handle: attribute(self, device, Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED as u32)
                .is_ok_and(|integrated| integrated == 0),
            ..placement.export_kinds()
        };
        let value_writes = ValueWrites::of(self, device);
        let can_write_values = value_writes.write.is_some();
        tracing::debug!(target: "mscclpp::gpu", ?properties, can_write_values, "opening a CUDA device");
        Ok(Extra { placement, value_writes })
    }

    unsafe fn copy(&self, transfer: Transfer, stream: *mut CUstream_st) -> (&'static str, CuResult) {
        let Transfer { direction, dst, src, bytes } = transfer;
        let len = bytes as usize;
        // SAFETY: the caller's promise.
        unsafe {
            match direction {
                Direction::Any => ("cuMemcpyAsync", (self.memcpy_async)(dst.0, src.0, len, stream)),
                Direction::FromHost => {
                    let src = src.as_mut_ptr::<c_void>();
                    ("cuMemcpyHtoDAsync", (self.memcpy_htod_async)(dst.0, src, len, stream))
                }
                Direction::ToHost => {
                    ("cuMemcpyDtoHAsync", (self.memcpy_dtoh_async)(dst.as_mut_ptr(), src.0, len, stream))
                }
            }
        }
    }

    fn stream_of_another(_context: CUcontext, device: &str) -> String {
        format!("not one of the primary context of {device}")
    }

    fn gpu_direct(device: &Device) -> Result<GpuDirect> {
        let ask = |which: u32| attribute(device.driver(), device.context.device, which);
        let options = ask(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS as u32)?;
        let ordering = ask(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING as u32)?;
        Ok(GpuDirect {
            rdma: ask(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED as u32)? != 0,
            // Drivers that do not know the attribute do not have it.
            dma_buf: ask(DMA_BUF_SUPPORTED).is_ok_and(|supported| supported != 0),
            writes_ordering: match ordering {
                WRITES_ORDERING_ALL_DEVICES.. => WritesOrdering::AllDevices,
                WRITES_ORDERING_OWNER.. => WritesOrdering::Owner,
                _ => WritesOrdering::None,
            },
            host_flush: options & FLUSH_OPTION_HOST != 0,
            stream_flush: options & FLUSH_OPTION_MEMOPS != 0,
        })
    }

    fn flush_gpu_direct_writes(device: &Device, to_all_devices: bool) -> Result<()> {
        let flush = device.driver().flush_gpu_direct_rdma_writes;
        let Some(flush) = flush.filter(|_| Self::gpu_direct(device).is_ok_and(|d| d.host_flush)) else {
            return Err(no_flush(device));
        };
        let _entered = device.context.enter()?;
        let scope = if to_all_devices { FLUSH_TO_ALL_DEVICES } else { FLUSH_TO_OWNER };
        // SAFETY: values of the two enumerations; the device's context is current.
        let result = unsafe { flush(FLUSH_TARGET_CURRENT_CONTEXT, scope) };
        check(device.driver(), result, format_args!("cuFlushGPUDirectRDMAWrites({scope})"))
    }
}
