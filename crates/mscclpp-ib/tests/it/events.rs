//! Tests of events that adapters report, and of pairs of adapters of which one has no atomics.

use std::{
    ffi::{c_int, c_void},
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use mscclpp_core::{IbConfig, IbMode, Transport};
use mscclpp_ib::InfiniBand;
use mscclpp_test_support::{LIMIT, until, within};
use mscclpp_verbs_sys as sys;

use crate::{
    ends::{self, Pair, Words},
    world::{MODES, POLLS, World, submit_all},
};
use mscclpp_fake_ib::{Call, Config};

/// The time for which a port may be down; the next constant is the time within which a loss must be noticed.
const GRACE: Duration = Duration::from_secs(3);
const NOTICE: Duration = Duration::from_secs(60);

/// Makes a world whose queue pairs try longer than a port may be down.
fn patient() -> World {
    World::new(Config { patience: Duration::from_secs(600), ..Config::new(2) })
}

#[test]
fn a_port_that_comes_back_fails_nothing() {
    let world = patient();
    let pair = world.pair(IbMode::Host, IbConfig::new());
    let other = patient();
    let lost = other.pair(IbMode::Host, IbConfig::new());
    let (source, target) = (Words::new(&pair.a, 8), Words::new(&pair.b, 8));
    let theirs = target.at_peer();
    source.fill(1);
    pair.ab.write(&theirs, 0, &source.memory, 0, 64).expect("a write");
    pair.ab.flush(LIMIT).expect("a flush");
    world.fake.set_port(0, 1, false);
    source.fill(2);
    pair.ab.write(&theirs, 0, &source.memory, 0, 64).expect("a write");
    until("tries to reach the peer", || world.fake.counters().transport_retries > 1);
    world.fake.set_port(0, 1, true);
    // This port goes down later and stays down: when its connection has failed, that of the first port would have
    // failed too.
    other.fake.set_port(0, 1, false);
    pair.ab.flush(LIMIT).expect("a flush");
    assert_eq!(target.all_hold(2), Ok(()));
    until("the loss of the other", || lost.ab.check().is_err());
    pair.ab.check().expect("it has not failed");
    pair.ba.check().expect("nor has the other side");
}

#[test]
fn a_port_that_stays_down_fails_its_connections() {
    for under_way in [false, true] {
        let world = patient();
        let pair = world.pair(IbMode::Host, IbConfig::new());
        let (source, target) = (Words::new(&pair.a, 8), Words::new(&pair.b, 8));
        let theirs = target.at_peer();
        pair.ab.flush(LIMIT).expect("a flush");
        let began = Instant::now();
        world.fake.set_port(0, 1, false);
        if under_way {
            pair.ab.write(&theirs, 0, &source.memory, 0, 64).expect("a write");
        }
        assert!(within(NOTICE, || pair.ab.check().is_err()), "nothing was noticed");
        assert!(began.elapsed() >= GRACE, "noticed after {:?}", began.elapsed());
        let error = pair.ab.check().expect_err("it has failed").to_string();
        assert!(error.contains("fake0") && error.contains("port 1 went down"), "{error}");
        assert!(within(NOTICE, || pair.ba.check().is_err()), "the peer was not told");
    }
}

#[test]
fn a_device_that_fails_is_told_though_its_requests_are_flushed() {
    for under_way in [false, true] {
        for _ in 0..20 {
            let world = patient();
            let pair = world.pair(IbMode::Host, IbConfig::new());
            let (source, target) = (Words::new(&pair.a, 8), Words::new(&pair.b, 8));
            let theirs = target.at_peer();
            pair.ab.flush(LIMIT).expect("a flush");
            if under_way {
                // The port is down so that the write stays under way.
                world.fake.set_port(1, 1, false);
                pair.ab.write(&theirs, 0, &source.memory, 0, 64).expect("a write");
            }
            world.fake.fail_device(0);
            let noticed = within(NOTICE, || {
                let _ = if under_way { pair.ab.flush(Duration::ZERO) } else { Ok(()) };
                pair.ab.check().is_err()
            });
            assert!(noticed, "nothing was noticed");
            let error = pair.ab.check().expect_err("it has failed").to_string();
            assert!(error.contains("fake0: local catastrophic error"), "{error}");
            assert!(within(NOTICE, || pair.ba.check().is_err()), "the peer was not told");
            let told = pair.ba.check().expect_err("it has failed").to_string();
            assert!(told.contains("fake0: local catastrophic error (as it says)"), "{told}");
        }
    }
}

#[test]
fn completion_queues_that_fail_are_told() {
    let world = patient();
    let pair = world.pair(IbMode::Host, IbConfig::new());
    pair.ab.flush(LIMIT).expect("a flush");
    world.fake.fail_completion_queues(0);
    for (connection, text) in [(&pair.ab, "fake0: CQ error"), (&pair.ba, "fake0: CQ error (as it says)")] {
        assert!(within(NOTICE, || connection.check().is_err()), "nothing was noticed");
        let error = connection.check().expect_err("it has failed").to_string();
        assert!(error.contains(text), "{error}");
    }
}

#[test]
fn without_atomics_on_either_side_signals_go_as_immediate_data() {
    for (mode, lacking) in [(IbMode::Host, [0].as_slice()), (IbMode::Host, &[1]), (IbMode::Default, &[0, 1])]
    {
        let mut config = Config::new(2);
        lacking.iter().for_each(|&device: &usize| config.devices[device].atomics = false);
        let world = World::new(config);
        let pair = world.pair(mode, IbConfig::new());
        let (there, back) = pair.semaphores();
        let (source, target) = (Words::new(&pair.a, 8), Words::new(&pair.b, 8));
        source.fill(4);
        pair.ab.write(&target.at_peer(), 0, &source.memory, 0, 64).expect("a write");
        for _ in 0..20 {
            there.signal().expect("a signal");
            back.wait(POLLS).expect("a signal");
            back.signal().expect("a signal back");
            there.wait(POLLS).expect("a signal back");
        }
        assert_eq!(target.all_hold(4), Ok(()));
        assert_eq!(world.fake.counters().receive_completions, 40, "{lacking:?}");
    }
}

/// A queue pair may fail by itself. The next request on it fails with the cause.
#[test]
fn a_queue_pair_of_the_peer_that_fails_is_told() {
    for mode in MODES {
        let world = World::new(Config::new(2));
        let pair = world.pair(mode, IbConfig::new());
        let (source, target) = (Words::new(&pair.a, 8), Words::new(&pair.b, 8));
        let theirs = target.at_peer();
        pair.ab.flush(LIMIT).expect("a flush");
        let of_peer = world.fake.queue_pairs().into_iter().find(|(device, _)| *device == 1);
        let (_, number) = of_peer.expect("the peer's end of the queue");
        world.fake.fail_queue_pair(number);
        let noticed = within(NOTICE, || {
            let _ = pair.ab.write(&theirs, 0, &source.memory, 0, 64);
            let _ = pair.ab.flush(Duration::ZERO);
            pair.ab.check().is_err()
        });
        assert!(noticed, "nothing was noticed");
        let error = pair.ab.check().expect_err("it has failed").to_string();
        // Either the own request fails first, or the peer reports the failure first.
        let is_own = error.contains("fake0 port 1") && error.contains("does not answer");
        assert!(is_own || error.contains("says that a connection between the two broke"), "{error}");
    }
}

/// Nothing is under way that could fail. The peer reports the failure, and what the peer itself waits for ends too.
#[test]
fn a_receiving_end_that_fails_is_told_to_who_sends_nothing() {
    let world = World::new(Config::new(2));
    let pair = world.pair(IbMode::HostNoAtomic, IbConfig::new());
    let (there, back) = pair.semaphores();
    there.signal().expect("a signal");
    back.wait(POLLS).expect("a signal");
    let of_peer = world.fake.queue_pairs().into_iter().find(|(device, _)| *device == 1);
    let (_, number) = of_peer.expect("the peer's end of the queue");
    world.fake.fail_queue_pair(number);
    for connection in [&pair.ab, &pair.ba] {
        assert!(within(NOTICE, || connection.check().is_err()), "nothing was noticed");
    }
}

type GetCqEvent =
    unsafe extern "C" fn(*mut sys::ibv_comp_channel, *mut *mut sys::ibv_cq, *mut *mut c_void) -> c_int;

static GET_CQ_EVENT: OnceLock<GetCqEvent> = OnceLock::new();
static MAY_HEAR: AtomicBool = AtomicBool::new(false);

/// Takes an event of the simulated adapters, but only once `MAY_HEAR` is set.
unsafe extern "C" fn get_cq_event_later(
    channel: *mut sys::ibv_comp_channel,
    cq: *mut *mut sys::ibv_cq,
    number: *mut *mut c_void,
) -> c_int {
    within(LIMIT, || MAY_HEAR.load(Ordering::Acquire));
    let get_cq_event = GET_CQ_EVENT.get().expect("it was set");
    // SAFETY: the caller promises the same.
    unsafe { get_cq_event(channel, cq, number) }
}

/// The peer's end of a queue fails when it has got as many messages as it had receives, and before it has reported
/// that it has posted some again. The sender has nothing under way that could fail, and waits for that report.
#[test]
fn a_sender_that_waits_for_receives_notices_that_the_peers_end_is_gone() {
    const RECEIVES: u64 = 16;
    let world = World::new(Config::new(2));
    let mut table = world.fake.table();
    GET_CQ_EVENT.get_or_init(|| table.get_cq_event);
    table.get_cq_event = get_cq_event_later;
    // SAFETY: the simulated adapters do what libibverbs does with real ones.
    let later = unsafe { InfiniBand::builder().verbs(Box::leak(Box::new(table))) };
    let config = IbConfig::new().max_recv_wr(RECEIVES as u32);
    let pair = Pair::of(
        world.end(Transport::IB0, IbMode::HostNoAtomic, config.clone()),
        ends::end_over(later.mode(IbMode::HostNoAtomic).build(), Transport::IB1, config),
    );
    let (there, _back) = pair.semaphores();
    let mut queue = pair.ab.open_queue().expect("a queue");
    // The peer's thread polls once for what came while it made its end of a queue. When it makes the end of another
    // queue, it has polled, so it handles none of the following messages before their event.
    let _another = pair.ab.open_queue().expect("a queue");
    let signaller = queue.attach(there.semaphore().signaller().expect("a signaller")).expect("attaching");
    (0..RECEIVES).for_each(|_| queue.signal(signaller).expect("a signal"));
    submit_all(&mut queue);
    assert!(within(LIMIT, || world.fake.counters().receive_completions == RECEIVES), "they do not arrive");
    world.fake.fail_call(1, Call::PostRecv, 1, libc::ENOMEM);
    MAY_HEAR.store(true, Ordering::Release);
    queue.signal(signaller).expect("it waits");
    let noticed = within(NOTICE, || queue.submit().is_err() || queue.progress().is_err());
    assert!(noticed, "nothing was noticed");
    let error = pair.ab.check().expect_err("it has failed").to_string();
    let says_so = error.contains("says that a connection between the two broke");
    assert!(says_so || error.contains("its end of the queue is closed"), "{error}");
}

/// A waiting thread may be the one that finds the end of a queue. What comes behind that end belongs to a token that
/// was never selected: it must not be taken for signals of the previous token.
#[test]
fn nothing_behind_a_refused_signal_is_stored() {
    /// The number of tokens in one registered memory.
    const TOKENS: usize = 128;
    for _ in 0..20 {
        let world = World::new(Config::new(2));
        let pair = world.pair(IbMode::HostNoAtomic, IbConfig::new());
        let mut semaphores: Vec<_> = (0..=TOKENS).map(|_| pair.semaphores()).collect();
        let (there, back) = semaphores.pop().expect("the last, whose token is in a memory of its own");
        there.signal().expect("a signal");
        back.wait(POLLS).expect("a signal");
        // The memory of these semaphores is withdrawn.
        let gone: Vec<_> = semaphores.into_iter().map(|(there, _)| there).collect();
        thread::scope(|scope| {
            scope.spawn(|| while gone[0].signal().is_ok() {});
            let error = loop {
                match back.poll() {
                    Ok(taken) => assert!(!taken, "a signal that nobody has sent"),
                    Err(error) => break error,
                }
            };
            println!("{error}");
        });
    }
}
