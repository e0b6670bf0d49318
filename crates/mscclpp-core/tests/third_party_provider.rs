//! A transport from outside this project passes the suite that all transports pass, without a change in the core.

mod courier;

use courier::{Courier, Reach};
use libtest_mimic::{Arguments, Trial};
use mscclpp_core::{
    Context, ContextBuilder, Device, Transport,
    conformance::{self, Case, Setup},
};
use mscclpp_gpu::Platform;

struct Couriers(Courier, Reach);

impl Setup for Couriers {
    fn builder(&self) -> ContextBuilder {
        Context::builder().provider(self.0.clone()).platform(Platform::Host)
    }

    fn transport(&self) -> Transport {
        Courier::TRANSPORT
    }

    fn devices(&self) -> [Device; 2] {
        [Device::gpu(0), Device::gpu(1)]
    }

    fn maps_peer_memory(&self) -> bool {
        self.1 != Reach::Nothing
    }
}

fn main() {
    let mut trials = Vec::new();
    for reach in [Reach::Nothing, Reach::Stores, Reach::Atomics] {
        let trial = |(name, case): (&str, Case)| {
            Trial::test(format!("{reach:?}::{name}"), move || {
                case(&Couriers(Courier::new(reach), reach));
                Ok(())
            })
        };
        trials.extend(conformance::cases().into_iter().map(trial));
        trials.extend(conformance::host_platform_cases().into_iter().map(trial));
        trials.extend(conformance::mapped_memory_cases().into_iter().map(|case| match reach {
            Reach::Nothing => trial(case).with_kind("needs mapped memory").with_ignored_flag(true),
            Reach::Stores | Reach::Atomics => trial(case),
        }));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
