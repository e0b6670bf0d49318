//! Entry points of protection domains and memory regions.

use std::{
    ffi::{c_int, c_uint, c_void},
    ptr,
};

use mscclpp_verbs_sys as sys;

use crate::{
    device::{null, world_of},
    faults::Call,
    state::{Region, State},
};

pub(crate) unsafe extern "C" fn alloc_pd(context: *mut sys::ibv_context) -> *mut sys::ibv_pd {
    let mut state = world_of(context).lock();
    let device = state.device(context as usize);
    if let Some(errno) = state.faults.of(device, Call::AllocPd) {
        return null(errno);
    }
    let pd: *mut _ = Box::leak(Box::new(sys::ibv_pd { context, handle: state.number() }));
    state.domains.insert(pd as usize, context as usize);
    pd
}

pub(crate) unsafe extern "C" fn dealloc_pd(pd: *mut sys::ibv_pd) -> c_int {
    // SAFETY: domains of this table are never freed.
    let mut state = world_of(unsafe { (*pd).context }).lock();
    let domain = pd as usize;
    if !state.domains.contains_key(&domain) {
        return state.misused("a protection domain is given back twice");
    }
    let used = state.regions.values().any(|region| region.domain == domain);
    if used || state.qps.values().any(|qp| qp.domain == domain) {
        return libc::EBUSY;
    }
    state.domains.remove(&domain);
    0
}

pub(crate) unsafe extern "C" fn reg_mr(
    pd: *mut sys::ibv_pd,
    address: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut sys::ibv_mr {
    // SAFETY: the caller promises the same.
    unsafe { reg_mr_iova2(pd, address, length, address as u64, access as c_uint) }
}

pub(crate) unsafe extern "C" fn reg_mr_iova2(
    pd: *mut sys::ibv_pd,
    address: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut sys::ibv_mr {
    // SAFETY: domains of this table are never freed.
    let mut state = world_of(unsafe { (*pd).context }).lock();
    let region =
        Region { c: 0, domain: pd as usize, address: address as usize, iova, length, access, mapping: None };
    register(&mut state, pd, region)
}

/// Registers a dmabuf by mapping its descriptor, which may be a memfd.
pub(crate) unsafe extern "C" fn reg_dmabuf_mr(
    pd: *mut sys::ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut sys::ibv_mr {
    // SAFETY: domains of this table are never freed.
    let mut state = world_of(unsafe { (*pd).context }).lock();
    let size = offset as usize + length;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: this is a new mapping, where the system finds room.
    let mapped = unsafe { libc::mmap(ptr::null_mut(), size, protection, libc::MAP_SHARED, fd, 0) };
    if mapped == libc::MAP_FAILED {
        return ptr::null_mut();
    }
    let address = mapped as usize + offset as usize;
    let mapping = Some((mapped as usize, size));
    let region = Region { c: 0, domain: pd as usize, address, iova, length, access: access as u32, mapping };
    let registered = register(&mut state, pd, region);
    if registered.is_null() {
        // SAFETY: the mapping was made above and nobody else has it.
        unsafe { libc::munmap(mapped, size) };
    }
    registered
}

fn register(state: &mut State, pd: *mut sys::ibv_pd, mut region: Region) -> *mut sys::ibv_mr {
    let Some(&context) = state.domains.get(&(pd as usize)) else {
        return null(state.misused("memory is registered with a protection domain that was given back"));
    };
    let device = state.device(context);
    if let Some(errno) = state.faults.of(device, Call::RegMr) {
        return null(errno);
    }
    let remote = sys::IBV_ACCESS_REMOTE_WRITE | sys::IBV_ACCESS_REMOTE_ATOMIC;
    if region.access & remote != 0 && region.access & sys::IBV_ACCESS_LOCAL_WRITE == 0 {
        return null(state.refused("remote writes and atomics need local writes too"));
    }
    if region.length == 0 {
        return null(state.refused("a region has no bytes"));
    }
    let key = state.number();
    let mr: *mut _ = Box::leak(Box::new(sys::ibv_mr {
        context: context as *mut sys::ibv_context,
        pd,
        addr: region.address as *mut c_void,
        length: region.length,
        handle: key,
        lkey: key,
        rkey: key,
    }));
    region.c = mr as usize;
    state.regions.insert(key, region);
    mr
}

/// Deregisters memory. Waits, as adapters do, until nothing is on its way to it any more.
pub(crate) unsafe extern "C" fn dereg_mr(mr: *mut sys::ibv_mr) -> c_int {
    // SAFETY: regions of this table are never freed.
    let (context, key) = unsafe { ((*mr).context, (*mr).lkey) };
    let mut state = world_of(context).lock();
    if state.regions.get(&key).is_none_or(|region| region.c != mr as usize) {
        return state.misused("a region is deregistered twice");
    }
    state.land_everything();
    let mapping = state.regions.remove(&key).and_then(|region| region.mapping);
    if let Some((address, size)) = mapping {
        // SAFETY: the mapping belongs to this region, and no data is on its way to it.
        unsafe { libc::munmap(address as *mut c_void, size) };
    }
    0
}
