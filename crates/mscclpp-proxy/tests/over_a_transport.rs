//! The suite over Post, a transport from outside this project (`ci/consumers/own-transport`). One variant neither maps
//! memory nor stores completions, like a network, so that everything goes through the proxy and completions are in
//! pinned memory; further variants map more and more. The file also tests that a connection that is held up does not
//! hold up another. The same suite runs over CUDA IPC and over Ethernet.

mod suite;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use consumer_own_transport::knobs::{Reach, TestPost};
use libtest_mimic::{Arguments, Trial};
use mscclpp_core::{Context, Transport, provider::TokenMemory};
use mscclpp_cuda_ipc::CudaIpc;
use mscclpp_ethernet::Ethernet;
use mscclpp_gpu::DeviceBuffer;
use mscclpp_proxy::{PortChannel, ProxyTrigger};
use mscclpp_test_support::{Lines, until};
use suite::{
    Pair, Setup, Side,
    kernels::Thread,
    pair::{fill, mismatches, mix},
};

fn main() {
    let mut trials = Vec::new();
    for reach in [Reach::Nothing, Reach::Stores, Reach::Atomics] {
        trials.extend(suite::trials(
            &format!("{reach:?}::"),
            &setup_of(&TestPost::open(reach).expect("a hub"), reach),
        ));
        trials.push(Trial::test(format!("{reach:?}::flushes_wait_for_their_own_connection"), move || {
            flushes_wait_for_their_own_connection(reach);
            Ok(())
        }));
    }
    // All cases run again over queues that are full all the time, and with tokens in host memory.
    let limited =
        TestPost::open(Reach::Nothing).expect("a hub").limited_to(4).with_tokens(TokenMemory::PinnedHost);
    let limited = Setup { many_puts: 1 << 14, ..setup_of(&limited, Reach::Nothing) };
    trials.extend(suite::trials("FullAtFour::", &limited));
    let cases: [(&str, fn()); 4] = [
        ("a_run_of_triggers_is_one_batch", a_run_of_triggers_is_one_batch),
        ("others_go_on_while_a_connection_is_full", others_go_on_while_a_connection_is_full),
        (
            "a_failed_peer_is_seen_while_a_connection_is_full",
            a_failed_peer_is_seen_while_a_connection_is_full,
        ),
        ("a_stop_that_takes_long_names_the_peer", a_stop_that_takes_long_names_the_peer),
    ];
    trials.extend(cases.map(|(name, case)| {
        Trial::test(name, move || {
            case();
            Ok(())
        })
    }));
    let cuda_ipc = Setup {
        builder: Arc::new(|| Context::builder().provider(CudaIpc::new())),
        transport: Transport::CUDA_IPC,
        reach: [true, true],
        queue_size: None,
        many_puts: 1 << 18,
    };
    let ethernet = Setup {
        builder: Arc::new(|| Context::builder().provider(Ethernet::new())),
        transport: Transport::ETHERNET,
        reach: [false, false],
        queue_size: None,
        many_puts: 1 << 16,
    };
    trials.extend(suite::trials("cuda_ipc::", &cuda_ipc));
    trials.extend(suite::trials("ethernet::", &ethernet));
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn a_stop_that_takes_long_names_the_peer() {
    const LEN: u64 = 4096;
    let post = TestPost::open(Reach::Nothing).expect("a hub");
    let soon = Duration::from_millis(1);
    let pair = Pair::new(&setup_of(&post, Reach::Nothing), LEN, 1, |builder| builder.log_waits_after(soon));
    let (service, thread) = (&pair.sides[0].service, pair.sides[0].thread());
    // The first call is a put that nothing follows, the second one with a signal.
    let calls: [fn(&Thread<'_>) -> bool; 2] =
        [|thread| thread.put(0, 0, LEN), |thread| thread.put_with_signal(0, 0, LEN)];
    for (call, pushed) in calls.into_iter().zip(1..) {
        service.start_proxy(true).unwrap();
        post.hold(true);
        assert!(call(&thread));
        let held = post.clone();
        let log = Lines::then(move || held.hold(false));
        let writer = log.clone();
        let subscriber =
            tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).finish();
        tracing::subscriber::with_default(subscriber, || service.stop_proxy()).unwrap();
        let text = log.text();
        let line = format!("to stop: rank 1 over Post: pushed up to {pushed}, carried out up to ");
        assert!(text.contains(&line), "{text}");
    }
}

fn setup_of(post: &TestPost, reach: Reach) -> Setup {
    let post = post.clone();
    Setup {
        builder: Arc::new(move || Context::builder().provider(post.clone())),
        transport: TestPost::TRANSPORT,
        reach: [reach != Reach::Nothing, reach == Reach::Atomics],
        queue_size: None,
        many_puts: if reach == Reach::Nothing { 1 << 17 } else { 1 << 14 },
    }
}

/// A second connection of a service, from memory that holds noise.
struct Second {
    channel: PortChannel,
    noise: Vec<u8>,
    there: Side,
    // The memory that the channel puts from.
    _buffer: DeviceBuffer,
}

/// Makes a pair over `free` whose services run, and a second connection over `held` for the pair's first service.
fn pair_and_second(free: &TestPost, held: &TestPost, reach: Reach, len: u64) -> (Pair, Second) {
    let pair = Pair::running(&setup_of(free, reach), len);
    let service = &pair.sides[0].service;
    let Pair { sides: [a, there] } = Pair::new(&setup_of(held, reach), len, 1, |builder| builder);
    let Side { service: own_service, own, theirs, semaphores, buffer, .. } = a;
    // Dropping it releases its signaller of the semaphore.
    drop(own_service);
    let id = service.add_semaphore(&semaphores[0]).unwrap();
    let [dst, src] = [&theirs, &own].map(|memory| service.add_memory(memory).unwrap());
    let channel = service.port_channel(id, dst, src).unwrap();
    let noise: Vec<u8> = (0..len).map(|i| mix(5, i) as u8).collect();
    buffer.write(0, &noise).unwrap();
    (pair, Second { channel, noise, there, _buffer: buffer })
}

/// Does a hundred rounds of a put and a flush over the first connection, and checks after each flush that the data is
/// there.
fn put_flush_and_compare(pair: &Pair, len: u64) {
    let from = pair.sides[0].thread();
    let words = (len / 8) as usize;
    for round in 0..100 {
        fill(&pair.sides[0].words()[..words], |i| mix(round, i));
        assert!(from.put(0, 0, len) && from.flush());
        assert_eq!(mismatches(&pair.sides[1].words()[..words], |i| mix(round, i)), 0);
    }
}

/// Checks that all triggers in the FIFO when the proxy starts go to the transport in one call.
fn a_run_of_triggers_is_one_batch() {
    const PUTS: u64 = 20;
    let post = TestPost::open(Reach::Nothing).expect("a hub");
    let pair = Pair::new(&setup_of(&post, Reach::Nothing), 4096, 1, |builder| builder);
    let [a, b] = &pair.sides;
    for _ in 0..PUTS {
        assert!(a.thread().put_with_signal(0, 0, 4096));
    }
    a.service.start_proxy(true).unwrap();
    for _ in 0..PUTS {
        assert!(b.thread().wait());
    }
    a.service.stop_proxy().unwrap();
    assert_eq!(post.largest_batch(), 2 * PUTS, "a write and an update of each");
}

/// Tests one service with two connections. The transport of one takes four operations and carries none out: hundreds
/// of its triggers are set aside, nothing fails, and the other connection goes on. Then they arrive.
fn others_go_on_while_a_connection_is_full() {
    const LEN: u64 = 4096;
    const PUTS: u64 = 400;
    let reach = Reach::Nothing;
    let (held, free) =
        (TestPost::open(reach).expect("a hub").limited_to(4), TestPost::open(reach).expect("a hub"));
    let (pair, Second { channel, noise, there, _buffer }) = pair_and_second(&free, &held, reach, LEN);
    let service = &pair.sides[0].service;
    held.hold(true);
    let to = there.thread();
    let stuck = Thread::of(&pair.sides[0].kernels, &channel);
    for _ in 0..PUTS {
        assert!(stuck.put_with_signal(0, 0, LEN));
    }
    put_flush_and_compare(&pair, LEN);
    let stats = service.stats();
    // Each of `PUTS` is a put and a signal; four of these operations are with the transport.
    assert_eq!(stats.connections[1].waiting, 2 * PUTS - 4);
    assert_eq!((stats.connections[0].waiting, stats.total.data), (0, PUTS + 100));
    assert!(service.dump().contains("796 operations wait for room at the transport"), "{}", service.dump());
    service.health().expect("a full queue is no failure");
    assert!(!to.poll(), "nothing was carried out");
    held.hold(false);
    for _ in 0..PUTS {
        assert!(to.wait());
    }
    assert!(!to.poll(), "one signal each");
    assert!(there.bytes()[..LEN as usize] == noise);
    service.stop_proxy().unwrap();
    assert_eq!(service.stats().connections[1].waiting, 0);
}

/// Tests one service with two connections. The transport of one carries nothing out, so that the first trigger in the
/// FIFO waits for room. Meanwhile the peer of the other connection fails.
fn a_failed_peer_is_seen_while_a_connection_is_full() {
    const LEN: u64 = 4096;
    let reach = Reach::Nothing;
    let (held, free) =
        (TestPost::open(reach).expect("a hub").limited_to(4), TestPost::open(reach).expect("a hub"));
    let (pair, Second { channel, there, _buffer, .. }) = pair_and_second(&free, &held, reach, LEN);
    let [side, peer] = &pair.sides;
    held.hold(true);
    assert_eq!(Thread::of(&side.kernels, &channel).put_many(1600, 8, 1), 1600);
    peer.thread().push(ProxyTrigger::default(), -1);
    until("the end of the service", || !side.service.is_running());
    until("the news", || there.connection.check().is_err());
    held.hold(false);
}

/// Tests one service with two connections. While the transport of one carries nothing out, flushes on the other
/// return; the flush on the first returns when its transport goes on.
fn flushes_wait_for_their_own_connection(reach: Reach) {
    const LEN: u64 = 64 << 10;
    let (held, free) = (TestPost::open(reach).expect("a hub"), TestPost::open(reach).expect("a hub"));
    let (pair, Second { channel, noise, there, _buffer }) = pair_and_second(&free, &held, reach, LEN);
    let service = &pair.sides[0].service;
    held.hold(true);
    let returned = AtomicBool::new(false);
    let to = there.thread();
    thread::scope(|scope| {
        let _guard = pair.guard();
        scope.spawn(|| {
            assert!(Thread::of(&pair.sides[0].kernels, &channel).put_with_signal_and_flush(0, 0, LEN));
            returned.store(true, Ordering::Release);
        });
        until("the flush that is held up", || service.stats().total.syncs == 1);
        let flushes = scope.spawn(|| put_flush_and_compare(&pair, LEN));
        until("flushing the other connection", || flushes.is_finished());
        flushes.join().unwrap();
        assert!(!returned.load(Ordering::Acquire) && !to.poll(), "nothing was carried out");
        let pending = || service.stats().oldest_pending_flush.expect("the flush that is held up");
        let first = pending();
        assert_eq!(first.peer, "rank 1");
        until("its growing older", || pending().age > first.age);
        assert_eq!(pending().position, first.position);
        held.hold(false);
    });
    assert!(to.wait());
    assert!(there.bytes()[..LEN as usize] == noise);
    until("its completion", || service.stats().oldest_pending_flush.is_none());
    service.stop_proxy().unwrap();
}
