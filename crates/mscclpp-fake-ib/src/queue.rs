//! Entry points of completion channels and completion queues.

use std::{
    collections::VecDeque,
    ffi::{c_int, c_uint, c_void},
};

use mscclpp_verbs_sys as sys;

use crate::{
    device::{null, set_errno, world_of},
    faults::Call,
    state::{Channel, Cq},
};

pub(crate) unsafe extern "C" fn create_comp_channel(
    context: *mut sys::ibv_context,
) -> *mut sys::ibv_comp_channel {
    let mut state = world_of(context).lock();
    let device = state.device(context as usize);
    if let Some(errno) = state.faults.of(device, Call::CreateCompChannel) {
        return null(errno);
    }
    // SAFETY: a plain call; a negative result is checked.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
    if fd < 0 {
        return std::ptr::null_mut();
    }
    let channel: *mut _ = Box::leak(Box::new(sys::ibv_comp_channel { context, fd, refcnt: 0 }));
    let made = Channel { context: context as usize, fd, events: VecDeque::new() };
    state.channels.insert(channel as usize, made);
    channel
}

pub(crate) unsafe extern "C" fn destroy_comp_channel(channel: *mut sys::ibv_comp_channel) -> c_int {
    // SAFETY: channels of this table are never freed.
    let mut state = world_of(unsafe { (*channel).context }).lock();
    if state.cqs.values().any(|cq| cq.channel == Some(channel as usize)) {
        return libc::EBUSY;
    }
    let Some(gone) = state.channels.remove(&(channel as usize)) else {
        return state.misused("a completion channel is destroyed twice");
    };
    // SAFETY: the channel's own descriptor, closed once.
    unsafe { libc::close(gone.fd) };
    0
}

pub(crate) unsafe extern "C" fn create_cq(
    context: *mut sys::ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut sys::ibv_comp_channel,
    comp_vector: c_int,
) -> *mut sys::ibv_cq {
    let mut state = world_of(context).lock();
    let device = state.device(context as usize);
    if let Some(errno) = state.faults.of(device, Call::CreateCq) {
        return null(errno);
    }
    let most = state.devices[device].config.max_cqe;
    let capacity = u32::try_from(cqe).ok().filter(|&cqe| cqe > 0 && cqe <= most);
    let Some(capacity) = capacity.filter(|_| comp_vector == 0) else {
        return null(state.refused(format!("a completion queue of {cqe} entries at vector {comp_vector}")));
    };
    let handle = state.number();
    // SAFETY: all fields are integers, pointers or types of the C library, for which zeros are valid.
    let mut c: sys::ibv_cq = unsafe { std::mem::zeroed() };
    (c.context, c.channel, c.cq_context, c.handle, c.cqe) = (context, channel, cq_context, handle, cqe);
    let cq: *mut _ = Box::leak(Box::new(c));
    let made = Cq {
        context: context as usize,
        channel: (!channel.is_null()).then_some(channel as usize),
        capacity: capacity as usize,
        entries: VecDeque::new(),
        armed: false,
        unacknowledged: 0,
        failed: false,
    };
    state.cqs.insert(cq as usize, made);
    cq
}

pub(crate) unsafe extern "C" fn destroy_cq(cq: *mut sys::ibv_cq) -> c_int {
    // SAFETY: queues of this table are never freed.
    let context = unsafe { (*cq).context };
    let mut state = world_of(context).lock();
    if state.qps.values().any(|qp| qp.send_cq == cq as usize || qp.receive_cq == cq as usize) {
        return libc::EBUSY;
    }
    let Some(gone) = state.cqs.remove(&(cq as usize)) else {
        return state.misused("a completion queue is destroyed twice");
    };
    if let Some(channel) = gone.channel.and_then(|channel| state.channels.get_mut(&channel)) {
        // Events that nobody has fetched are dropped, but their counts in the descriptor stay.
        channel.events.retain(|&of| of != cq as usize);
    }
    if gone.unacknowledged > 0 {
        return state.misused(
            "a completion queue is destroyed with events unacknowledged: libibverbs would wait for ever",
        );
    }
    0
}

pub(crate) unsafe extern "C" fn get_cq_event(
    channel: *mut sys::ibv_comp_channel,
    cq: *mut *mut sys::ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    let mut word = 0_u64;
    // SAFETY: this blocks until there is an event, if the caller made the descriptor so; the word is 8 bytes.
    if unsafe { libc::read((*channel).fd, (&raw mut word).cast(), 8) } != 8 {
        return -1;
    }
    // SAFETY: channels of this table are never freed.
    let mut state = world_of(unsafe { (*channel).context }).lock();
    let event = state.channels.get_mut(&(channel as usize)).and_then(|channel| channel.events.pop_front());
    let Some((address, found)) = event.and_then(|address| Some((address, state.cqs.get_mut(&address)?)))
    else {
        // The event belonged to a queue that is gone.
        set_errno(libc::EAGAIN);
        return -1;
    };
    found.unacknowledged += 1;
    let c = address as *mut sys::ibv_cq;
    // SAFETY: both pointers of the caller are valid for a write; queues are never freed.
    unsafe {
        *cq = c;
        *cq_context = (*c).cq_context;
    }
    0
}

pub(crate) unsafe extern "C" fn ack_cq_events(cq: *mut sys::ibv_cq, count: c_uint) {
    // SAFETY: queues of this table are never freed.
    let mut state = world_of(unsafe { (*cq).context }).lock();
    let acknowledged = state.cqs.get_mut(&(cq as usize)).and_then(|found| {
        found.unacknowledged = found.unacknowledged.checked_sub(count)?;
        Some(())
    });
    if acknowledged.is_none() {
        state.misused("more events of a completion queue are acknowledged than were given");
    }
}
