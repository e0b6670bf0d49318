//! Direct puts and signals, beside others that go through the proxy.

use std::sync::{Arc, atomic::Ordering};

use loom::thread;
use mscclpp_proxy::protocol::SharedWord;

use crate::{Fifo, Seen, Weakness, Word64, backoff, kernels::ProgressWords, model};

/// One direction of a connection: its data and the peer's token, of two words.
struct Channel {
    fifo: Fifo,
    last_pushed: Word64,
    completed: Word64,
    token: Word64,
    token_by_link: Word64,
    /// The data that the proxy's put writes at the peer; `direct` is the data that a direct put writes there.
    put: Seen,
    direct: Seen,
    weakness: Weakness,
}

const PUT: u64 = 1;
const SIGNAL: u64 = 2;

impl Channel {
    fn new(weakness: Weakness) -> Arc<Self> {
        Arc::new(Self {
            fifo: Fifo::after(1, weakness),
            last_pushed: Word64::new(0),
            completed: Word64 { weakened: weakness == Weakness::Completed, ..Word64::new(0) },
            token: Word64::new(0),
            token_by_link: Word64::new(0),
            put: Seen::default(),
            direct: Seen::default(),
            weakness,
        })
    }

    fn progress(&self) -> ProgressWords<'_, Word64> {
        ProgressWords { last_pushed: &self.last_pushed, completed: &self.completed }
    }

    fn nothing_pending(&self) -> bool {
        self.weakness == Weakness::Overtaking || self.progress().nothing_pending()
    }

    fn push(&self, what: u64) {
        self.fifo.push(what, |position| self.progress().announce(position));
    }

    /// Signals. Returns whether the signal went directly.
    fn signal(&self) -> bool {
        let direct = self.nothing_pending();
        if direct {
            self.token.fetch_add(1, Ordering::Release);
        } else {
            self.push(SIGNAL);
        }
        direct
    }

    /// Serves the trigger of `position` as the proxy does; the transport completes at once.
    fn serve(&self, position: u64) {
        let what = self.fifo.take(position);
        self.fifo.pop(position);
        if what & PUT != 0 {
            self.put.write();
        }
        if what & SIGNAL != 0 {
            // Only the proxy stores this word, one signal at a time.
            let sent = self.token_by_link.load(Ordering::Relaxed) + 1;
            self.token_by_link.store(sent, Ordering::Release);
            self.completed.store(position + 1, Ordering::Release);
        }
    }

    /// Waits as the peer does for its `n`th signal.
    fn wait(&self, n: u64) {
        let mut wait = backoff();
        while self.token.load(Ordering::Acquire) + self.token_by_link.load(Ordering::Acquire) < n {
            wait();
        }
    }
}

/// Does a put with a signal through the proxy, then a signal of the same thread, which may go directly: whoever has
/// one of the signals sees the data, for both were sent after it.
fn a_later_signal_does_not_overtake(weakness: Weakness) {
    model(Some(2), move || {
        let channel = Channel::new(weakness);
        let sender = thread::spawn({
            let channel = channel.clone();
            move || {
                channel.push(PUT | SIGNAL);
                channel.signal()
            }
        });
        let peer = thread::spawn({
            let channel = channel.clone();
            move || {
                channel.wait(1);
                assert_eq!(channel.put.read(), 1);
            }
        });
        channel.serve(1);
        if !sender.join().unwrap() {
            channel.serve(2);
        }
        peer.join().unwrap();
    });
}

#[test]
fn a_direct_signal_does_not_overtake_a_put() {
    a_later_signal_does_not_overtake(Weakness::None);
}

#[test]
#[should_panic]
fn a_signal_that_does_not_look_overtakes() {
    a_later_signal_does_not_overtake(Weakness::Overtaking);
}

#[test]
#[should_panic]
fn weakened_completion_lets_a_signal_overtake() {
    a_later_signal_does_not_overtake(Weakness::Completed);
}

/// Does a put that may go directly and its signal, beside another thread's trigger, so that the signal may have to go
/// through the proxy: whoever has both signals sees both puts.
fn both_puts_are_seen(weakness: Weakness) {
    model(Some(2), move || {
        let channel = Channel::new(weakness);
        let sender = thread::spawn({
            let channel = channel.clone();
            move || {
                let direct = channel.nothing_pending();
                if direct {
                    channel.direct.write();
                }
                (direct, channel.signal())
            }
        });
        let peer = thread::spawn({
            let channel = channel.clone();
            move || {
                channel.wait(2);
                (channel.put.read(), channel.direct.read())
            }
        });
        let other = thread::spawn({
            let channel = channel.clone();
            move || channel.push(PUT | SIGNAL)
        });
        channel.serve(1);
        let (put, signal) = sender.join().unwrap();
        if !signal {
            channel.serve(2);
        }
        other.join().unwrap();
        assert_eq!(peer.join().unwrap(), (1, u64::from(put)));
    });
}

#[test]
fn direct_puts_come_with_signals_of_either_way() {
    both_puts_are_seen(Weakness::None);
}

#[test]
#[should_panic]
fn weakened_commit_loses_a_direct_put() {
    both_puts_are_seen(Weakness::Commit);
}
