//! Device memory, made here or mapped from another process, and page-locked memory of the host.
//!
//! Kernels of other devices write to memory while this device's kernels run and read it. On AMD's GPUs that is defined
//! only in fine-grained memory, which includes uncached memory: data in memory from plain `hipMalloc` may stay in
//! caches until a kernel ends. Tokens, FIFOs and packet buffers need fine-grained memory, and any buffer may be used
//! for packets. So all memory made here is uncached, or fine-grained if a device has no uncached memory.
//!
//! `hipFree` waits until the device is idle, and a running kernel may be waiting for the thread that drops a buffer. So
//! a separate thread frees memory ([`Freer`]).

use std::{
    sync::{OnceLock, mpsc},
    thread,
    time::Duration,
};

use mscclpp_gpu_sys::hip::{DEVICE_MALLOC_FINE_GRAINED, DEVICE_MALLOC_UNCACHED, Hip, HipResult};

use super::Device;
use crate::{
    DeviceAllocation, DevicePtr, Error, MemoryExport, Result,
    backend::MemoryBackend,
    driver::{
        api::{Api, Memory, Sharing},
        export,
        failure::check,
        memory::Imported,
    },
    memory::ExportHandle,
};

impl Memory<Self> for Hip {
    /// Allocates memory of `device` that holds `bytes` bytes, not yet zeroed.
    fn allocate(device: &'static Device, bytes: u64) -> Result<Box<dyn MemoryBackend>> {
        let hip = device.driver();
        let _entered = device.context.enter()?;
        let attempt = |flags| {
            let mut address = std::ptr::null_mut();
            // SAFETY: `address` is valid for the write.
            (unsafe { (hip.ext_malloc_with_flags)(&raw mut address, bytes as usize, flags) }, address)
        };
        let make = || match attempt(DEVICE_MALLOC_UNCACHED) {
            (HipResult::INVALID_VALUE | HipResult::NOT_SUPPORTED, _) => {
                hip.forget();
                attempt(DEVICE_MALLOC_FINE_GRAINED)
            }
            done => done,
        };
        let (result, address) = match make() {
            // Dropped memory may not be free yet.
            (HipResult::OUT_OF_MEMORY, _) if device.extra.freer.catch_up() => {
                hip.forget();
                make()
            }
            done => done,
        };
        check(hip, result, format!("hipExtMallocWithFlags({bytes} bytes)"))?;
        Ok(Box::new(Allocation { device, address: DevicePtr::from_ptr(address) }))
    }

    /// Maps memory that another process exported. The same handle must not be opened twice: the caller keeps one mapping
    /// per allocation.
    fn import(device: &'static Device, handle: &ExportHandle, size: u64) -> Result<Box<dyn MemoryBackend>> {
        let _entered = device.context.enter()?;
        match handle {
            ExportHandle::IpcHandle(bytes) => Ok(Box::new(Imported::open(device, *bytes, size)?)),
            ExportHandle::FileDescriptor(_) | ExportHandle::Fabric(_) => Err(Error::invalid(
                "the HIP platform shares memory by IPC handles alone; this handle is of another kind",
            )),
        }
    }
}

impl Sharing<Self> for Hip {
    fn allocation(device: &'static Device, ptr: DevicePtr) -> Result<DeviceAllocation> {
        let _entered = device.context.enter()?;
        let driver = device.driver();
        Ok(export::allocation(driver, ptr, export::Range::of_allocation(driver, ptr)?))
    }

    unsafe fn export(device: &'static Device, ptr: DevicePtr, len: u64) -> Result<MemoryExport> {
        let _entered = device.context.enter()?;
        match export::owner_of(device.driver(), ptr)? {
            Some(_) => export::export_plain(device.driver(), ptr, len),
            None => {
                let reason = "the HIP runtime does not know it as device memory";
                Err(export::not_exportable(ptr, len, reason))
            }
        }
    }

    unsafe fn enable_access(
        device: &'static Device,
        owner: &'static Device,
        _ptr: DevicePtr,
        _len: u64,
    ) -> Result<()> {
        let _entered = device.context.enter()?;
        export::enable_peer_access(device, owner)
    }
}

struct Allocation {
    device: &'static Device,
    address: DevicePtr,
}

impl MemoryBackend for Allocation {
    fn ptr(&self) -> DevicePtr {
        self.address
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        self.device.extra.freer.free(self.device, self.address);
    }
}

/// Frees device memory on a thread of its own, in the order in which it was dropped.
#[derive(Default)]
pub(super) struct Freer {
    thread: OnceLock<Option<mpsc::Sender<Command>>>,
}

enum Command {
    Free(DevicePtr),
    /// A request for an answer when all memory before it is free.
    Answer(mpsc::Sender<()>),
}

/// The longest time that an allocation waits for dropped memory, which is freed when no kernel runs any more.
const CATCH_UP: Duration = Duration::from_secs(10);

impl Freer {
    fn free(&self, device: &'static Device, address: DevicePtr) {
        let commands = self.thread.get_or_init(|| {
            let (commands, received) = mpsc::channel();
            let work = move || received.iter().for_each(|command| carry_out(device, command));
            match thread::Builder::new().name("mscclpp-hip-free".to_owned()).spawn(work) {
                Ok(_runs_until_the_process_ends) => Some(commands),
                Err(error) => {
                    tracing::warn!(target: "mscclpp::gpu", %error, "no thread to free device memory");
                    None
                }
            }
        });
        if commands.as_ref().is_none_or(|commands| commands.send(Command::Free(address)).is_err()) {
            free_now(device, address);
        }
    }

    /// Waits until all dropped memory is free. Returns whether it is, and whether there was any.
    pub(super) fn catch_up(&self) -> bool {
        let Some(Some(commands)) = self.thread.get() else { return false };
        let (answer, answered) = mpsc::channel();
        commands.send(Command::Answer(answer)).is_ok() && answered.recv_timeout(CATCH_UP).is_ok()
    }
}

fn carry_out(device: &'static Device, command: Command) {
    match command {
        Command::Free(address) => free_now(device, address),
        Command::Answer(answer) => {
            let _whoever_asked_may_be_gone = answer.send(());
        }
    }
}

fn free_now(device: &'static Device, address: DevicePtr) {
    // SAFETY: made by `allocate`, freed once.
    device.context.take_down(|hip| ("hipFree", unsafe { (hip.free)(address.as_mut_ptr()) }));
}
