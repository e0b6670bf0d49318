//! Memory of a GPU that other code in the process allocated directly from the driver: shared, and reached by peers.

mod needs;

use std::process::ExitCode;

use libtest_mimic::Arguments;
use mscclpp_gpu::{DevicePtr, Error, ExportHandle, Gpu, MemoryExport, Platform};
use mscclpp_gpu_sys::cuda::{
    AccessDesc, AllocationProp, CUdeviceptr, CUmemAccess_flags, CUmemAllocationType, CUmemLocationType,
    CuResult, Driver, HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, Location,
};

fn main() -> ExitCode {
    let trials = needs::cuda_trials![
        1: plain_allocations_have_a_legacy_handle,
        2: access_to_plain_allocations_of_a_peer_can_be_repeated,
        1: a_range_over_several_allocations_is_refused_and_its_parts_are_exported,
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// Opens a device, and makes its context current for calls of the driver.
fn device(id: usize) -> (Gpu, &'static Driver) {
    let gpu = Platform::Cuda.gpu(id).unwrap();
    gpu.make_current().unwrap();
    (gpu, Driver::load().unwrap())
}

fn done(result: CuResult) {
    assert_eq!(result, CuResult::SUCCESS);
}

/// An allocation like those of `cudaMalloc`.
struct Plain {
    gpu: Gpu,
    driver: &'static Driver,
    address: CUdeviceptr,
}

impl Plain {
    fn allocate(id: usize, bytes: usize) -> Self {
        let (gpu, driver) = device(id);
        let mut address = 0;
        // SAFETY: `address` is valid for the write, and a context is current.
        done(unsafe { (driver.mem_alloc)(&raw mut address, bytes) });
        Self { gpu, driver, address }
    }

    fn at(&self, offset: u64) -> DevicePtr {
        DevicePtr(self.address + offset)
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        self.gpu.make_current().unwrap();
        // SAFETY: made by `allocate`, freed once; the tests have waited for what used it.
        done(unsafe { (self.driver.mem_free)(self.address) });
    }
}

fn export(gpu: &Gpu, ptr: DevicePtr, len: u64) -> Result<MemoryExport, Error> {
    // SAFETY: every test gives a range that starts in memory which it made and has not freed.
    unsafe { gpu.export(ptr, len) }
}

fn refused(result: Result<MemoryExport, Error>, word: &str) {
    match result {
        Err(Error::NotExportable { reason, .. }) if reason.contains(word) => {}
        other => panic!("{other:?}"),
    }
}

/// Returns the `len` bytes at `ptr`, read by `gpu`.
fn bytes_at(gpu: &Gpu, ptr: DevicePtr, len: u64) -> Vec<u8> {
    let (back, stream) = (gpu.allocate(len).unwrap(), gpu.stream().unwrap());
    // SAFETY: the tests give live memory that nobody writes now; the copy is waited for.
    unsafe { stream.copy(back.ptr(), ptr, len).unwrap() };
    stream.synchronize().unwrap();
    let mut bytes = vec![0; len as usize];
    back.read(0, &mut bytes).unwrap();
    bytes
}

fn plain_allocations_have_a_legacy_handle() {
    let plain = Plain::allocate(0, 3000);
    let whole = export(&plain.gpu, plain.at(0), 3000).unwrap();
    assert!(matches!(whole.handle, ExportHandle::IpcHandle(_)), "{whole:?}");
    // The driver may have put the allocation into a block with others.
    assert!(whole.allocation_size >= whole.offset + 3000, "{whole:?}");
    assert_eq!(export(&plain.gpu, plain.at(1000), 8).unwrap().offset, whole.offset + 1000);
    let owner = Platform::Cuda.owner_of(plain.at(0)).unwrap().expect("an owner");
    assert_eq!(owner.id(), 0);
    refused(export(&plain.gpu, plain.at(0), whole.allocation_size + 1), "goes past");
}

fn access_to_plain_allocations_of_a_peer_can_be_repeated() {
    let plain = Plain::allocate(1, 4096);
    let gpu = Platform::Cuda.gpu(0).unwrap();
    // SAFETY: a live allocation of that device.
    let enable = || unsafe { gpu.enable_access(&plain.gpu, plain.at(0), 4096) };
    if !gpu.peer_access(&plain.gpu).unwrap().reachable {
        assert!(matches!(enable(), Err(Error::NoPeerAccess { .. })));
        return;
    }
    enable().unwrap();
    enable().unwrap();
    assert_eq!(Platform::Cuda.owner_of(plain.at(4095)).unwrap().expect("an owner").id(), 1);
    let stream = gpu.stream().unwrap();
    // SAFETY: inside the allocation; the work is waited for.
    unsafe { stream.write_u64(plain.at(8), 7).unwrap() };
    stream.synchronize().unwrap();
    assert_eq!(bytes_at(&plain.gpu, plain.at(8), 8), 7u64.to_ne_bytes());
}

fn a_range_over_several_allocations_is_refused_and_its_parts_are_exported() {
    const PART: usize = 4 << 20;
    let (gpu, driver) = device(0);
    let mut handle = 0;
    // SAFETY: `handle` is valid for the write, and there is a device 0.
    done(unsafe { (driver.device_get)(&raw mut handle, 0) });
    let location = Location { kind: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as u32, id: handle };
    let shareable = AllocationProp {
        kind: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED as u32,
        requested_handle_types: HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        location,
        ..AllocationProp::default()
    };
    let unshareable = AllocationProp { requested_handle_types: 0, ..shareable };
    let access = AccessDesc { location, flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE as u32 };
    let mut base: CUdeviceptr = 0;
    // SAFETY: all pointers are valid for the calls; the memory is mapped once and unmapped below.
    unsafe {
        done((driver.mem_address_reserve)(&raw mut base, 3 * PART, 0, 0, 0));
        for (index, prop) in [shareable, shareable, unshareable].iter().enumerate() {
            let mut physical = 0;
            done((driver.mem_create)(&raw mut physical, PART, prop, 0));
            done((driver.mem_map)(base + (index * PART) as u64, PART, 0, physical, 0));
            done((driver.mem_release)(physical));
        }
        done((driver.mem_set_access)(base, 3 * PART, &raw const access, 1));
    }
    let (first, size) = (DevicePtr(base), PART as u64);
    let (second, third) = (first.add(size), first.add(2 * size));
    let part = export(&gpu, second.add(4096), 100).unwrap();
    assert_eq!((part.offset, part.allocation_size), (4096, size));
    assert_eq!(export(&gpu, second, size).unwrap().offset, 0);
    refused(export(&gpu, DevicePtr(second.0 - 8), 16), "several allocations");
    refused(export(&gpu, third, 16), "shareable handle type");

    // The exported part is the second allocation, not the first.
    let stream = gpu.stream().unwrap();
    // SAFETY: in the memory mapped above; the work is waited for.
    unsafe { stream.fill(second.add(4096), 100, 42).unwrap() };
    stream.synchronize().unwrap();
    let imported = gpu.import(&part.handle, part.allocation_size).unwrap();
    assert_eq!(bytes_at(&gpu, imported.ptr().add(part.offset), 100), [42; 100]);
    let short = gpu.import(&part.handle, 4096);
    assert!(matches!(short, Err(Error::InvalidArgument(_))), "{:?}", short.err());
    let long = gpu.import(&part.handle, 4 * size);
    assert!(long.is_err(), "an allocation was mapped beyond its end");

    drop(imported);
    // SAFETY: mapped and reserved above, and nothing uses it any more.
    unsafe {
        for index in 0..3 {
            done((driver.mem_unmap)(base + index * size, PART));
        }
        done((driver.mem_address_free)(base, 3 * PART));
    }
}
