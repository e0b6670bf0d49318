//! `ncclGroupSimulateEnd`, which predicts how long the calls of a group take.

use std::{sync::Arc, time::Duration};

use crate::{
    abi::{Code, SimInfo},
    calls::Call,
    comm::{Backend, Comm},
    failure::Failure,
    group,
    pointers::stated_size,
};

/// Ends a group without carrying out its calls, and writes the predicted time in microseconds that they would take. Calls of
/// one communicator count one after the other, calls of several at the same time. Where there is no prediction, as on simulated
/// devices, the field keeps the value of NCCL's initialiser, which means undefined.
///
/// # Safety
/// `info` is null, or points to as many bytes as its first field says.
pub(crate) unsafe fn end(info: *mut SimInfo) -> Result<Code, Failure> {
    if !info.is_null() {
        // SAFETY: the caller's promise.
        unsafe { stated_size(info)? };
    }
    let calls = group::end_without_calls()?;
    if let (Some(time), false) = (time(&calls), info.is_null()) {
        // SAFETY: the struct has the field, as its size was checked above.
        unsafe { (&raw mut (*info).estimated_time).write_unaligned(time.as_secs_f32() * 1e6) };
    }
    Ok(Code::SUCCESS)
}

/// The longest of the communicators' predicted times, or `None` if a call has no prediction.
fn time(calls: &[Call]) -> Option<Duration> {
    let mut of_comms: Vec<(&Arc<Comm>, Duration)> = Vec::new();
    for call in calls {
        let Ok(Backend::Ours(ours)) = call.comm.backend() else { return None };
        let time = ours.collectives.prediction(call.request.as_ref()?).ok().flatten()?;
        match of_comms.iter_mut().find(|(comm, _)| Arc::ptr_eq(comm, &call.comm)) {
            Some((_, sum)) => *sum += time,
            None => of_comms.push((&call.comm, time)),
        }
    }
    of_comms.into_iter().map(|(_, time)| time).max()
}
