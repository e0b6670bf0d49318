//! Objects that are dropped while kernels wait with them, and waits that are given up: on GPUs and on simulated devices.

use std::time::Duration;

use crate::support::{
    LIMIT, channel_pair,
    kernels::{Outcome, Side},
    platform, turn,
    waiting::{KERNELS, NOT_SIGNALLED, Objects, alone, started},
};
use mscclpp::{Error, ErrorKind, errors::CoreError, gpu::Abort, prelude::*};
use mscclpp_test_support::{until, watched};

const ONE: LaunchConfig = LaunchConfig::linear(1, 1);
const SHORT: Duration = Duration::from_millis(20);

/// The reason with which waits are aborted.
const SEEN: &str = "the test has seen enough";

/// Checks that waits of the stream's kernels failed, and for this reason.
fn says(stream: &Stream, why: &str) {
    let error = stream.synchronize_timeout(LIMIT).unwrap_err().to_string();
    assert!(error.contains(why), "{error}");
}

/// In turn, each object that the kernels use is the first and the last to be dropped. The kernels end without a fault.
#[test]
fn objects_may_be_dropped_in_any_order_while_kernels_wait_with_them() {
    let _turn = turn();
    for (turn, backwards) in (0..8).flat_map(|turn| [(turn, false), (turn, true)]) {
        let comm = alone();
        let objects = Objects::new(&comm).unwrap();
        let (ended, gpu) = (objects.ended.clone(), objects.gpu.clone());
        let streams: Vec<Stream> = KERNELS.iter().map(|_| gpu.stream().unwrap()).collect();
        for (kernel, stream) in streams.iter().enumerate() {
            objects.start(stream, kernel, ONE, None).unwrap();
        }
        let mut parts = objects.into_parts();
        parts.rotate_left(turn);
        if backwards {
            parts.reverse();
        }
        watched(LIMIT, "dropping what kernels use", || parts.into_iter().for_each(drop));
        // The end of the proxy ended the wait for its FIFO; the other kernels still wait.
        for (name, stream) in KERNELS.iter().zip(&streams) {
            assert!(*name == "wait_fifo" || !stream.query().unwrap(), "{name} has ended");
        }
        comm.abort(SEEN);
        for (kernel, stream) in streams.iter().enumerate() {
            match KERNELS[kernel] {
                "wait_fifo" => says(stream, "its proxy was dropped"),
                _ => says(stream, SEEN),
            }
            assert_eq!(Objects::outcome(&ended, kernel), NOT_SIGNALLED, "{}", KERNELS[kernel]);
        }
        drop(streams);
        // No object is kept any more: the connection is closed.
        until("the end of the connections", || comm.peers().is_empty());
    }
}

#[test]
fn streams_may_be_dropped_while_their_kernels_wait() {
    let _turn = turn();
    let comm = alone();
    let objects = Objects::new(&comm).unwrap();
    let (ended, gpu) = (objects.ended.clone(), objects.gpu.clone());
    for kernel in 0..KERNELS.len() {
        objects.start(&gpu.stream().unwrap(), kernel, ONE, None).unwrap();
    }
    watched(LIMIT, "dropping what kernels use", || drop(objects));
    assert!(!comm.peers().is_empty(), "what kernels wait with is open");
    comm.abort(SEEN);
    // Allocating memory cleans up what streams have left behind.
    until("the end of the connections", || gpu.allocate(8).is_ok() && comm.peers().is_empty());
    // A kernel that waits for a FIFO has no connection.
    for (kernel, name) in KERNELS.iter().enumerate() {
        until(name, || Objects::outcome(&ended, kernel) == NOT_SIGNALLED);
    }
}

#[test]
fn graphs_keep_what_they_were_captured_with() {
    let _turn = turn();
    let comm = alone();
    let objects = Objects::new(&comm).unwrap();
    let (ended, gpu) = (objects.ended.clone(), objects.gpu.clone());
    let stream = gpu.stream().unwrap();
    stream.begin_capture().unwrap();
    for kernel in 0..KERNELS.len() {
        objects.start(&stream, kernel, ONE, None).unwrap();
    }
    let graph = stream.end_capture().unwrap();
    watched(LIMIT, "dropping what a graph uses", || drop(objects));
    // Loading another module makes CUDA unload modules without an owner.
    let _other = Side::new(&gpu).unwrap();
    for round in 0..3 {
        ended.fill(0, ended.len(), 0).unwrap();
        // SAFETY: the graph keeps all objects that it needs.
        unsafe { graph.launch(&stream).unwrap() };
        if round == 0 {
            assert!(!stream.query().unwrap(), "it waits");
            comm.abort(SEEN);
        }
        if round < 2 {
            says(&stream, SEEN);
            for (kernel, name) in KERNELS.iter().enumerate() {
                assert_eq!(Objects::outcome(&ended, kernel), NOT_SIGNALLED, "{name}");
            }
        }
        assert!(!comm.peers().is_empty(), "the graph keeps the connection");
    }
    drop(graph);
    says(&stream, SEEN);
    until("the end of the connections", || comm.peers().is_empty());
}

/// Launches a kernel, and gives its wait up after a time-out. The error must name the peers of the object that `what`
/// returns.
fn is_given_up<A: Abort + ?Sized>(kernel: &str, what: impl for<'a> Fn(&'a Objects, &'a Communicator) -> &'a A)
where
    Error: From<A::Error>,
{
    let (comm, objects, stream) = started();
    let number = KERNELS.iter().position(|name| *name == kernel).unwrap();
    objects.start(&stream, number, ONE, None).unwrap();
    let given_up = what(&objects, &comm);
    let error = Error::from(stream.synchronize_or_abort(SHORT, given_up).expect_err("it waits"));
    let text = error.to_string();
    assert!(
        error.kind() == ErrorKind::Timeout && text.contains("wait for rank 0, did not finish within 20ms"),
        "{text}"
    );
    assert!(stream.query().unwrap(), "it has waited for the kernel");
    assert_eq!(Objects::outcome(&objects.ended, number), NOT_SIGNALLED);
    // The next caller gets the reason as well.
    objects.start(&stream, number, ONE, None).unwrap();
    let error = Error::from(stream.synchronize_or_abort(LIMIT, given_up).expect_err("it is given up"));
    assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
    assert!(error.to_string().contains("did not finish within 20ms"), "{error}");
}

#[test]
fn whatever_kernels_wait_through_can_be_given_up() {
    let _turn = turn();
    is_given_up("wait_base", |objects, _| &objects.base);
    is_given_up("wait_base", |objects, _| objects.base.semaphore());
    is_given_up("wait_memory", |objects, _| &objects.channel);
    is_given_up("wait_semaphore", |objects, _| &objects.between_devices);
    is_given_up("wait_host_semaphore", |objects, _| &objects.by_host);
    is_given_up("wait_port", |objects, _| &objects.port);
    is_given_up("wait_base_port", |objects, _| objects.port.base());
    is_given_up("wait_port", |objects, _| &objects.service);
    is_given_up("wait_base", |objects, _| std::slice::from_ref(&objects.base));
    is_given_up("wait_indirectly", |_, comm| comm);
}

/// If an abort does not end the wait, the error says so, and nothing hangs. The kernel is released in the end.
#[test]
fn giving_up_something_else_says_that_the_kernel_goes_on() {
    let _turn = turn();
    let (_comm, objects, stream) = started();
    objects.start(&stream, 0, ONE, None).unwrap();
    let error = stream.synchronize_or_abort(SHORT, &objects.between_devices).unwrap_err();
    assert!(error.to_string().contains("whose kernels wait for rank 0, did not finish"), "{error}");
    stream.synchronize_or_abort(SHORT, &objects.base).unwrap_err();
    assert!(stream.query().unwrap());
}

/// A peer that leaves is no failure for waits that got their signal.
#[test]
fn a_peer_that_has_left_counts_when_it_ends_a_wait() {
    let _turn = turn();
    let context = Context::on(platform());
    let [channel, peer] = channel_pair(&context, [0, 0]).unwrap();
    let mut side = Side::new(&context.gpu(0).unwrap()).unwrap();
    side.signal(&peer, 2);
    side.finish();
    drop(peer);
    let connection = channel.semaphore().connection();
    until("the end of the connection", || connection.check().is_err());
    let stream = context.gpu(0).unwrap().stream().unwrap();
    for _ in 0..2 {
        assert_eq!(side.wait_once(&channel, -1), Outcome::Signalled, "it was there before");
        stream.synchronize_or_abort(LIMIT, &channel).unwrap();
    }
    assert_eq!(side.wait_once(&channel, -1), Outcome::NotSignalled);
    let error = stream.synchronize_or_abort(LIMIT, &channel).unwrap_err();
    assert!(matches!(error, CoreError::PeerClosed { .. } | CoreError::PeerLost { .. }), "{error}");
    // A wait that reached its bound is reported once.
    let [channel, _peer] = channel_pair(&context, [0, 0]).unwrap();
    assert_eq!(side.wait_once(&channel, 10), Outcome::NotSignalled);
    let error = stream.synchronize_or_abort(LIMIT, &channel).unwrap_err();
    assert!(matches!(error, CoreError::DeviceWaitTimedOut { .. }), "{error}");
    stream.synchronize_or_abort(LIMIT, &channel).unwrap();
}

#[test]
fn a_memory_without_an_address_is_refused_with_the_reason() {
    let _turn = turn();
    let comm = alone();
    let objects = Objects::new(&comm).unwrap();
    let local = comm.register_buffer(&objects.handle, TransportFlags::NONE).unwrap();
    comm.send_memory(&local, 0, 0).unwrap();
    let received = comm.recv_memory(0, 0).unwrap().wait().unwrap();
    assert_eq!(received.data(), None);
    let (kernel, stream) = (objects.module.kernel("wait_base").unwrap(), objects.gpu.stream().unwrap());
    let args = KernelArgs::new().with(&objects.base).with(&received);
    // SAFETY: the launch is refused.
    let error = unsafe { kernel.launch(&stream, ONE, &args) }.unwrap_err();
    for part in ["registered memory of 256 bytes", "not mapped here", "Context::map_memory"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    assert!(stream.query().unwrap(), "nothing was launched");
}
