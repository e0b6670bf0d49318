//! Entry points that return texts.

use std::ffi::{CStr, c_char};

use mscclpp_verbs_sys as sys;

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

fn text(known: &[(u32, &'static CStr)], number: u32) -> *const c_char {
    known.iter().find(|(known, _)| *known == number).map_or(c"unknown", |(_, text)| text).as_ptr()
}
