//! Tests that both ends decide alike where the tokens of GPUs are and how signals reach them. The simulated devices
//! stand for GPUs here, whose memory the host does not reach.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use mscclpp_conformance::{pair::received, semaphore_waits, semaphores::build};
use mscclpp_core::{
    Connection, Context, Device, Endpoint, EndpointConfig, HostToDeviceSemaphore, IbConfig, IbMode,
    SemaphoreStub, Transport,
};
use mscclpp_gpu::{GpuDirect, Platform, WritesOrdering};
use mscclpp_test_support::until;

use crate::world::World;
use mscclpp_fake_ib::Config;

/// The most polls that a kernel's wait may take.
const POLLS: i64 = 1_000_000;
const SIGNALS: u64 = 20;

/// GPUs that show writes of adapters to all devices in the order in which they came.
const ORDERED: GpuDirect = GpuDirect {
    rdma: true,
    dma_buf: true,
    writes_ordering: WritesOrdering::AllDevices,
    host_flush: false,
    stream_flush: false,
};

/// Opens an end on a GPU: mode `builder` is that of the provider, and `endpoint` that of its configuration.
fn open(
    world: &World,
    end: usize,
    builder: IbMode,
    endpoint: IbMode,
    gpus: GpuDirect,
) -> (Context, Endpoint) {
    let provider = world.builder(builder).gpus_like(gpus).build();
    let context = Context::builder().provider(provider).platform(Platform::Sim).build();
    let transport = [Transport::IB0, Transport::IB1][end];
    let config = EndpointConfig::new(transport, Device::gpu(end)).ib(IbConfig::new().mode(endpoint));
    let endpoint = context.create_endpoint(config).expect("an endpoint");
    (context, endpoint)
}

fn connect([a, b]: &[(Context, Endpoint); 2]) -> [Connection; 2] {
    [(a, b), (b, a)].map(|(own, peer)| own.0.connect(&own.1, &received(&peer.1)).expect("a connection"))
}

/// Sends signals both ways, for which kernels wait. Returns whether they came as immediate data.
fn goes_by_immediates(world: &World, builders: [IbMode; 2], endpoints: [IbMode; 2]) -> bool {
    let before = world.fake.counters().receive_completions;
    let ends = [0, 1].map(|end| open(world, end, builders[end], endpoints[end], ORDERED));
    let connections = connect(&ends);
    let (a, b) = build(&connections[0], &connections[1]);
    for (from, to) in [(&a, &b), (&b, &a)] {
        let host = HostToDeviceSemaphore::new(from).expect("the sender's side");
        for _ in 0..SIGNALS {
            host.signal().expect("a signal");
        }
        let taken = semaphore_waits(to, POLLS, SIGNALS);
        connections.iter().for_each(|connection| connection.check().expect("it has not failed"));
        assert_eq!(taken, SIGNALS, "signals are lost");
    }
    let came = world.fake.counters().receive_completions - before;
    assert!(came == 0 || came >= 2 * SIGNALS, "{came} of {} signals came as immediate data", 2 * SIGNALS);
    came > 0
}

#[test]
fn tokens_of_gpus_are_where_their_signals_can_be_stored() {
    use IbMode::{Default, Host, HostNoAtomic};
    let lacking = |without: &[usize]| {
        let mut config = Config::new(2);
        without.iter().for_each(|device| config.devices[*device].atomics = false);
        World::new(config)
    };
    // Each case: the adapters that have no atomics, the modes of the providers and of the endpoints, and whether
    // signals are immediate data.
    for (without, builders, endpoints, immediates) in [
        (&[][..], [Default, Default], [Default, Default], false),
        (&[], [Host, Default], [Default, Host], false),
        (&[], [Default, Default], [HostNoAtomic, Default], true),
        (&[], [Default, Default], [Default, HostNoAtomic], true),
        (&[], [Default, Default], [Host, HostNoAtomic], true),
        (&[], [HostNoAtomic, Default], [Default, Default], true),
        (&[], [Default, HostNoAtomic], [Default, Host], false),
        (&[], [HostNoAtomic, HostNoAtomic], [Host, HostNoAtomic], true),
        (&[0], [Default, Default], [Default, Default], true),
        (&[1], [Default, Default], [Default, Default], true),
        (&[1], [Host, Host], [Host, Host], true),
    ] {
        let world = lacking(without);
        let case = format!("adapters {without:?} without atomics, {builders:?}, {endpoints:?}");
        println!("{case}");
        assert_eq!(goes_by_immediates(&world, builders, endpoints), immediates, "{case}");
    }
}

/// Each connection decides by itself: one endpoint has tokens in both memories.
#[test]
fn connections_of_one_endpoint_decide_each_for_itself() {
    use IbMode::{Default, HostNoAtomic};
    let world = World::new(Config::new(2));
    let own = open(&world, 0, Default, Default, ORDERED);
    for (mode, immediates) in [(Default, false), (HostNoAtomic, true), (Default, false)] {
        let before = world.fake.counters().receive_completions;
        let ends = [own.clone(), open(&world, 1, mode, Default, ORDERED)];
        let connections = connect(&ends);
        let (a, b) = build(&connections[0], &connections[1]);
        HostToDeviceSemaphore::new(&b).expect("the sender's side").signal().expect("a signal");
        assert_eq!(semaphore_waits(&a, POLLS, 1), 1, "{:?}", connections.each_ref().map(Connection::check));
        assert_eq!(world.fake.counters().receive_completions > before, immediates, "{mode:?}");
    }
}

/// The GPU shows data to the host's order only after a flush, which the test holds up.
#[test]
fn a_token_in_host_memory_is_stored_behind_a_flush_of_the_gpu() {
    let gpus = GpuDirect { writes_ordering: WritesOrdering::None, host_flush: true, ..ORDERED };
    let world = World::new(Config::new(2));
    let (began, may_end) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let ends = [Transport::IB0, Transport::IB1].map(|transport| {
        let (began, may_end) = (began.clone(), may_end.clone());
        let flush = move || {
            began.store(true, Ordering::Release);
            until("the end of the flush", || may_end.load(Ordering::Acquire));
        };
        let provider = world.builder(IbMode::HostNoAtomic).gpus_like(gpus).flush_gpus_by(flush).build();
        let context = Context::builder().provider(provider).platform(Platform::Sim).build();
        let endpoint = context.create_endpoint(EndpointConfig::new(transport, Device::gpu(0))).unwrap();
        (context, endpoint)
    });
    let connections = connect(&ends);
    let (a, b) = build(&connections[0], &connections[1]);
    HostToDeviceSemaphore::new(&a).expect("the sender's side").signal().expect("a signal");
    until("the flush", || began.load(Ordering::Acquire));
    assert_eq!(semaphore_waits(&b, 1000, 1), 0, "the token is there before the flush has ended");
    may_end.store(true, Ordering::Release);
    assert_eq!(semaphore_waits(&b, POLLS, 1), 1);
}

/// The driver's promise is too little for signals in one mode, and enough for the other.
#[test]
fn tokens_whose_order_cannot_be_kept_are_refused_by_the_connection_that_needs_it() {
    let owner = GpuDirect { writes_ordering: WritesOrdering::Owner, ..ORDERED };
    let world = World::new(Config::new(2));
    for (modes, refused) in [
        ([IbMode::Default, IbMode::Default], false),
        ([IbMode::Default, IbMode::HostNoAtomic], true),
        ([IbMode::HostNoAtomic, IbMode::Default], true),
    ] {
        let ends = [0, 1].map(|end| open(&world, end, IbMode::Default, modes[end], owner));
        for connection in connect(&ends) {
            let error = SemaphoreStub::new(&connection).err().map(|error| error.to_string());
            let says = |error: String| error.contains("MSCCLPP_IBV_MODE=host") && error.contains("flush");
            assert_eq!(error.map(says), refused.then_some(true), "{modes:?}");
        }
    }
}
