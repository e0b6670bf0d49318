use mscclpp_gpu_sys::hip::HipResult;

/// What to do, where the runtime's words do not say it.
pub(super) fn hint(result: HipResult) -> Option<&'static str> {
    Some(match result {
        HipResult::NO_DEVICE => {
            "see `rocminfo` and HIP_VISIBLE_DEVICES; /dev/kfd and /dev/dri must be open to this user (groups render \
             and video)"
        }
        HipResult::INSUFFICIENT_DRIVER => "the kernel's amdgpu driver is older than this ROCm",
        HipResult::NO_BINARY_FOR_GPU => "the code was compiled for another architecture",
        HipResult::ILLEGAL_ADDRESS | HipResult::LAUNCH_FAILURE => {
            "a kernel or copy submitted before failed; the device cannot be used again in this process"
        }
        _ => return None,
    })
}

#[cfg(test)]
#[test]
fn what_users_meet_first_comes_with_advice() {
    let cases = [
        (HipResult::NO_DEVICE, "/dev/kfd"),
        (HipResult::INSUFFICIENT_DRIVER, "amdgpu"),
        (HipResult::LAUNCH_FAILURE, "before"),
    ];
    crate::driver::failure::tests::comes_with_advice::<mscclpp_gpu_sys::hip::Hip>(&cases, HipResult(123_456));
}
