//! The ranks that accesses belong to, for reports. A thread of the host declares its rank; a stream belongs to the rank that
//! submits to it, and memory to the one that allocated it. A thread that is several ranks belongs to none of them.

use std::{cell::Cell, collections::BTreeMap};

use parking_lot::Mutex;

use super::switch::is_on;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Rank {
    One(usize),
    Several,
}

thread_local! {
    static RANK: Cell<Option<Rank>> = const { Cell::new(None) };
}

static STREAMS: Mutex<BTreeMap<u32, Rank>> = Mutex::new(BTreeMap::new());
static MEMORIES: Mutex<BTreeMap<usize, Rank>> = Mutex::new(BTreeMap::new());

fn both(there: Option<Rank>, rank: Rank) -> Rank {
    there.filter(|there| *there != rank).map_or(rank, |_| Rank::Several)
}

/// Declares that the calling thread works for that rank, which reports of races then name for its streams and memory. A
/// communicator does so for the thread that makes it. Without `MSCCLPP_SIM_RACES=1` it does nothing.
pub fn this_thread_is_rank(rank: usize) {
    if is_on() {
        RANK.set(Some(both(RANK.get(), Rank::One(rank))));
    }
}

/// The calling thread submits to the stream.
pub(super) fn uses_stream(stream: u32) {
    let Some(rank) = RANK.get() else { return };
    let mut streams = STREAMS.lock();
    let there = streams.get(&stream).copied();
    streams.insert(stream, both(there, rank));
}

/// Notes that the calling thread has allocated the memory that begins there. Its address is given to no other memory
/// later (see [`super::freed`]).
pub(in super::super) fn allocates(begin: usize) {
    if let Some(rank) = RANK.get() {
        MEMORIES.lock().insert(begin, rank);
    }
}

/// `rank 1 on `, or nothing.
pub(super) fn of_stream(stream: u32) -> String {
    text(STREAMS.lock().get(&stream))
}

/// The same of the memory that begins there.
pub(super) fn of_memory(begin: usize) -> String {
    text(MEMORIES.lock().get(&begin))
}

fn text(rank: Option<&Rank>) -> String {
    match rank {
        Some(Rank::One(rank)) => format!("rank {rank} on "),
        _ => String::new(),
    }
}
