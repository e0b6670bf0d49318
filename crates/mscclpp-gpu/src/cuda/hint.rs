use mscclpp_gpu_sys::cuda::CuResult;

/// Returns advice for a result whose text from the driver has none.
pub(super) fn hint(result: CuResult) -> Option<&'static str> {
    Some(match result {
        CuResult::NOT_INITIALIZED => {
            "a process forked after CUDA was initialised cannot use it: fork before the first CUDA call, or start a \
             new program"
        }
        CuResult::STUB_LIBRARY => {
            "the library found is the toolkit's stub; libcuda.so.1 of the NVIDIA driver is needed"
        }
        CuResult::DEVICE_UNAVAILABLE => {
            "another process has it in exclusive mode (`nvidia-smi -q -d COMPUTE`)"
        }
        CuResult::NO_DEVICE => "see `nvidia-smi` and CUDA_VISIBLE_DEVICES",
        CuResult::SYSTEM_NOT_READY => "machines with NVSwitch need the service nvidia-fabricmanager running",
        CuResult::SYSTEM_DRIVER_MISMATCH => {
            "libcuda.so and the kernel module are of different versions: reload the module or restart, and in a \
             container mount the host's library"
        }
        CuResult::COMPAT_NOT_SUPPORTED_ON_DEVICE => {
            "the forward-compatibility package does not support this GPU: remove it from LD_LIBRARY_PATH"
        }
        CuResult::UNSUPPORTED_PTX_VERSION => "the driver is older than the compiler that made the PTX",
        CuResult::ILLEGAL_ADDRESS | CuResult::LAUNCH_FAILED => {
            "a kernel or copy submitted before failed; the device cannot be used again in this process"
        }
        CuResult::STREAM_CAPTURE_UNSUPPORTED => {
            "a stream that is being captured cannot be asked or waited for, nor can its device: do that before the capture \
             begins or after it has ended"
        }
        CuResult::STREAM_CAPTURE_INVALIDATED => {
            "a call that no capture allows has broken this one: begin it anew, and make that call before or after it"
        }
        CuResult::STREAM_CAPTURE_IMPLICIT => {
            "the default stream waits for blocking streams, of which one is being captured: use a stream of Gpu::stream, \
             capture a non-blocking one, or do this before or after the capture"
        }
        CuResult::UNKNOWN => {
            "often /dev/nvidia-uvm is missing or not accessible, or the kernel module is in error (`dmesg`)"
        }
        _ => return None,
    })
}

#[cfg(test)]
#[test]
fn what_users_meet_first_comes_with_advice() {
    let cases = [
        (CuResult::NOT_INITIALIZED, "fork"),
        (CuResult::NO_DEVICE, "CUDA_VISIBLE_DEVICES"),
        (CuResult::SYSTEM_NOT_READY, "fabricmanager"),
        (CuResult::SYSTEM_DRIVER_MISMATCH, "kernel module"),
        (CuResult::UNKNOWN, "nvidia-uvm"),
        (CuResult::STREAM_CAPTURE_UNSUPPORTED, "before the capture"),
        (CuResult::STREAM_CAPTURE_INVALIDATED, "begin it anew"),
        (CuResult::STREAM_CAPTURE_IMPLICIT, "Gpu::stream"),
    ];
    crate::driver::failure::tests::comes_with_advice::<mscclpp_gpu_sys::cuda::Driver>(
        &cases,
        CuResult(123_456),
    );
}
