//! The suite as trials of libtest-mimic, and the devices that a provider of GPUs is to run it on.

use std::{fmt, num::NonZero, process::ExitCode, thread};

use libtest_mimic::{Arguments, Trial};
use mscclpp_core::Device;
use mscclpp_gpu::Platform;

use crate::{
    Cases, Setup, channels, endpoints, host_signals, hostile, lifetimes, memories, process, queues,
    semaphores, signals, transfers,
};

/// The cases that run everywhere. The kernels of some need a C++ compiler on simulated devices, and NVRTC on CUDA.
const ALL: [Cases; 9] = [
    endpoints::CASES,
    memories::CASES,
    transfers::CASES,
    queues::CASES,
    semaphores::CASES,
    channels::CASES,
    lifetimes::CASES,
    hostile::CASES,
    host_signals::CASES,
];

/// Further cases, for a transport that [maps peers' memory](Setup::maps_peer_memory).
const MAPPED: [Cases; 2] = [signals::CASES, channels::KERNEL_CASES];

/// The devices of a setup's two ends, of one platform. Its text looks like `sim::devices_0_and_1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Devices {
    platform: Platform,
    ids: [usize; 2],
}

impl Devices {
    /// Two simulated devices.
    pub const SIMULATED: Self = Self { platform: Platform::Sim, ids: [0, 1] };

    /// Returns the devices that a provider of GPUs is tested on: two simulated ones, and two GPUs if this machine has
    /// some; and for each platform its first device with itself.
    ///
    /// # Panics
    /// Panics if this machine has a GPU that cannot be used.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mut platforms = vec![Platform::Sim];
        let found = found_platform();
        if found != Platform::Sim {
            platforms.push(found);
        }
        let pairs = |platform| [[0, 0], [0, 1]].map(|ids| Self { platform, ids });
        platforms.into_iter().flat_map(pairs).collect()
    }

    /// The platform of the devices.
    #[must_use]
    pub fn platform(self) -> Platform {
        self.platform
    }

    /// Whether both ends are on the same device.
    #[must_use]
    pub fn is_one(self) -> bool {
        self.ids[0] == self.ids[1]
    }

    pub(crate) fn of_ends(self) -> [Device; 2] {
        self.ids.map(Device::gpu)
    }

    /// Whether the platform has devices of these numbers.
    fn exist(self) -> bool {
        let count = self.platform.device_count().expect("a usable platform");
        self.ids.into_iter().all(|id| id < count)
    }
}

impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b] = self.ids;
        write!(f, "{}::devices_{a}_and_{b}", self.platform)
    }
}

/// Runs the trials of all setups, each with its name, and the caller's own trials in `more`, as the arguments of this
/// program say. On a machine with GPUs they run one at a time, unless the arguments say otherwise.
///
/// Call it first in `main`: in a second process, which gets the name of its setup, it plays the other end of a case.
///
/// # Panics
/// Panics in a second process, if something is not as it should be. The process that started it then fails too.
pub fn run<S: Setup + Clone + Send + 'static>(
    setups: impl IntoIterator<Item = (String, S)>,
    more: impl IntoIterator<Item = Trial>,
) -> ExitCode {
    let setups: Vec<_> = setups.into_iter().collect();
    if let Some(asked) = process::setup_of_this() {
        let (_, setup) = setups.iter().find(|(name, _)| *name == asked).expect("a setup of that name");
        process::serve(setup);
        return ExitCode::SUCCESS;
    }
    let mut trials: Vec<_> = setups.iter().flat_map(|(name, setup)| trials(name, setup)).collect();
    trials.extend(more);
    let mut arguments = Arguments::from_args();
    // Many cases wait. On GPUs, freeing memory may wait for all kernels of the process, also for those of other cases, which may
    // wait for a signal.
    let threads = match found_platform() {
        Platform::Sim => 2 * thread::available_parallelism().map_or(1, NonZero::get),
        _ => 1,
    };
    arguments.test_threads.get_or_insert(threads);
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Returns one trial for each case that applies to the setup.
fn trials<S: Setup + Clone + Send + 'static>(name: &str, setup: &S) -> Vec<Trial> {
    let lacks = setup.lacks().or_else(|| (!setup.devices().exist()).then_some("two devices"));
    let trial = |case_name: &str, run: Box<dyn FnOnce(&S) + Send>| {
        let setup = setup.clone();
        let trial = Trial::test(format!("{name}::{case_name}"), move || {
            run(&setup);
            Ok(())
        });
        match lacks {
            Some(what) => trial.with_kind(format!("needs {what}")).with_ignored_flag(true),
            None => trial,
        }
    };
    let here = ALL.iter().chain(MAPPED.iter().filter(|_| setup.maps_peer_memory())).copied().flatten();
    let mut trials: Vec<_> =
        here.map(|&(case_name, case)| trial(case_name, Box::new(move |setup| case(setup)))).collect();
    if setup.connects_processes() {
        trials.extend(process::CASES.iter().map(|&(case_name, case)| {
            let name = name.to_owned();
            trial(case_name, Box::new(move |setup| case(setup, &name)))
        }));
    }
    trials
}

fn found_platform() -> Platform {
    Platform::detect_or_sim().expect("a usable platform")
}
