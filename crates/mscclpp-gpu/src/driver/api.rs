//! The interface of a platform with a GPU driver: the driver's types and entry points, and the parts that differ between
//! platforms. All else is written once, in this folder, for all of them.

use std::{
    ffi::{c_int, c_void},
    sync::Arc,
};

use parking_lot::Mutex;

use super::{
    captures::Captures,
    device::{Device, no_flush},
    stream::Stream,
};
use crate::{
    DeviceAllocation, DevicePtr, GpuDirect, GpuProperties, KernelParameter, KernelSource, LaunchConfig,
    MemoryExport, Platform, Result,
    backend::{MemoryBackend, ModuleBackend},
    memory::ExportHandle,
};

/// A driver: the table of its functions, of which there is one in a process.
pub(crate) trait Api:
    mscclpp_gpu_sys::Api<Context: Copy + Eq> + Sync + Memory<Self> + Sharing<Self> + Values<Self> + Modules<Self>
{
    const PLATFORM: Platform;
    /// The text of the error if the driver finds no device.
    const NO_DEVICE: &'static str;
    const WHY_NO_PEER_ACCESS: &'static str;

    /// The text of the error if the driver is too old to make a dmabuf.
    const NO_DMA_BUF: &'static str;
    /// The text that an error gets if a range is not inside one allocation.
    const ON_SEVERAL_ALLOCATIONS: &'static str;
    /// The text in place of the names in a module, where they are not known.
    const NAMES_UNKNOWN: &'static str;
    /// Whether the driver may unload a module while its kernels run.
    const LAUNCHES_KEEP_MODULES: bool;

    const MULTIPROCESSOR_COUNT: u32;
    const NATIVE_ATOMICS: u32;
    /// Page-locked, mapped into every device, and coherent with them while kernels run.
    const HOST_MEMORY: u32;

    const PEER_ACCESS_ALREADY_ENABLED: Self::Code;
    /// For one device that does not reach another.
    const NO_PEER_ACCESS: &'static [Self::Code];
    /// For an address that the driver does not know.
    const UNKNOWN_ADDRESS: &'static [Self::Code];
    /// For a symbol that a module does not have.
    const NO_SYMBOL: &'static [Self::Code];

    /// The context of a thread without one.
    const NO_CONTEXT: Self::Context;
    /// The fields of a device that only this platform has.
    type Extra: Send + Sync;

    fn process() -> &'static Process<Self>;

    /// Returns advice for a result whose text from the driver has none.
    fn hint(code: Self::Code) -> Option<&'static str>;
    /// Clears the thread's last failed result, where the driver keeps one: the caller has used it, as an answer or in an error.
    fn forget(&self) {}

    /// The driver's handle of device number `id`.
    fn device(&self, id: usize) -> Result<c_int>;
    /// The number of the calling thread's device.
    fn current_device(&self) -> Result<usize>;
    fn compute_capability(&self, _device: c_int) -> Result<Option<(u32, u32)>> {
        Ok(None)
    }
    /// Returns the context that makes the device the thread's. It is retained until [`Api::release`].
    fn retain(&self, device: c_int) -> Result<Self::Context>;
    fn release(&self, _device: c_int) {}
    /// Finds out what only this platform's devices have, and how their memory can be shared, which goes to `properties`. The
    /// device is the thread's.
    fn extra(&'static self, device: c_int, properties: &mut GpuProperties) -> Result<Self::Extra>;

    /// Submits a copy. Returns the name of the driver's function, and its result.
    ///
    /// # Safety
    /// As [`crate::Stream::copy`]; the stream lives.
    unsafe fn copy(&self, transfer: Transfer, stream: *mut Self::Stream) -> (&'static str, Self::Code);
    /// Describes the mistake of a stream that belongs to `context`, and not to `device`.
    fn stream_of_another(context: Self::Context, device: &str) -> String;

    fn gpu_direct(device: &Device<Self>) -> Result<GpuDirect>;
    fn flush_gpu_direct_writes(device: &Device<Self>, _to_all_devices: bool) -> Result<()> {
        Err(no_flush(device))
    }
}

/// How devices of `D` get memory.
pub(crate) trait Memory<D: Api> {
    /// Allocates memory that is not yet zeroed.
    fn allocate(device: &'static Device<D>, bytes: u64) -> Result<Box<dyn MemoryBackend>>;
    fn import(device: &'static Device<D>, handle: &ExportHandle, size: u64)
    -> Result<Box<dyn MemoryBackend>>;
}

/// How memory of `D` is reached by others.
pub(crate) trait Sharing<D: Api> {
    fn allocation(device: &'static Device<D>, ptr: DevicePtr) -> Result<DeviceAllocation>;
    /// # Safety
    /// The range is live memory of this process.
    unsafe fn export(device: &'static Device<D>, ptr: DevicePtr, len: u64) -> Result<MemoryExport>;
    /// # Safety
    /// The range is live memory of `owner`, another device, in this process.
    unsafe fn enable_access(
        device: &'static Device<D>,
        owner: &'static Device<D>,
        ptr: DevicePtr,
        len: u64,
    ) -> Result<()>;
}

/// How streams of `D` write values.
pub(crate) trait Values<D: Api> {
    /// # Safety
    /// As [`crate::Stream::write_u64`]; `dst` is a multiple of 8.
    unsafe fn write_u64(stream: &Stream<D>, dst: DevicePtr, value: u64) -> Result<()>;
    /// # Safety
    /// As [`crate::Stream::write_u64`]; the addresses are multiples of 8.
    unsafe fn write_two_at_once(_stream: &Stream<D>, _values: [(DevicePtr, u64); 2]) -> Result<bool> {
        Ok(false)
    }
}

/// A way to launch a kernel other than the usual one.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "HIP has only the usual one"))]
pub(crate) enum Way<D: Api> {
    /// The event is recorded when all blocks have begun.
    Recording(*mut D::Event),
    /// The kernel may begin before the launch in front of it is complete, see [`crate::Kernel::launch`].
    Programmatic,
}

/// How kernels of `D` are loaded.
pub(crate) trait Modules<D: Api> {
    /// The state of a module that only this platform has.
    type ModuleState: Default + Send + Sync;

    fn load_module(device: &'static Device<D>, source: &KernelSource<'_>) -> Result<Arc<dyn ModuleBackend>>;
    /// # Safety
    /// See [`crate::Module::load_binary`].
    unsafe fn load_binary(
        device: &'static Device<D>,
        name: &str,
        binary: &[u8],
    ) -> Result<Arc<dyn ModuleBackend>>;
    /// Makes a function ready to be launched. Its parameters, where the driver knows them. The device is the thread's.
    fn prepare(&self, _name: &str, _function: *mut D::Function) -> Result<Option<Vec<KernelParameter>>> {
        Ok(None)
    }
    /// Launches a function in a way that is not the usual one. None, with nothing done, if the driver cannot.
    ///
    /// # Safety
    /// The caller promises what [`crate::Kernel::launch`] asks for. Stream, function and event live, and `params` points to as
    /// many arguments as the function has. A [`Way::Programmatic`] function has `griddepcontrol.wait`.
    unsafe fn launch_by(
        &self,
        _way: Way<D>,
        _function: *mut D::Function,
        _config: LaunchConfig,
        _stream: *mut D::Stream,
        _params: *mut *mut c_void,
    ) -> Option<(&'static str, D::Code)> {
        None
    }
    /// Lets launches of a function have so much dynamic shared memory. The device is the thread's.
    fn allow_shared(
        &self,
        _state: &Self::ModuleState,
        _function: *mut D::Function,
        _bytes: u32,
    ) -> Result<()> {
        Ok(())
    }
    /// See [`crate::Kernel::prefer_shared_memory`]. The device is the thread's.
    fn prefer_shared(&self, _function: *mut D::Function) -> Result<()> {
        Ok(())
    }
}

/// The direction and the ends of a copy.
#[derive(Clone, Copy)]
pub(crate) struct Transfer {
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "HIP sees it from the addresses"))]
    pub(crate) direction: Direction,
    pub(crate) dst: DevicePtr,
    pub(crate) src: DevicePtr,
    pub(crate) bytes: u64,
}

/// From where to where a copy goes.
#[derive(Clone, Copy)]
pub(crate) enum Direction {
    /// Wherever the addresses are.
    Any,
    FromHost,
    ToHost,
}

/// A handle of the driver.
pub(crate) struct Handle<T>(pub(crate) *mut T);

// SAFETY: the driver's functions may be called with a handle from any thread; it is never dereferenced here.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Handle<T> {}

/// The state of a platform in a process.
pub(crate) struct Process<D: Api> {
    /// The devices opened so far. They live as long as the process: others may be using them.
    pub(crate) devices: Mutex<Vec<&'static Device<D>>>,
    /// The captures of all devices, because a capture may span devices.
    pub(crate) captures: Captures,
}

impl<D: Api> Process<D> {
    pub(crate) const fn new() -> Self {
        Self { devices: Mutex::new(Vec::new()), captures: Captures::new() }
    }
}
