//! Signals, waits and polls, and the data that signals publish.

use std::sync::{Arc, atomic::Ordering};

use loom::thread;
use mscclpp_core::protocol::{SemaphoreWords, SharedWord};

use super::{Seen, Status, Word32, Word64, backoff, kernels::Signals, model};

/// The way in which the signalling side changes the token.
#[derive(Clone, Copy, PartialEq)]
enum Path {
    /// The token is changed by additions.
    Atomics,
    /// The token is changed by stores under a lock.
    Lock,
    /// The same as `Lock`, but the store of the token releases nothing.
    WeakenedLock,
}

/// One direction of a semaphore, and data that its signals may publish.
struct Semaphore {
    token: Word64,
    expected: Word64,
    outbound: Option<(Word64, Word64)>,
    status: Status,
    data: Seen,
}

impl Semaphore {
    fn new(path: Path) -> Arc<Self> {
        let lock = || (Word64::new(false), Word64::new(false));
        Arc::new(Self {
            token: Word64::new(path == Path::WeakenedLock),
            expected: Word64::new(false),
            outbound: (path != Path::Atomics).then(lock),
            status: Status::new(),
            data: Seen::default(),
        })
    }

    fn words(&self) -> SemaphoreWords<'_, Word64, Word32> {
        SemaphoreWords {
            inbound: &self.token,
            inbound_by_link: None,
            expected: &self.expected,
            status: self.status.words(),
        }
    }

    fn signal(&self, order: Ordering) {
        let outbound = self.outbound.as_ref().map(|(lock, count)| (lock, count));
        Signals { remote_inbound: &self.token, outbound }.signal(order, backoff());
    }

    fn poll(&self) -> bool {
        self.words().poll(Ordering::Acquire)
    }

    fn wait(&self, max_spins: i64) -> bool {
        self.words().wait(Ordering::Acquire, max_spins, backoff())
    }
}

/// Checks that a thread that waits sees the data that another thread wrote before it signalled.
fn publish(path: Path, signal: Ordering, wait: Ordering) {
    model(None, move || {
        let semaphore = Semaphore::new(path);
        let signaller = thread::spawn({
            let semaphore = semaphore.clone();
            move || {
                semaphore.data.write();
                semaphore.signal(signal);
            }
        });
        assert!(semaphore.words().wait(wait, -1, backoff()));
        assert_eq!(semaphore.data.read(), 1);
        signaller.join().unwrap();
    });
}

/// Lets one thread write and signal with release, and another signal relaxed; whoever took both signals sees the
/// data.
fn publish_beside_a_relaxed_signal(path: Path) {
    model(Some(3), move || {
        let semaphore = Semaphore::new(path);
        let spawn = |publishes: bool| {
            let semaphore = semaphore.clone();
            thread::spawn(move || match publishes {
                true => {
                    semaphore.data.write();
                    semaphore.signal(Ordering::Release);
                }
                false => semaphore.signal(Ordering::Relaxed),
            })
        };
        let signallers = [spawn(true), spawn(false)];
        // The wait holds the second ticket and looks until the token is 2: the store that it sees may be that of the
        // relaxed signal.
        semaphore.expected.store(1, Ordering::Relaxed);
        assert!(semaphore.wait(-1));
        assert_eq!(semaphore.data.read(), 1);
        signallers.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn a_signal_publishes() {
    publish(Path::Atomics, Ordering::Release, Ordering::Acquire);
}

#[test]
fn a_signal_under_the_lock_publishes() {
    publish(Path::Lock, Ordering::Release, Ordering::Acquire);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_relaxed_signal_does_not_publish() {
    publish(Path::Atomics, Ordering::Relaxed, Ordering::Acquire);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_relaxed_wait_sees_nothing_published() {
    publish(Path::Atomics, Ordering::Release, Ordering::Relaxed);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_relaxed_wait_sees_nothing_published_under_the_lock() {
    publish(Path::Lock, Ordering::Release, Ordering::Relaxed);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn the_store_under_the_lock_must_release() {
    publish(Path::WeakenedLock, Ordering::Release, Ordering::Acquire);
}

#[test]
fn a_relaxed_signal_beside_it_keeps_what_was_published() {
    publish_beside_a_relaxed_signal(Path::Atomics);
}

#[test]
fn a_relaxed_signal_beside_it_keeps_what_was_published_under_the_lock() {
    publish_beside_a_relaxed_signal(Path::Lock);
}

/// Shows why the store releases for relaxed signals too: the wait sees only the last store, whoever made it.
#[test]
#[should_panic(expected = "Causality violation")]
fn a_weakened_store_loses_what_was_published() {
    publish_beside_a_relaxed_signal(Path::WeakenedLock);
}

#[test]
fn signals_under_the_lock_are_all_counted() {
    model(None, || {
        let semaphore = Semaphore::new(Path::Lock);
        let other = semaphore.clone();
        let signaller = thread::spawn(move || other.signal(Ordering::Release));
        semaphore.signal(Ordering::Relaxed);
        signaller.join().unwrap();
        assert!(semaphore.poll() && semaphore.poll() && !semaphore.poll());
    });
}

#[test]
fn one_signal_is_claimed_once() {
    model(None, || {
        let semaphore = Semaphore::new(Path::Atomics);
        semaphore.signal(Ordering::Release);
        let other = semaphore.clone();
        let poller = thread::spawn(move || other.poll());
        let (mine, theirs) = (semaphore.wait(2), poller.join().unwrap());
        assert!(mine != theirs, "claimed by {} waits", u8::from(mine) + u8::from(theirs));
        assert!(!semaphore.poll());
    });
}

/// A bounded and an unbounded wait share two signals: neither is stranded, whatever the bounded one does.
#[test]
fn two_kinds_of_waits_share_signals() {
    model(Some(3), || {
        let semaphore = Semaphore::new(Path::Atomics);
        let spawn = |act: fn(&Semaphore) -> bool| {
            let semaphore = semaphore.clone();
            thread::spawn(move || act(&semaphore))
        };
        let signaller = spawn(|s| {
            s.signal(Ordering::Release);
            s.signal(Ordering::Release);
            true
        });
        let unbounded = spawn(|s| s.wait(-1));
        let bounded = semaphore.wait(2);
        assert!(signaller.join().unwrap() && unbounded.join().unwrap());
        // The signal that a timed-out wait did not take is still there, and no other.
        assert!(bounded || semaphore.poll());
        assert!(!semaphore.poll());
    });
}

#[test]
fn two_unbounded_waits_share_signals() {
    model(Some(3), || {
        let semaphore = Semaphore::new(Path::Atomics);
        let other = semaphore.clone();
        let waiter = thread::spawn(move || other.wait(-1));
        let other = semaphore.clone();
        let signaller = thread::spawn(move || {
            other.signal(Ordering::Release);
            other.signal(Ordering::Release);
        });
        assert!(semaphore.wait(-1) && waiter.join().unwrap());
        signaller.join().unwrap();
        assert!(!semaphore.poll());
    });
}

#[test]
fn a_wait_that_timed_out_has_given_nothing_away() {
    model(None, || {
        let semaphore = Semaphore::new(Path::Atomics);
        let other = semaphore.clone();
        let signaller = thread::spawn(move || other.signal(Ordering::Release));
        let got = semaphore.wait(1);
        signaller.join().unwrap();
        assert_eq!(semaphore.status.0[1].load(Ordering::Relaxed), u32::from(!got), "a time-out is told");
        assert!(got != semaphore.poll(), "one signal is taken once, now or then");
    });
}

/// An abort that comes with a signal: the wait ends, and its result says which of the two ended it.
#[test]
fn an_abort_ends_a_wait() {
    for signalled in [false, true] {
        model(None, move || {
            let semaphore = Semaphore::new(Path::Atomics);
            let other = semaphore.clone();
            let waiter = thread::spawn(move || other.wait(-1));
            if signalled {
                semaphore.signal(Ordering::Release);
            }
            semaphore.status.0[0].store(1, Ordering::Release);
            let got = waiter.join().unwrap();
            assert!(signalled || !got);
            assert_eq!(semaphore.status.0[2].load(Ordering::Relaxed), u32::from(!got), "an abort is told");
            assert!(!semaphore.wait(-1), "later waits end too");
        });
    }
}
