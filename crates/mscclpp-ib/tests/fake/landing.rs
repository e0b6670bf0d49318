//! How data that has arrived at an adapter becomes visible in its host's memory. The rules are at the top of [`super`].

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

use mscclpp_verbs_sys as sys;

use super::state::{Queue, State};

/// A piece of what has arrived.
pub(super) struct Landing {
    pub(super) what: Piece,
    /// The memory it goes to is registered with relaxed ordering.
    pub(super) relaxed: bool,
    /// It goes to a different place than completions: a GPU.
    pub(super) elsewhere: bool,
    /// The request that waits for it: queue pair and sequence number.
    pub(super) request: Option<(u32, u64)>,
}

pub(super) enum Piece {
    Write { address: usize, data: Vec<u8> },
    Add { address: usize, add: u64, original: sys::ibv_sge },
    Receive { wc: Box<sys::ibv_wc>, solicited: bool },
}

impl Piece {
    fn is_add(&self) -> bool {
        matches!(self, Self::Add { .. })
    }
}

impl State {
    /// Which pieces on their way to the memory of queue pair `number` may become visible now.
    pub(super) fn eligible(&self, number: u32) -> Vec<usize> {
        let Some(qp) = self.qps.get(&number) else { return Vec::new() };
        let rules = self.devices[qp.device].config.reordering;
        // What came before that relaxed accesses do not pass, and what completions do not.
        let (mut adds, mut near) = (0, 0);
        let mut eligible = Vec::new();
        for (index, landing) in qp.landings.iter().enumerate() {
            let passes = match &landing.what {
                // Receives complete in order.
                Piece::Receive { .. } => rules.completions && near == 0,
                // Relaxed accesses do not pass atomics.
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

    /// Makes a piece visible.
    pub(super) fn land(&mut self, number: u32, index: usize) {
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
                    // A token, for which somebody looks. On a busy machine that thread has its turn only if this one rests.
                    std::thread::sleep(std::time::Duration::from_micros(20));
                }
            }
            Piece::Add { address, add, original } => {
                let before = fetch_add(address, add);
                if let Some((requester, sequence)) = landing.request {
                    self.answer(requester, sequence, &original, before);
                }
            }
            Piece::Receive { wc, solicited } => {
                let Some(qp) = self.qps.get(&number) else { return };
                let cq = qp.receive_cq;
                // A receive that the queue pair's failure has flushed meanwhile is not completed twice: it was taken
                // from the queue when the request arrived.
                self.complete(cq, *wc, solicited, Queue::Receive, 1);
            }
        }
        if let Some((requester, sequence)) = landing.request {
            self.acknowledge(requester, sequence);
        }
    }

    /// Makes everything visible that is on its way to a queue pair, in the order of arrival.
    pub(super) fn land_all(&mut self, number: u32) {
        while self.qps.get(&number).is_some_and(|qp| !qp.landings.is_empty()) {
            self.land(number, 0);
        }
    }

    /// The same for all of them.
    pub(super) fn land_everything(&mut self) {
        for number in self.qps.keys().copied().collect::<Vec<_>>() {
            self.land_all(number);
        }
    }

    /// An atomic returns what was there to the memory of its requester.
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

/// Copies like an adapter: aligned words of 8 bytes are whole, and everything before is visible first to who acquires.
fn store(address: usize, data: &[u8]) {
    fence(Ordering::Release);
    let mut at = 0;
    while at < data.len() {
        let to = address + at;
        if to.is_multiple_of(8) && data.len() - at >= 8 {
            let word = data[at..at + 8].try_into().map(u64::from_ne_bytes).unwrap_or_default();
            // SAFETY: the region was checked when the piece arrived, and deregistering waits for what is on its way. Other
            // threads look at such memory by atomics only.
            unsafe { AtomicU64::from_ptr(to as *mut u64) }.store(word, Ordering::Relaxed);
            at += 8;
        } else {
            // SAFETY: as above.
            unsafe { AtomicU8::from_ptr(to as *mut u8) }.store(data[at], Ordering::Relaxed);
            at += 1;
        }
    }
    fence(Ordering::Release);
}

fn fetch_add(address: usize, add: u64) -> u64 {
    // SAFETY: as in `store`; the alignment was checked too.
    unsafe { AtomicU64::from_ptr(address as *mut u64) }.fetch_add(add, Ordering::AcqRel)
}

/// Reads as an adapter would.
pub(super) fn load(address: usize, length: usize) -> Vec<u8> {
    let mut data = Vec::with_capacity(length);
    while data.len() < length {
        let from = address + data.len();
        if from.is_multiple_of(8) && length - data.len() >= 8 {
            // SAFETY: the region was checked by the caller, which has the lock, so it is registered still.
            let word = unsafe { AtomicU64::from_ptr(from as *mut u64) }.load(Ordering::Relaxed);
            data.extend(word.to_ne_bytes());
        } else {
            // SAFETY: as above.
            data.push(unsafe { AtomicU8::from_ptr(from as *mut u8) }.load(Ordering::Relaxed));
        }
    }
    fence(Ordering::Acquire);
    data
}
