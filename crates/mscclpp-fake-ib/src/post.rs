//! Posting and polling. These calls are inlined in C, so they are reached through the context.

use std::ffi::c_int;

use mscclpp_verbs_sys as sys;

use crate::{
    config::Execution,
    device::world_of,
    faults::Call,
    state::{Queue, Receive, Request, Source, State},
};

/// The most steps that a poll makes if no thread makes any.
const STEPS_PER_POLL: usize = 4;

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut sys::ibv_qp,
    mut wr: *mut sys::ibv_send_wr,
    bad_wr: *mut *mut sys::ibv_send_wr,
) -> c_int {
    // SAFETY: queue pairs of this table are never freed.
    let (context, number) = unsafe { ((*qp).context, (*qp).qp_num) };
    let world = world_of(context);
    let mut state = world.lock();
    state.counters.posts += 1;
    let mut errno = 0;
    while !wr.is_null() {
        // SAFETY: the caller's chain of requests.
        if let Err(why) = unsafe { accept(&mut state, number, &*wr) } {
            // SAFETY: the caller's pointer is valid for a write.
            unsafe { *bad_wr = wr };
            errno = why;
            break;
        }
        // SAFETY: the request is in the caller's chain.
        wr = unsafe { (*wr).next };
    }
    if state.qps.get(&number).is_some_and(|qp| qp.state == sys::IBV_QPS_ERR) {
        state.flush(number);
    }
    world.work.notify_all();
    errno
}

/// Takes one request.
///
/// # Safety
/// The request's list of memory and its inline data must be valid.
unsafe fn accept(state: &mut State, number: u32, wr: &sys::ibv_send_wr) -> Result<(), c_int> {
    let Some(qp) = state.qps.get(&number) else {
        return Err(state.misused("a request is posted to a queue pair that was destroyed"));
    };
    let (device, cap) = (qp.device, qp.cap);
    if let Some(errno) = state.faults.of(device, Call::PostSend) {
        return Err(errno);
    }
    let qp = &state.qps[&number];
    if qp.state != sys::IBV_QPS_RTS && qp.state != sys::IBV_QPS_ERR {
        let at = qp.state;
        return Err(state.refused(format!("a request is posted in state {at}")));
    }
    if qp.send_places >= cap.max_send_wr {
        return Err(libc::ENOMEM);
    }
    let atomic = wr.opcode == sys::IBV_WR_ATOMIC_FETCH_AND_ADD;
    let known = atomic
        || [sys::IBV_WR_RDMA_WRITE, sys::IBV_WR_RDMA_WRITE_WITH_IMM, sys::IBV_WR_SEND].contains(&wr.opcode);
    let count = u32::try_from(wr.num_sge).unwrap_or(u32::MAX);
    if !known || (atomic && !state.devices[device].config.atomics) {
        return Err(state.refused(format!("the device does not know opcode {}", wr.opcode)));
    }
    if count > cap.max_send_sge {
        return Err(
            state.refused(format!("a request has {count} pieces, the queue pair takes {}", cap.max_send_sge))
        );
    }
    let pieces = if count == 0 {
        Vec::new()
    } else {
        // SAFETY: the caller's list has this many entries.
        unsafe { std::slice::from_raw_parts(wr.sg_list, count as usize) }.to_vec()
    };
    let length: u64 = pieces.iter().map(|piece| u64::from(piece.length)).sum();
    if length > 1 << 30 {
        return Err(state.refused(format!("a message of {length} bytes, the port takes 2^30")));
    }
    let source = if wr.send_flags & sys::IBV_SEND_INLINE == 0 {
        Source::Memory(pieces)
    } else if atomic || length > u64::from(cap.max_inline_data) {
        return Err(
            state.refused(format!("{length} bytes inline, the queue pair takes {}", cap.max_inline_data))
        );
    } else {
        // SAFETY: the memory is the caller's, and inline data is read now, by the processor.
        let read = |piece: &sys::ibv_sge| unsafe {
            std::slice::from_raw_parts(piece.addr as *const u8, piece.length as usize).to_vec()
        };
        Source::Inline(pieces.iter().filter(|piece| piece.length > 0).flat_map(read).collect())
    };
    // SAFETY: only the view that belongs to the opcode is read; all views are integers.
    let (remote, key, add, imm_data) = unsafe {
        match atomic {
            true => (wr.wr.atomic.remote_addr, wr.wr.atomic.rkey, wr.wr.atomic.compare_add, 0),
            false => (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey, 0, wr.__bindgen_anon_1.imm_data),
        }
    };
    let Some(qp) = state.qps.get_mut(&number) else { return Ok(()) };
    qp.sequence += 1;
    qp.send_places += 1;
    qp.sends.push_back(Request {
        sequence: qp.sequence,
        wr_id: wr.wr_id,
        opcode: wr.opcode,
        signalled: qp.all_signalled || wr.send_flags & sys::IBV_SEND_SIGNALED != 0,
        source,
        imm_data,
        remote,
        key,
        add,
        awaited: 0,
        status: sys::IBV_WC_SUCCESS,
    });
    state.counters.requests += 1;
    Ok(())
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut sys::ibv_qp,
    mut wr: *mut sys::ibv_recv_wr,
    bad_wr: *mut *mut sys::ibv_recv_wr,
) -> c_int {
    // SAFETY: queue pairs of this table are never freed.
    let (context, number) = unsafe { ((*qp).context, (*qp).qp_num) };
    let world = world_of(context);
    let mut state = world.lock();
    let device = state.device(context as usize);
    let mut errno = 0;
    while !wr.is_null() {
        // SAFETY: the caller's chain of receives.
        let (wr_id, next, list, count) = unsafe { ((*wr).wr_id, (*wr).next, (*wr).sg_list, (*wr).num_sge) };
        let places = match usize::try_from(count).unwrap_or(0) {
            0 => Vec::new(),
            // SAFETY: the caller's list has this many entries.
            count => unsafe { std::slice::from_raw_parts(list, count) }.to_vec(),
        };
        errno = match state.faults.of(device, Call::PostRecv) {
            Some(errno) => errno,
            None => match state.qps.get_mut(&number) {
                None => state.misused("a receive is posted to a queue pair that was destroyed"),
                Some(qp) if qp.state == sys::IBV_QPS_RESET => {
                    state.refused("a receive is posted in state RESET")
                }
                Some(qp) if qp.receive_places >= qp.cap.max_recv_wr => libc::ENOMEM,
                Some(qp) if places.len() > qp.cap.max_recv_sge as usize => {
                    state.refused("a receive has too many pieces")
                }
                Some(qp) => {
                    qp.receive_places += 1;
                    qp.receives.push_back(Receive { wr_id, places });
                    0
                }
            },
        };
        if errno != 0 {
            // SAFETY: the caller's pointer is valid for a write.
            unsafe { *bad_wr = wr };
            break;
        }
        wr = next;
    }
    if state.qps.get(&number).is_some_and(|qp| qp.state == sys::IBV_QPS_ERR) {
        state.flush(number);
    }
    world.work.notify_all();
    errno
}

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut sys::ibv_cq, count: c_int, wc: *mut sys::ibv_wc) -> c_int {
    // SAFETY: queues of this table are never freed.
    let context = unsafe { (*cq).context };
    let mut state = world_of(context).lock();
    let device = state.device(context as usize);
    if let Some(errno) = state.faults.of(device, Call::PollCq) {
        return -errno;
    }
    if state.config.execution == Execution::OnPoll {
        for _ in 0..state.random.usize(..=STEPS_PER_POLL) {
            state.step();
        }
    }
    let mut taken = 0;
    while taken < count {
        let Some(found) = state.cqs.get_mut(&(cq as usize)) else {
            state.misused("a completion queue is polled that was destroyed");
            return -libc::EINVAL;
        };
        let Some(entry) = found.entries.pop_front() else { break };
        // SAFETY: the caller has room for `count`.
        unsafe { wc.add(taken as usize).write(entry.wc) };
        if let Some(qp) = state.qps.get_mut(&entry.wc.qp_num) {
            let places = match entry.queue {
                Queue::Send => &mut qp.send_places,
                Queue::Receive => &mut qp.receive_places,
            };
            *places = places.saturating_sub(entry.frees);
        }
        taken += 1;
    }
    taken
}

/// Arms a completion queue. By the specification only later completions raise an event, so the caller must poll once
/// more after arming.
pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut sys::ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: queues of this table are never freed.
    let context = unsafe { (*cq).context };
    let mut state = world_of(context).lock();
    let device = state.device(context as usize);
    if let Some(errno) = state.faults.of(device, Call::ReqNotifyCq) {
        return errno;
    }
    let Some(found) = state.cqs.get_mut(&(cq as usize)) else {
        return state.misused("a completion queue is armed that was destroyed");
    };
    if solicited_only != 0 {
        return state.misused(
            "a completion queue is armed for solicited completions alone, which the fake cannot do",
        );
    }
    found.armed = true;
    0
}
