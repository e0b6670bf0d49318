//! Statistics and dumps of a service.

use std::thread;

use mscclpp_proxy::{FifoPosition, TrafficStats};
use mscclpp_test_support::until;

use super::{Case, Pair, Setup};

pub(super) const CASES: &[Case] = &[
    ("both_ways_are_counted", both_ways_are_counted),
    ("signals_are_asked_about_where_kernels_look", signals_are_asked_about_where_kernels_look),
    ("a_dump_says_who_waits_for_whom", a_dump_says_who_waits_for_whom),
];

fn both_ways_are_counted(setup: &Setup) {
    let [puts_directly, signals_directly] = setup.reach;
    for max in [0, 64] {
        let pair = Pair::new(setup, 4096, 1, |builder| builder.direct_put_max(max));
        let [a, b] = &pair.sides;
        a.service.start_proxy(true).unwrap();
        let (from, to) = (a.thread(), b.thread());
        assert!(from.put(0, 0, 64) && from.flush());
        assert!(from.put(0, 0, 1000) && from.flush());
        assert!(from.signal() && from.flush() && to.wait());
        assert!(from.put_with_signal(8, 8, 32) && from.flush() && to.wait());
        assert!(from.put_with_signal_and_flush(8, 8, 128) && to.wait());
        a.service.stop_proxy().unwrap();
        let stats = a.service.stats();
        let TrafficStats { data, bytes, flags, syncs, direct_puts, direct_bytes, direct_signals, .. } =
            stats.total;
        let small = u64::from(puts_directly && max > 0);
        let both = small * u64::from(signals_directly);
        assert_eq!((direct_puts, direct_bytes), (small + both, 64 * small + 32 * both));
        assert_eq!((data, bytes), (4 - direct_puts, 1224 - direct_bytes));
        assert_eq!(direct_signals, u64::from(signals_directly) + both);
        assert_eq!(flags, 3 - direct_signals);
        assert!(syncs >= 2, "flushes of what the proxy did");
        assert_eq!(
            (stats.queue_depth, stats.oldest_pending_flush, stats.connections.len()),
            (Some(0), None, 1)
        );
        let connection = &stats.connections[0];
        let all = Some(FifoPosition::from_raw(stats.triggers));
        assert_eq!((connection.pushed, connection.completed), (all, all));
        assert_eq!(b.service.stats().total, TrafficStats::default());
        assert!(stats.last_error.is_none());
    }
}

/// Checks that the completion of a signal is asked for only if kernels may act directly, as no other kernels look at
/// it before they flush.
fn signals_are_asked_about_where_kernels_look(setup: &Setup) {
    let pair = Pair::new(setup, 4096, 1, |builder| builder.direct_put_max(0));
    let [a, b] = &pair.sides;
    a.service.start_proxy(true).unwrap();
    let (from, to) = (a.thread(), b.thread());
    assert!(from.put_with_signal(8, 8, 32) && to.wait());
    let asked = || a.service.stats().connections[0].asked.raw();
    assert_eq!(asked(), u64::from(setup.reach[0]));
    assert!(from.flush());
    // The flush returns before its trigger has left the FIFO.
    until("an empty FIFO", || a.service.stats().queue_depth == Some(0));
    let connection = &a.service.stats().connections[0];
    assert_eq!((Some(connection.asked), connection.completed), (connection.pushed, connection.pushed));
}

fn a_dump_says_who_waits_for_whom(setup: &Setup) {
    let pair = Pair::new(setup, 4096, 2, |builder| builder);
    let [a, b] = &pair.sides;
    let (first, second) = (a.thread_on(0), a.thread_on(1));
    assert!(first.put(0, 0, 8000) && first.put(0, 0, 8000));
    thread::scope(|scope| {
        let wait = scope.spawn(move || second.wait());
        until("the wait", || a.service.dump().contains("kernels here wait for rank 1"));
        let dump = a.service.dump();
        for line in [
            "0 triggers carried out, 2 in the FIFO, error: none",
            "to rank 1 over ",
            "pushed up to 2, carried out up to 0, complete up to 0",
            "triggers wait for the proxy",
            "semaphore 0: 0 signals have come, 0 of them were taken",
            "semaphore 1: 0 signals have come, 1 are waited for: kernels here wait for rank 1",
        ] {
            assert!(dump.contains(line), "{line:?} is not in\n{dump}");
        }
        assert!(!b.service.dump().contains("wait for rank 0"));
        b.service.start_proxy(true).unwrap();
        assert!(b.thread_on(1).signal());
        assert!(wait.join().unwrap());
        // No wait takes the second signal.
        assert!(b.thread_on(1).signal());
        let line = "semaphore 1: 2 signals have come, 1 of them were taken";
        until("the second signal", || a.service.dump().contains(line));
    });
    // The flush is not carried out at once; it is seen once the proxy has taken it.
    thread::scope(|scope| {
        scope.spawn(|| assert!(first.flush()));
        until("the flush", || a.service.stats().queue_depth == Some(3));
        a.service.start_proxy(true).unwrap();
    });
    // The flush returns before its trigger has left the FIFO.
    until("an empty FIFO", || a.service.stats().queue_depth == Some(0));
    let stats = a.service.stats();
    assert_eq!(stats.total.syncs, 1);
    assert_eq!(stats.oldest_pending_flush, None, "it has returned");
}
