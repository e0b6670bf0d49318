//! What only shows on a GPU and cannot be reached through the public API: memory that others allocated.
//!
//! `cargo test -p mscclpp-gpu --features cuda-12040 --lib -- --ignored`

use mscclpp_gpu_sys::cuda::{
    AllocationProp, CUdeviceptr, CUmemAllocationType, CUstreamCaptureMode, CuResult, Location,
};

use super::{device::Device, virtual_memory::access_from};
use crate::{DevicePtr, Error, MemoryExport, backend::DeviceBackend, memory::ExportHandle};

fn gpu() -> &'static Device {
    super::device(0).unwrap()
}

fn export(device: &'static Device, at: u64, len: u64) -> Result<MemoryExport, Error> {
    // SAFETY: every test gives a range of memory that it made and has not freed.
    unsafe { DeviceBackend::export(&device, DevicePtr(at), len) }
}

fn refused(result: Result<MemoryExport, Error>, word: &str) {
    match result {
        Err(Error::NotExportable { reason, .. }) if reason.contains(word) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn plain_allocations_have_a_legacy_handle() {
    let device = gpu();
    let driver = device.driver();
    let _entered = device.context().enter().unwrap();
    let mut address: CUdeviceptr = 0;
    // SAFETY: `address` is valid for the write; freed below.
    assert_eq!(unsafe { (driver.mem_alloc)(&raw mut address, 3000) }, CuResult::SUCCESS);
    let whole = export(device, address, 3000).unwrap();
    assert!(matches!(whole.handle, ExportHandle::IpcHandle(_)), "{whole:?}");
    assert_eq!(whole.offset, 0);
    assert!(whole.allocation_size >= 3000, "{whole:?}");
    assert_eq!(export(device, address + 1000, 8).unwrap().offset, 1000);
    assert_eq!(super::owner_of(DevicePtr(address)).unwrap(), Some(0));
    refused(export(device, address, whole.allocation_size + 1), "goes past");
    // SAFETY: made above.
    assert_eq!(unsafe { (driver.mem_free)(address) }, CuResult::SUCCESS);
}

#[test]
#[ignore = "needs two CUDA devices"]
fn access_to_plain_allocations_of_a_peer_can_be_repeated() {
    let (device, owner) = (gpu(), super::device(1).unwrap());
    let driver = owner.driver();
    let mut address: CUdeviceptr = 0;
    {
        let _entered = owner.context().enter().unwrap();
        // SAFETY: `address` is valid for the write; freed below.
        assert_eq!(unsafe { (driver.mem_alloc)(&raw mut address, 4096) }, CuResult::SUCCESS);
    }
    for _ in 0..2 {
        // SAFETY: a live allocation of `owner`.
        unsafe { super::export::enable_access(device, owner, DevicePtr(address), 4096).unwrap() };
    }
    assert_eq!(super::owner_of(DevicePtr(address)).unwrap(), Some(1));
    let stream = device.create_stream().unwrap();
    let mut word = [0; 8];
    // SAFETY: inside the allocation; the work is waited for.
    unsafe {
        stream.write_u64(DevicePtr(address + 8), 7).unwrap();
        stream.synchronize().unwrap();
        owner.read(DevicePtr(address + 8), &mut word).unwrap();
    }
    assert_eq!(u64::from_ne_bytes(word), 7);
    let _entered = owner.context().enter().unwrap();
    // SAFETY: made above.
    assert_eq!(unsafe { (driver.mem_free)(address) }, CuResult::SUCCESS);
}

#[test]
#[ignore = "needs a CUDA device"]
fn a_range_over_several_allocations_is_refused_and_its_parts_are_exported() {
    let device = gpu();
    let driver = device.driver();
    let _entered = device.context().enter().unwrap();
    const PART: usize = 4 << 20;
    let prop = AllocationProp {
        kind: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED as u32,
        requested_handle_types: mscclpp_gpu_sys::cuda::HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        location: Location { kind: 1, id: device.handle() },
        ..AllocationProp::default()
    };
    let unshareable = AllocationProp { requested_handle_types: 0, ..prop };
    let access = access_from(device.handle());
    let mut base: CUdeviceptr = 0;
    // SAFETY: all pointers are valid for the calls; the memory is mapped once and unmapped below.
    unsafe {
        assert_eq!((driver.mem_address_reserve)(&raw mut base, 3 * PART, 0, 0, 0), CuResult::SUCCESS);
        for (index, prop) in [prop, prop, unshareable].iter().enumerate() {
            let mut physical = 0;
            assert_eq!((driver.mem_create)(&raw mut physical, PART, prop, 0), CuResult::SUCCESS);
            let at = base + (index * PART) as u64;
            assert_eq!((driver.mem_map)(at, PART, 0, physical, 0), CuResult::SUCCESS);
            assert_eq!((driver.mem_release)(physical), CuResult::SUCCESS);
        }
        assert_eq!((driver.mem_set_access)(base, 3 * PART, &raw const access, 1), CuResult::SUCCESS);
    }
    let second = base + PART as u64;
    let part = export(device, second + 4096, 100).unwrap();
    assert_eq!((part.offset, part.allocation_size), (4096, PART as u64));
    assert_eq!(export(device, second, PART as u64).unwrap().offset, 0);
    refused(export(device, second - 8, 16), "several allocations");
    refused(export(device, base + 2 * PART as u64, 16), "shareable handle type");

    // The exported part is the second allocation, not the first.
    // SAFETY: ranges of the memory mapped above.
    unsafe { device.write(DevicePtr(second + 4096), &[42; 100]).unwrap() };
    let imported = device.import(&part.handle, part.allocation_size).unwrap();
    let mut found = [0; 100];
    // SAFETY: inside the imported allocation.
    unsafe { device.read(imported.ptr().add(part.offset), &mut found).unwrap() };
    assert_eq!(found, [42; 100]);
    let short = device.import(&part.handle, 4096);
    assert!(matches!(short.map(|_| ()), Err(Error::InvalidArgument(_))));
    let long = device.import(&part.handle, 4 * PART as u64);
    assert!(long.is_err(), "an allocation was mapped beyond its end");

    drop(imported);
    // SAFETY: mapped and reserved above.
    unsafe {
        for index in 0..3 {
            assert_eq!((driver.mem_unmap)(base + (index * PART) as u64, PART), CuResult::SUCCESS);
        }
        assert_eq!((driver.mem_address_free)(base, 3 * PART), CuResult::SUCCESS);
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn descriptors_and_memory_stay_flat() {
    let device = gpu();
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let round = || {
        let memory = device.allocate(1 << 20).unwrap();
        let exported = export(device, memory.ptr().0, 1 << 20).unwrap();
        if !matches!(exported.handle, ExportHandle::IpcHandle(_)) {
            device.import(&exported.handle, exported.allocation_size).unwrap();
        }
        let stream = device.create_stream().unwrap();
        let event = device.create_event(true).unwrap();
        stream.record(&event).unwrap();
        stream.synchronize().unwrap();
        device.allocate_pinned(4096).unwrap();
    };
    (0..10).for_each(|_| round());
    let before = (descriptors(), device.memory_info().unwrap().free);
    (0..300).for_each(|_| round());
    assert_eq!(before, (descriptors(), device.memory_info().unwrap().free));
}

#[test]
#[ignore = "needs a CUDA device"]
fn the_current_context_of_the_thread_comes_back() {
    let device = gpu();
    std::thread::spawn(move || {
        let driver = device.driver();
        let current = || {
            let mut context = std::ptr::null_mut();
            // SAFETY: `context` is valid for the write.
            assert_eq!(unsafe { (driver.ctx_get_current)(&raw mut context) }, CuResult::SUCCESS);
            context
        };
        assert!(current().is_null());
        device.allocate(8).unwrap();
        // A thread without a context keeps the first it needed.
        assert_eq!(current(), device.context().raw());
        if super::device_count().unwrap() > 1 {
            super::device(1).unwrap().allocate(8).unwrap();
            assert_eq!(current(), device.context().raw());
        }
    })
    .join()
    .unwrap();
}

/// As others capture: so that no thread may do what could break a capture. One of one's own has been taken out of that.
#[test]
#[ignore = "needs a CUDA device"]
fn threads_of_ones_own_keep_out_of_everybodys_captures() {
    let device = gpu();
    let driver = device.driver();
    let captured = device.create_stream().unwrap();
    let (from, to) = (device.allocate(4096).unwrap(), device.allocate(4096).unwrap());
    let (from, to) = (from.ptr(), to.ptr());
    let during_a_capture = |work: fn(&'static Device, DevicePtr, DevicePtr)| {
        let _bound = device.context().bind().unwrap();
        let raw = captured.raw().cast();
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL as u32;
        // SAFETY: the stream lives.
        assert_eq!(unsafe { (driver.stream_begin_capture)(raw, mode) }, CuResult::SUCCESS);
        std::thread::spawn(move || work(device, from, to)).join().unwrap();
        captured.end_capture().map(|_graph| ())
    };
    // Any other thread is refused.
    let _ = during_a_capture(|device, _, _| {
        device.context().set_current().unwrap();
        let mut address: CUdeviceptr = 0;
        // SAFETY: `address` is valid for the write.
        let refused = unsafe { (device.driver().mem_alloc)(&raw mut address, 4096) };
        assert_eq!(refused, CuResult::STREAM_CAPTURE_UNSUPPORTED);
    });
    during_a_capture(|device, from, to| {
        DeviceBackend::adopt_thread(&device).unwrap();
        let mut address: CUdeviceptr = 0;
        // SAFETY: `address` is valid for the write; what was made is freed.
        unsafe {
            assert_eq!((device.driver().mem_alloc)(&raw mut address, 4096), CuResult::SUCCESS);
            assert_eq!((device.driver().mem_free)(address), CuResult::SUCCESS);
        }
        // What a proxy does.
        let (stream, event) = (device.create_stream().unwrap(), device.create_event(false).unwrap());
        // SAFETY: live memory; the work is waited for.
        unsafe {
            stream.copy(to, from, 4096).unwrap();
            stream.write_u64(to, 7).unwrap();
        }
        stream.record(&event).unwrap();
        while !event.query().unwrap() {
            std::thread::yield_now();
        }
        assert!(stream.query().unwrap());
    })
    .unwrap();
}
