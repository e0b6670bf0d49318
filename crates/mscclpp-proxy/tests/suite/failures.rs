//! Failures: a trigger that cannot be carried out leads to an error that names it, and nobody waits for ever.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Instant,
};

use mscclpp_core::{Error as CoreError, Report};
use mscclpp_gpu::Abort;
use mscclpp_proxy::{Error, FifoHandle, MemoryId, ProxyService, ProxyTrigger, SemaphoreId, TriggerKind};
use mscclpp_test_support::{LIMIT, until};

use super::{
    Case, Pair, Setup, Side,
    kernels::Thread,
    pair::{OWN, THEIRS},
};

pub(super) const CASES: &[Case] = &[
    ("bad_triggers_are_named", bad_triggers_are_named),
    ("a_failure_frees_all_waiters", a_failure_frees_all_waiters),
    ("a_proxy_that_fails_says_so_on_both_sides", a_proxy_that_fails_says_so_on_both_sides),
    ("a_failure_is_passed_on", a_failure_is_passed_on),
    ("a_service_that_was_not_started_is_found", a_service_that_was_not_started_is_found),
    ("what_does_not_fit_a_trigger_is_refused_by_the_kernel", what_does_not_fit_a_trigger_is_refused),
    ("a_poisoned_fifo_is_reported", a_poisoned_fifo_is_reported),
    ("an_abort_is_sticky", an_abort_is_sticky),
    ("a_peer_that_closed_is_no_failure_until_it_is_needed", a_peer_that_closed_is_no_failure),
    ("bad_channels_are_refused", bad_channels_are_refused),
];

const LEN: u64 = 4096;

fn failure_of(side: &Side) -> Error {
    until("the failure", || side.service.health().is_err());
    let error = side.service.stop_proxy().expect_err("the failure");
    assert!(!side.service.is_running());
    assert_eq!(side.service.start_proxy(true).expect_err("the failure").to_string(), error.to_string());
    error
}

/// Pushes raw triggers, as a kernel of a user could.
fn bad_triggers_are_named(setup: &Setup) {
    let nothing = ProxyTrigger::default();
    let (first, unknown) = (SemaphoreId::from_raw(0), SemaphoreId::from_raw(1000));
    let data = |dst, src, size, semaphore| ProxyTrigger::new(TriggerKind::DATA, dst, src, size, semaphore);
    let cases = [
        (data((THEIRS, 0), (OWN, 0), 8, unknown), "there is no semaphore 1000: 1 "),
        (data((MemoryId::from_raw(9), 0), (OWN, 0), 8, first), "there is no memory 9: 2 "),
        (data((THEIRS, 0), (MemoryId::from_raw(500), 0), 8, first), "there is no memory 500"),
        (data((THEIRS, 2 * LEN), (OWN, 0), 1, first), "destination: offset 8192 + 1 bytes"),
        (data((THEIRS, 0), (OWN, 1), 2 * LEN, first), "source: offset 1 + 8192 bytes"),
        (data((THEIRS, 0), (THEIRS, 0), 8, first), "the source is a peer's memory"),
        (Ok(nothing), "it asks for nothing"),
    ];
    for (trigger, why) in cases {
        let (trigger, pair) = (trigger.unwrap(), Pair::running(setup, LEN));
        let side = &pair.sides[0];
        let position = side.thread().push(trigger, -1);
        let error = failure_of(side);
        assert!(
            matches!(error, Error::Trigger { position: p, trigger: t, .. } if p == position && t == trigger)
        );
        let text = Report(&error).to_string();
        assert!(text.contains(why) && text.contains(&trigger.to_string()), "{text}");
        let peer = &pair.sides[1].service;
        until("the news", || peer.health().is_err());
        let told = peer.health().unwrap_err();
        assert!(
            matches!(told.core(), Some(CoreError::PeerFailed { peer, .. }) if peer == "rank 0"),
            "{told}"
        );
        let told = Report(&told).to_string();
        assert!(told.starts_with("rank 0's proxy: trigger 0 ") && told.contains(why), "{told}");
        pair.sides[0].connection.check().expect("it is not told of its own failure");
    }
}

/// Tests a kernel that does not wait for its operation, and has ended before the proxy begins with it. The peer waits
/// without a bound.
fn a_proxy_that_fails_says_so_on_both_sides(setup: &Setup) {
    let begin = Arc::new(AtomicBool::new(false));
    let pair = Pair::new(setup, 2048, 1, |builder| {
        let may_begin = begin.clone();
        let late = move || until("the kernel's end", || may_begin.load(Ordering::Acquire));
        builder.direct_put_max(0).thread_init(late)
    });
    let [guilty, waiting] = &pair.sides;
    let (wait, channel) = (waiting.thread().start_wait(), waiting.channel(0));
    pair.sides.iter().for_each(|side| side.service.start_proxy(false).unwrap());
    let why = "destination: offset 4000 + 1024 bytes is past the end of 4096 bytes";
    let call = guilty.thread().start_put(4000, 0, 1024);
    call.until_ended();
    begin.store(true, Ordering::Release);
    let error = call.end_or_abort(&guilty.service).expect_err(why);
    assert!(Report(&error).to_string().contains(why), "{}", Report(&error));
    let error = wait.end_or_abort(&waiting.service).expect_err("its peer has failed");
    let error = Report(&error).to_string();
    assert!(error.contains("rank 0's proxy: ") && error.contains(why), "{error}");
    // The channel reports the error, too.
    let error = channel.check().expect_err("its peer has failed").to_string();
    assert!(error.contains("rank 0's proxy: ") && error.contains(why), "{error}");
}

/// Tests a service with two peers: one peer's failure is the cause of its own failure, which is sent to the other.
fn a_failure_is_passed_on(setup: &Setup) {
    let [first, second] = [0, 1].map(|_| Pair::new(setup, LEN, 1, |builder| builder));
    let (Pair { sides: [one, guilty] }, Pair { sides: [other, waiting] }) = (first, second);
    drop((one.service, other.service));
    let middle = ProxyService::new(&one.gpu).expect("a service");
    for semaphore in [&one.semaphores[0], &other.semaphores[0]] {
        middle.add_semaphore(semaphore).expect("a place");
    }
    [&middle, &guilty.service, &waiting.service].iter().for_each(|each| each.start_proxy(true).unwrap());
    let wait = waiting.thread().start_wait();
    guilty.thread().push(ProxyTrigger::default(), -1);
    let error = wait.end_or_abort(&waiting.service).expect_err("one of them has failed").to_string();
    let beginning = "rank 0's proxy has stopped because of rank 1's proxy: trigger 0 ";
    assert!(error.starts_with(beginning) && error.ends_with("it asks for nothing (as it says)"), "{error}");
}

/// Tests kernels that need the service, and kernels that have done everything by themselves so far.
fn a_service_that_was_not_started_is_found(setup: &Setup) {
    let pair = Pair::new(setup, LEN, 1, |builder| builder);
    let [side, peer] = &pair.sides;
    let put = side.thread().start_put_with_signal(0, 0, 64);
    let error = put.end_or_abort(&side.service).expect_err("it was not started").to_string();
    assert!(error.contains("was not started (call start_proxy())"), "{error}");
    assert!(side.channel(0).check().is_err(), "the channel says it, too");
    // A side that only waits needs no service.
    side.service.start_proxy(true).unwrap();
    side.channel(0).check().expect("it is started");
    peer.thread().start_wait().end_or_abort(&peer.service).expect("the signal arrives");
}

fn a_failure_frees_all_waiters(setup: &Setup) {
    let pair = Pair::new(setup, LEN, 3, |builder| builder.fifo_size(2).direct_put_max(0));
    let side = &pair.sides[0];
    let threads = [0, 1, 2].map(|id| side.thread_on(id));
    thread::scope(|scope| {
        let waits = [0, 1, 2].map(|n| {
            let thread = threads[n];
            scope.spawn(move || thread.wait())
        });
        // The flushes below come after the bad trigger, so they are never carried out, or find the FIFO full.
        let (memory, semaphore) = (MemoryId::from_raw(77), SemaphoreId::from_raw(1));
        let bad = ProxyTrigger::new(TriggerKind::DATA, (memory, 0), (OWN, 0), 8, semaphore).unwrap();
        assert_ne!(threads[0].push(bad, -1), FifoHandle::FAILED);
        let flushes = [0, 1, 2, 2, 1].map(|n: usize| {
            let thread = threads[n];
            scope.spawn(move || thread.put(0, 0, 8000) && thread.flush())
        });
        side.service.start_proxy(false).unwrap();
        for call in waits.into_iter().chain(flushes) {
            assert!(!call.join().unwrap());
        }
    });
    assert!(Report(&failure_of(side)).to_string().contains("no memory 77"));
    for semaphore in &side.semaphores {
        let error = semaphore.check().unwrap_err().to_string();
        assert!(error.contains("the proxy service has stopped") && error.contains("no memory 77"), "{error}");
    }
    let late = side.service.add_semaphore(&side.semaphores[0]);
    assert!(late.is_err());
}

fn what_does_not_fit_a_trigger_is_refused(setup: &Setup) {
    let far = 1 << 32;
    let calls: [fn(&Thread<'_>, u64) -> bool; 4] = [
        |thread, far| thread.put(far, 0, 8),
        |thread, far| thread.put_with_signal(0, far, 8),
        |thread, far| thread.put_with_signal_and_flush(0, 0, far),
        |thread, _| thread.put_between(MemoryId::from_raw(512), OWN, 8),
    ];
    for call in calls {
        let pair = Pair::running(setup, LEN);
        let side = &pair.sides[0];
        let thread = side.thread();
        assert!(!call(&thread, far));
        assert!(!thread.wait(), "the channel is aborted");
        let error = side.semaphores[0].check().unwrap_err();
        assert!(
            matches!(&error, mscclpp_core::Error::TriggerRefused { peer, .. } if peer == "rank 1"),
            "{error}"
        );
        assert_eq!(side.service.health().unwrap_err().to_string(), error.to_string());
        assert!(side.service.stop_proxy().is_err());
        assert_eq!(side.service.stats().triggers, 0, "nothing was pushed");
    }
}

fn a_poisoned_fifo_is_reported(setup: &Setup) {
    let pair = Pair::new(setup, LEN, 1, |builder| builder.fifo_size(2));
    let [side, peer] = &pair.sides;
    let (thread, at_peer) = (side.thread(), peer.thread());
    assert!(thread.put(0, 0, 8000) && thread.put_with_signal(0, 0, 8000));
    // Nobody takes the triggers: the third does not fit, and a bounded push gives up.
    let third =
        ProxyTrigger::new(TriggerKind::SYNC, (THEIRS, 0), (OWN, 0), 0, SemaphoreId::from_raw(0)).unwrap();
    assert_eq!(thread.push(third, 100), FifoHandle::FAILED);
    assert!(!thread.flush(), "the FIFO is of no use any more");
    side.service.start_proxy(true).unwrap();
    let error = failure_of(side);
    assert!(matches!(error, Error::Poisoned { position } if position.raw() == 2), "{error}");
    // The triggers before the hole were carried out.
    until("what came before", || at_peer.poll());
}

fn an_abort_is_sticky(setup: &Setup) {
    let pair = Pair::running(setup, LEN);
    let side = &pair.sides[0];
    let thread = side.thread();
    thread::scope(|scope| {
        let wait = scope.spawn(|| thread.wait());
        side.service.abort("enough");
        assert!(!wait.join().unwrap());
    });
    assert!(failure_of(side).to_string().contains("enough"));
    assert!(!thread.wait());
    assert!(side.semaphores[0].check().unwrap_err().to_string().contains("enough"));
}

fn a_peer_that_closed_is_no_failure(setup: &Setup) {
    let Pair { sides: [side, peer] } = Pair::running(setup, LEN);
    let thread = side.thread();
    drop(peer);
    until("the news", || side.connection.check().is_err());
    // The service's thread makes at least one turn before it stops.
    side.service.stop_proxy().expect("nothing was asked of the peer");
    side.service.start_proxy(true).expect("it goes on");
    side.service.health().expect("nothing was asked of the peer");
    assert!(!(thread.put(0, 0, 8000) && thread.flush()));
    let start = Instant::now();
    let error = failure_of(&side);
    let text = Report(&error).to_string();
    assert!(text.contains("rank 1") && start.elapsed() < LIMIT, "{text}");
}

fn bad_channels_are_refused(setup: &Setup) {
    let pair = Pair::new(setup, LEN, 1, |builder| builder);
    let [side, other] = &pair.sides;
    let service = &side.service;
    let [first, unknown] = [0, 1].map(SemaphoreId::from_raw);
    let third = MemoryId::from_raw(2);
    assert!(matches!(service.base_port_channel(unknown), Err(Error::UnknownId { id: 1, count: 1, .. })));
    assert!(matches!(service.port_channel(first, third, OWN), Err(Error::UnknownId { id: 2, count: 2, .. })));
    assert!(service.port_channel(first, OWN, THEIRS).is_err(), "the wrong way round");
    let wrong_device = service.add_semaphore(&other.semaphores[0]).unwrap_err().to_string();
    assert!(wrong_device.contains("device 0") && wrong_device.contains("device 1"), "{wrong_device}");
    let second = ProxyService::new(&side.gpu).expect("a second service");
    let taken = second.add_semaphore(&side.semaphores[0]).unwrap_err().to_string();
    assert!(taken.contains("signals over this semaphore of the connection to rank 1 already"), "{taken}");
    assert_eq!(service.next_memory_id(510).unwrap(), third);
    assert!(matches!(service.next_memory_id(511), Err(Error::TooMany { limit: 512, used: 2, .. })));
    for n in 2..512 {
        assert_eq!(service.add_memory(&side.own).unwrap().raw(), n);
    }
    assert!(matches!(service.add_memory(&side.own), Err(Error::TooMany { .. })));
    assert!(service.semaphore(first).is_ok() && service.semaphore(unknown).is_err());
}
