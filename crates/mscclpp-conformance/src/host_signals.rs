//! Signals that hosts send over the link, and kernels take.

use std::time::Duration;

use mscclpp_core::{Connection, Error, HostToDeviceSemaphore, HostToHostSemaphore, Semaphore};

use crate::{
    Cases, Setup,
    kernels::semaphore_waits,
    pair::{
        PATIENCE, Pair, assert_error, assert_same, eventually, is_scheduled, join, noise, rounds, within,
    },
    semaphores::build,
};

pub(crate) const CASES: Cases = cases!["host_signals":
    each_wait_takes_one_signal,
    a_signal_comes_after_the_data_of_its_queue,
    objects_of_one_semaphore_share_its_tokens,
    one_signaller_at_a_time,
    a_signaller_comes_after_the_signals_of_hosts,
    a_signal_comes_after_those_of_queues_that_are_gone,
    a_peer_that_closed_ends_waits,
];

/// More polls than a case lasts, but finitely many.
pub(crate) const LONG: i64 = 1 << 24;

/// Waits once in a kernel of the semaphore's device. The semaphore lives until the kernel has ended.
pub(crate) fn wait(semaphore: &Semaphore, max_spins: i64) -> bool {
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
        for _ in 0..rounds(100) {
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
    for round in 0..rounds(200) {
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

/// Makes several objects at each end, before and while signals are sent, in both directions.
fn objects_of_one_semaphore_share_its_tokens(setup: &dyn Setup) {
    const EACH: u64 = 50;
    let pair = Pair::connect(setup);
    let (a, b) = build(&pair.ab, &pair.ba);
    let host = |semaphore: &Semaphore| HostToDeviceSemaphore::new(semaphore).expect("another of them");
    let ends = [&a, &b].map(|semaphore| [host(semaphore), host(semaphore), host(semaphore)]);
    for (from, to) in [(&ends[0], &ends[1]), (&ends[1], &ends[0])] {
        std::thread::scope(|scope| {
            for object in from {
                scope.spawn(|| (0..EACH).for_each(|_| object.signal().expect("a signal")));
            }
        });
        for object in to {
            let taken = semaphore_waits(object.semaphore(), LONG, EACH - 1);
            assert_eq!(taken, EACH - 1, "signals through one object do not reach another");
        }
        let late = host(to[0].semaphore());
        assert_eq!(
            semaphore_waits(late.semaphore(), LONG, 3),
            3,
            "one that is made later takes what is left"
        );
        assert!(to.iter().all(|object| !wait(object.semaphore(), 1)), "a signal was taken twice");
    }
    // The tokens belong to the semaphore, not to an object.
    drop(ends);
    host(&a).signal().expect("a signal");
    assert!(wait(&b, LONG) && !wait(&b, 1), "one signal is one");
}

fn one_signaller_at_a_time(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    let (a, b) = build(&pair.ab, &pair.ba);
    let host = HostToDeviceSemaphore::new(&a).expect("a semaphore that hosts signal");
    host.signal().expect("a signal");
    let signaller = a.signaller().expect("the first signaller");
    assert_error!(a.signaller(), Error::InvalidArgument(_));
    assert_error!(host.signal(), Error::InvalidArgument(_));
    HostToDeviceSemaphore::new(&a).expect("it can still be made, and waited on");
    let other = Pair::connect(setup);
    let (elsewhere, _) = build(&other.ab, &other.ba);
    let mut queue = pair.ab.open_queue().expect("a queue");
    let foreign = elsewhere.signaller().expect("the only signaller");
    assert_error!(queue.attach(foreign), Error::InvalidArgument(_));
    elsewhere.signaller().expect("it was given back");
    drop(signaller);
    // The host goes on counting where the signaller stopped.
    host.signal().expect("a signal");
    assert!(wait(&b, LONG) && wait(&b, LONG), "a signal was lost");
    assert!(!wait(&b, 1), "a signal was taken twice");
}

/// Lets hosts and the owner of a queue take turns. No signal of the queue overtakes one of the hosts, which would
/// lose it.
fn a_signaller_comes_after_the_signals_of_hosts(setup: &dyn Setup) {
    const ROUNDS: u64 = 50;
    const LEN: u64 = 64 << 10;
    let pair = Pair::connect(setup);
    let (a, b) = build(&pair.ab, &pair.ba);
    let (source, target) = (pair.a.share(LEN), pair.b.share(LEN));
    let host = HostToDeviceSemaphore::new(&a).expect("a semaphore that hosts signal");
    for round in 0..ROUNDS {
        // This gives the host's signal something to wait for.
        pair.ab.write(&target.at_peer, 0, &source.memory, 0, LEN).expect("a write");
        host.signal().expect("a signal of the host");
        let mut queue = pair.ab.open_queue().expect("a queue");
        let signaller = queue.attach(a.signaller().expect("the only one")).expect("a signaller");
        queue.signal(signaller).expect("a signal of the queue");
        drop(queue);
        host.signal().expect("the host has it again");
        assert_eq!(semaphore_waits(&b, LONG, 3), 3, "a signal of round {round} was lost");
    }
    assert!(!wait(&b, 1), "there are more signals than were sent");
}

/// Drops a queue while many of its operations are under way. Whoever signals next, a host or another queue, must
/// overtake neither its data nor its signal, which would then be stored over the later one.
fn a_signal_comes_after_those_of_queues_that_are_gone(setup: &dyn Setup) {
    // The data takes longer than a signal. Runs with different seeds share the machine, and the data has to arrive
    // within 30 seconds.
    let len: u64 = if is_scheduled() { 8 << 20 } else { 32 << 20 };
    let pair = Pair::connect(setup);
    let (a, b) = build(&pair.ab, &pair.ba);
    let (source, target) = (pair.a.share(len), pair.b.share(len));
    let host = HostToDeviceSemaphore::new(&a).expect("a semaphore that hosts signal");
    // The connection's own queue is open, so that nothing delays its next signal.
    host.signal().expect("a signal of the host");
    assert!(wait(&b, LONG), "the first signal was lost");
    let open = || {
        let mut queue = pair.ab.open_queue().expect("a queue");
        let signaller = queue.attach(a.signaller().expect("nobody else has it")).expect("a signaller");
        (queue, signaller)
    };
    for then_a_queue in [false, true] {
        let data = noise(len as usize);
        source.buffer.write(0, &data).expect("filling the source");
        let (mut queue, signaller) = open();
        let route = queue.route(&target.at_peer, &source.memory).expect("a route");
        queue.write(route, 0, 0, len).expect("a write");
        queue.signal(signaller).expect("a signal behind it");
        drop(queue);
        if then_a_queue {
            let (mut queue, signaller) = open();
            queue.signal(signaller).expect("a signal of the next queue");
        } else {
            host.signal().expect("a signal of the host");
        }
        assert!(wait(&b, LONG), "the signal behind the data was lost");
        let mut end = [0; 8];
        target.buffer.read(len - 8, &mut end).expect("reading the last bytes");
        assert_eq!(
            end[..],
            data[data.len() - 8..],
            "a wait returned before the data of the queue that is gone"
        );
        assert!(wait(&b, LONG), "the later signal was lost: an earlier one was stored over it");
        assert_same(&target.bytes(), &data, "after both signals");
        assert!(!wait(&b, 1), "there are more signals than were sent");
    }
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
