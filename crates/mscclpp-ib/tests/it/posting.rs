//! Tests of adapters that take fewer requests than were posted: posting continues exactly where they stopped.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use mscclpp_core::{IbConfig, IbMode};
use mscclpp_test_support::{LIMIT, within};

use crate::{
    completions::first_failure,
    ends::Words,
    world::{MODES, POLLS, World, flush, submit_all},
};
use mscclpp_fake_ib::{Call, Config, Reordering};

/// The number of writes, each with a signal behind it.
const PUTS: usize = 40;
/// The time after which a dropped queue whose work does not end is given up.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(10);

/// Submits all puts in one batch, of which the adapter refuses the `nth` request for now. Everything must arrive
/// once, in order.
fn refuse_for_now(world: &World, mode: IbMode, places: u32, chain: u32, nth: u64) {
    let config = IbConfig::new().max_send_wr(places).max_wr_per_send(chain);
    let pair = world.pair(mode, config);
    let (there, back) = pair.semaphores();
    let (source, target) = (Words::new(&pair.a, PUTS), Words::new(&pair.b, PUTS));
    let mut queue = pair.ab.open_queue().expect("a queue");
    let route = queue.route(&target.at_peer(), &source.memory).expect("a route");
    let signaller = queue.attach(there.semaphore().signaller().expect("a signaller")).expect("attaching");
    source.fill(9);
    world.fake.fail_call(0, Call::PostSend, nth, libc::ENOMEM);
    let is_over = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for put in 1..=PUTS {
                back.wait(POLLS).expect("a signal");
                let arrived = target.count_of(9);
                assert!(arrived >= put, "{put} signals, but {arrived} puts");
            }
            is_over.store(true, Ordering::Release);
        });
        for put in 0..PUTS as u64 {
            queue.write(route, 8 * put, 8 * put, 8).expect("a write");
            queue.signal(signaller).expect("a signal");
        }
        submit_all(&mut queue);
        flush(&mut queue);
    });
    assert!(is_over.load(Ordering::Acquire));
    assert!(!back.poll().expect("a poll"), "there were more signals than were sent");
    assert_eq!(target.all_hold(9), Ok(()));
}

#[test]
fn what_an_adapter_refuses_for_now_is_posted_later() {
    let reordering = Config::new(2).with(|device| device.reordering = Reordering::HOST_MEMORY);
    for mode in MODES {
        let world = World::new(reordering.clone());
        for (places, chain) in [(2, 64), (3, 2), (5, 64), (16, 3), (64, 64), (1024, 64), (1024, 1)] {
            // The first request of an idle queue must be taken, because nothing else would make room.
            let all: Vec<u64> = if places < 5 { vec![2] } else { (2..=u64::from(places).min(12)).collect() };
            for nth in all {
                refuse_for_now(&world, mode, places, chain, nth);
            }
        }
        assert_eq!(world.fake.counters().overruns, 0);
    }
}

#[test]
fn queues_of_one_place_work() {
    for mode in MODES {
        let world = World::new(Config::new(2));
        // No request is refused, because the fault is behind all of them.
        refuse_for_now(&world, mode, 1, 64, 1 << 40);
    }
}

#[test]
fn what_an_adapter_refuses_for_good_fails_the_connection() {
    for (nth, errno) in [(1, libc::ENOMEM), (1, libc::EINVAL), (2, libc::EIO)] {
        let world = World::new(Config::new(2));
        let pair = world.pair(IbMode::Host, IbConfig::new());
        let (source, target) = (Words::new(&pair.a, 8), Words::new(&pair.b, 8));
        let theirs = target.at_peer();
        pair.ab.flush(LIMIT).expect("a flush");
        world.fake.fail_call(0, Call::PostSend, nth, errno);
        for _ in 0..2 {
            let _ = pair.ab.write(&theirs, 0, &source.memory, 0, 64);
        }
        let error = first_failure(&pair.ab);
        for part in [
            "fake0",
            "ibv_post_send",
            "::ffff:10.0.0.2",
            &std::io::Error::from_raw_os_error(errno).to_string(),
        ] {
            assert!(error.contains(part), "{part} is missing: {error}");
        }
    }
}

/// Submitted operations are carried out, and then the queue pair goes, even if nobody flushes.
#[test]
fn a_dropped_queue_goes_when_its_work_is_done() {
    for mode in MODES {
        let world = World::new(Config::new(2));
        let pair = world.pair(mode, IbConfig::new());
        let (source, target) = (Words::new(&pair.a, 40), Words::new(&pair.b, 40));
        source.fill(6);
        let began = Instant::now();
        let mut queue = pair.ab.open_queue().expect("a queue");
        let route = queue.route(&target.at_peer(), &source.memory).expect("a route");
        for word in 0..40 {
            queue.write(route, 8 * word, 8 * word, 8).expect("a write");
        }
        submit_all(&mut queue);
        drop(queue);
        assert!(within(LIMIT, || world.fake.live().queue_pairs == 0), "its queue pairs stay");
        assert_eq!(target.all_hold(6), Ok(()));
        assert!(began.elapsed() < GIVEN_UP_AFTER, "it was given up, not done, after {:?}", began.elapsed());
    }
}
