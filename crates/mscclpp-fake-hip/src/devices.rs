//! Devices, and the calling thread's current device.

use std::{
    cell::Cell,
    collections::HashSet,
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
};

use mscclpp_gpu::{Gpu, Platform, Stream};
use mscclpp_gpu_sys::{
    CAPTURE_MODE_RELAXED, POINTER_BUFFER_ID,
    hip::{ATTRIBUTE_MULTIPROCESSOR_COUNT, DeviceProperties, HipResult, P2P_NATIVE_ATOMIC_SUPPORTED},
};
use parking_lot::Mutex;

use crate::{
    entry::{Out, done, entry_points, require},
    memory,
};

/// A version that no release has: so no other runtime uses compiled kernels that this fake leaves in a cache.
const VERSION: c_int = 70_000_000;

/// The architecture that the devices report.
pub(crate) const ARCHITECTURE: &str = "gfx942:sramecc+:xnack-";

/// A simulated device and its default stream.
pub(crate) struct Device {
    pub(crate) gpu: Gpu,
    pub(crate) default_stream: Stream,
}

static DEVICES: LazyLock<Vec<Device>> = LazyLock::new(|| {
    let gpus = Platform::Sim.gpus().expect("simulated devices");
    gpus.into_iter()
        .map(|gpu| Device { default_stream: gpu.default_stream().expect("a stream"), gpu })
        .collect()
});

static MEMORY_LIMIT: AtomicU64 = AtomicU64::new(u64::MAX);

/// The pairs of devices of which the first may access the memory of the second.
static PEERS: Mutex<Option<HashSet<(c_int, c_int)>>> = Mutex::new(None);

thread_local! {
    static CURRENT: Cell<c_int> = const { Cell::new(0) };
    static CAPTURE_MODE: Cell<u32> = const { Cell::new(0) };
}

pub(crate) fn limit_memory(bytes: u64) {
    MEMORY_LIMIT.store(bytes, Ordering::Relaxed);
}

pub(crate) fn device(number: c_int) -> Result<&'static Device, HipResult> {
    usize::try_from(number).ok().and_then(|id| DEVICES.get(id)).ok_or(HipResult::INVALID_DEVICE)
}

/// Returns the number of the calling thread's device.
pub(crate) fn current() -> c_int {
    CURRENT.get()
}

pub(crate) fn current_device() -> Result<&'static Device, HipResult> {
    device(current())
}

/// Returns the free and the total memory of the calling thread's device.
pub(crate) fn memory_info() -> Result<[u64; 2], HipResult> {
    let limit = MEMORY_LIMIT.load(Ordering::Relaxed);
    let info = done(current_device()?.gpu.memory_info())?;
    let total = info.total.min(limit);
    Ok([info.free.min(total.saturating_sub(memory::used_by(current()))), total])
}

entry_points! {
    fn hipInit(flags: c_uint) {
        if flags == 0 { Ok(()) } else { Err(HipResult::INVALID_VALUE) }
    }

    fn hipRuntimeGetVersion(version: Out<c_int>) {
        version.give(VERSION)
    }
}

/// Takes any code and is not counted, like HIP's function.
#[unsafe(no_mangle)]
extern "C" fn hipDrvGetErrorName(result: HipResult, text: Out<*const c_char>) -> HipResult {
    let name = match result {
        HipResult::ILLEGAL_ADDRESS => c"hipErrorIllegalAddress",
        _ => return HipResult::INVALID_VALUE,
    };
    text.give(name.as_ptr()).err().unwrap_or(HipResult::SUCCESS)
}

#[unsafe(no_mangle)]
extern "C" fn hipDrvGetErrorString(_result: HipResult, text: Out<*const c_char>) -> HipResult {
    const WORDS: &CStr = c"a fake of the HIP runtime says so";
    text.give(WORDS.as_ptr()).err().unwrap_or(HipResult::SUCCESS)
}

entry_points! {
    fn hipGetDeviceCount(count: Out<c_int>) {
        count.give(DEVICES.len() as c_int)
    }

    fn hipGetDevice(number: Out<c_int>) {
        number.give(current())
    }

    fn hipSetDevice(number: c_int) {
        device(number).map(|_there| CURRENT.set(number))
    }
}

/// Writes a text and a NUL into the caller's buffer.
///
/// # Safety
/// `to` is valid for the write of `len` bytes.
unsafe fn give_text(to: *mut c_char, len: c_int, text: &str) -> Result<(), HipResult> {
    let room = usize::try_from(len).ok().filter(|room| *room > text.len()).ok_or(HipResult::INVALID_VALUE)?;
    // SAFETY: the caller's promise, and the text with its NUL fits.
    unsafe {
        to.cast::<u8>().write_bytes(0, room);
        to.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len());
    }
    Ok(())
}

entry_points! {
    fn hipDeviceGetName(name: *mut c_char, len: c_int, number: c_int) {
        device(number)?;
        // SAFETY: the caller's promise.
        unsafe { give_text(name, len, "fake HIP device over a simulated one") }
    }

    /// Returns another UUID than that of the simulated device, which may be used beside this one.
    fn hipDeviceGetUuid(uuid: Out<[u8; 16]>, number: c_int) {
        let of_host = device(number)?.gpu.properties().uuid;
        uuid.give(of_host.map(|byte| !byte))
    }

    fn hipDeviceGetPCIBusId(id: *mut c_char, len: c_int, number: c_int) {
        device(number)?;
        // SAFETY: the caller's promise.
        unsafe { give_text(id, len, &format!("FFFF:{number:02X}:00.0")) }
    }

    fn hipDeviceGetAttribute(value: Out<c_int>, which: c_uint, number: c_int) {
        let properties = device(number)?.gpu.properties();
        match which {
            ATTRIBUTE_MULTIPROCESSOR_COUNT => value.give(properties.multiprocessors as c_int),
            _ => Err(HipResult::INVALID_VALUE),
        }
    }

    fn hipGetDevicePropertiesR0600(properties: Out<DeviceProperties>, number: c_int) {
        device(number)?;
        let mut known = DeviceProperties::default();
        known.gcn_arch_name[..ARCHITECTURE.len()].copy_from_slice(ARCHITECTURE.as_bytes());
        properties.give(known)
    }
}

/// Whether the device `number` reaches the memory of `peer`.
fn reaches(number: c_int, peer: c_int) -> Result<bool, HipResult> {
    let (device, peer) = (device(number)?, device(peer)?);
    done(device.gpu.peer_access(&peer.gpu)).map(|access| access.reachable)
}

entry_points! {
    fn hipDeviceCanAccessPeer(can: Out<c_int>, number: c_int, peer: c_int) {
        can.give(c_int::from(reaches(number, peer)?))
    }

    fn hipDeviceGetP2PAttribute(value: Out<c_int>, which: c_uint, number: c_int, peer: c_int) {
        match which {
            P2P_NATIVE_ATOMIC_SUPPORTED => value.give(c_int::from(reaches(number, peer)?)),
            _ => Err(HipResult::INVALID_VALUE),
        }
    }

    fn hipDeviceEnablePeerAccess(peer: c_int, flags: c_uint) {
        require(flags == 0)?;
        if peer == current() {
            return Err(HipResult::INVALID_DEVICE);
        }
        if !reaches(current(), peer)? {
            return Err(HipResult::PEER_ACCESS_UNSUPPORTED);
        }
        match PEERS.lock().get_or_insert_default().insert((current(), peer)) {
            true => Ok(()),
            false => Err(HipResult::PEER_ACCESS_ALREADY_ENABLED),
        }
    }

    fn hipDeviceSynchronize() {
        done(current_device()?.gpu.synchronize())
    }

    fn hipMemGetInfo(free: Out<usize>, total: Out<usize>) {
        let [now_free, in_all] = memory_info()?;
        free.give(now_free as usize)?;
        total.give(in_all as usize)
    }

    fn hipThreadExchangeStreamCaptureMode(mode: *mut c_uint) {
        require(!mode.is_null())?;
        // SAFETY: not null, and the caller promises the rest.
        let (wanted, mode) = unsafe { (*mode, Out::of(mode)) };
        require(wanted <= CAPTURE_MODE_RELAXED)?;
        mode.give(CAPTURE_MODE.replace(wanted))
    }

    /// All attributes that the fake knows have 4 bytes, except the number of an allocation.
    fn hipPointerGetAttribute(data: *mut c_void, which: c_uint, ptr: *mut c_void) {
        let value = memory::attribute(which, ptr)?;
        // SAFETY: null, or what the caller of an entry point promises.
        let (long, short) = unsafe { (Out::of(data.cast()), Out::of(data.cast())) };
        if which == POINTER_BUFFER_ID { long.give(value) } else { short.give(value as u32) }
    }
}
