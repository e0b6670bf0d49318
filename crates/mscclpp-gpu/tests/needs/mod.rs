//! Trials that need GPUs.

use libtest_mimic::Trial;
use mscclpp_gpu::Platform;
use mscclpp_test_support::trial_that_needs;

/// Makes a trial of `test`, which needs `count` CUDA devices. It runs on a thread of its own, which has no context yet.
pub(crate) fn cuda_devices(count: usize, name: &str, test: impl FnOnce() + Send + 'static) -> Trial {
    let platform = Platform::detect_or_sim().expect("a usable platform");
    let there = match platform {
        Platform::Cuda => platform.device_count().expect("the devices of a platform that was found"),
        _ => 0,
    };
    trial_that_needs("CUDA devices", count, there, name, test)
}

/// Makes trials, each called as its function: the number of CUDA devices that it needs, then the function.
macro_rules! cuda_trials {
    ($($count:literal: $test:ident),* $(,)?) => {
        vec![$(needs::cuda_devices($count, stringify!($test), $test)),*]
    };
}
pub(crate) use cuda_trials;
