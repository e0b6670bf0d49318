//! Entry points that return texts, and others that need no device.

use std::ffi::{CStr, c_char, c_int};

use mscclpp_verbs_sys as sys;

pub(crate) unsafe extern "C" fn fork_init() -> c_int {
    0
}

pub(crate) unsafe extern "C" fn node_type_str(kind: sys::ibv_node_type) -> *const c_char {
    text(&[(sys::IBV_NODE_CA as u32, c"InfiniBand channel adapter")], kind as u32)
}

pub(crate) unsafe extern "C" fn port_state_str(state: sys::ibv_port_state) -> *const c_char {
    text(&[(sys::IBV_PORT_DOWN, c"PORT_DOWN"), (sys::IBV_PORT_ACTIVE, c"PORT_ACTIVE")], state)
}

pub(crate) unsafe extern "C" fn event_type_str(event: sys::ibv_event_type) -> *const c_char {
    let known = [
        (sys::IBV_EVENT_CQ_ERR, c"CQ error"),
        (sys::IBV_EVENT_QP_FATAL, c"local work queue catastrophic error"),
        (sys::IBV_EVENT_QP_REQ_ERR, c"invalid request local work queue error"),
        (sys::IBV_EVENT_QP_ACCESS_ERR, c"local access violation work queue error"),
        (sys::IBV_EVENT_DEVICE_FATAL, c"local catastrophic error"),
        (sys::IBV_EVENT_PORT_ACTIVE, c"port active"),
        (sys::IBV_EVENT_PORT_ERR, c"port error"),
    ];
    text(&known, event)
}

pub(crate) unsafe extern "C" fn wc_status_str(status: sys::ibv_wc_status) -> *const c_char {
    let known = [
        (sys::IBV_WC_SUCCESS, c"success"),
        (sys::IBV_WC_LOC_LEN_ERR, c"local length error"),
        (sys::IBV_WC_LOC_QP_OP_ERR, c"local QP operation error"),
        (sys::IBV_WC_LOC_PROT_ERR, c"local protection error"),
        (sys::IBV_WC_WR_FLUSH_ERR, c"Work Request Flushed Error"),
        (sys::IBV_WC_REM_INV_REQ_ERR, c"remote invalid request error"),
        (sys::IBV_WC_REM_ACCESS_ERR, c"remote access error"),
        (sys::IBV_WC_REM_OP_ERR, c"remote operation error"),
        (sys::IBV_WC_RETRY_EXC_ERR, c"transport retry counter exceeded"),
        (sys::IBV_WC_RNR_RETRY_EXC_ERR, c"RNR retry counter exceeded"),
    ];
    text(&known, status)
}

fn text(known: &[(u32, &'static CStr)], number: u32) -> *const c_char {
    known.iter().find(|(known, _)| *known == number).map_or(c"unknown", |(_, text)| text).as_ptr()
}
