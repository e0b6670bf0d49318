//! CUDA IPC passes the suite that all transports pass: on the GPUs of this machine, if it has some, and simulated.

use std::process::Command;

use libtest_mimic::{Arguments, Trial};
use mscclpp_core::{
    Context, ContextBuilder, Device, Transport,
    conformance::{self, Case, Setup},
};
use mscclpp_cuda_ipc::CudaIpc;
use mscclpp_gpu::Platform;
use mscclpp_test_support::child;

#[derive(Clone, Copy)]
struct Ends {
    platform: Platform,
    devices: [usize; 2],
}

impl Setup for Ends {
    fn builder(&self) -> ContextBuilder {
        Context::builder().provider(CudaIpc::new()).platform(self.platform)
    }

    fn transport(&self) -> Transport {
        Transport::CUDA_IPC
    }

    fn devices(&self) -> [Device; 2] {
        self.devices.map(Device::gpu)
    }

    fn maps_peer_memory(&self) -> bool {
        true
    }

    fn second_process(&self) -> Option<Command> {
        let [a, b] = self.devices.map(|device| device.to_string());
        Some(child::as_child(&[&self.platform.to_string(), &a, &b]))
    }
}

/// The second process of a case. Its platform and devices are in `role`.
fn serve(role: Vec<String>) {
    let mut role = role.into_iter();
    let mut next = || role.next().expect("an argument");
    let platform = next();
    let known = [Platform::Host, Platform::Cuda, Platform::Hip];
    let platform = known.into_iter().find(|known| known.to_string() == platform).expect("a platform");
    let devices = [0, 1].map(|_| next().parse().expect("a device"));
    conformance::process::serve(&Ends { platform, devices });
}

fn trials(ends: Ends, cases: Vec<(&'static str, Case)>) -> Vec<Trial> {
    let Ends { platform, devices: [a, b] } = ends;
    cases
        .into_iter()
        .map(|(name, case)| {
            Trial::test(format!("{platform}::devices_{a}_and_{b}::{name}"), move || {
                case(&ends);
                Ok(())
            })
        })
        .collect()
}

fn main() {
    if let Some(role) = child::role() {
        return serve(role);
    }
    let mut all = Vec::new();
    let found = Platform::detect_or_host().expect("a usable platform");
    let mut platforms = vec![Platform::Host];
    if found != Platform::Host {
        platforms.push(found);
    }
    for platform in platforms {
        for devices in [[0, 0], [0, 1]] {
            let enough = platform.device_count().expect("a usable platform") > devices[1];
            let ends = Ends { platform, devices };
            let mut these = trials(ends, conformance::cases());
            these.extend(trials(ends, conformance::process_cases()));
            these.extend(trials(ends, conformance::kernel_cases()));
            these.extend(trials(ends, conformance::mapped_memory_cases()));
            all.extend(these.into_iter().map(|trial| match enough {
                true => trial,
                false => trial.with_kind("needs two devices").with_ignored_flag(true),
            }));
        }
    }
    let mut arguments = Arguments::from_args();
    if found != Platform::Host {
        // Freeing memory may wait for all kernels of the process, also for those of other cases that wait for a signal.
        arguments.test_threads.get_or_insert(1);
    }
    libtest_mimic::run(&arguments, all).exit();
}
