//! A device, one of its ports, and memory that it may reach.

use std::{
    ffi::{CStr, c_int, c_uint},
    ptr,
};

use mscclpp_verbs_sys::{self as sys, Verbs};

use super::{check, last};
use crate::Result;

/// A device that was opened, with a port of it.
pub(crate) struct Device {
    pub(super) verbs: &'static Verbs,
    pub(super) context: *mut sys::ibv_context,
    pub(super) pd: *mut sys::ibv_pd,
    pub(super) limits: sys::ibv_device_attr,
    pub(super) port: Port,
}

/// A port, and the address that it is to be reached by.
pub(super) struct Port {
    pub(super) number: u8,
    pub(super) attr: sys::ibv_port_attr,
    pub(super) gid: [u8; 16],
    pub(super) gid_index: u8,
}

impl Device {
    /// Opens the device of that name, to use that port and that entry of its table of addresses.
    pub(crate) fn open(name: &str, port: u8, gid_index: u8) -> Result<Self> {
        let verbs = Verbs::load()?;
        let context = open(verbs, name)?;
        // SAFETY: the context is open.
        let pd = unsafe { (verbs.alloc_pd)(context) };
        if pd.is_null() {
            return Err(last("ibv_alloc_pd"));
        }
        let mut limits = sys::ibv_device_attr::default();
        // SAFETY: the context is open, and the attributes are this function's.
        check("ibv_query_device", unsafe { (verbs.query_device)(context, &raw mut limits) })?;
        let mut attr = sys::ibv_port_attr::default();
        // SAFETY: as above.
        check("ibv_query_port", unsafe { verbs.query_port(context, port, &raw mut attr) })?;
        let mut gid = sys::ibv_gid::default();
        // SAFETY: as above.
        check("ibv_query_gid", unsafe { (verbs.query_gid)(context, port, gid_index.into(), &raw mut gid) })?;
        // SAFETY: an identifier is 16 bytes, whichever view is read.
        let port = Port { number: port, attr, gid: unsafe { gid.raw }, gid_index };
        Ok(Self { verbs, context, pd, limits, port })
    }

    /// How many requests a queue pair can have under way at most.
    pub(crate) fn depth(&self) -> u32 {
        u32::try_from(self.limits.max_qp_wr.min(self.limits.max_cqe)).unwrap_or(1)
    }

    pub(crate) fn has_atomics(&self) -> bool {
        self.limits.atomic_cap != sys::IBV_ATOMIC_NONE
    }
}

fn open(verbs: &'static Verbs, name: &str) -> Result<*mut sys::ibv_context> {
    let mut count = 0;
    // SAFETY: the count is this function's.
    let list = unsafe { (verbs.get_device_list)(&raw mut count) };
    if list.is_null() {
        return Err(last("ibv_get_device_list"));
    }
    let mut context = ptr::null_mut();
    for i in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has as many devices, each with a name, and is not freed yet.
        unsafe {
            let device = *list.add(i);
            if CStr::from_ptr((verbs.get_device_name)(device)).to_bytes() == name.as_bytes() {
                context = (verbs.open_device)(device);
                break;
            }
        }
    }
    let error = last(&format!("opening {name}"));
    // SAFETY: it came from this library, and is freed once.
    unsafe { (verbs.free_device_list)(list) };
    if context.is_null() { Err(error) } else { Ok(context) }
}

/// Memory that a device may read and write, and others through it. It stays to the end of the process.
#[derive(Clone, Copy)]
pub(crate) struct Registered {
    pub(super) start: u64,
    len: u64,
    pub(super) key: u32,
    pub(super) remote_key: u32,
}

impl Registered {
    /// Registers `len` bytes from `start`. With `relaxed`, data may pass data on its way there.
    ///
    /// # Safety
    /// It must be memory that stays, and is accessed with atomics alone.
    pub(crate) unsafe fn new(device: &Device, start: *const (), len: u64, relaxed: bool) -> Result<Self> {
        let start = start.expose_provenance();
        let access =
            sys::IBV_ACCESS_LOCAL_WRITE | sys::IBV_ACCESS_REMOTE_WRITE | sys::IBV_ACCESS_REMOTE_ATOMIC;
        // SAFETY: the protection domain is there, and the memory as the caller promises.
        let mr = unsafe {
            match device.verbs.reg_mr_iova2.filter(|_| relaxed) {
                Some(register) => {
                    let access: c_uint = access | sys::IBV_ACCESS_RELAXED_ORDERING;
                    register(
                        device.pd,
                        ptr::with_exposed_provenance_mut(start),
                        len as usize,
                        start as u64,
                        access,
                    )
                }
                None => (device.verbs.reg_mr)(
                    device.pd,
                    ptr::with_exposed_provenance_mut(start),
                    len as usize,
                    access as c_int,
                ),
            }
        };
        if mr.is_null() {
            return Err(last(&format!("registering {len} bytes")));
        }
        // SAFETY: it was just made.
        let (key, remote_key) = unsafe { ((*mr).lkey, (*mr).rkey) };
        Ok(Self { start: start as u64, len, key, remote_key })
    }

    /// Where `len` bytes from `offset` are.
    pub(super) fn place(&self, offset: u64, len: u32) -> sys::ibv_sge {
        assert!(offset + u64::from(len) <= self.len, "{len} bytes at {offset} of {}", self.len);
        sys::ibv_sge { addr: self.start + offset, length: len, lkey: self.key }
    }
}
