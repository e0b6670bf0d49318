//! An opened device, its ports, and what it reports about itself.

use std::{
    ffi::{CStr, c_int},
    fs,
    os::fd::{AsFd, BorrowedFd},
    path::PathBuf,
    ptr::NonNull,
    sync::Arc,
};

use mscclpp_verbs_sys as sys;
use sys::Verbs;

use super::{
    failed, last_errno,
    list::{each_device, list},
    make_nonblocking,
};
use crate::{
    error::{Error, Result},
    gid::{self, Gid, GidEntry, GidKind},
};

/// An opened device, with a protection domain for everything that is made on it.
pub(crate) struct Adapter {
    pub(crate) verbs: &'static Verbs,
    pub(super) context: NonNull<sys::ibv_context>,
    pub(super) pd: NonNull<sys::ibv_pd>,
    name: String,
    limits: Limits,
    /// The path of the device in the system, which exists as long as the device does; `None` for a device that the
    /// system does not know.
    node: Option<PathBuf>,
}

// SAFETY: the library's contexts and protection domains may be used by any thread, several at once.
unsafe impl Send for Adapter {}
// SAFETY: the same as for `Send`.
unsafe impl Sync for Adapter {}

/// The capabilities of a device, as far as this crate needs them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Limits {
    pub(crate) atomics: bool,
    pub(crate) max_qp_wr: u32,
    pub(crate) max_cqe: u32,
    pub(crate) ports: u8,
    /// The most atomics of its peer that a queue pair of this device carries out at once; the next field is the most
    /// that it may have under way.
    pub(crate) max_rd_atom: u8,
    pub(crate) max_init_rd_atom: u8,
}

/// A port that queue pairs use, and the entry of its GID table.
#[derive(Debug, Clone)]
pub(crate) struct Port {
    pub(crate) number: u8,
    pub(crate) lid: u16,
    pub(crate) mtu: u32,
    pub(crate) is_ethernet: bool,
    pub(crate) needs_grh: bool,
    pub(crate) gid: GidEntry,
}

/// An event that the device may report at any time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AsyncEvent {
    PortDown(u8),
    PortUp(u8),
    /// The whole device has failed.
    DeviceFailed(String),
    /// The queue pair with this number has failed.
    QueuePairFailed(u32, String),
    /// An event that needs no action here.
    Other(String),
}

impl Adapter {
    pub(crate) fn open(verbs: &'static Verbs, name: &str) -> Result<Arc<Self>> {
        let mut opened = None;
        each_device(verbs, |found, device| {
            if found != name {
                return false;
            }
            // SAFETY: the device is of the list that is being visited.
            let context = NonNull::new(unsafe { (verbs.open_device)(device) });
            opened = Some(context.ok_or_else(|| failed(name, "ibv_open_device", last_errno())));
            true
        })?;
        let Some(context) = opened else {
            let known = list(verbs)?.into_iter().map(|info| info.name).collect::<Vec<_>>().join(", ");
            return Err(Error::NoDevice { wanted: name.to_owned(), found: format!("there are: {known}") });
        };
        let context = context?;
        // SAFETY: the context was just opened.
        let Some(pd) = NonNull::new(unsafe { (verbs.alloc_pd)(context.as_ptr()) }) else {
            let errno = last_errno();
            // SAFETY: nothing else was made on the context.
            unsafe { (verbs.close_device)(context.as_ptr()) };
            return Err(failed(name, "ibv_alloc_pd", errno));
        };
        // SAFETY: the context is open, and has its device, whose path ends with a zero, inside it.
        let node = unsafe { CStr::from_ptr((*(*context.as_ptr()).device).dev_path.as_ptr()) };
        let node = PathBuf::from(node.to_string_lossy().into_owned());
        let node = Some(node).filter(|node| node.exists());
        let mut this = Self { verbs, context, pd, name: name.to_owned(), limits: Limits::default(), node };
        this.limits = this.query_limits()?;
        make_nonblocking(name, this.as_fd(), "making its events not block")?;
        Ok(Arc::new(this))
    }

    fn query_limits(&self) -> Result<Limits> {
        let mut attr = sys::ibv_device_attr::default();
        // SAFETY: the context is open, and the attributes are this function's.
        let errno = unsafe { (self.verbs.query_device)(self.context.as_ptr(), &raw mut attr) };
        self.check("ibv_query_device", errno)?;
        let count = |n: c_int| u32::try_from(n).unwrap_or(0);
        let byte = |n: c_int| u8::try_from(n).unwrap_or(if n < 0 { 0 } else { u8::MAX });
        Ok(Limits {
            atomics: attr.atomic_cap != sys::IBV_ATOMIC_NONE,
            max_qp_wr: count(attr.max_qp_wr),
            max_cqe: count(attr.max_cqe),
            ports: attr.phys_port_cnt,
            max_rd_atom: byte(attr.max_qp_rd_atom),
            max_init_rd_atom: byte(attr.max_qp_init_rd_atom),
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether the device was taken away. Some drivers report that by an event; others wait until nobody uses
    /// the device any more.
    pub(crate) fn is_removed(&self) -> bool {
        self.node.as_ref().is_some_and(|node| !node.exists())
    }

    /// Returns whether the library can register dmabufs.
    pub(crate) fn maps_dmabufs(&self) -> bool {
        self.verbs.reg_dmabuf_mr.is_some()
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    pub(super) fn check(&self, call: impl Into<String>, errno: c_int) -> Result<()> {
        match errno {
            0 => Ok(()),
            // Some providers return -1 and leave the error in `errno`.
            -1 => Err(failed(&self.name, call, last_errno())),
            errno => Err(failed(&self.name, call, errno.abs())),
        }
    }

    /// Returns the error of a call that returned a null pointer.
    pub(super) fn null(&self, call: impl Into<String>) -> Error {
        failed(&self.name, call, last_errno())
    }

    pub(crate) fn query_port(&self, number: u8) -> Result<sys::ibv_port_attr> {
        let mut attr = sys::ibv_port_attr::default();
        // SAFETY: the context is open, and the attributes are this function's.
        let errno = unsafe { self.verbs.query_port(self.context.as_ptr(), number, &raw mut attr) };
        self.check(format!("ibv_query_port of port {number}"), errno)?;
        Ok(attr)
    }

    /// Returns the library's name for the state of a port.
    pub(crate) fn state(&self, attr: &sys::ibv_port_attr) -> String {
        // SAFETY: the library gives a text of its own for every number.
        let state = unsafe { CStr::from_ptr((self.verbs.port_state_str)(attr.state)) };
        state.to_string_lossy().into_owned()
    }

    /// Returns whether the port can be used now.
    pub(crate) fn is_active(&self, number: u8) -> bool {
        self.query_port(number).is_ok_and(|attr| attr.state == sys::IBV_PORT_ACTIVE)
    }

    /// Returns the port with this number, or the first active one if `number` is `None`. Its GID is the one with
    /// index `gid_index`, or the best one if that is `None`.
    pub(crate) fn port(&self, number: Option<u32>, gid_index: Option<u32>) -> Result<Port> {
        let no_port = |reason: String| Error::NoPort { device: self.name.clone(), reason };
        let numbers: Vec<u8> = match number {
            Some(n) => match u8::try_from(n) {
                Ok(n) if (1..=self.limits.ports).contains(&n) => vec![n],
                _ => return Err(no_port(format!("it has ports 1 to {}, not {n}", self.limits.ports))),
            },
            None => (1..=self.limits.ports).collect(),
        };
        let mut states = Vec::new();
        for number in numbers {
            let attr = self.query_port(number)?;
            if attr.state == sys::IBV_PORT_ACTIVE {
                return self.describe(number, &attr, gid_index);
            }
            states.push(format!("port {number} is {}", self.state(&attr)));
        }
        Err(no_port(format!("{}; is the cable plugged in, the interface up?", states.join(", "))))
    }

    fn describe(&self, number: u8, attr: &sys::ibv_port_attr, gid_index: Option<u32>) -> Result<Port> {
        let is_ethernet = attr.link_layer == sys::IBV_LINK_LAYER_ETHERNET as u8;
        let entries = self.gids(number, attr)?;
        let no_gid = |wanted: String| Error::NoGid {
            wanted,
            device: self.name.clone(),
            port: number,
            valid: match entries.is_empty() {
                true => "its table is empty: give the interface behind it an address".to_owned(),
                false => format!(
                    "there are {}",
                    entries.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
                ),
            },
        };
        let gid = match gid_index {
            Some(index) => {
                entries.iter().find(|entry| entry.index == index).ok_or_else(|| no_gid(index.to_string()))?
            }
            None => gid::choose(&entries, is_ethernet).ok_or_else(|| no_gid("(any)".to_owned()))?,
        };
        Ok(Port {
            number,
            lid: attr.lid,
            mtu: attr.active_mtu,
            is_ethernet,
            needs_grh: is_ethernet || attr.flags & sys::IBV_QPF_GRH_REQUIRED != 0,
            gid: gid.clone(),
        })
    }

    /// Returns the entries of a port's GID table that hold a GID.
    pub(crate) fn gids(&self, port: u8, attr: &sys::ibv_port_attr) -> Result<Vec<GidEntry>> {
        if let Some(query) = self.verbs.query_gid_table {
            let most = usize::try_from(attr.gid_tbl_len).unwrap_or(0) * usize::from(self.limits.ports.max(1));
            let mut entries = vec![sys::ibv_gid_entry::default(); most.max(1)];
            // SAFETY: the call is given the true length of the table.
            let count = unsafe {
                query(
                    self.context.as_ptr(),
                    entries.as_mut_ptr(),
                    entries.len(),
                    0,
                    size_of::<sys::ibv_gid_entry>(),
                )
            };
            if count >= 0 {
                entries.truncate(count as usize);
                let of_port = entries.iter().filter(|entry| entry.port_num == u32::from(port));
                return Ok(of_port.map(|entry| self.entry(port, entry)).collect());
            }
            // The kernel does not know the call, so the older one is used.
        }
        let mut found = Vec::new();
        for index in 0..attr.gid_tbl_len {
            let mut raw = sys::ibv_gid::default();
            // SAFETY: the context is open, and the identifier is this function's.
            let errno = unsafe { (self.verbs.query_gid)(self.context.as_ptr(), port, index, &raw mut raw) };
            // SAFETY: an identifier is 16 bytes, whichever view is read.
            let gid = Gid(unsafe { raw.raw });
            if errno == 0 && gid.0 != [0; 16] {
                let index = index as u32;
                found.push(GidEntry {
                    index,
                    gid,
                    kind: self.kind_by_name(port, index),
                    reachable: self.sees(port, index, None),
                });
            }
        }
        Ok(found)
    }

    fn entry(&self, port: u8, entry: &sys::ibv_gid_entry) -> GidEntry {
        // SAFETY: an identifier is 16 bytes, whichever view is read.
        let gid = Gid(unsafe { entry.gid.raw });
        let kind = GidKind::from_number(entry.gid_type);
        GidEntry {
            index: entry.gid_index,
            gid,
            kind,
            reachable: self.sees(port, entry.gid_index, Some(entry.ndev_ifindex)),
        }
    }

    /// Returns the type of an entry, which the kernel writes into a file.
    fn kind_by_name(&self, port: u8, index: u32) -> GidKind {
        let path = format!("/sys/class/infiniband/{}/ports/{port}/gid_attrs/types/{index}", self.name);
        match fs::read_to_string(path).as_deref().map(str::trim) {
            Ok("RoCE v2") => GidKind::RoceV2,
            Ok("IB/RoCE v1") => GidKind::RoceV1,
            _ => GidKind::Unknown,
        }
    }

    /// Returns whether the interface behind an entry is in this network namespace.
    fn sees(&self, port: u8, index: u32, interface: Option<u32>) -> Option<bool> {
        match interface {
            Some(0) => None,
            Some(number) => {
                let mut name = [0; libc::IF_NAMESIZE];
                // SAFETY: the name has the room that the call asks for.
                Some(!unsafe { libc::if_indextoname(number, name.as_mut_ptr()) }.is_null())
            }
            None => {
                let path =
                    format!("/sys/class/infiniband/{}/ports/{port}/gid_attrs/ndevs/{index}", self.name);
                let name = fs::read_to_string(path).ok()?;
                Some(PathBuf::from("/sys/class/net").join(name.trim()).exists())
            }
        }
    }

    /// Takes the next event, if there is one. Does not block.
    pub(crate) fn next_event(&self) -> Option<AsyncEvent> {
        let mut event = sys::ibv_async_event::default();
        // SAFETY: the context is open, its descriptor does not block, and the event is this function's.
        if unsafe { (self.verbs.get_async_event)(self.context.as_ptr(), &raw mut event) } != 0 {
            return None;
        }
        // SAFETY: the library gives a text of its own for every number.
        let text = unsafe { CStr::from_ptr((self.verbs.event_type_str)(event.event_type)) };
        let text = text.to_string_lossy().into_owned();
        let port = || {
            // SAFETY: an event of a port names one.
            u8::try_from(unsafe { event.element.port_num }).unwrap_or(0)
        };
        let queue_pair = || {
            // SAFETY: an event of a queue pair names one, which is not destroyed before the event is acknowledged below.
            unsafe { (*event.element.qp).qp_num }
        };
        let seen = match event.event_type {
            sys::IBV_EVENT_PORT_ERR => AsyncEvent::PortDown(port()),
            sys::IBV_EVENT_PORT_ACTIVE => AsyncEvent::PortUp(port()),
            // Completion queues have room for all their requests, so only a fault of the device or its driver fails them or work
            // queues.
            sys::IBV_EVENT_DEVICE_FATAL | sys::IBV_EVENT_CQ_ERR | sys::IBV_EVENT_WQ_FATAL => {
                AsyncEvent::DeviceFailed(text)
            }
            sys::IBV_EVENT_QP_FATAL | sys::IBV_EVENT_QP_REQ_ERR | sys::IBV_EVENT_QP_ACCESS_ERR => {
                AsyncEvent::QueuePairFailed(queue_pair(), text)
            }
            _ => AsyncEvent::Other(text),
        };
        // SAFETY: the event came from the call above, and is acknowledged once.
        unsafe { (self.verbs.ack_async_event)(&raw mut event) };
        Some(seen)
    }
}

impl AsFd for Adapter {
    /// The descriptor is readable when there is an event.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open as long as `self`, and its descriptor as long as the context.
        unsafe { BorrowedFd::borrow_raw(self.context.as_ref().async_fd) }
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        // SAFETY: everything that is made on the device keeps this adapter alive, so nothing is left.
        unsafe {
            (self.verbs.dealloc_pd)(self.pd.as_ptr());
            (self.verbs.close_device)(self.context.as_ptr());
        }
    }
}
