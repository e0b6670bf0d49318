//! Tests of buffers: bounds, odd ranges, freed memory.

use crate::device;
use std::sync::atomic::Ordering;

use mscclpp_gpu::{Error, KernelParam, OutOfBounds, Platform, SystemFailure};

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + 3) as u8).collect()
}

#[test]
fn fresh_memory_is_zeroed() {
    let gpu = device::gpu();
    for _ in 0..3 {
        let buffer = gpu.allocate(10_000).unwrap();
        let mut back = vec![1; 10_000];
        buffer.read(0, &mut back).unwrap();
        assert!(back.iter().all(|b| *b == 0));
        // If the next round gets the same memory, it has to be cleared.
        buffer.fill(0, 10_000, 0xff).unwrap();
    }
}

#[test]
fn odd_offsets_and_lengths_touch_their_range_alone() {
    let buffer = device::gpu().allocate(256).unwrap();
    for offset in [0usize, 1, 3, 7, 8, 13] {
        for len in [0usize, 1, 5, 8, 9, 31, 64] {
            buffer.fill(0, 256, 0xee).unwrap();
            let data = bytes(len);
            buffer.write(offset as u64, &data).unwrap();
            let mut all = [0; 256];
            buffer.read(0, &mut all).unwrap();
            let mut expected = [0xee; 256];
            expected[offset..offset + len].copy_from_slice(&data);
            assert_eq!(all, expected, "write of {len} bytes at {offset}");

            let mut part = vec![0; len];
            buffer.read(offset as u64, &mut part).unwrap();
            assert_eq!(part, data, "read of {len} bytes at {offset}");

            buffer.fill(offset as u64, len as u64, 0x11).unwrap();
            buffer.read(0, &mut all).unwrap();
            expected[offset..offset + len].fill(0x11);
            assert_eq!(all, expected, "fill of {len} bytes at {offset}");
        }
    }
}

#[test]
fn ranges_past_the_end_are_errors_that_name_them() {
    let buffer = device::gpu().allocate(100).unwrap();
    let past = |result: Result<(), Error>, offset: u64, len: u64| match result {
        Err(Error::OutOfBounds(OutOfBounds { offset: o, len: l, size: 100, .. }))
            if (o, l) == (offset, len) => {}
        other => panic!("{offset} + {len}: {other:?}"),
    };
    past(buffer.write(93, &[0; 8]), 93, 8);
    past(buffer.read(101, &mut []), 101, 0);
    past(buffer.read(u64::MAX, &mut [0; 2]), u64::MAX, 2);
    past(buffer.fill(0, 101, 0), 0, 101);
    past(buffer.fill(1, u64::MAX, 0), 1, u64::MAX);
    buffer.write(92, &[0; 8]).unwrap();
    buffer.read(100, &mut []).unwrap();
}

#[test]
fn suspended_memory_is_the_devices_and_comes_back_as_zeros_at_its_place() {
    let gpu = device::gpu();
    let buffer = gpu.allocate(64 << 20).unwrap();
    if !buffer.can_suspend() {
        eprintln!("NOT TESTED: this device has no virtual memory");
        return;
    }
    let (at, free) = (buffer.ptr(), || gpu.memory_info().unwrap().free);
    for _ in 0..2 {
        buffer.fill(0, 64 << 20, 7).unwrap();
        let before = free();
        // SAFETY: nothing accesses the memory until it is resumed. It may be suspended twice.
        unsafe {
            buffer.suspend().unwrap();
            buffer.suspend().unwrap();
        }
        // Other tests take little.
        assert!(free() >= before + (32 << 20), "{before} and then {}", free());
        buffer.resume().unwrap();
        buffer.resume().unwrap();
        let mut words = [1u64; 3];
        buffer.read_params((64 << 20) - 24, &mut words).unwrap();
        assert_eq!((buffer.ptr(), words), (at, [0; 3]));
        buffer.write_params(8, &[5u64]).unwrap();
    }
    // SAFETY: it is dropped so.
    unsafe { buffer.suspend().unwrap() };
}

#[test]
fn sizes_that_cannot_be_are_errors() {
    let gpu = device::gpu();
    assert!(matches!(gpu.allocate(0), Err(Error::InvalidArgument(_))));
    assert!(matches!(gpu.allocate_pinned(0), Err(Error::InvalidArgument(_))));
    for bytes in [u64::MAX, u64::MAX - 4096, 1 << 62] {
        assert!(matches!(gpu.allocate(bytes), Err(Error::System { .. } | Error::Driver { .. })), "{bytes}");
    }
    // The device still works, and the failed allocation does not count.
    gpu.allocate(4096).unwrap();
}

#[test]
fn memory_info_counts_what_is_allocated() {
    // The test has a device of its own, because other tests allocate on device 0.
    let gpu = Platform::Sim.gpu(7).unwrap();
    let before = gpu.memory_info().unwrap();
    let buffer = gpu.allocate(1 << 20).unwrap();
    let clone = buffer.clone();
    drop(buffer);
    assert_eq!(gpu.memory_info().unwrap().free, before.free - (1 << 20));
    drop(clone);
    assert_eq!(gpu.memory_info().unwrap(), before);
    let Err(Error::System(SystemFailure { source, .. })) = gpu.allocate(before.total + 1) else {
        panic!("more than there is")
    };
    assert!(source.to_string().contains("out of memory"), "{source}");
    assert_eq!(gpu.memory_info().unwrap(), before);
}

#[test]
fn pinned_memory_is_seen_by_host_and_device() {
    let gpu = device::gpu();
    let pinned = gpu.allocate_pinned(64).unwrap();
    assert_eq!(pinned.word(56).unwrap().load(Ordering::Relaxed), 0);
    pinned.word(8).unwrap().store(0x0123_4567_89ab_cdef, Ordering::Relaxed);

    let buffer = gpu.allocate(64).unwrap();
    let stream = gpu.stream().unwrap();
    // SAFETY: both live until the stream is synchronised, and nothing else touches them.
    unsafe {
        stream.copy(buffer.ptr(), pinned.ptr().add(8), 8).unwrap();
        stream.copy(pinned.ptr().add(32), buffer.ptr(), 8).unwrap();
    }
    stream.synchronize().unwrap();
    assert_eq!(pinned.word(32).unwrap().load(Ordering::Relaxed), 0x0123_4567_89ab_cdef);
    assert_eq!(pinned.word(40).unwrap().load(Ordering::Relaxed), 0);

    assert!(matches!(pinned.word(57), Err(Error::OutOfBounds { .. })));
    assert!(matches!(pinned.word(u64::MAX), Err(Error::OutOfBounds { .. })));
    assert!(matches!(pinned.word(4), Err(Error::InvalidArgument(_))));
    assert!(matches!(pinned.word(2), Err(Error::InvalidArgument(_))));
}

#[test]
fn the_owner_of_memory_is_found_while_it_lives() {
    let platform = device::platform();
    let gpu = device::gpu();
    let buffer = gpu.allocate(4096).unwrap();
    for offset in [0, 1, 4095] {
        let owner = platform.owner_of(buffer.ptr().add(offset)).unwrap().expect("an owner");
        assert_eq!(owner.properties().uuid, gpu.properties().uuid);
    }
    let here = 5u64;
    assert!(platform.owner_of(mscclpp_gpu::DevicePtr::from_ptr(&raw const here)).unwrap().is_none());
}

#[test]
fn freed_foreign_and_straddling_memory_cannot_be_exported() {
    // Hardly any other test allocates on this device, so that none gets the freed address.
    let gpu = Platform::Sim.gpu(3).unwrap();
    let buffer = gpu.allocate(8192).unwrap();
    let (ptr, size) = (buffer.ptr(), 8192);
    let export = |ptr, len| {
        // SAFETY: the simulated platform looks the range up and does not touch it.
        unsafe { gpu.export(ptr, len) }
    };
    let whole = export(ptr, size).unwrap();
    assert_eq!((whole.allocation_size, whole.offset), (size, 0));
    let part = export(ptr.add(5000), 100).unwrap();
    assert_eq!((part.allocation_size, part.offset), (size, 5000));

    let refused = |ptr, len, why: &str| match export(ptr, len) {
        Err(Error::NotExportable { address, len: l, reason }) => {
            assert_eq!((address, l), (ptr.0, len));
            assert!(reason.contains(why), "{reason}");
        }
        other => panic!("{other:?}"),
    };
    refused(ptr, size + 1, "past the end");
    refused(ptr.add(5000), size - 5000 + 1, "past the end");
    refused(ptr.add(8191), u64::MAX, "past the end");
    refused(ptr.add(size), 0, "no allocation");
    refused(gpu.allocate_pinned(64).unwrap().ptr(), 64, "no allocation");
    refused(mscclpp_gpu::DevicePtr::NULL, 1, "no allocation");
    drop(buffer);
    refused(ptr, size, "no allocation");
}

/// Memory at the same addresses is another allocation after it was freed and allocated again.
#[test]
fn an_allocation_is_found_by_its_addresses_and_told_from_the_next_one_there() {
    let gpu = device::gpu();
    let first = gpu.allocate(5000).unwrap();
    let allocation = gpu.allocation(first.ptr().add(4999)).unwrap();
    assert!(allocation.ptr() == first.ptr() && allocation.len() >= 5000, "{allocation:?}");
    assert_eq!(allocation, gpu.allocation(first.ptr()).unwrap());
    let other = gpu.allocate(5000).unwrap();
    assert_ne!(allocation, gpu.allocation(other.ptr()).unwrap());
    let at = first.ptr();
    drop((first, other));
    let mut kept = Vec::new();
    for _ in 0..100 {
        let next = gpu.allocate(5000).unwrap();
        let is_there = next.ptr() == at;
        assert_ne!(allocation, gpu.allocation(next.ptr()).unwrap());
        kept.push(next);
        if is_there {
            break;
        }
    }
    let error = gpu.allocation(mscclpp_gpu::DevicePtr::NULL).unwrap_err();
    assert!(matches!(error, Error::NotExportable { .. } | Error::Driver { .. }), "{error:?}");
}

#[test]
fn devices_are_found_by_what_identifies_them() {
    let gpu = device::gpu();
    let platform = gpu.platform();
    for id in 0..platform.device_count().unwrap() {
        let uuid = platform.gpu(id).unwrap().properties().uuid;
        assert_eq!(platform.find(&uuid).unwrap(), Some(id));
        let asked = gpu.peer_access_by_uuid(&uuid).unwrap();
        assert_eq!(asked, Some(gpu.peer_access(&platform.gpu(id).unwrap()).unwrap()));
    }
    let unknown = [0xff; 16];
    assert_eq!((platform.find(&unknown).unwrap(), gpu.peer_access_by_uuid(&unknown).unwrap()), (None, None));
}

#[derive(Clone, Copy, KernelParam)]
#[repr(transparent)]
pub(crate) struct Id(pub(crate) u32);

/// The struct has everything that may stand before a type, and signs in types.
#[derive(Clone, Copy, KernelParam)]
#[repr(C, align(8))]
#[expect(unreachable_pub, reason = "the macro is for public structs too")]
pub struct Parts {
    /// A pointer.
    pub(crate) all: *mut ::core::option::Option<(u8, u8)>,
    ids: [Id; Self::MOST],
}

/// The struct has `pub` in front of a bracketed type.
#[derive(Clone, Copy, KernelParam)]
#[repr(C)]
#[expect(unreachable_pub, reason = "the macro is for public structs too")]
pub struct Key(pub [u8; 16]);

/// The struct has a type with an arrow.
#[derive(Clone, Copy, KernelParam)]
#[repr(C)]
struct Called {
    by: *const fn(u8) -> u8,
    number: u64,
}

impl Parts {
    const MOST: usize = 2;
}

#[test]
fn a_parameter_is_derived_for_fields_of_all_kinds() {
    let parts = Parts { all: std::ptr::null_mut(), ids: [Id(1), Id(2)] };
    assert_eq!(parts.to_bytes().len(), 16);
    assert_eq!(size_of::<Parts>(), 16);
    assert_eq!(Key([7; 16]).to_bytes(), [7; 16]);
    let called = Called { by: std::ptr::null(), number: u64::MAX };
    assert!(called.by.is_null() && called.to_bytes()[8..] == called.number.to_ne_bytes());
}
