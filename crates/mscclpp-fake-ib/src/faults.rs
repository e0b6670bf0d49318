//! Injected failures.

use std::ffi::c_int;

use mscclpp_verbs_sys::ibv_wc_status;

/// The calls that can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "most are named as the entry points")]
pub enum Call {
    GetDeviceList,
    OpenDevice,
    QueryDevice,
    QueryPort,
    AllocPd,
    /// Every registration of memory, whatever the entry point.
    RegMr,
    CreateCompChannel,
    CreateCq,
    ReqNotifyCq,
    PollCq,
    CreateQp,
    ModifyQp,
    /// Posted requests. They are counted instead of calls, so that a chain can fail in its middle.
    PostSend,
    /// Posted receives. They are counted instead of calls.
    PostRecv,
}

#[derive(Default)]
pub(crate) struct Faults {
    calls: Vec<(usize, Call, u64, c_int)>,
    completions: Vec<(usize, u64, ibv_wc_status)>,
}

impl Faults {
    pub(crate) fn add(&mut self, device: usize, call: Call, nth: u64, errno: c_int) {
        assert!(nth > 0, "the first is number 1");
        self.calls.push((device, call, nth, errno));
    }

    pub(crate) fn add_completion(&mut self, device: usize, nth: u64, status: ibv_wc_status) {
        assert!(nth > 0, "the first is number 1");
        self.completions.push((device, nth, status));
    }

    /// Counts a call. Returns the errno with which it is to fail, if it is.
    pub(crate) fn of(&mut self, device: usize, call: Call) -> Option<c_int> {
        let due = count(&mut self.calls, |(d, c, nth, _)| (*d == device && *c == call).then_some(nth));
        due.map(|(.., errno)| errno)
    }

    /// Counts a request that is carried out. Returns the status with which it is to complete, if it is to fail.
    pub(crate) fn of_completion(&mut self, device: usize) -> Option<ibv_wc_status> {
        let due = count(&mut self.completions, |(d, nth, _)| (*d == device).then_some(nth));
        due.map(|(.., status)| status)
    }
}

/// Counts down each fault that matches, and takes out the first that is due.
fn count<T>(faults: &mut Vec<T>, matching: impl Fn(&mut T) -> Option<&mut u64>) -> Option<T> {
    let mut due = None;
    for (index, fault) in faults.iter_mut().enumerate() {
        if let Some(left) = matching(fault) {
            *left -= 1;
            if *left == 0 && due.is_none() {
                due = Some(index);
            }
        }
    }
    // A second fault that is due at once follows at the next call.
    let due = due.map(|index| faults.remove(index));
    for fault in faults.iter_mut() {
        if let Some(left) = matching(fault) {
            *left = (*left).max(1);
        }
    }
    due
}
