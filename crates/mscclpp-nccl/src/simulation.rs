//! `ncclGroupSimulateEnd`.

use std::mem::{offset_of, size_of};

use crate::{
    abi::{Code, SimInfo},
    failure::Failure,
    group,
};

/// Ends a group without its calls. How long they would take is what nobody has measured here, so the estimate stays undefined, as
/// NCCL's initialiser has it; the calls have been checked.
///
/// # Safety
/// `info` is null, or points to as many bytes as its first field says.
pub(crate) unsafe fn end(info: *mut SimInfo) -> Result<Code, Failure> {
    if !info.is_null() {
        // SAFETY: the caller's promise; the struct of every version begins with size and mark.
        let (size, magic) = unsafe {
            ((&raw const (*info).size).read_unaligned(), (&raw const (*info).magic).read_unaligned())
        };
        if magic != SimInfo::MAGIC || size < offset_of!(SimInfo, estimated_time) + size_of::<f32>() {
            return Err(Failure::argument(
                "ncclSimInfo_t was not initialised with NCCL_SIM_INFO_INITIALIZER",
            ));
        }
    }
    let calls = group::end_without_calls()?;
    drop(calls);
    Ok(Code::SUCCESS)
}
