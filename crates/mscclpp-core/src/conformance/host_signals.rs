//! Signals that hosts send over the link, taken by kernels.

use std::time::Duration;

use super::{
    Case, Setup,
    kernels::semaphore_waits,
    pair::{PATIENCE, Pair, assert_error, assert_same, eventually, join, noise, within},
    semaphores::build,
};
use crate::{Connection, Error, HostToDeviceSemaphore, HostToHostSemaphore, Semaphore};

pub(super) const CASES: &[(&str, Case)] = &[
    ("host_signals::each_wait_takes_one_signal", each_wait_takes_one_signal),
    ("host_signals::a_signal_comes_after_the_data_of_its_queue", a_signal_comes_after_the_data_of_its_queue),
    ("host_signals::one_signaller_at_a_time", one_signaller_at_a_time),
    ("host_signals::a_peer_that_closed_ends_waits", a_peer_that_closed_ends_waits),
];

/// More polls than a case lasts, yet an end.
pub(super) const LONG: i64 = 1 << 24;

/// A wait of the device that `semaphore` is on, which is kept meanwhile.
pub(super) fn wait(semaphore: &Semaphore, max_spins: i64) -> bool {
    semaphore_waits(semaphore, max_spins, 1) == 1
}

fn pair_of(ab: &Connection, ba: &Connection) -> (HostToDeviceSemaphore, HostToDeviceSemaphore) {
    let (a, b) = build(ab, ba);
    let host = |semaphore| HostToDeviceSemaphore::new(semaphore).expect("a semaphore that hosts signal");
    (host(&a), host(&b))
}

fn each_wait_takes_one_signal(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    let (a, b) = pair_of(&pair.ab, &pair.ba);
    for (from, to) in [(&a, &b), (&b, &a)] {
        assert!(!wait(to.semaphore(), 1), "a new semaphore has signals");
        for _ in 0..100 {
            from.signal().expect("a signal");
            from.signal().expect("a signal");
            assert!(wait(to.semaphore(), LONG) && wait(to.semaphore(), LONG), "a signal was lost");
            assert!(!wait(to.semaphore(), 1), "a signal was taken twice");
        }
    }
    assert_error!(HostToHostSemaphore::new(a.semaphore()), Error::InvalidArgument(_));
}

fn a_signal_comes_after_the_data_of_its_queue(setup: &dyn Setup) {
    const LEN: u64 = 20_000;
    let pair = Pair::connect(setup);
    let (a, b) = build(&pair.ab, &pair.ba);
    let (source, target) = (pair.a.share(LEN), pair.b.share(LEN));
    let mut queue = pair.ab.open_queue().expect("a queue");
    let signaller = queue.attach(a.signaller().expect("the only signaller")).expect("a signaller");
    let route = queue.route(&target.at_peer, &source.memory).expect("a route");
    for round in 0..200 {
        let data = noise(LEN as usize);
        source.buffer.write(0, &data).expect("filling the source");
        let half = LEN / 2 + round;
        queue.write(route, 0, 0, half).expect("write");
        queue.write(route, half, half, LEN - half).expect("write");
        queue.signal(signaller).expect("a signal");
        let submitted = eventually(PATIENCE, || {
            queue.progress().expect("progress");
            queue.waiting() == 0
        });
        assert!(submitted, "there is no room for three operations");
        assert!(wait(&b, LONG), "the signal of round {round} does not come");
        assert_same(&target.bytes(), &data, "after a wait");
    }
    for (dst, src, size) in [(LEN, 0, 1), (0, LEN, 1), (0, u64::MAX, u64::MAX)] {
        assert_error!(queue.write(route, dst, src, size), Error::OutOfBounds { .. });
    }
}

fn one_signaller_at_a_time(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    let (a, b) = build(&pair.ab, &pair.ba);
    let first = HostToDeviceSemaphore::new(&a).expect("the first");
    first.signal().expect("a signal");
    assert_error!(a.signaller(), Error::InvalidArgument(_));
    let other = Pair::connect(setup);
    let (elsewhere, _) = build(&other.ab, &other.ba);
    let mut queue = pair.ab.open_queue().expect("a queue");
    let foreign = elsewhere.signaller().expect("the only signaller");
    assert_error!(queue.attach(foreign), Error::InvalidArgument(_));
    elsewhere.signaller().expect("it was given back");
    assert_error!(HostToDeviceSemaphore::new(&a), Error::InvalidArgument(_));
    pair.ab.flush(PATIENCE).expect("flush");
    drop(first);
    // It goes on counting where the first stopped.
    HostToDeviceSemaphore::new(&a).expect("the second").signal().expect("a signal");
    assert!(wait(&b, LONG) && wait(&b, LONG), "a signal was lost");
}

fn a_peer_that_closed_ends_waits(setup: &dyn Setup) {
    let Pair { a, b, ab, ba } = Pair::connect(setup);
    let (here, there) = pair_of(&ab, &ba);
    let semaphore = here.semaphore().clone();
    let waiting = std::thread::spawn(move || wait(&semaphore, -1));
    std::thread::sleep(Duration::from_millis(5));
    within(PATIENCE, "closing one side", move || drop((there, ba, b)));
    assert!(!join(waiting, PATIENCE, "a wait for a peer that is gone"), "nobody signalled");
    assert!(eventually(PATIENCE, || here.signal().is_err()), "a signal to nobody");
    assert_error!(here.semaphore().check(), Error::PeerClosed { .. } | Error::PeerLost { .. });
    drop(a);
}
