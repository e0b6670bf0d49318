use std::{
    ffi::{CStr, c_char, c_int, c_void},
    fmt,
    sync::{Arc, OnceLock},
};

use mscclpp_gpu_sys::{Entry, Functions};

use super::{
    api::{Api, Direction, Handle, Transfer},
    context::Context,
    event::Event,
    export,
    failure::check,
    foreign::{Foreign, Own},
    in_use::LeftBehind,
    memory,
    module::RetiredModules,
    pinned::{self, PinnedSpares},
    platform,
    stream::{self, Stream},
};
use crate::{
    DeviceAllocation, DevicePtr, DmaBuf, Error, ExportKinds, GpuDirect, GpuProperties, KernelSource,
    MemoryExport, MemoryInfo, Owner, PeerAccess, Result,
    backend::{DeviceBackend, EventBackend, MemoryBackend, ModuleBackend, StreamBackend},
    memory::ExportHandle,
    numa,
};

/// An opened device. There is one per device and process, and it lives as long as the process.
pub(crate) struct Device<D: Api> {
    pub(crate) context: Context<D>,
    pub(crate) properties: GpuProperties,
    pub(crate) extra: D::Extra,
    /// For what the library does itself: non-blocking, so that nobody's default stream waits for it.
    internal: Handle<D::Stream>,
    pub(super) pinned_spares: PinnedSpares,
    pub(crate) retired_modules: RetiredModules<D>,
    pub(super) left_behind: LeftBehind<Event<D>>,
    pub(super) foreign: Foreign<Stream<D>>,
    own: Own<Stream<D>>,
    /// One for all who ask, so that whoever waits knows what others launched.
    default_stream: OnceLock<Arc<Stream<D>>>,
}

impl<D: Api> Device<D> {
    pub(super) fn open(driver: &'static D, id: usize) -> Result<Self> {
        let handle = driver.device(id)?;
        let mut properties = properties(driver, handle, id)?;
        let context = Context::retain(driver, handle)?;
        let (extra, internal) = {
            let _entered = context.enter()?;
            (driver.extra(handle, &mut properties)?, stream::create_raw(&context)?)
        };
        Ok(Self {
            context,
            properties,
            extra,
            internal,
            pinned_spares: PinnedSpares::default(),
            retired_modules: RetiredModules::default(),
            left_behind: LeftBehind::default(),
            foreign: Foreign::default(),
            own: Own::default(),
            default_stream: OnceLock::new(),
        })
    }

    /// Fills, writes and reads once: what the driver loads at first use for these must not have to be loaded while a
    /// kernel is waiting, which could deadlock. A device that is full does without.
    pub(super) fn warm_up(&'static self) {
        let warmed = self.allocate(8).and_then(|memory| {
            // SAFETY: the memory was just made and has 8 bytes.
            unsafe {
                self.write(memory.ptr(), &[1; 8])?;
                self.read(memory.ptr(), &mut [0; 8])
            }
        });
        if let Err(error) = warmed {
            let device = self.properties.id;
            tracing::debug!(target: "mscclpp::gpu", device, %error, "could not warm the device up");
        }
    }

    pub(crate) fn driver(&self) -> &'static D {
        self.context.driver
    }

    pub(crate) fn functions(&self) -> &'static Functions<D> {
        self.context.functions
    }

    /// Drops what complete launches needed, of streams that are gone, of others' and of the default stream, and what
    /// graphs of others needed.
    fn sweep(&self) {
        self.left_behind.sweep();
        self.foreign.sweep();
        D::process().captures.sweep();
        if let Some(stream) = self.default_stream.get() {
            stream.sweep();
        }
    }

    /// The streams, each with the number of its last launch.
    fn launches(&self) -> Vec<(Arc<Stream<D>>, u64)> {
        let default = self.default_stream.get().map(|stream| (Arc::clone(stream), stream.last_launch()));
        self.own.launches().into_iter().chain(self.foreign.launches()).chain(default).collect()
    }

    pub(super) fn the_default_stream(&'static self) -> Arc<Stream<D>> {
        self.default_stream.get_or_init(|| Arc::new(Stream::default_of(self))).clone()
    }

    /// Runs `submit` with the internal stream and waits for that stream.
    fn blocking(&self, submit: impl FnOnce(*mut D::Stream) -> (&'static str, D::Code)) -> Result<()> {
        let _entered = self.context.enter()?;
        let (what, result) = submit(self.internal.0);
        check(self.driver(), result, what)?;
        let Entry(name, synchronize) = self.functions().stream_synchronize;
        // SAFETY: the internal stream lives as long as the process.
        let result = unsafe { synchronize(self.internal.0) };
        check(self.driver(), result, format_args!("{name} (of {what})"))
    }
}

impl<D: Api> fmt::Display for Device<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} device {} ({})", D::PLATFORM, self.properties.id, self.properties.name)
    }
}

impl<D: Api> DeviceBackend for &'static Device<D> {
    fn properties(&self) -> &GpuProperties {
        &self.properties
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        let get_info = self.functions().mem_get_info;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are valid for the write.
        self.context.run(|_| get_info.call(|get| unsafe { get(&raw mut free, &raw mut total) }))?;
        Ok(MemoryInfo { free: free as u64, total: total as u64 })
    }

    fn peer_access(&self, peer: usize) -> Result<PeerAccess> {
        let (driver, this) = (self.driver(), self.context.device);
        let Entry(name, can_access) = self.functions().device_can_access_peer;
        let peer = driver.device(peer)?;
        let (mut reachable, mut atomics) = (0, 0);
        // SAFETY: `reachable` is valid for the write.
        check(driver, unsafe { can_access(&raw mut reachable, this, peer) }, name)?;
        if reachable == 0 {
            return Ok(PeerAccess { reachable: false, native_atomics: false });
        }
        let Entry(name, attribute) = self.functions().device_get_p2p_attribute;
        // SAFETY: `atomics` is valid for the write.
        let result = unsafe { attribute(&raw mut atomics, D::NATIVE_ATOMICS, this, peer) };
        check(driver, result, format_args!("{name}(NATIVE_ATOMIC_SUPPORTED)"))?;
        Ok(PeerAccess { reachable: true, native_atomics: atomics != 0 })
    }

    unsafe fn enable_access(&self, owner: &GpuProperties, ptr: DevicePtr, len: u64) -> Result<()> {
        // SAFETY: the caller promises a live allocation.
        unsafe { D::enable_access(self, platform::device(owner.id)?, ptr, len) }
    }

    fn allocate(&self, bytes: u64) -> Result<Box<dyn MemoryBackend>> {
        self.sweep();
        let memory = D::allocate(self, bytes)?;
        // SAFETY: the memory was just made and has at least `bytes` bytes.
        unsafe { self.fill(memory.ptr(), bytes, 0)? };
        Ok(memory)
    }

    fn allocate_pinned(&self, bytes: u64) -> Result<Box<dyn MemoryBackend>> {
        pinned::allocate(&self.pinned_spares, bytes, |len| memory::block(self, len))
    }

    unsafe fn write(&self, dst: DevicePtr, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let (src, len) = (DevicePtr::from_ptr(bytes.as_ptr()), bytes.len() as u64);
        let transfer = Transfer { direction: Direction::FromHost, dst, src, bytes: len };
        // SAFETY: the caller promises the device range; `bytes` stays until the stream has been waited for.
        self.blocking(|stream| unsafe { self.driver().copy(transfer, stream) })
    }

    unsafe fn read(&self, src: DevicePtr, bytes: &mut [u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let (dst, len) = (DevicePtr::from_ptr(bytes.as_mut_ptr()), bytes.len() as u64);
        let transfer = Transfer { direction: Direction::ToHost, dst, src, bytes: len };
        // SAFETY: the caller promises the device range; `bytes` stays until the stream has been waited for.
        self.blocking(|stream| unsafe { self.driver().copy(transfer, stream) })
    }

    unsafe fn fill(&self, dst: DevicePtr, len: u64, value: u8) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        let Entry(name, set) = self.functions().memset_d8_async;
        // SAFETY: the caller promises the device range.
        self.blocking(|stream| (name, unsafe { set(dst.0, value, len as usize, stream) }))
    }

    // This does no sweep. A transport's thread makes its stream while a kernel waits for that thread's work, and freeing
    // memory may wait for that kernel.
    fn create_stream(&self) -> Result<Arc<dyn StreamBackend>> {
        Ok(self.own.add(Stream::create(self)?))
    }

    fn default_stream(&self) -> Result<Arc<dyn StreamBackend>> {
        Ok(self.the_default_stream())
    }

    unsafe fn wrap_stream(&self, raw: *mut c_void) -> Result<Arc<dyn StreamBackend>> {
        // SAFETY: the caller promises a live stream of the device.
        Ok(unsafe { Stream::of_others(self, raw)? })
    }

    fn create_event(&self, with_timing: bool) -> Result<Arc<dyn EventBackend>> {
        Ok(Arc::new(Event::create(self, with_timing)?))
    }

    unsafe fn wrap_event(&self, raw: *mut c_void) -> Result<Arc<dyn EventBackend>> {
        // SAFETY: the caller promises a live event of the device.
        Ok(Arc::new(unsafe { Event::of_others(self, raw) }))
    }

    fn load_module(&self, source: &KernelSource<'_>) -> Result<Arc<dyn ModuleBackend>> {
        D::load_module(self, source)
    }

    unsafe fn load_binary(&self, name: &str, binary: &[u8]) -> Result<Arc<dyn ModuleBackend>> {
        // SAFETY: the caller's promise.
        unsafe { D::load_binary(self, name, binary) }
    }

    fn allocation(&self, ptr: DevicePtr) -> Result<DeviceAllocation> {
        D::allocation(self, ptr)
    }

    unsafe fn export(&self, ptr: DevicePtr, len: u64) -> Result<MemoryExport> {
        // SAFETY: the caller promises live memory.
        unsafe { D::export(self, ptr, len) }
    }

    unsafe fn export_dma_buf(&self, ptr: DevicePtr, len: u64) -> Result<DmaBuf> {
        // SAFETY: the caller promises live memory.
        unsafe { export::export_dma_buf(self, ptr, len) }
    }

    fn gpu_direct(&self) -> Result<GpuDirect> {
        D::gpu_direct(self)
    }

    fn flush_gpu_direct_writes(&self, to_all_devices: bool) -> Result<()> {
        D::flush_gpu_direct_writes(self, to_all_devices)
    }

    fn import(&self, handle: &ExportHandle, allocation_size: u64) -> Result<Box<dyn MemoryBackend>> {
        D::import(self, handle, allocation_size)
    }

    fn synchronize(&self) -> Result<()> {
        let streams = self.launches();
        let gone = self.left_behind.unknown();
        let synchronize = self.functions().synchronize;
        // SAFETY: the device is the thread's.
        self.context.run(|_| synchronize.call(|synchronize| unsafe { synchronize() }))?;
        self.left_behind.release_unknown(gone);
        for (stream, launches) in streams {
            stream.release(launches);
        }
        self.left_behind.sweep();
        D::process().captures.sweep();
        Ok(())
    }

    fn take_failed(&self) -> Vec<Owner> {
        let mut failed: Vec<Owner> =
            self.launches().iter().flat_map(|(stream, _)| stream.in_use.take_failed()).collect();
        // After the streams: one that was dropped meanwhile has left them there.
        failed.extend(self.left_behind.take_failed());
        failed
    }

    fn release_graph_objects(&self) {
        D::process().captures.sweep();
    }

    fn make_current(&self) -> Result<()> {
        self.context.set_current()
    }

    fn adopt_thread(&self) -> Result<()> {
        self.context.set_current()?;
        self.context.relax_capture().map(|_mode_that_was| ())
    }
}

/// For a device whose driver or platform cannot flush.
pub(crate) fn no_flush<D: Api>(device: &Device<D>) -> Error {
    Error::invalid(format!("{device} has no flush of GPUDirect writes by the host (Gpu::gpu_direct says so)"))
}

/// Returns the uuid of a device, which need not be open.
pub(super) fn uuid<D: Api>(driver: &D, device: c_int) -> Result<[u8; 16]> {
    let Entry(name, get_uuid) = driver.functions().device_get_uuid;
    let mut uuid = [0; 16];
    // SAFETY: `uuid` is valid for the write of 16 bytes.
    check(driver, unsafe { get_uuid(&raw mut uuid, device) }, name)?;
    Ok(uuid)
}

/// A number that tells something about a device, which need not be open.
pub(crate) fn attribute<D: Api>(driver: &D, device: c_int, which: u32) -> Result<c_int> {
    let Entry(name, get_attribute) = driver.functions().device_get_attribute;
    let mut value = 0;
    // SAFETY: `value` is valid for the write; an attribute the driver does not know is an error.
    let result = unsafe { get_attribute(&raw mut value, which, device) };
    check(driver, result, format_args!("{name}({which}, device {device})"))?;
    Ok(value)
}

fn properties<D: Api>(driver: &D, device: c_int, id: usize) -> Result<GpuProperties> {
    let ask = |Entry(name, write): Entry<unsafe extern "C" fn(*mut c_char, c_int, c_int) -> D::Code>| {
        text(|buffer, len| {
            // SAFETY: `buffer` is valid for the write of `len` bytes.
            check(driver, unsafe { write(buffer, len, device) }, name)
        })
    };
    let name = ask(driver.functions().device_get_name)?;
    let pci_bus_id = ask(driver.functions().device_get_pci_bus_id)?.to_ascii_lowercase();
    Ok(GpuProperties {
        platform: D::PLATFORM,
        id,
        name,
        uuid: uuid(driver, device)?,
        numa_node: numa::node_of_pci_device(&pci_bus_id),
        pci_bus_id: Some(pci_bus_id),
        compute_capability: driver.compute_capability(device)?,
        multiprocessors: u32::try_from(attribute(driver, device, D::MULTIPROCESSOR_COUNT)?).unwrap_or(0),
        export_kinds: ExportKinds::default(),
    })
}

/// A NUL-terminated text that the driver writes into a buffer.
fn text(write: impl FnOnce(*mut c_char, c_int) -> Result<()>) -> Result<String> {
    let mut buffer = [0u8; 256];
    // One byte less than there is: the last one stays NUL.
    write(buffer.as_mut_ptr().cast(), 255)?;
    Ok(CStr::from_bytes_until_nul(&buffer)
        .map(|text| text.to_string_lossy().into_owned())
        .unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_ends_at_the_nul() {
        let text = text(|buffer, len| {
            assert_eq!(len, 255);
            // SAFETY: the buffer has 255 bytes.
            unsafe { buffer.cast::<[u8; 4]>().write(*b"ab\0c") };
            Ok(())
        });
        assert_eq!(text.unwrap(), "ab");
    }
}
