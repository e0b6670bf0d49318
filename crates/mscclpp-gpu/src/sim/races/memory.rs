//! The memory that a block's threads may access.

use std::ops::Range;

use super::freed;
use crate::sim::ranges::{self, Whereabouts};

/// A kind of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MemoryKind {
    /// Memory of a device, pinned memory, or a variable.
    Memory,
    /// `__shared__` memory of this block.
    Shared,
    /// Memory that was freed.
    Freed,
    /// Nothing that threads share.
    Own,
    /// Behind the end of memory that begins there and has so many bytes.
    Beyond(usize, u64),
}

/// The memory that the threads of a block may access, with the answers to the last questions.
pub(super) struct Memory {
    /// The block's `__shared__` variables.
    shared: Vec<Range<usize>>,
    /// The ranges that were asked for last, with the changes of memory at that time.
    known: [(usize, usize, MemoryKind); 4],
    next: usize,
    changes: u64,
}

const NOWHERE: (usize, usize, MemoryKind) = (0, 0, MemoryKind::Own);

impl Memory {
    pub(super) fn new(shared: Vec<Range<usize>>) -> Self {
        Self { shared, known: [NOWHERE; 4], next: 0, changes: 0 }
    }

    /// Returns the `__shared__` variable of the block that has the byte at an address.
    pub(super) fn shared(&self, address: usize) -> Option<&Range<usize>> {
        self.shared.iter().find(|range| range.contains(&address))
    }

    /// Returns the kind of memory of `bytes` bytes at an address.
    pub(super) fn kind(&mut self, address: usize, bytes: usize) -> MemoryKind {
        let changes = ranges::changes();
        if changes == self.changes {
            let inside =
                |(begin, end, _): &(usize, usize, MemoryKind)| *begin <= address && address + bytes <= *end;
            if let Some((.., kind)) = self.known.iter().find(|range| inside(range)) {
                return *kind;
            }
        } else {
            self.known = [NOWHERE; 4];
            self.changes = changes;
        }
        let (range, kind) = self.look_up(address, bytes);
        if !matches!(kind, MemoryKind::Beyond(..) | MemoryKind::Freed) {
            self.known[self.next] = (range.start, range.end, kind);
            self.next = (self.next + 1) % self.known.len();
        }
        kind
    }

    fn look_up(&self, address: usize, bytes: usize) -> (Range<usize>, MemoryKind) {
        if let Some(shared) = self.shared(address) {
            return (shared.clone(), MemoryKind::Shared);
        }
        match ranges::whereabouts(address) {
            Whereabouts::In(range) if address + bytes <= range.end => (range, MemoryKind::Memory),
            Whereabouts::In(range) => {
                let size = range.len() as u64;
                (range.clone(), MemoryKind::Beyond(range.start, size))
            }
            Whereabouts::Behind(begin, size) => (address..address, MemoryKind::Beyond(begin, size)),
            Whereabouts::Between(_) if freed::at(address).is_some() => (address..address, MemoryKind::Freed),
            Whereabouts::Between(range) => {
                let range = freed::between(address, range);
                // Up to the block's own variables, which may lie there too.
                let before = self.shared.iter().map(|shared| shared.end).filter(|end| *end <= address).max();
                let behind =
                    self.shared.iter().map(|shared| shared.start).filter(|start| *start > address).min();
                let start = before.map_or(range.start, |end| end.max(range.start));
                let end = behind.map_or(range.end, |start| start.min(range.end));
                (start..end, MemoryKind::Own)
            }
        }
    }
}
