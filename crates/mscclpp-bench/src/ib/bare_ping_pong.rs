//! 8 bytes followed by a signal, by bare verbs: the same work requests as the library's, and waits for the same things.

use std::sync::atomic::Ordering;

use super::{
    OnAdapter,
    ping_pong::{PingPong, Words},
};
use crate::{
    Result,
    bare_verbs::{QueuePair, Registered, Request},
    waiting::wait_for,
};

/// As many receives as the library has posted, with its defaults.
const RECEIVES: u32 = 16;

/// A write, and behind it an atomic that counts the signal in the peer's memory, or a number with the write itself.
pub(super) struct BareSignals {
    qp: QueuePair,
    words: &'static Words,
    by_atomics: bool,
    depth: u32,
    sent: u32,
    received: u32,
}

impl BareSignals {
    pub(super) fn new(on: &OnAdapter, by_atomics: bool) -> Result<Self> {
        let words = Words::new();
        // SAFETY: memory that stays, and is atomics.
        let registered = unsafe { Registered::new(&on.bare, words.start(), Words::LEN, false)? };
        let depth = on.depth();
        let receives = if by_atomics { 0 } else { RECEIVES };
        let qp = QueuePair::connect(&on.bare, &on.ranks, depth, receives, registered)?;
        Ok(Self { qp, words, by_atomics, depth, sent: 0, received: 0 })
    }
}

impl PingPong for BareSignals {
    fn send(&mut self, value: u64) -> Result<()> {
        // The adapter has read the last one: the peer has answered it.
        self.words.sent.store(value, Ordering::Relaxed);
        self.sent = self.sent.wrapping_add(1);
        if self.qp.under_way() * 2 >= self.depth {
            self.qp.reap()?;
        }
        let write = |immediate| Request::Write { from: Words::SENT, to: Words::ARRIVED, len: 8, immediate };
        match self.by_atomics {
            true => {
                let add = Request::AddOne { to: Words::TOKEN, old: Words::OLD };
                self.qp.post([write(None), add], true)
            }
            false => self.qp.post([write(Some(self.sent))], true),
        }
    }

    fn receive(&mut self) -> Result<u64> {
        self.received = self.received.wrapping_add(1);
        let due = self.received;
        if self.by_atomics {
            let token = &self.words.token;
            // Acquire: what was written before the atomic is then visible.
            wait_for("a signal", || Ok((token.load(Ordering::Acquire) >= due.into()).then_some(())))?;
        } else {
            let number = wait_for("a number", || self.qp.take_immediate())?;
            if number != due {
                return Err(format!("bare verbs: number {number} came, {due} was due").into());
            }
        }
        Ok(self.words.arrived.load(Ordering::Relaxed))
    }
}
