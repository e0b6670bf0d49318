//! The device on which a test runs: a GPU if the crate was built for GPUs and there is one, otherwise a simulated
//! device.

use mscclpp_gpu::{Gpu, Platform};

/// Returns the platform of these tests.
pub(crate) fn platform() -> Platform {
    // Without a GPU platform in the build, a machine with GPUs is no reason to fail.
    if cfg!(any(feature = "cuda", feature = "hip")) {
        Platform::detect_or_sim().expect("a usable platform")
    } else {
        Platform::Sim
    }
}

/// Returns device 0, after printing its name.
pub(crate) fn gpu() -> Gpu {
    let gpu = platform().gpu(0).expect("device 0");
    println!("on {gpu}");
    gpu
}
