//! Trials that need GPUs: if there are none, they are reported as ignored, with the reason. Each trial has a time limit.

use std::{
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use libtest_mimic::{Failed, Trial};
use mscclpp_gpu::Platform;

/// The time limit of a trial, much longer than any of them takes.
const LIMIT: Duration = Duration::from_secs(120);

/// Makes a trial of `test`, which needs `count` CUDA devices. It runs on a thread of its own, which has no context yet.
pub(crate) fn cuda_devices(count: usize, name: &str, test: impl FnOnce() + Send + 'static) -> Trial {
    let platform = Platform::detect_or_sim().expect("a usable platform");
    let there = match platform {
        Platform::Cuda => platform.device_count().expect("the devices of a platform that was found"),
        _ => 0,
    };
    let trial = Trial::test(name, move || within_the_limit(test));
    match there >= count {
        true => trial,
        false => {
            trial.with_kind(format!("CUDA devices: needs {count}, found {there}")).with_ignored_flag(true)
        }
    }
}

fn within_the_limit(test: impl FnOnce() + Send + 'static) -> Result<(), Failed> {
    let (ends, ended) = mpsc::channel::<()>();
    let thread = thread::spawn(move || {
        // Dropped when the test is over, also by a panic.
        let _ends = ends;
        test();
    });
    match ended.recv_timeout(LIMIT) {
        Err(RecvTimeoutError::Timeout) => Err(format!("it still runs after {LIMIT:?}").into()),
        _ => thread.join().map_err(|_| "it panicked; the message is above".into()),
    }
}
