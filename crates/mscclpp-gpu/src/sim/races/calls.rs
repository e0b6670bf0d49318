//! The functions that instrumented kernels call for each access, fence and call of a function; see `races.cpp` and `races.hpp`
//! among the headers for simulated devices.

use super::{
    atomics::{Meaning, operation, perform},
    block::{Block, of},
    bulk,
    found::Why,
    memory::MemoryKind,
    order::{host_learns, host_learns_released, of_host},
    packets,
    record::{How, Record, Scope},
    shadow::{self, Page, first},
    sites,
    stores::{Relaxed, Stores},
    thread::ThreadView,
    words::{Location, Release},
};
use crate::sim::{
    abi::{Atomic, Races, Thread},
    ranges, schedule,
};

pub(in super::super) static CALLS: Races = Races { access, atomic, fence, enter, leave, bulk: bulk::call };

/// The bits of `Thread::access` in `races.hpp`.
const SILENT: u32 = 1 << 9;
const PACKET: u32 = 1 << 10;
const AT_ONCE: u32 = 1 << 11;
const PAIR: u32 = 1 << 12;

unsafe extern "C" fn enter(thread: *mut Thread, place: usize) {
    // SAFETY: called by the running coroutine.
    let (block, number) = unsafe { of(thread) };
    let node = block.threads[number].node;
    block.threads[number].node = block.met.node(node, place);
}

unsafe extern "C" fn leave(thread: *mut Thread) {
    // SAFETY: called by the running coroutine.
    let (block, number) = unsafe { of(thread) };
    block.decide(number);
    block.threads[number].node = block.met.caller(block.threads[number].node);
}

unsafe extern "C" fn access(thread: *mut Thread, place: usize, address: usize, bytes: u64, kind: u32) {
    let (is_write, is_volatile) = (kind & 1 != 0, kind & 2 != 0);
    let how = if is_volatile {
        How::strong(is_write, Scope::System).of_bytes(bytes as usize)
    } else {
        How::plain(is_write)
    };
    // SAFETY: called by the running coroutine.
    unsafe { may_give_way(thread) };
    // SAFETY: called by the running coroutine.
    unsafe { ordinary(thread, place, address, bytes as usize, how) };
}

/// If a seed makes the schedule, a turn may end in front of any access.
///
/// # Safety
/// Called by the running coroutine.
unsafe fn may_give_way(thread: *mut Thread) {
    if schedule::seed().is_none() {
        return;
    }
    // SAFETY: the caller's promise. Nothing of the thread or its block is referred to.
    unsafe {
        (*thread).steps_left -= 1;
        if (*thread).steps_left <= 0 {
            ((*(*thread).runtime).give_way)(thread);
        }
    }
}

/// An access that orders nothing.
///
/// # Safety
/// Called by the running coroutine.
unsafe fn ordinary(thread: *mut Thread, place: usize, address: usize, bytes: usize, how: How) {
    if bytes == 0 {
        return;
    }
    // SAFETY: the caller's promise.
    let (block, number) = unsafe { of(thread) };
    block.decide(number);
    let memory = block.memory.kind(address, bytes);
    match memory {
        MemoryKind::Own => {}
        MemoryKind::Memory | MemoryKind::Shared => {
            let site = block.met.site(block.threads[number].node, place);
            if memory == MemoryKind::Shared && !how.is_write() {
                block.look_for_poison(number, site, address, bytes);
            }
            block.comes_to(number, address, bytes, how.is_write() && !how.is_strong());
            block.access(number, site, address, bytes, how);
        }
        MemoryKind::Beyond(..) | MemoryKind::Freed => {
            let kind = if how.is_write() { "writing" } else { "reading" };
            let site = block.met.site(block.threads[number].node, place);
            let line = sites::Lines::of(site).text(site);
            let what = match memory {
                MemoryKind::Beyond(begin, size) => {
                    format!("offset {} of the memory at {begin:#x}, which has {size} bytes", address - begin)
                }
                _ => "in memory that was freed: keep it until the stream is synchronised".to_owned(),
            };
            let problem = format!("{kind} {bytes} bytes at {address:#x} at {line}, {what}");
            drop((line, what));
            // SAFETY: the caller's promise; nothing of the block is referred to any more.
            unsafe { ((*thread).fail)(thread, problem) };
        }
    }
}

unsafe extern "C" fn fence(thread: *mut Thread, how: u32) {
    // SAFETY: called by the running coroutine.
    let (block, number) = unsafe { of(thread) };
    block.decide(number);
    block.put_all(number);
    block.threads[number].fence(scope(how));
}

fn scope(how: u32) -> Scope {
    match how >> 4 & 3 {
        0 => Scope::Block,
        1 => Scope::Device,
        _ => Scope::System,
    }
}

unsafe extern "C" fn atomic(thread: *mut Thread, place: usize, address: usize, what: *const Atomic) -> u64 {
    // SAFETY: kernels pass one that lives.
    let what = unsafe { &*what };
    let is_weak = what.how & 0xf == 0;
    let is_store = what.operation != operation::LOAD;
    if what.how & SILENT == 0 {
        // SAFETY: called by the running coroutine.
        unsafe { may_give_way(thread) };
    }
    if what.how & SILENT == 0 && is_weak {
        // SAFETY: called by the running coroutine.
        unsafe { ordinary(thread, place, address, what.bytes as usize, How::plain(is_store)) };
    }
    if what.how & SILENT != 0 || is_weak {
        // SAFETY: kernels pass the address of a word of theirs.
        return unsafe { perform(address, what) };
    }
    // SAFETY: called by the running coroutine.
    let (block, number) = unsafe { of(thread) };
    block.decide(number);
    let memory = block.memory.kind(address, what.bytes as usize);
    match memory {
        // SAFETY: as above.
        MemoryKind::Own => unsafe { perform(address, what) },
        MemoryKind::Memory | MemoryKind::Shared => {
            let site = block.met.site(block.threads[number].node, place);
            if matches!(what.how & 0xf, 3 | 4) {
                block.put_all(number);
            }
            block.comes_to(number, address, what.bytes as usize, false);
            if memory == MemoryKind::Memory && hold_back(block, number, site, address, what) {
                return 0;
            }
            // SAFETY: as above.
            let before = unsafe { ordered(block, number, site, address, what) };
            if before.is_none() {
                let problem = "a packet that it polls for was overwritten before it was read".to_owned();
                // SAFETY: called by the running coroutine; nothing of the block is referred to any more.
                unsafe { ((*thread).fail)(thread, problem) };
            }
            before.unwrap_or_default()
        }
        // SAFETY: as in `ordinary`, which fails the kernel.
        MemoryKind::Beyond(..) | MemoryKind::Freed => unsafe {
            ordinary(thread, place, address, what.bytes as usize, How::plain(is_store));
            0
        },
    }
}

/// A relaxed store to memory that others share may come late, if a seed makes the schedule. Returns whether it does.
fn hold_back(block: &mut Block, number: usize, site: u32, address: usize, what: &Atomic) -> bool {
    let is_relaxed =
        what.operation == operation::STORE && what.how & 0xf == 1 && what.how & (PACKET | AT_ONCE) == 0;
    if !is_relaxed || !block.stores.get_mut(number).is_some_and(Stores::holds_relaxed) {
        return false;
    }
    let how = How::strong(true, scope(what.how)).of_bytes(what.bytes as usize);
    let record = block.threads[number].record(site, how);
    let releases = block.threads[number].released_by_fences(&record);
    block.stores[number].hold(Relaxed { address, what: *what, record, releases });
    true
}

/// An atomic access that may carry order. The word is held meanwhile, so that who reads a value gets what was released
/// with it. Returns what was there before, or None if that is a packet in place of one that nobody has read.
///
/// # Safety
/// The address is that of a word of memory that is there.
unsafe fn ordered(block: &mut Block, number: usize, site: u32, address: usize, what: &Atomic) -> Option<u64> {
    tell_host(block, number, address, what);
    let mut held = shadow::hold(address);
    let page = held.page(address);
    // SAFETY: the caller's promise.
    let before = unsafe { perform(address, what) };
    let meaning = Meaning::of(what, before);
    let bytes = what.bytes as usize;
    let each = if what.how & PAIR == 0 { bytes } else { bytes / 2 };
    let words = || (address..address + bytes).step_by(each).map(|address| Location { address, bytes: each });
    let how = How::strong(meaning.writes, scope(what.how)).of_bytes(each);
    // Zeros are no packet, but what a place has before its first.
    let is_packet = what.how & PACKET != 0 && (meaning.reads || what.value != 0);
    let how = if is_packet { how.of_packet() } else { how };
    let record = block.threads[number].record(site, how);
    let lost = if is_packet { packets::accessed(page, Location { address, bytes }, &record) } else { None };
    if meaning.reads {
        for word in words() {
            see(block, number, page, word, word.part_of(before, address), &meaning, &record);
        }
    }
    let mut races = Vec::new();
    let thread = &block.threads[number];
    let is_before = |earlier: &Record| thread.may_do_behind(!meaning.reads, earlier);
    page.access(address, bytes, record, is_before, |earlier, at, common| {
        races.push((earlier, first(at, common)));
    });
    if meaning.writes {
        let releases = released(&mut block.threads[number], &meaning, &record);
        // SAFETY: the caller's promise; held, so it is what this access left.
        let value = unsafe { perform(address, &Atomic { operation: operation::LOAD, ..*what }) };
        for word in words() {
            let value = word.part_of(value, address);
            page.words.leave(word, meaning.is_update, &record, &releases, value);
        }
    }
    drop(held);
    for (earlier, at) in races {
        block.race(number, Some(earlier), record, at);
    }
    if let Some((packet, other)) = lost {
        block.race(number, Some(packet), other, address);
        return None;
    }
    Some(before)
}

/// The thread has read `before` from a word.
fn see(
    block: &mut Block,
    number: usize,
    page: &mut Page,
    at: Location,
    before: u64,
    meaning: &Meaning,
    record: &Record,
) {
    let by_kernel = page.records_but(at, record).find(|other| other.how.is_write()).copied();
    let known = page.words.get(at).and_then(|word| word.value);
    let is_unknown = match (known, by_kernel) {
        (Some(value), _) => value != before,
        (None, Some(writer)) if writer.block != 0 => false,
        (None, _) => before != 0,
    };
    if meaning.acquires {
        block.threads[number].acquire_earlier(at);
    }
    if is_unknown {
        if ranges::is_shared(at.address) {
            if meaning.acquires {
                block.threads[number].learn_everything();
            } else {
                block.threads[number].see_unknown();
            }
        } else if meaning.acquires {
            // Memory of this process: a thread of the host has written it.
            let host = of_host();
            block.threads[number].learn(&host);
        }
        if let Some(word) = page.words.get_mut(at) {
            word.releases.clear();
        }
    }
    // The load is one of its scope, whatever it is that the release wrote.
    let load = Record { how: How::strong(false, record.how.scope()).of_bytes(at.bytes), ..*record };
    for (other, word) in page.words.that_overlap(at) {
        for release in &word.releases {
            if other != at && release.by.block != 0 {
                block.notes_near_miss(Why::Size, Some(&release.clock), release.by, record.site);
            } else if load.is_one_for(&release.by) || load.is_of_same(&release.by) {
                block.threads[number].see(at, release, meaning.acquires);
                if !meaning.acquires {
                    block.notes_near_miss(Why::Load, Some(&release.clock), release.by, record.site);
                }
            } else {
                block.notes_near_miss(Why::Scope, Some(&release.clock), release.by, record.site);
            }
        }
    }
    if let Some(word) = page.words.get_mut(at) {
        word.value = Some(before);
    } else if meaning.acquires {
        page.words.get_or_insert(at).value = Some(before);
    }
    if let Some(writer) = by_kernel.filter(|writer| writer.block != 0 && writer.how.is_strong()) {
        if load.is_strong_for(&writer) {
            block.see_launch_of(number, &writer);
        }
        let why = if load.how.is_of_size(writer.how) { Why::Store } else { Why::Size };
        block.notes_near_miss(why, None, writer, record.site);
    }
}

/// The thread is about to write a word. If somebody may read it who is not seen, the host may know it as soon as it is written,
/// by an access of its own or a message of another process: it knows from now on what is released with it.
fn tell_host(block: &mut Block, number: usize, address: usize, what: &Atomic) {
    let is_store = what.operation != operation::LOAD && scope(what.how) == Scope::System;
    if !is_store || !ranges::has_unseen_readers(address) {
        return;
    }
    let thread = &mut block.threads[number];
    if matches!(what.how & 0xf, 3 | 4) {
        host_learns(&thread.release());
        return;
    }
    let record = thread.record(0, How::strong(true, Scope::System));
    host_learns_released(&thread.released_by_fences(&record));
}

/// Returns the releases of a thread's write to a word.
fn released(thread: &mut ThreadView, meaning: &Meaning, record: &Record) -> Vec<Release> {
    if meaning.releases {
        vec![Release { clock: thread.release(), by: *record }]
    } else {
        thread.released_by_fences(record)
    }
}
