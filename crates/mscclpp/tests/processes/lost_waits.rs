//! A stream reports how the waits of its kernels ended, whoever waits for the stream and how: that a peer was lost, that
//! a wait was aborted or reached its bound, or that a proxy service refused a request of the kernel.

use std::{thread, time::Duration, time::Instant};

use libtest_mimic::{Failed, Trial};
use mscclpp::{
    Error, ErrorKind, Stream,
    errors::{CoreError, GpuError, ProxyError},
    prelude::*,
};
use mscclpp_test_support::{Random, Turn, until};

use crate::support::{
    LIMIT, assert_usable,
    children::{Children, Role, RoleExt, say},
    device_of, endpoint_of,
    kernels::{LIFETIMES, PORT_CHANNEL},
    platform,
    waiting::{KERNELS, NOT_SIGNALLED, Objects, started},
};

const N: usize = 3;
const VICTIM: usize = 2;
const ONE: LaunchConfig = LaunchConfig::linear(1, 1);
const SHORT: Duration = Duration::from_millis(50);

/// A way to wait for a stream whose kernels wait through the channel to the victim, which is the first channel. The
/// second channel leads to a rank that lives.
type Form = fn(&Stream, &BaseMemoryChannel, &BaseMemoryChannel) -> Result<(), Error>;

const FORMS: [(&str, Form); 7] = [
    ("synchronize", |stream, _, _| Ok(stream.synchronize()?)),
    ("synchronize_timeout", |stream, _, _| Ok(stream.synchronize_timeout(LIMIT)?)),
    ("synchronize_or_abort", |stream, lost, _| Ok(stream.synchronize_or_abort(LIMIT, lost)?)),
    ("synchronize_or_abort_of_another", |stream, _, other| Ok(stream.synchronize_or_abort(LIMIT, other)?)),
    ("synchronize_of_the_device", |stream, _, _| Ok(stream.gpu().synchronize()?)),
    ("query_before", |stream, _, _| {
        until("the end of the kernel", || stream.query().expect("a query"));
        Ok(stream.synchronize()?)
    }),
    ("synchronize_of_a_foreign_stream", |stream, _, _| Ok(stream.synchronize()?)),
];

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (form, _) in FORMS {
        for how in ["launched", "replayed"] {
            let is_foreign = form.ends_with("foreign_stream");
            let ignored = is_foreign && platform() == Platform::Sim;
            let why = if ignored { " (simulated devices have no raw streams)" } else { "" };
            let name = format!("{form}_says_who_was_lost_for_a_{how}_kernel{why}");
            trials.push(Trial::test(name, move || killed(form, how)).with_ignored_flag(ignored));
        }
    }
    type Case = fn();
    let cases: [(&str, Case); 8] = [
        ("each_kind_of_object_says_that_its_peer_was_lost", each_kind),
        ("objects_that_are_gone_still_say_that_their_peer_was_lost", dropped),
        ("an_abort_is_told_once_by_whoever_aborts", aborted),
        ("a_bound_that_was_reached_is_told_once", bound),
        ("a_peer_that_left_without_ending_a_wait_is_no_error", left),
        ("what_the_proxy_refused_is_told", refused),
        ("a_service_that_was_not_started_is_named", not_started),
        ("what_a_proxy_of_ones_own_failed_with_is_told", own_proxy),
    ];
    for (name, case) in cases {
        trials.push(Trial::test(name, move || {
            // They share the devices of this process.
            let _turn = Turn::take(true);
            case();
            Ok(())
        }));
    }
    trials
}

fn killed(form: &str, how: &str) -> Result<(), Failed> {
    let mut children = Children::form(&format!("lost_waits {how} {form}"), N);
    (0..N).for_each(|rank| children.expect(rank, "ready"));
    // The victim is killed before or after the kernels have reached their wait.
    thread::sleep(Duration::from_millis(Random::new().of(0..=100)));
    let at = Instant::now();
    children.kill(VICTIM);
    children.expect_named(&[0, 1], VICTIM, at)
}

/// Runs in a child: its kernel waits for the victim, which is killed.
pub(crate) fn survive(role: &Role) {
    let (how, form) = role.name.split_once(' ').expect("how and form");
    let (name, wait) = FORMS.into_iter().find(|(name, _)| *name == form).expect("a form");
    let comm = role.communicator().expect("a job");
    let gpu = comm.context().gpu(device_of(role.rank)).expect("a device");
    let mesh = comm.mesh(endpoint_of(role.rank)).connect().expect("connections");
    let channel =
        |peer| BaseMemoryChannel::new(&mesh.link(peer).expect("a peer").semaphores[0]).expect("a channel");
    let own = gpu.stream().expect("a stream");
    let stream = match name.ends_with("foreign_stream") {
        // SAFETY: it is a stream of that device, and `own` lives as long.
        true => unsafe { Stream::from_raw(&gpu, own.raw()) }.expect("the stream again"),
        false => own.clone(),
    };
    let kernel = Module::load(&gpu, &LIFETIMES).expect("kernels").kernel("wait_base").expect("wait_base");
    let ended = gpu.allocate(8).expect("memory");
    comm.bootstrap().barrier().expect("all ranks");
    if role.rank == VICTIM {
        say("ready");
        thread::sleep(2 * LIMIT);
        return;
    }
    let (lost, other) = (channel(VICTIM), channel(1 - role.rank));
    let launch = || {
        let args = KernelArgs::new().with(&lost).with(DevicePtr::NULL).with(&ended);
        // SAFETY: the kernel's arguments.
        unsafe { kernel.launch(&stream, ONE, &args) }.expect("a launch");
    };
    let graph = (how == "replayed").then(|| {
        stream.begin_capture().expect("a capture");
        launch();
        stream.end_capture().expect("a graph")
    });
    let run = || match &graph {
        // SAFETY: the graph keeps the objects that it needs.
        Some(graph) => unsafe { graph.launch(&stream) }.expect("a launch"),
        None => launch(),
    };
    run();
    say("ready");
    let error = wait(&stream, &lost, &other).expect_err("the peer was killed");
    assert!(
        matches!(error, Error::Core(CoreError::PeerLost { .. } | CoreError::PeerFailed { .. })),
        "{error}"
    );
    assert_eq!(error.kind(), ErrorKind::Remote);
    // The error is returned once, and again after the next launch.
    stream.synchronize().expect("it was told");
    stream.synchronize_timeout(LIMIT).expect("it was told");
    gpu.synchronize().expect("it was told");
    run();
    wait(&stream, &lost, &other).expect_err("a launch with what was lost");
    drop((graph, stream));
    say(&format!("error {error}"));
    assert_usable(device_of(role.rank));
    say("usable");
}

/// Starts the kernel with this name, and fails its connection while it waits.
fn lose(objects: &Objects) {
    let lost = CoreError::PeerLost { peer: "rank 0".to_owned(), reason: "so says the test".to_owned() };
    objects.semaphore.connection().fail(lost);
}

fn is_lost(error: &GpuError) -> bool {
    Error::from(error.clone()).kind() == ErrorKind::Remote && error.to_string().contains("lost rank 0")
}

fn each_kind() {
    for (number, name) in KERNELS.iter().enumerate().filter(|(_, name)| **name != "wait_fifo") {
        let (_comm, objects, stream) = started();
        objects.start(&stream, number, ONE, None).unwrap();
        lose(&objects);
        let error = stream.synchronize().unwrap_err();
        assert!(is_lost(&error), "{name}: {error}");
        assert_eq!(Objects::outcome(&objects.ended, number), NOT_SIGNALLED);
        stream.synchronize().unwrap();
    }
}

fn dropped() {
    let (comm, objects, stream) = started();
    objects.start(&stream, 1, ONE, None).unwrap();
    lose(&objects);
    drop(objects);
    let error = stream.synchronize().unwrap_err();
    assert!(is_lost(&error), "{error}");
    until("the end of the connections", || comm.peers().is_empty());
}

fn aborted() {
    let (_comm, objects, stream) = started();
    objects.start(&stream, 0, ONE, None).unwrap();
    // The caller that aborts gets the time-out, and not its own abort.
    stream.synchronize_or_abort(SHORT, &objects.base).unwrap_err();
    stream.synchronize().unwrap();
    objects.start(&stream, 1, ONE, None).unwrap();
    objects.channel.semaphore().abort("the program has seen enough");
    let error = Error::from(stream.synchronize().unwrap_err());
    assert!(error.kind() == ErrorKind::Aborted && error.to_string().contains("seen enough"), "{error}");
    stream.synchronize().unwrap();
}

fn bound() {
    let (_comm, objects, stream) = started();
    let beat = objects.gpu.allocate_pinned(8).unwrap();
    // Kernels with a beat use bounded waits, and repeat them until there is a signal.
    objects.start(&stream, 0, ONE, Some(&beat)).unwrap();
    let beats: &std::sync::atomic::AtomicU64 = beat.word(0).unwrap();
    until("a wait that reaches its bound", || beats.load(std::sync::atomic::Ordering::Relaxed) > 1);
    let token = DevicePtr::from_ptr(objects.base.device_handle().semaphore.inbound_token);
    let signaller = objects.gpu.stream().unwrap();
    // SAFETY: it is the word of this rank's own semaphore, which nobody signals.
    unsafe { signaller.write_u64(token, 1).unwrap() };
    let error = Error::from(stream.synchronize().unwrap_err());
    assert!(matches!(error, Error::Core(CoreError::DeviceWaitTimedOut { .. })), "{error}");
    stream.synchronize().unwrap();
    objects.base.semaphore().check().unwrap();
}

fn left() {
    let (_comm, objects, stream) = started();
    let token = DevicePtr::from_ptr(objects.base.device_handle().semaphore.inbound_token);
    // SAFETY: the same as for the write before.
    unsafe { stream.write_u64(token, 1).unwrap() };
    objects.start(&stream, 0, ONE, None).unwrap();
    until("the end of the kernel", || stream.query().unwrap());
    lose(&objects);
    stream.synchronize().unwrap();
}

/// Starts a kernel whose only thread makes a call of `port_channel.cu` over the port channel.
fn call(objects: &Objects, port: &PortChannel, stream: &Stream, call: i32, dst_offset: u64) {
    let kernel = Module::load(&objects.gpu, &PORT_CHANNEL).unwrap().kernel("port_call").unwrap();
    let args = KernelArgs::new().with(port).with(call).with(dst_offset).with(0u64).with(8u64).with(-1i64);
    // SAFETY: the kernel's arguments.
    unsafe { kernel.launch(stream, ONE, &args.with(&objects.ended)).unwrap() };
}

const PUT: i32 = 0;
const PUT_WITH_SIGNAL_AND_FLUSH: i32 = 3;

fn refused() {
    let (_comm, objects, stream) = started();
    // The range ends past the memory: the service fails with an error, and ends the flush.
    call(&objects, &objects.port, &stream, PUT_WITH_SIGNAL_AND_FLUSH, 1 << 20);
    let error = Error::from(stream.synchronize().unwrap_err());
    assert!(matches!(error, Error::Proxy(ProxyError::Trigger { .. })), "{error}");
    stream.synchronize().unwrap();
}

fn not_started() {
    let (comm, objects, stream) = started();
    let connection = objects.semaphore.connection();
    // Kernels hand all puts to this service, whatever their size.
    let service = ProxyService::builder(&objects.gpu).direct_put_max(0).build().unwrap();
    let id = service.build_and_add_semaphore(&comm, connection).unwrap();
    let dst = service.add_memory(objects.channel.dst()).unwrap();
    let src = service.add_memory(&objects.memory).unwrap();
    let port = service.port_channel(id, dst, src).unwrap();
    // A kernel that waits for nothing is complete.
    call(&objects, &port, &stream, PUT, 0);
    let error = stream.synchronize().unwrap_err();
    let named = format!("the proxy service of {}, which was not started (call start_proxy())", objects.gpu);
    assert!(matches!(Error::from(error.clone()), Error::Proxy(ProxyError::NotServed { .. })), "{error}");
    assert!(error.to_string().contains(&named), "{error}");
    stream.synchronize().unwrap();
    // A kernel that flushes is not complete.
    call(&objects, &port, &stream, PUT_WITH_SIGNAL_AND_FLUSH, 0);
    let error = stream.synchronize_timeout(SHORT).unwrap_err();
    assert!(matches!(error, GpuError::Timeout { .. }) && error.to_string().contains(&named), "{error}");
    service.start_proxy(true).unwrap();
    stream.synchronize().unwrap();
}

fn own_proxy() {
    let (_comm, objects, stream) = started();
    let fifo = KERNELS.iter().position(|name| *name == "wait_fifo").unwrap();
    objects.start(&stream, fifo, ONE, None).unwrap();
    let named = format!("a proxy of {} to take what they pushed", objects.gpu);
    until("the push", || stream.synchronize_timeout(SHORT).unwrap_err().to_string().contains(&named));
    objects.proxy.abort("the handler is at its end");
    let error = Error::from(stream.synchronize().unwrap_err());
    assert!(error.kind() == ErrorKind::Aborted && error.to_string().contains("at its end"), "{error}");
    stream.synchronize().unwrap();
}
