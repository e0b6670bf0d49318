//! Atomic accesses of kernels: what one means, and the access itself.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use crate::sim::abi::Atomic;

/// The operations of `races.cpp`.
pub(super) mod operation {
    pub(in super::super) const LOAD: u32 = 0;
    pub(in super::super) const STORE: u32 = 1;
    pub(in super::super) const EXCHANGE: u32 = 2;
    pub(in super::super) const ADD: u32 = 3;
    pub(in super::super) const SUB: u32 = 4;
    pub(in super::super) const AND: u32 = 5;
    pub(in super::super) const OR: u32 = 6;
    pub(in super::super) const XOR: u32 = 7;
    pub(in super::super) const NAND: u32 = 8;
}

/// The effects of a strong access to a word.
pub(super) struct Meaning {
    pub(super) reads: bool,
    pub(super) writes: bool,
    pub(super) acquires: bool,
    pub(super) releases: bool,
    pub(super) is_update: bool,
}

impl Meaning {
    pub(super) fn of(what: &Atomic, before: u64) -> Self {
        let order = what.how & 0xf;
        let is_update = !matches!(what.operation, operation::LOAD | operation::STORE);
        // A comparison that fails only reads.
        let swaps = what.operation <= operation::NAND || before == what.expected;
        let writes = what.operation != operation::LOAD && swaps;
        let reads = what.operation != operation::STORE;
        let (acquires, releases) = (matches!(order, 2 | 4) && reads, matches!(order, 3 | 4) && writes);
        Self { reads, writes, acquires, releases, is_update }
    }
}

/// Does the access itself.
///
/// # Safety
/// The address is that of a word of so many bytes, which others access with atomics only.
pub(super) unsafe fn perform(address: usize, what: &Atomic) -> u64 {
    macro_rules! perform {
        ($word:ty, $integer:ty) => {{
            // SAFETY: the caller's promise.
            let word = unsafe { <$word>::from_ptr(address as *mut $integer) };
            let (value, order) = (what.value as $integer, Ordering::SeqCst);
            u64::from(match what.operation {
                operation::LOAD => word.load(order),
                operation::STORE => {
                    word.store(value, order);
                    0
                }
                operation::EXCHANGE => word.swap(value, order),
                operation::ADD => word.fetch_add(value, order),
                operation::SUB => word.fetch_sub(value, order),
                operation::AND => word.fetch_and(value, order),
                operation::OR => word.fetch_or(value, order),
                operation::XOR => word.fetch_xor(value, order),
                operation::NAND => word.fetch_nand(value, order),
                _ => match word.compare_exchange(what.expected as $integer, value, order, order) {
                    Ok(before) | Err(before) => before,
                },
            })
        }};
    }
    match what.bytes {
        1 => perform!(AtomicU8, u8),
        2 => perform!(AtomicU16, u16),
        4 => perform!(AtomicU32, u32),
        _ => perform!(AtomicU64, u64),
    }
}
