//! The way in which data that has arrived at an adapter becomes visible in its node's memory. The rules are in the
//! documentation of [`super`].

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

use mscclpp_verbs_sys as sys;

use crate::state::{Queue, State};

/// A chunk of data that has arrived and is not visible yet.
pub(crate) struct Landing {
    pub(crate) what: Piece,
    /// Whether the memory it goes to is registered with relaxed ordering.
    pub(crate) relaxed: bool,
    /// Whether it goes to another memory than completions do, that of a GPU.
    pub(crate) elsewhere: bool,
    /// The request that waits for it: queue pair and sequence number.
    pub(crate) request: Option<(u32, u64)>,
}

pub(crate) enum Piece {
    Write { address: usize, data: Vec<u8> },
    Add { address: usize, add: u64, original: sys::ibv_sge },
    Receive(Box<sys::ibv_wc>),
}

impl Piece {
    fn is_add(&self) -> bool {
        matches!(self, Self::Add { .. })
    }
}

impl State {
    /// Returns which of the chunks on their way to the memory of queue pair `number` may become visible now.
    pub(crate) fn eligible(&self, number: u32) -> Vec<usize> {
        let Some(qp) = self.qps.get(&number) else { return Vec::new() };
        let rules = self.devices[qp.device].config.reordering;
        // The number of earlier chunks that relaxed accesses must not overtake, and of those that completions must
        // not.
        let (mut adds, mut near) = (0, 0);
        let mut eligible = Vec::new();
        for (index, landing) in qp.landings.iter().enumerate() {
            let passes = match &landing.what {
                // Receives complete in order.
                Piece::Receive(_) => rules.completions && near == 0,
                // Relaxed accesses do not overtake atomics.
                Piece::Write { .. } | Piece::Add { .. } => rules.relaxed && landing.relaxed && adds == 0,
            };
            if index == 0 || passes {
                eligible.push(index);
            }
            adds += usize::from(landing.what.is_add());
            near += usize::from(!landing.elsewhere);
        }
        eligible
    }

    /// Makes a chunk visible.
    pub(crate) fn land(&mut self, number: u32, index: usize) {
        let Some(landing) = self.qps.get_mut(&number).and_then(|qp| qp.landings.remove(index)) else {
            return;
        };
        self.counters.overtakings += u64::from(index > 0);
        let broken = index > 0
            && self
                .qps
                .get(&number)
                .is_some_and(|qp| self.devices[qp.device].config.reordering.nothing_strict);
        match landing.what {
            Piece::Write { address, data } => {
                store(address, &data);
                if broken && data.len() == 8 {
                    // A thread polls for this token. On a busy node that thread runs only if this one sleeps.
                    std::thread::sleep(std::time::Duration::from_micros(20));
                }
            }
            Piece::Add { address, add, original } => {
                let before = fetch_add(address, add);
                if let Some((requester, sequence)) = landing.request {
                    self.answer(requester, sequence, &original, before);
                }
            }
            Piece::Receive(wc) => {
                let Some(qp) = self.qps.get(&number) else { return };
                let cq = qp.receive_cq;
                // A receive that was flushed when the queue pair failed is not completed twice: it was taken from the
                // queue when the request arrived.
                self.complete(cq, *wc, Queue::Receive, 1);
            }
        }
        if let Some((requester, sequence)) = landing.request {
            self.acknowledge(requester, sequence);
        }
    }

    /// Makes everything visible that is on its way to a queue pair, in the order of arrival.
    pub(crate) fn land_all(&mut self, number: u32) {
        while self.qps.get(&number).is_some_and(|qp| !qp.landings.is_empty()) {
            self.land(number, 0);
        }
    }

    /// Makes everything visible that is on its way, to all queue pairs.
    pub(crate) fn land_everything(&mut self) {
        for number in self.qps.keys().copied().collect::<Vec<_>>() {
            self.land_all(number);
        }
    }

    /// Returns an atomic's old value to the memory of its requester.
    fn answer(&mut self, requester: u32, sequence: u64, original: &sys::ibv_sge, value: u64) {
        let Some(domain) = self.qps.get(&requester).map(|qp| qp.domain) else { return };
        match self.region(original.lkey, original.addr, 8, domain, sys::IBV_ACCESS_LOCAL_WRITE) {
            Ok(found) => store(found.address, &value.to_ne_bytes()),
            Err(why) => {
                self.refused(format!("the result of an atomic: {why}"));
                let sends = self.qps.get_mut(&requester).into_iter().flat_map(|qp| qp.sends.iter_mut());
                for request in sends.filter(|request| request.sequence == sequence) {
                    request.status = sys::IBV_WC_LOC_PROT_ERR;
                }
            }
        }
    }
}

/// Copies like an adapter: aligned words of 8 bytes are written whole, and a reader that acquires one sees everything
/// before it.
fn store(address: usize, data: &[u8]) {
    fence(Ordering::Release);
    let mut at = 0;
    while at < data.len() {
        let to = address + at;
        if to.is_multiple_of(8) && data.len() - at >= 8 {
            let word = data[at..at + 8].try_into().map(u64::from_ne_bytes).unwrap_or_default();
            // SAFETY: the region was checked when the chunk arrived, and deregistering waits for data on its way.
            // Other threads access such memory only by atomics.
            unsafe { AtomicU64::from_ptr(to as *mut u64) }.store(word, Ordering::Relaxed);
            at += 8;
        } else {
            // SAFETY: the same as for the whole words.
            unsafe { AtomicU8::from_ptr(to as *mut u8) }.store(data[at], Ordering::Relaxed);
            at += 1;
        }
    }
    fence(Ordering::Release);
}

fn fetch_add(address: usize, add: u64) -> u64 {
    // SAFETY: the same as in `store`; the alignment was checked too.
    unsafe { AtomicU64::from_ptr(address as *mut u64) }.fetch_add(add, Ordering::AcqRel)
}

/// Reads as an adapter would.
pub(crate) fn load(address: usize, length: usize) -> Vec<u8> {
    let mut data = Vec::with_capacity(length);
    while data.len() < length {
        let from = address + data.len();
        if from.is_multiple_of(8) && length - data.len() >= 8 {
            // SAFETY: the caller checked the region and holds the lock, so the region is still registered.
            let word = unsafe { AtomicU64::from_ptr(from as *mut u64) }.load(Ordering::Relaxed);
            data.extend_from_slice(&word.to_ne_bytes());
        } else {
            // SAFETY: the same as for the whole words.
            data.push(unsafe { AtomicU8::from_ptr(from as *mut u8) }.load(Ordering::Relaxed));
        }
    }
    fence(Ordering::Acquire);
    data
}
