//! Entry points of queue pairs: their states, and what each change of state requires.

use std::{collections::VecDeque, ffi::c_int};

use mscclpp_verbs_sys as sys;

use crate::{
    device::{null, queue_pair_of, world_of},
    faults::Call,
    state::{Qp, State},
};

pub(crate) unsafe extern "C" fn create_qp(
    pd: *mut sys::ibv_pd,
    init: *mut sys::ibv_qp_init_attr,
) -> *mut sys::ibv_qp {
    // SAFETY: domains of this table are never freed; the attributes are the caller's.
    let (context, wanted) = unsafe { ((*pd).context, *init) };
    let mut state = world_of(context).lock();
    let device = state.device(context as usize);
    if let Some(errno) = state.faults.of(device, Call::CreateQp) {
        return null(errno);
    }
    if let Err(why) = creatable(&state, pd as usize, device, &wanted) {
        return null(state.refused(why));
    }
    let number = state.number();
    // SAFETY: all fields are integers, pointers or types of the C library, for which zeros are valid.
    let mut c: sys::ibv_qp = unsafe { std::mem::zeroed() };
    (c.context, c.pd, c.send_cq, c.recv_cq) = (context, pd, wanted.send_cq, wanted.recv_cq);
    (c.qp_context, c.qp_num, c.handle, c.qp_type) = (wanted.qp_context, number, number, wanted.qp_type);
    let qp: *mut _ = Box::leak(Box::new(c));
    let made = Qp {
        c: qp,
        context: context as usize,
        device,
        domain: pd as usize,
        send_cq: wanted.send_cq as usize,
        receive_cq: wanted.recv_cq as usize,
        cap: wanted.cap,
        all_signalled: wanted.sq_sig_all != 0,
        state: sys::IBV_QPS_RESET,
        attr: sys::ibv_qp_attr::default(),
        sends: VecDeque::new(),
        executed: 0,
        receives: VecDeque::new(),
        send_places: 0,
        receive_places: 0,
        silent: 0,
        sequence: 0,
        landings: VecDeque::new(),
        unacknowledged: 0,
        attempts: 0,
        attempts_since: None,
        again: None,
    };
    state.qps.insert(number, made);
    qp
}

fn creatable(
    state: &State,
    domain: usize,
    device: usize,
    wanted: &sys::ibv_qp_init_attr,
) -> Result<(), String> {
    let config = &state.devices[device].config;
    let cap = &wanted.cap;
    let refuse = |why: &str| Err(format!("create_qp: {why}"));
    if !state.domains.contains_key(&domain) {
        return refuse("its protection domain was given back");
    }
    if wanted.qp_type != sys::IBV_QPT_RC {
        return refuse("only reliable connections are simulated");
    }
    if ![wanted.send_cq, wanted.recv_cq].iter().all(|&cq| state.cqs.contains_key(&(cq as usize))) {
        return refuse("a completion queue of it does not exist");
    }
    if cap.max_send_wr > config.max_qp_wr || cap.max_recv_wr > config.max_qp_wr {
        return refuse(&format!("more than {} requests", config.max_qp_wr));
    }
    if cap.max_send_sge > config.max_sge || cap.max_recv_sge > config.max_sge {
        return refuse(&format!("more than {} pieces in a request", config.max_sge));
    }
    if cap.max_inline_data > config.max_inline {
        return refuse(&format!("more than {} bytes inline", config.max_inline));
    }
    Ok(())
}

fn number(qp: *mut sys::ibv_qp) -> u32 {
    // SAFETY: queue pairs of this table are never freed.
    unsafe { (*qp).qp_num }
}

pub(crate) unsafe extern "C" fn destroy_qp(qp: *mut sys::ibv_qp) -> c_int {
    // SAFETY: queue pairs of this table are never freed.
    let context = unsafe { (*qp).context };
    let mut state = world_of(context).lock();
    let number = number(qp);
    state.land_all(number);
    let Some(gone) = state.qps.remove(&number) else {
        return state.misused("a queue pair is destroyed twice");
    };
    // As with real providers, completions of a queue pair that is gone are not polled any more.
    for cq in state.cqs.values_mut() {
        cq.entries.retain(|entry| entry.wc.qp_num != number);
    }
    for context in state.contexts.values_mut() {
        context.events.retain(|event| queue_pair_of(event) != Some(number));
    }
    if gone.unacknowledged > 0 {
        return state
            .misused("a queue pair is destroyed with events unacknowledged: libibverbs would wait for ever");
    }
    0
}

pub(crate) unsafe extern "C" fn query_qp(
    qp: *mut sys::ibv_qp,
    attr: *mut sys::ibv_qp_attr,
    _mask: c_int,
    init: *mut sys::ibv_qp_init_attr,
) -> c_int {
    // SAFETY: queue pairs of this table are never freed.
    let context = unsafe { (*qp).context };
    let mut state = world_of(context).lock();
    let Some(found) = state.qps.get(&number(qp)) else {
        return state.misused("a queue pair is queried that was destroyed");
    };
    // SAFETY: both pointers of the caller are valid for a write.
    unsafe {
        *attr = sys::ibv_qp_attr {
            qp_state: found.state,
            cur_qp_state: found.state,
            cap: found.cap,
            ..found.attr
        };
        *init = sys::ibv_qp_init_attr {
            send_cq: (*qp).send_cq,
            recv_cq: (*qp).recv_cq,
            cap: found.cap,
            qp_type: sys::IBV_QPT_RC,
            sq_sig_all: c_int::from(found.all_signalled),
            qp_context: (*qp).qp_context,
            ..Default::default()
        };
    }
    0
}

pub(crate) unsafe extern "C" fn modify_qp(
    qp: *mut sys::ibv_qp,
    attr: *mut sys::ibv_qp_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: queue pairs of this table are never freed; the attributes are the caller's.
    let (context, wanted) = unsafe { ((*qp).context, *attr) };
    let world = world_of(context);
    let mut state = world.lock();
    let (device, number) = (state.device(context as usize), number(qp));
    if let Some(errno) = state.faults.of(device, Call::ModifyQp) {
        return errno;
    }
    let Some(from) = state.qps.get(&number).map(|qp| qp.state) else {
        return state.misused("a queue pair is modified that was destroyed");
    };
    let mask = mask as u32;
    let to = if mask & sys::IBV_QP_STATE != 0 { wanted.qp_state } else { from };
    if let Err(why) = allowed(&state, number, from, to, mask, &wanted) {
        return state.refused(format!("modify_qp from state {from} to {to}: {why}"));
    }
    if to == sys::IBV_QPS_ERR {
        state.fail(number);
        return 0;
    }
    let Some(found) = state.qps.get_mut(&number) else { return 0 };
    set(&mut found.attr, mask, &wanted);
    found.state = to;
    // SAFETY: queue pairs of this table are never freed.
    unsafe { (*qp).state = to };
    if to == sys::IBV_QPS_RESET {
        (found.sends, found.receives, found.executed) = Default::default();
        (found.send_places, found.receive_places, found.silent) = Default::default();
        for cq in state.cqs.values_mut() {
            cq.entries.retain(|entry| entry.wc.qp_num != number);
        }
    }
    world.work.notify_all();
    0
}

/// Returns the attributes that a change of state requires and those that it also allows, for reliable connections:
/// InfiniBand Architecture Specification, volume 1, the table of modifiers of Modify Queue Pair.
fn masks(from: sys::ibv_qp_state, to: sys::ibv_qp_state) -> Option<(u32, u32)> {
    use sys::*;
    let alternate = IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE;
    match (from, to) {
        (IBV_QPS_RESET, IBV_QPS_INIT) => Some((IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0)),
        (IBV_QPS_INIT, IBV_QPS_INIT) => Some((0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)),
        (IBV_QPS_INIT, IBV_QPS_RTR) => {
            let peer = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
            let needed = peer | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
            Some((needed, IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS | IBV_QP_ALT_PATH))
        }
        (IBV_QPS_RTR, IBV_QPS_RTS) => {
            let needed = IBV_QP_TIMEOUT
                | IBV_QP_RETRY_CNT
                | IBV_QP_RNR_RETRY
                | IBV_QP_SQ_PSN
                | IBV_QP_MAX_QP_RD_ATOMIC;
            Some((needed, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | alternate))
        }
        (IBV_QPS_RTS, IBV_QPS_RTS) => {
            Some((0, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | alternate))
        }
        (_, IBV_QPS_RESET | IBV_QPS_ERR) => Some((0, 0)),
        _ => None,
    }
}

fn allowed(
    state: &State,
    number: u32,
    from: u32,
    to: u32,
    mask: u32,
    wanted: &sys::ibv_qp_attr,
) -> Result<(), String> {
    let Some((needed, optional)) = masks(from, to) else { return Err("there is no such change".to_owned()) };
    let given = mask & !sys::IBV_QP_STATE;
    if given & needed != needed || given & !(needed | optional) != 0 {
        return Err(format!("the mask is {given:#x}, needed is {needed:#x}, allowed besides {optional:#x}"));
    }
    let qp = &state.qps[&number];
    let device = &state.devices[qp.device].config;
    let has = |flag: u32| mask & flag != 0;
    let port_number = if has(sys::IBV_QP_PORT) { wanted.port_num } else { qp.attr.port_num };
    let port = device.ports.get(usize::from(port_number).wrapping_sub(1));
    if has(sys::IBV_QP_PORT) && port.is_none() {
        return Err(format!("there is no port {port_number}"));
    }
    let numbers = [
        (sys::IBV_QP_RQ_PSN, wanted.rq_psn, (1 << 24) - 1),
        (sys::IBV_QP_SQ_PSN, wanted.sq_psn, (1 << 24) - 1),
        (sys::IBV_QP_DEST_QPN, wanted.dest_qp_num, (1 << 24) - 1),
        (sys::IBV_QP_TIMEOUT, u32::from(wanted.timeout), 31),
        (sys::IBV_QP_RETRY_CNT, u32::from(wanted.retry_cnt), 7),
        (sys::IBV_QP_RNR_RETRY, u32::from(wanted.rnr_retry), 7),
        (sys::IBV_QP_MIN_RNR_TIMER, u32::from(wanted.min_rnr_timer), 31),
        (sys::IBV_QP_MAX_QP_RD_ATOMIC, u32::from(wanted.max_rd_atomic), u32::from(device.max_rd_atomic)),
        (
            sys::IBV_QP_MAX_DEST_RD_ATOMIC,
            u32::from(wanted.max_dest_rd_atomic),
            u32::from(device.max_rd_atomic),
        ),
    ];
    if let Some((flag, value, most)) =
        numbers.into_iter().find(|&(flag, value, most)| has(flag) && value > most)
    {
        return Err(format!("attribute {flag:#x} is {value}, at most {most} is possible"));
    }
    let Some(port) = port else { return Ok(()) };
    if has(sys::IBV_QP_PKEY_INDEX) && usize::from(wanted.pkey_index) >= port.pkeys.len() {
        return Err(format!("there is no partition key {}", wanted.pkey_index));
    }
    if has(sys::IBV_QP_PATH_MTU) && !(sys::IBV_MTU_256..=port.mtu).contains(&wanted.path_mtu) {
        return Err(format!(
            "path MTU {} is not one that the port's MTU {} allows",
            wanted.path_mtu, port.mtu
        ));
    }
    if has(sys::IBV_QP_AV) {
        let address = &wanted.ah_attr;
        if address.port_num != port_number {
            return Err(format!(
                "the address is for port {}, the queue pair on port {port_number}",
                address.port_num
            ));
        }
        if port.ethernet && address.is_global == 0 {
            return Err("RoCE needs a GRH".to_owned());
        }
        if address.is_global != 0 && usize::from(address.grh.sgid_index) >= port.gids.len() {
            return Err(format!("there is no GID {}", address.grh.sgid_index));
        }
    }
    Ok(())
}

fn set(attr: &mut sys::ibv_qp_attr, mask: u32, wanted: &sys::ibv_qp_attr) {
    macro_rules! set {
        ($($flag:ident => $field:ident),* $(,)?) => {
            $(if mask & sys::$flag != 0 {
                attr.$field = wanted.$field;
            })*
        };
    }
    set!(
        IBV_QP_PKEY_INDEX => pkey_index,
        IBV_QP_PORT => port_num,
        IBV_QP_ACCESS_FLAGS => qp_access_flags,
        IBV_QP_AV => ah_attr,
        IBV_QP_PATH_MTU => path_mtu,
        IBV_QP_DEST_QPN => dest_qp_num,
        IBV_QP_RQ_PSN => rq_psn,
        IBV_QP_SQ_PSN => sq_psn,
        IBV_QP_MAX_DEST_RD_ATOMIC => max_dest_rd_atomic,
        IBV_QP_MAX_QP_RD_ATOMIC => max_rd_atomic,
        IBV_QP_MIN_RNR_TIMER => min_rnr_timer,
        IBV_QP_TIMEOUT => timeout,
        IBV_QP_RETRY_CNT => retry_cnt,
        IBV_QP_RNR_RETRY => rnr_retry,
    );
}
