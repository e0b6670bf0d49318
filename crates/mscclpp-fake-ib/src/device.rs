//! Entry points of devices, their ports and their events.

use std::{
    collections::VecDeque,
    ffi::{c_char, c_int},
    mem::{offset_of, size_of},
    ptr,
};

use mscclpp_verbs_sys as sys;

use crate::{
    config::DeviceConfig,
    faults::Call,
    post,
    state::{Context, Device, State, World},
};

/// A device as C sees it, followed by the world it belongs to.
#[repr(C)]
struct FakeDevice {
    c: sys::ibv_device,
    world: &'static World,
    index: usize,
}

/// A context as C sees it, followed by the world it belongs to.
#[repr(C)]
struct FakeContext {
    c: sys::verbs_context,
    world: &'static World,
    index: usize,
}

pub(crate) fn create(world: &'static World, index: usize, config: DeviceConfig) -> Device {
    let mut c = sys::ibv_device {
        node_type: sys::IBV_NODE_CA,
        transport_type: sys::IBV_TRANSPORT_IB,
        ..Default::default()
    };
    for (to, from) in c.name.iter_mut().zip(config.name.bytes().take(63)) {
        *to = from as c_char;
    }
    c.dev_name = c.name;
    let active = config.ports.iter().map(|port| port.active).collect();
    let device = Box::leak(Box::new(FakeDevice { c, world, index }));
    Device { config, c: (&raw mut *device).cast(), active, failed: false }
}

pub(crate) fn world_of(context: *mut sys::ibv_context) -> &'static World {
    // SAFETY: every context that this table's functions are called with is part of one that `open_device` made, and those
    // are never freed.
    unsafe { (*fake_context(context)).world }
}

fn fake_context(context: *mut sys::ibv_context) -> *mut FakeContext {
    context.wrapping_byte_sub(offset_of!(FakeContext, c) + offset_of!(sys::verbs_context, context)).cast()
}

pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the address is that of this thread's errno.
    unsafe { *libc::__errno_location() = errno };
}

pub(crate) fn null<T>(errno: c_int) -> *mut T {
    set_errno(errno);
    ptr::null_mut()
}

/// A list of the world's devices, for `ibv_get_device_list`.
pub(crate) fn list(state: &mut State, count: *mut c_int) -> *mut *mut sys::ibv_device {
    if let Some(errno) = state.faults.of(0, Call::GetDeviceList) {
        return null(errno);
    }
    let mut list: Vec<_> = state.devices.iter().map(|device| device.c).collect();
    if !count.is_null() {
        // SAFETY: the caller passes a place for the count.
        unsafe { *count = list.len() as c_int };
    }
    list.push(ptr::null_mut());
    Box::into_raw(list.into_boxed_slice()).cast()
}

pub(crate) unsafe extern "C" fn free_device_list(list: *mut *mut sys::ibv_device) {
    // SAFETY: the list came from `list`, where it was a boxed slice that ends with a null pointer.
    unsafe {
        let mut length = 1;
        while !(*list.add(length - 1)).is_null() {
            length += 1;
        }
        drop(Box::from_raw(ptr::slice_from_raw_parts_mut(list, length)));
    }
}

pub(crate) unsafe extern "C" fn get_device_name(device: *mut sys::ibv_device) -> *const c_char {
    // SAFETY: the caller's device, which is never freed.
    unsafe { (&raw const (*device).name).cast() }
}

fn guid(index: usize) -> sys::__be64 {
    (0x0200_0000_0000_0000 + index as u64).to_be()
}

pub(crate) unsafe extern "C" fn open_device(device: *mut sys::ibv_device) -> *mut sys::ibv_context {
    // SAFETY: devices of this table are `FakeDevice`s.
    let (world, index) =
        unsafe { ((*device.cast::<FakeDevice>()).world, (*device.cast::<FakeDevice>()).index) };
    let mut state = world.lock();
    if let Some(errno) = state.faults.of(index, Call::OpenDevice) {
        return null(errno);
    }
    // SAFETY: a plain call; a negative result is checked.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
    if fd < 0 {
        return ptr::null_mut();
    }
    let mut c = sys::verbs_context {
        sz: size_of::<sys::verbs_context>(),
        query_port: Some(query_port),
        ..Default::default()
    };
    c.context.device = device;
    c.context.ops.post_send = Some(post::post_send);
    c.context.ops.post_recv = Some(post::post_recv);
    c.context.ops.poll_cq = Some(post::poll_cq);
    c.context.ops.req_notify_cq = Some(post::req_notify_cq);
    c.context.cmd_fd = -1;
    c.context.async_fd = fd;
    c.context.num_comp_vectors = 1;
    if !state.devices[index].config.old_provider {
        c.context.abi_compat = ptr::without_provenance_mut(usize::MAX);
    }
    let context = Box::leak(Box::new(FakeContext { c, world, index }));
    let context = &raw mut context.c.context;
    let opened = Context { device: index, events: VecDeque::new(), fd };
    state.contexts.insert(context as usize, opened);
    context
}

pub(crate) unsafe extern "C" fn close_device(context: *mut sys::ibv_context) -> c_int {
    let mut state = world_of(context).lock();
    let Some(closed) = state.contexts.remove(&(context as usize)) else {
        return state.misused("a context is closed that is not open");
    };
    // SAFETY: the context's own descriptor, closed once.
    unsafe { libc::close(closed.fd) };
    let (domains, channels) =
        (state.domains.values(), state.channels.values().map(|channel| &channel.context));
    let left = domains.chain(channels).chain(state.cqs.values().map(|cq| &cq.context));
    if left.filter(|&&of| of == context as usize).count() > 0 {
        return state.misused("a context is closed while there are objects of it");
    }
    0
}

pub(crate) unsafe extern "C" fn query_device(
    context: *mut sys::ibv_context,
    attr: *mut sys::ibv_device_attr,
) -> c_int {
    let mut state = world_of(context).lock();
    let index = state.device(context as usize);
    if let Some(errno) = state.faults.of(index, Call::QueryDevice) {
        return errno;
    }
    let config = &state.devices[index].config;
    let rd_atomic = c_int::from(config.max_rd_atomic);
    let answer = sys::ibv_device_attr {
        node_guid: guid(index),
        sys_image_guid: guid(index),
        max_mr_size: u64::MAX,
        page_size_cap: 0xffff_f000,
        max_qp: 65_536,
        max_qp_wr: config.max_qp_wr as c_int,
        max_sge: config.max_sge as c_int,
        max_cq: 65_536,
        max_cqe: config.max_cqe as c_int,
        max_mr: 65_536,
        max_pd: 65_536,
        max_qp_rd_atom: rd_atomic,
        max_qp_init_rd_atom: rd_atomic,
        max_res_rd_atom: 65_536,
        atomic_cap: if config.atomics { sys::IBV_ATOMIC_HCA } else { sys::IBV_ATOMIC_NONE },
        max_pkeys: 1,
        phys_port_cnt: config.ports.len() as u8,
        ..Default::default()
    };
    // SAFETY: the caller's pointer is valid for a write.
    unsafe { *attr = answer };
    0
}

fn port_attr(state: &mut State, context: usize, port: u8) -> Result<sys::ibv_port_attr, c_int> {
    let index = state.device(context);
    if let Some(errno) = state.faults.of(index, Call::QueryPort) {
        return Err(errno);
    }
    let device = &state.devices[index];
    let place = usize::from(port).wrapping_sub(1);
    let Some(config) = device.config.ports.get(place) else {
        return Err(state.refused(format!("there is no port {port}")));
    };
    let layer = if config.ethernet { sys::IBV_LINK_LAYER_ETHERNET } else { sys::IBV_LINK_LAYER_INFINIBAND };
    Ok(sys::ibv_port_attr {
        state: if device.active[place] { sys::IBV_PORT_ACTIVE } else { sys::IBV_PORT_DOWN },
        max_mtu: sys::IBV_MTU_4096,
        active_mtu: config.mtu,
        gid_tbl_len: config.gids.len() as c_int,
        max_msg_sz: 1 << 30,
        pkey_tbl_len: config.pkeys.len() as u16,
        lid: config.lid,
        sm_lid: 1,
        active_width: 2,
        active_speed: 32,
        phys_state: if device.active[place] { 5 } else { 3 },
        link_layer: layer as u8,
        // Only the newer structure has this field; the old entry point must not write it.
        port_cap_flags2: 0x5a5a,
        ..Default::default()
    })
}

unsafe extern "C" fn query_port(
    context: *mut sys::ibv_context,
    port: u8,
    attr: *mut sys::ibv_port_attr,
    length: usize,
) -> c_int {
    match port_attr(&mut world_of(context).lock(), context as usize, port) {
        Ok(answer) => {
            // SAFETY: the caller has room for `length` bytes.
            unsafe {
                let bytes = (&raw const answer).cast::<u8>();
                ptr::copy_nonoverlapping(bytes, attr.cast(), length.min(size_of_val(&answer)));
            }
            0
        }
        Err(errno) => errno,
    }
}

/// The entry point that the library exports for old programs, whose structure ends before `flags`.
pub(crate) unsafe extern "C" fn query_port_compat(
    context: *mut sys::ibv_context,
    port: u8,
    attr: *mut sys::_compat_ibv_port_attr,
) -> c_int {
    // SAFETY: the old structure is the beginning of today's.
    unsafe { query_port(context, port, attr.cast(), offset_of!(sys::ibv_port_attr, flags)) }
}

pub(crate) unsafe extern "C" fn query_gid(
    context: *mut sys::ibv_context,
    port: u8,
    gid_index: c_int,
    gid: *mut sys::ibv_gid,
) -> c_int {
    let state = world_of(context).lock();
    let device = state.device(context as usize);
    let port = state.devices[device].config.ports.get(usize::from(port).wrapping_sub(1));
    match port.and_then(|port| port.gids.get(usize::try_from(gid_index).ok()?)) {
        Some(found) => {
            // SAFETY: the caller's pointer is valid for a write.
            unsafe { (*gid).raw = found.raw };
            0
        }
        None => {
            set_errno(libc::EINVAL);
            -1
        }
    }
}

pub(crate) unsafe extern "C" fn query_gid_table(
    context: *mut sys::ibv_context,
    entries: *mut sys::ibv_gid_entry,
    room: usize,
    _flags: u32,
    entry_size: usize,
) -> isize {
    let state = world_of(context).lock();
    let device = state.device(context as usize);
    let ports = state.devices[device].config.ports.iter().zip(1..);
    let all = ports.flat_map(|(port, port_num)| {
        port.gids.iter().zip(0..).map(move |(gid, gid_index)| (port_num, gid_index, *gid))
    });
    let all: Vec<_> = all.filter(|(.., gid)| gid.raw != [0; 16]).collect();
    if all.len() > room || entry_size != size_of::<sys::ibv_gid_entry>() {
        return -(libc::EINVAL as isize);
    }
    for (place, (port_num, gid_index, gid)) in all.iter().enumerate() {
        let (port_num, gid_index, gid_type, ndev_ifindex) = (*port_num, *gid_index, gid.kind, gid.interface);
        let entry = sys::ibv_gid_entry {
            gid: sys::ibv_gid { raw: gid.raw },
            gid_index,
            port_num,
            gid_type,
            ndev_ifindex,
        };
        // SAFETY: the caller has room for that many.
        unsafe { entries.add(place).write(entry) };
    }
    all.len() as isize
}

pub(crate) unsafe extern "C" fn get_async_event(
    context: *mut sys::ibv_context,
    event: *mut sys::ibv_async_event,
) -> c_int {
    let mut word = 0_u64;
    // SAFETY: this blocks until there is an event, if the caller made the descriptor so; the word is 8 bytes.
    if unsafe { libc::read((*context).async_fd, (&raw mut word).cast(), 8) } != 8 {
        return -1;
    }
    let mut state = world_of(context).lock();
    let next = state.contexts.get_mut(&(context as usize)).and_then(|context| context.events.pop_front());
    let Some(next) = next else {
        // The event belonged to a queue pair that is gone.
        set_errno(libc::EAGAIN);
        return -1;
    };
    if let Some(qp) = queue_pair_of(&next).and_then(|number| state.qps.get_mut(&number)) {
        qp.unacknowledged += 1;
    }
    // SAFETY: the caller's pointer is valid for a write.
    unsafe { *event = next };
    0
}

pub(crate) unsafe extern "C" fn ack_async_event(event: *mut sys::ibv_async_event) {
    // SAFETY: the caller passes an event that `get_async_event` gave.
    let event = unsafe { *event };
    let Some(number) = queue_pair_of(&event) else { return };
    // SAFETY: an event of a queue pair names one, and those are never freed.
    let mut state = world_of(unsafe { (*event.element.qp).context }).lock();
    match state.qps.get_mut(&number) {
        Some(qp) if qp.unacknowledged > 0 => qp.unacknowledged -= 1,
        _ => {
            state.misused("an event is acknowledged that was not given");
        }
    }
}

/// Returns the number of the queue pair that an event is about.
pub(crate) fn queue_pair_of(event: &sys::ibv_async_event) -> Option<u32> {
    let of_queue_pair = [sys::IBV_EVENT_QP_FATAL, sys::IBV_EVENT_QP_REQ_ERR, sys::IBV_EVENT_QP_ACCESS_ERR];
    of_queue_pair.contains(&event.event_type).then(|| {
        // SAFETY: such an event names a queue pair, and those are never freed.
        unsafe { (*event.element.qp).qp_num }
    })
}
