//! Functions and types that the tests of this crate share.

#![allow(dead_code, reason = "each test program uses a part of this")]

pub(crate) mod checked;
pub(crate) mod children;
pub(crate) mod ends;
pub(crate) mod kernels;
pub(crate) mod limits;
pub(crate) mod port_ends;
pub(crate) mod port_ranks;
pub(crate) mod random;
pub(crate) mod results;
pub(crate) mod waiting;

use std::sync::Arc;

use mscclpp::prelude::*;
pub(crate) use mscclpp_test_support::LIMIT;
use mscclpp_test_support::{Turn, in_threads};

/// Returns the platform of the GPUs if there are some, else the simulated one.
pub(crate) fn platform() -> Platform {
    Platform::detect_or_sim().expect("a usable platform")
}

pub(crate) fn on_gpus() -> bool {
    platform() != Platform::Sim
}

/// Takes the turn of a test on the devices.
pub(crate) fn turn() -> Turn {
    Turn::take(on_gpus())
}

/// Returns the device of a rank.
pub(crate) fn device_of(rank: usize) -> usize {
    rank % platform().device_count().expect("devices")
}

/// Returns the configuration of an endpoint on the device of a rank.
pub(crate) fn endpoint_of(rank: usize) -> EndpointConfig {
    EndpointConfig::new(Transport::CUDA_IPC, Device::gpu(device_of(rank)))
}

/// Runs `n` ranks as threads of this process and returns their results.
pub(crate) fn ranks<T: Send>(n: usize, rank: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
    let _turn = turn();
    in_threads(LocalBootstrap::group(n), |bootstrap| {
        rank(Communicator::with_context(Arc::new(bootstrap), Context::on(platform())))
    })
}

/// Makes a connection and a semaphore with each other rank, and with the rank itself.
pub(crate) fn connect_all(comm: &Communicator) -> mscclpp::Result<Vec<Semaphore>> {
    let n = comm.bootstrap().n_ranks();
    let config = endpoint_of(comm.bootstrap().rank());
    let pending: Vec<_> =
        (0..n).map(|peer| comm.connect(config.clone(), peer, 0)).collect::<Result<_, _>>()?;
    let connections: Vec<_> = pending.iter().map(Pending::wait).collect::<Result<_, _>>()?;
    let pending: Vec<_> =
        connections.iter().map(|connection| comm.build_semaphore(connection)).collect::<Result<_, _>>()?;
    pending.iter().map(Pending::wait).collect()
}

/// Makes two semaphores that are each other's peers, over endpoints of one process.
pub(crate) fn semaphore_pair(context: &Context, devices: [usize; 2]) -> mscclpp::Result<[Semaphore; 2]> {
    let endpoint = |id| context.create_endpoint(EndpointConfig::new(Transport::CUDA_IPC, Device::gpu(id)));
    let (a, b) = (endpoint(devices[0])?, endpoint(devices[1])?);
    let (there, back) = (context.connect(&a, &b)?, context.connect(&b, &a)?);
    let (a, b) = (SemaphoreStub::new(&there)?, SemaphoreStub::new(&back)?);
    Ok([Semaphore::new(&a, &b)?, Semaphore::new(&b, &a)?])
}

/// Makes two channels over such a pair.
pub(crate) fn channel_pair(
    context: &Context,
    devices: [usize; 2],
) -> mscclpp::Result<[BaseMemoryChannel; 2]> {
    let [a, b] = semaphore_pair(context, devices)?;
    Ok([BaseMemoryChannel::new(&a)?, BaseMemoryChannel::new(&b)?])
}

/// Runs a test on one device, and on two in both orders if there are two.
pub(crate) fn on_each_pair(test: impl Fn(&Context, [usize; 2])) {
    let _turn = turn();
    let context = Context::on(platform());
    test(&context, [0, 0]);
    if platform().device_count().expect("devices") > 1 {
        test(&context, [0, 1]);
        test(&context, [1, 0]);
    }
}

/// Checks that a device works: memory is allocated, a semaphore made, and kernels signal and wait.
pub(crate) fn assert_usable(device: usize) {
    let context = Context::on(platform());
    let [channel, peer] = channel_pair(&context, [device, device]).expect("a pair of channels");
    let mut side =
        kernels::Side::new(&context.gpu(device).expect("the device")).expect("kernels and buffers");
    side.signal(&peer, 1);
    side.finish();
    assert_eq!(side.wait_once(&channel, 1_000_000), kernels::Outcome::Signalled, "a signal on {device}");
}
