//! Signals and waits by kernels.
//!
//! Every unbounded wait here is launched by a thread that the case watches, so that a lost signal fails it.

use std::{
    thread::{self, JoinHandle},
    time::Duration,
};

use mscclpp_core::{
    BaseMemoryChannel, Connection, DeviceToDeviceSemaphore, Error, HostToDeviceSemaphore, MemoryChannel,
    Semaphore,
};
use mscclpp_gpu::DevicePtr;

use crate::{
    Cases, Setup, host_signals,
    kernels::{Device, semaphore_waits, with},
    pair::{End, PATIENCE, Pair, SharedMemory, assert_error, join, received, rounds},
    semaphores::build,
};

pub(crate) const CASES: Cases = cases!["signals":
    each_wait_takes_one_signal,
    an_endpoint_signals_itself,
    a_wait_that_times_out_consumes_nothing,
    an_abort_ends_waits,
    a_peer_that_closed_ends_waits,
    a_wait_sees_what_was_written_before_the_signal,
    signals_of_many_threads_add_up,
    semaphores_share_no_words,
    channels_of_one_semaphore_share_its_tokens,
    signals_of_kernels_and_of_links_add_up,
];

/// More polls than any machine does while a case runs, but finitely many.
const LONG: i64 = 1 << 20;

/// One side's channel, and the device that its kernels run on.
#[derive(Clone)]
struct Side {
    channel: BaseMemoryChannel,
    device: Device,
}

/// The calls that the kernel `channel_calls` can make.
#[derive(Clone, Copy)]
enum Call {
    Signal,
    RelaxedSignal,
    Poll,
    Wait,
    RelaxedWait,
}

impl Side {
    fn new(semaphore: &Semaphore) -> Self {
        let gpu = semaphore.connection().local_gpu().expect("its endpoint is on a GPU");
        Self { channel: BaseMemoryChannel::new(semaphore).expect("a channel"), device: Device::of(gpu) }
    }

    /// Makes a call up to `times` times, until it returns false. Returns how often it returned true.
    fn calls(&self, call: Call, max_spins: i64, times: u64) -> u64 {
        let args = with(self.channel.device_handle()).with(call as i32).with(max_spins).with(times);
        // SAFETY: the kernel's arguments; the channel lives until the kernel has ended.
        unsafe { self.device.run("channel_calls", 1, args) }
    }

    fn signal(&self) {
        self.calls(Call::Signal, 0, 1);
    }

    fn relaxed_signal(&self) {
        self.calls(Call::RelaxedSignal, 0, 1);
    }

    fn poll(&self) -> bool {
        self.calls(Call::Poll, 0, 1) == 1
    }

    fn wait(&self, max_spins: i64) -> bool {
        self.calls(Call::Wait, max_spins, 1) == 1
    }

    fn relaxed_wait(&self, max_spins: i64) -> bool {
        self.calls(Call::RelaxedWait, max_spins, 1) == 1
    }

    /// Plays this side's part in `rounds` turns. Returns the number of turns that were right.
    fn turns(&self, begins: bool, rounds: u64, theirs: DevicePtr, own: DevicePtr) -> u64 {
        let args = with(self.channel.device_handle()).with(i32::from(begins)).with(rounds);
        // SAFETY: the kernel's arguments; the callers keep 64 bytes at both addresses until the kernel has ended.
        unsafe { self.device.run("channel_turns", 1, args.with(theirs).with(own)) }
    }

    /// Starts an unbounded wait on a thread of its own.
    fn waiting(&self) -> JoinHandle<bool> {
        let side = self.clone();
        thread::spawn(move || side.wait(-1))
    }
}

/// Makes both sides of a new channel.
fn channel(ab: &Connection, ba: &Connection) -> (Side, Side) {
    let (a, b) = build(ab, ba);
    (Side::new(&a), Side::new(&b))
}

fn each_wait_takes_one_signal(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    let (a, b) = channel(&pair.ab, &pair.ba);
    assert!(!b.poll() && !a.poll(), "a new semaphore has signals");
    let takes: [fn(&Side) -> bool; 5] = [
        |side| side.poll(),
        |side| side.wait(1),
        |side| join(side.waiting(), PATIENCE, "a wait for a signal that was sent"),
        |side| side.relaxed_wait(1),
        |side| side.relaxed_wait(LONG),
    ];
    for (from, to) in [(&a, &b), (&b, &a)] {
        for take in takes {
            from.signal();
            assert!(take(to), "a signal was lost");
            assert!(!to.poll(), "a signal was taken twice");
            from.relaxed_signal();
            from.signal();
            assert!(take(to) && take(to) && !to.poll(), "two signals are two");
        }
        let waiting = to.waiting();
        from.signal();
        assert!(join(waiting, PATIENCE, "a wait that was signalled"));
        assert!(!to.poll(), "the wait returned without a signal, which is left");
        assert!(!from.poll(), "a signal came back");
    }
}

fn an_endpoint_signals_itself(setup: &dyn Setup) {
    let end = End::open(setup, 0);
    let connection =
        end.context.connect(&end.endpoint, &received(&end.endpoint)).expect("connecting with itself");
    let (first, second) = channel(&connection, &connection);
    first.signal();
    assert!(!first.poll() && second.poll() && !second.poll());
    second.signal();
    assert!(!second.poll() && first.poll() && !first.poll());
}

fn a_wait_that_times_out_consumes_nothing(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    pair.ba.set_label("rank 0");
    let (a, b) = channel(&pair.ab, &pair.ba);
    let semaphore = b.channel.semaphore();
    for _ in 0..3 {
        assert!(!b.wait(0) && !b.wait(1) && !b.wait(1000) && !b.relaxed_wait(10));
        let error = semaphore.check().expect_err("a wait has timed out");
        assert!(matches!(&error, Error::DeviceWaitTimedOut { peer } if peer == "rank 0"), "{error}");
        semaphore.check().expect("reported once");
        a.signal();
        assert!(b.wait(1000), "the wait repeated finds the signal");
        assert!(!b.poll());
        semaphore.check().expect("nothing has timed out since");
    }
}

/// Checks that an abort ends waits under way and later ones, and that earlier signals still count.
fn an_abort_ends_waits(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    let (a, b) = channel(&pair.ab, &pair.ba);
    let waiting: Vec<_> = (0..3).map(|_| b.waiting()).collect();
    let bounded = thread::spawn({
        let b = b.clone();
        move || b.wait(i64::MAX)
    });
    thread::sleep(Duration::from_millis(5));
    b.channel.semaphore().abort("the test is over");
    for thread in waiting.into_iter().chain([bounded]) {
        assert!(!join(thread, PATIENCE, "a wait that was aborted"), "nobody has signalled");
    }
    assert!(!join(b.waiting(), PATIENCE, "a wait after the abort"));
    assert_error!(b.channel.semaphore().check(), Error::Aborted { .. });

    a.channel.semaphore().check().expect("the peer is not told");
    b.signal();
    assert!(a.wait(1000), "the peer still gets signals");
    a.signal();
}

fn a_peer_that_closed_ends_waits(setup: &dyn Setup) {
    let Pair { a: _a, b, ab, ba } = Pair::connect(setup);
    let (ours, theirs) = channel(&ab, &ba);
    let waiting = ours.waiting();
    drop((theirs, ba, b));
    assert!(!join(waiting, PATIENCE, "a wait for a peer that is gone"));
    assert_error!(ours.channel.semaphore().check(), Error::PeerClosed { .. } | Error::PeerLost { .. });
}

/// A litmus test of the release of `signal` and the acquire of `wait`, through the peer's memory as it is mapped
/// here.
fn a_wait_sees_what_was_written_before_the_signal(setup: &dyn Setup) {
    let rounds = rounds(20_000);
    let pair = Pair::connect(setup);
    let (a, b) = channel(&pair.ab, &pair.ba);
    let data = pair.b.share(64);
    let mapped = pair.ab.peer_ptr(&data.at_peer).expect("mapping the peer's memory").expect("a pointer");
    let here = data.buffer.ptr();
    let writer = thread::spawn(move || a.turns(true, rounds, mapped, here));
    let reader = thread::spawn(move || b.turns(false, rounds, here, here));
    assert_eq!(join(reader, 4 * PATIENCE, "the side that answers"), rounds, "data behind its signal");
    assert_eq!(join(writer, 4 * PATIENCE, "the side that begins"), rounds);
}

fn signals_of_many_threads_add_up(setup: &dyn Setup) {
    const THREADS: usize = 4;
    const EACH: u64 = 500;
    let pair = Pair::connect(setup);
    let (a, b) = channel(&pair.ab, &pair.ba);
    let repeat = |side: &Side, call: Call, max_spins: i64| {
        let side = side.clone();
        thread::spawn(move || side.calls(call, max_spins, EACH))
    };
    let waiters: Vec<_> =
        (0..THREADS).map(|i| repeat(&b, Call::Wait, if i % 2 == 0 { -1 } else { LONG })).collect();
    let signallers: Vec<_> = (0..THREADS)
        .map(|i| repeat(&a, if i % 2 == 0 { Call::Signal } else { Call::RelaxedSignal }, 0))
        .collect();
    for thread in signallers.into_iter().chain(waiters) {
        assert_eq!(join(thread, 2 * PATIENCE, "one of many kernels"), EACH);
    }
    assert!(!b.poll(), "more signals than were sent");
}

/// Checks that no two semaphores share words, even if one was dropped: signals of a peer that still has it must not
/// reach a newer one.
fn semaphores_share_no_words(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    let mut seen = std::collections::HashSet::new();
    let mut stale = Vec::new();
    for round in 0..20 {
        let (a, b) = channel(&pair.ab, &pair.ba);
        for side in [&a, &b] {
            let handle = side.channel.device_handle();
            for pointer in [handle.inbound_token, handle.expected_inbound_token] {
                assert!(seen.insert(pointer.addr()), "{pointer:?} was given out twice");
            }
        }
        stale.iter().for_each(Side::signal);
        assert!(!a.poll() && !b.poll(), "signals of others arrived in round {round}");
        // One side is dropped; the other goes on signalling it.
        stale.push(a);
    }
}

/// Makes base channels, the semaphores below them, and memory channels, several at each end.
fn channels_of_one_semaphore_share_its_tokens(setup: &dyn Setup) {
    let pair = Pair::connect(setup);
    let (a, b) = build(&pair.ab, &pair.ba);
    let (of_a, of_b) = (pair.a.share(64), pair.b.share(64));
    let sides = |semaphore: &Semaphore, ours: &SharedMemory, theirs: &SharedMemory| {
        let memories =
            MemoryChannel::new(semaphore, &theirs.at_peer, &ours.memory, None).expect("a memory channel");
        let of_memories = Side { channel: memories.base().clone(), ..Side::new(semaphore) };
        [Side::new(semaphore), Side::new(semaphore), of_memories]
    };
    let (here, there) = (sides(&a, &of_a, &of_b), sides(&b, &of_b, &of_a));
    let words = |side: &Side| {
        let handle = side.channel.device_handle();
        [handle.inbound_token, handle.expected_inbound_token, handle.remote_inbound_token]
    };
    assert!(here.iter().all(|side| words(side) == words(&here[0])));
    let semaphore = DeviceToDeviceSemaphore::new(&a).expect("a semaphore between devices");
    assert_eq!(semaphore.device_handle().inbound_token, here[0].channel.device_handle().inbound_token);
    for (from, to) in [(&here, &there), (&there, &here)] {
        for (i, side) in from.iter().enumerate() {
            side.signal();
            side.relaxed_signal();
            assert!(to[i].wait(LONG), "its own counterpart");
            assert!(to[(i + 1) % 3].wait(LONG), "another one");
            assert!(to.iter().all(|side| !side.poll()), "a signal was taken twice");
        }
        from.iter().for_each(Side::signal);
        let other = Side::new(to[0].channel.semaphore());
        assert_eq!(other.calls(Call::Wait, 1000, 4), 3, "three signals are three");
        to[0].channel.semaphore().check().expect_err("the fourth wait has timed out, for all");
        to[1].channel.semaphore().check().expect("which is said once");
    }
}

fn signals_of_kernels_and_of_links_add_up(setup: &dyn Setup) {
    const EACH: u64 = 500;
    let pair = Pair::connect(setup);
    let (a, b) = build(&pair.ab, &pair.ba);
    let host = HostToDeviceSemaphore::new(&a).expect("a semaphore that hosts signal");
    let device = Side::new(&a);
    let by_device = thread::spawn(move || device.calls(Call::Signal, 0, EACH));
    for _ in 0..EACH {
        host.signal().expect("a signal");
    }
    assert_eq!(join(by_device, PATIENCE, "signals of a kernel"), EACH);
    assert_eq!(semaphore_waits(&b, host_signals::LONG, 2 * EACH), 2 * EACH, "signals are lost");
    assert!(!host_signals::wait(&b, 1), "there are more signals than were sent");
}
