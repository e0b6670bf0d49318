//! The transport also passes the suite that all transports pass over simulated adapters. These reorder what real ones
//! may reorder in host memory, while soft RoCE does everything in order.

use std::{process::ExitCode, sync::Arc};

use mscclpp_conformance::{Devices, Setup, run};
use mscclpp_core::{Context, ContextBuilder, IbMode, Transport};
use mscclpp_gpu::{GpuDirect, WritesOrdering};
use mscclpp_ib::InfiniBand;
use mscclpp_test_support::{LIMIT, within};
use mscclpp_verbs_sys::Verbs;

use mscclpp_fake_ib::{Config, Fake, Live, Reordering};

#[derive(Clone)]
struct OverFake {
    verbs: &'static Verbs,
    // The world ends with the last trial that uses it.
    world: Arc<Fake>,
    mode: IbMode,
    relaxed_ordering: bool,
    gpus_like: Option<GpuDirect>,
}

impl OverFake {
    fn new(mode: IbMode, relaxed_ordering: bool) -> Self {
        let world = Fake::new(Config::new(2).with(|device| device.reordering = Reordering::HOST_MEMORY));
        let (verbs, world) = (world.verbs(), Arc::new(world));
        Self { verbs, world, mode, relaxed_ordering, gpus_like: None }
    }
}

impl Setup for OverFake {
    fn builder(&self) -> ContextBuilder {
        // SAFETY: the simulated adapters do what libibverbs does with real ones.
        let builder = unsafe { InfiniBand::builder().verbs(self.verbs) };
        let builder = builder.mode(self.mode).relaxed_ordering(self.relaxed_ordering);
        let builder = match self.gpus_like {
            Some(direct) => builder.gpus_like(direct),
            None => builder,
        };
        Context::builder().provider(builder.build())
    }

    fn transport(&self) -> Transport {
        Transport::IB0
    }

    fn devices(&self) -> Devices {
        Devices::SIMULATED
    }

    fn reaches_other_hosts(&self) -> bool {
        true
    }

    fn writes_from_local_memory(&self) -> bool {
        true
    }

    /// The simulated adapters are those of one process.
    fn connects_processes(&self) -> bool {
        false
    }

    fn orders_writes(&self) -> bool {
        !self.relaxed_ordering
    }
}

fn main() -> ExitCode {
    // These GPUs have their tokens, for signals by immediate data, in host memory, because the host does not reach
    // GPU memory.
    let gpus = GpuDirect { rdma: true, writes_ordering: WritesOrdering::AllDevices, ..GpuDirect::default() };
    let to_gpus = OverFake { gpus_like: Some(gpus), ..OverFake::new(IbMode::HostNoAtomic, true) };
    let setups = [
        ("atomics", OverFake::new(IbMode::Host, true)),
        ("immediates", OverFake::new(IbMode::HostNoAtomic, true)),
        ("immediates_to_gpus", to_gpus),
        ("atomics_without_relaxed_ordering", OverFake::new(IbMode::Host, false)),
    ];
    let outcome = run(setups.clone().map(|(name, setup)| (name.to_owned(), setup)), []);
    for (name, OverFake { world, .. }) in setups {
        let is_gone = within(LIMIT, || world.live() == Live::default());
        assert!(is_gone, "{name}: something has leaked: {:?}", world.live());
        assert_eq!(world.take_misuse(), Vec::<String>::new(), "{name}");
    }
    outcome
}
