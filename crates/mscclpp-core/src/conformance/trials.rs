//! The suite as trials of libtest-mimic, and on which devices a provider of GPUs is to run it.

use std::{fmt, str::FromStr};

use libtest_mimic::{Arguments, Trial};
use mscclpp_gpu::Platform;

use super::{Case, Setup};
use crate::Device;

/// The devices of a setup's two ends, of one platform. Its text, as in `host::devices_0_and_1`, can be parsed again, so
/// that a second process can be told of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Devices {
    platform: Platform,
    ids: [usize; 2],
}

impl Devices {
    /// Those that a provider of GPUs is tested on: two simulated ones, and two GPUs if this machine has some; and of each
    /// platform the first one with itself.
    ///
    /// # Panics
    /// If this machine has a GPU that cannot be used.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mut platforms = vec![Platform::Host];
        let found = found_platform();
        if found != Platform::Host {
            platforms.push(found);
        }
        let pairs = |platform| [[0, 0], [0, 1]].map(|ids| Self { platform, ids });
        platforms.into_iter().flat_map(pairs).collect()
    }

    /// Where they come from.
    #[must_use]
    pub fn platform(self) -> Platform {
        self.platform
    }

    /// For [`Setup::devices`].
    #[must_use]
    pub fn of_ends(self) -> [Device; 2] {
        self.ids.map(Device::gpu)
    }

    /// Whether the platform has as many.
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

impl FromStr for Devices {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (platform, ids) = text.split_once("::devices_")?;
            let known = [Platform::Host, Platform::Cuda, Platform::Hip];
            let platform = known.into_iter().find(|known| known.to_string() == platform)?;
            let (a, b) = ids.split_once("_and_")?;
            Some(Self { platform, ids: [a.parse().ok()?, b.parse().ok()?] })
        };
        parse().ok_or_else(|| format!("{text:?} should be as host::devices_0_and_1"))
    }
}

/// One trial of each case that applies to the setup, under `name`: the process cases if there is a
/// [`Setup::second_process`], the cases with mapped memory if [`Setup::maps_peer_memory`] is true, and all others.
#[must_use]
pub fn trials<S: Setup + Clone + Send + 'static>(name: &str, setup: &S) -> Vec<Trial> {
    let trial = |(case_name, case): (&str, Case)| {
        let setup = setup.clone();
        Trial::test(format!("{name}::{case_name}"), move || {
            case(&setup);
            Ok(())
        })
    };
    let mut trials: Vec<_> = super::cases().into_iter().chain(super::kernel_cases()).map(trial).collect();
    if setup.second_process().is_some() {
        trials.extend(super::process_cases().into_iter().map(trial));
    }
    if setup.maps_peer_memory() {
        trials.extend(super::mapped_memory_cases().into_iter().map(trial));
    }
    trials
}

/// As [`trials`], of a setup with these devices. If there are too few of them, all are ignored, with the reason.
#[must_use]
pub fn trials_on<S: Setup + Clone + Send + 'static>(devices: Devices, name: &str, setup: &S) -> Vec<Trial> {
    let trials = trials(name, setup).into_iter();
    match devices.exist() {
        true => trials.collect(),
        false => trials.map(|t| t.with_kind("needs two devices").with_ignored_flag(true)).collect(),
    }
}

/// Runs the trials as the arguments of this program say, and ends the process. On a machine with GPUs they take turns,
/// unless the arguments say otherwise.
pub fn run(trials: Vec<Trial>) -> ! {
    let mut arguments = Arguments::from_args();
    if found_platform() != Platform::Host {
        // Freeing memory may wait for all kernels of the process, also for those of other cases that wait for a signal.
        arguments.test_threads.get_or_insert(1);
    }
    libtest_mimic::run(&arguments, trials).exit()
}

fn found_platform() -> Platform {
    Platform::detect_or_host().expect("a usable platform")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_told_by_their_text() {
        let all = Devices::all();
        assert!(all.len() >= 2 && all[0].platform() == Platform::Host);
        for devices in all {
            assert_eq!(devices.to_string().parse(), Ok(devices));
        }
        for wrong in ["", "host", "host::devices_0", "moon::devices_0_and_1", "host::devices_0_and_x"] {
            assert!(wrong.parse::<Devices>().is_err(), "{wrong:?} was taken");
        }
    }
}
