//! Bulk copies. A copy is done by the asynchronous proxy, not by the thread that starts it. The copy knows what the last proxy
//! fence of that thread, or of a thread that it has synchronised with, knew. The thread knows of the copy what it has waited for.

use std::sync::Arc;

use super::{
    block::{Block, of},
    clock::{Clock, joined},
    record::{How, Record, Scope},
    shadow::{self, first},
    thread::Space,
};
use crate::sim::abi::{BulkCopy, Thread};

/// `Bulk` of `races.hpp`.
mod what {
    pub(super) const LOAD: u32 = 0;
    pub(super) const STORE: u32 = 1;
    pub(super) const REDUCE_STORE: u32 = 2;
    pub(super) const COMMIT: u32 = 3;
    pub(super) const WAIT: u32 = 4;
    pub(super) const WAIT_SOURCE: u32 = 5;
    pub(super) const FENCE: u32 = 6;
    pub(super) const FENCE_ALL: u32 = 7;
    pub(super) const ARRIVE: u32 = 8;
    pub(super) const COMPLETE: u32 = 9;
}

pub(super) unsafe extern "C" fn call(thread: *mut Thread, place: usize, call: *const BulkCopy) {
    // SAFETY: called by the running coroutine, with a struct that lives.
    let ((block, number), call) = unsafe { (of(thread), &*call) };
    block.put_all(number);
    let site = block.met.site(block.threads[number].node, place);
    if matches!(call.what, what::LOAD | what::ARRIVE | what::COMPLETE) {
        uses_barrier(block, number, site, call);
    }
    let known = &mut block.threads[number];
    match call.what {
        what::LOAD | what::STORE | what::REDUCE_STORE => copy(block, number, site, call),
        what::COMMIT => {
            let copies = known.copies;
            known.groups.push(copies);
        }
        what::WAIT => wait(block, number, call.bytes, true),
        what::WAIT_SOURCE => wait(block, number, call.bytes, false),
        what::FENCE => known.fence_proxy(Space::Shared),
        what::FENCE_ALL => {
            known.fence_proxy(Space::Shared);
            known.fence_proxy(Space::Global);
        }
        what::ARRIVE => {
            let clock = known.release();
            block.arrive(call.barrier, &clock);
        }
        what::COMPLETE => {
            if let Some((clock, _)) = block.barriers.get(&call.barrier) {
                known.learn(clock);
            }
        }
        // Made ready, or no barrier any more.
        _ => {
            let made = known.record(site, How::plain(true));
            block.barriers.insert(call.barrier, (Arc::default(), made));
        }
    }
}

/// Notes the use of a BulkBarrier, which must be ready before: for a thread, by itself or by a thread before a barrier of
/// the block, and for a copy also before a fence.
fn uses_barrier(block: &mut Block, number: usize, site: u32, call: &BulkCopy) {
    let Some(&(_, made)) = block.barriers.get(&call.barrier) else { return };
    let known = &block.threads[number];
    let own = known.record(site, How::plain(true));
    let (is_ready, used) = if call.what == what::LOAD {
        let of_copy = Record { thread: own.thread | Record::ASYNC_WRITE, ..own };
        (known.copy_is_behind(Space::Shared, &made), of_copy)
    } else {
        (known.is(&made) || known.is_behind(&made), own)
    };
    if !is_ready {
        block.race(number, Some(made), used, call.barrier);
    }
}

/// A copy has been started.
fn copy(block: &mut Block, number: usize, site: u32, call: &BulkCopy) {
    if call.bytes == 0 {
        return;
    }
    let known = &mut block.threads[number];
    known.copies += 1;
    let clock = u64::from(known.copies);
    let (from, to) = match call.what {
        what::LOAD => (Space::Global, Space::Shared),
        _ => (Space::Shared, Space::Global),
    };
    let write = if call.what == what::REDUCE_STORE {
        // As if by relaxed atomic accesses of the device.
        How::strong(true, Scope::Device)
    } else {
        How::plain(true)
    };
    let own = known.record(site, How::default());
    let read = Record { clock, thread: own.thread | Record::ASYNC_READ, ..own };
    let written = Record { clock, thread: own.thread | Record::ASYNC_WRITE, how: write, ..own };
    note(block, number, from, call.src, call.bytes, read);
    note(block, number, to, call.dst, call.bytes, written);
    if call.what == what::LOAD {
        // Complete by the barrier, which gets the bytes.
        let mut done = Clock::default();
        done.learn_thread(read.key(), clock);
        done.learn_thread(written.key(), clock);
        block.arrive(call.barrier, &Arc::new(done));
    }
}

fn note(block: &mut Block, number: usize, space: Space, address: usize, bytes: u64, record: Record) {
    let mut races = Vec::new();
    let known = &block.threads[number];
    shadow::by_page(address, bytes as usize, |at, bytes| {
        let is_before = |earlier: &Record| {
            // A write over what a thread has only read needs no fence.
            if record.how.is_write() && !earlier.how.is_write() {
                known.may_do_behind(true, earlier) || known.is(earlier)
            } else {
                known.copy_is_behind(space, earlier)
            }
        };
        shadow::hold(at).page(at).access(at, bytes, record, is_before, |earlier, at, common| {
            races.push((earlier, first(at, common)));
        });
    });
    for (earlier, at) in races {
        block.race(number, Some(earlier), record, at);
    }
}

/// The thread has waited until at most so many of its groups are under way, or still read.
fn wait(block: &mut Block, number: usize, left: u64, is_complete: bool) {
    let known = &mut block.threads[number];
    let done = known.groups.len().saturating_sub(left as usize);
    let Some(copies) = done.checked_sub(1).map(|last| known.groups[last]) else { return };
    let own = known.record(0, How::default());
    let mut clock = Clock::default();
    clock.learn_thread(Record { thread: own.thread | Record::ASYNC_READ, ..own }.key(), u64::from(copies));
    if is_complete {
        clock.learn_thread(
            Record { thread: own.thread | Record::ASYNC_WRITE, ..own }.key(),
            u64::from(copies),
        );
    }
    known.clock = joined(&known.clock, &Arc::new(clock));
    if is_complete {
        known.groups.drain(..done);
    }
}
