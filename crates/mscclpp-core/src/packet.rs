//! Packets: data that carries its own validity, so that it needs no fence and no semaphore.
//!
//! The formats are written over abstract words, as [`crate::protocol`] is, so that the same code runs on mapped memory
//! and under a model checker.
//!
//! # Invariants
//! 1. The unit that arrives whole is a word of 8 bytes. What a word says of itself is true; what it says of other words
//!    needs order.
//! 2. LL8 and LL16: each word is 4 bytes of data and, above them, 4 bytes of flag. A word with the awaited flag has that
//!    round's data in it, so stores and loads are relaxed and the two words of LL16 may come in any order.
//! 3. LL128: fifteen words of data, and the flag in the sixteenth. On GPUs a warp stores the line at once, it arrives
//!    whole, where it is used at all, and a warp loads it at once. Nothing here does that with 128 bytes: the flag is
//!    stored behind the data with release and loaded before it with acquire, so that who sees the flag sees the data.
//! 4. Flags differ from round to round and 0 is none, so neither a zeroed buffer nor the round before looks valid. A
//!    packet is not overwritten before it was taken: who puts the next round knows, from the answer to this one, say.

use std::sync::atomic::Ordering;

use crate::protocol::SharedWord;

/// The layout of a packet in words of 8 bytes.
pub trait PacketFormat {
    /// Words of a packet.
    const WORDS: usize;
    /// What a packet carries.
    type Payload: AsRef<[u8]> + AsMut<[u8]> + Copy;
    /// A payload of zeros.
    const ZEROS: Self::Payload;

    /// Fills `words` with `payload`. `flag` is not 0.
    fn store<W: SharedWord<Value = u64>>(words: &[W], payload: &Self::Payload, flag: u32);

    /// The payload, if all of it is there with that flag.
    fn load<W: SharedWord<Value = u64>>(words: &[W], flag: u32) -> Option<Self::Payload>;
}

/// A packet format of the device API: [`LL8Packet`], [`LL16Packet`] or [`LL128Packet`].
pub trait Packet: PacketFormat + sealed::Sealed {
    /// Bytes that a packet takes in a packet buffer. Packets are aligned to their size.
    const SIZE: u64;

    /// Bytes of data in a packet.
    const PAYLOAD: u64;

    /// How many threads, a whole group of neighbours, store or take a packet together.
    const LANES: u32;

    /// How large a packet buffer must be for `bytes` bytes of data put at its start.
    ///
    /// ```
    /// use mscclpp_core::{LL8Packet, LL16Packet, LL128Packet, Packet};
    /// assert_eq!(LL8Packet::buffer_size(1000), 2000);
    /// assert_eq!(LL16Packet::buffer_size(1001), 126 * 16);
    /// assert_eq!(LL128Packet::buffer_size(1000), 9 * 128);
    /// ```
    #[must_use]
    fn buffer_size(bytes: u64) -> u64 {
        bytes.div_ceil(Self::PAYLOAD) * Self::SIZE
    }
}

/// A packet that a single thread stores and takes.
pub trait ThreadPacket: Packet {}

/// 8 bytes: 4 of data, 4 of flag. The lowest latency.
#[derive(Debug, Clone, Copy)]
pub enum LL8Packet {}

/// 16 bytes: twice 4 of data and 4 of flag.
#[derive(Debug, Clone, Copy)]
pub enum LL16Packet {}

/// 128 bytes, a line that a warp stores: 120 of data, 8 of flag.
///
/// Only for links on which such a line arrives whole; see [`crate::MemoryChannel::check_lines`].
#[derive(Debug, Clone, Copy)]
pub enum LL128Packet {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::LL8Packet {}
    impl Sealed for super::LL16Packet {}
    impl Sealed for super::LL128Packet {}
}

fn with_flag(data: [u8; 4], flag: u32) -> u64 {
    u64::from(flag) << 32 | u64::from(u32::from_le_bytes(data))
}

fn if_flagged(word: u64, flag: u32) -> Option<[u8; 4]> {
    ((word >> 32) as u32 == flag).then_some((word as u32).to_le_bytes())
}

impl PacketFormat for LL8Packet {
    const WORDS: usize = 1;
    type Payload = [u8; 4];
    const ZEROS: [u8; 4] = [0; 4];

    fn store<W: SharedWord<Value = u64>>(words: &[W], payload: &[u8; 4], flag: u32) {
        words[0].store(with_flag(*payload, flag), Ordering::Relaxed);
    }

    fn load<W: SharedWord<Value = u64>>(words: &[W], flag: u32) -> Option<[u8; 4]> {
        if_flagged(words[0].load(Ordering::Relaxed), flag)
    }
}

impl Packet for LL8Packet {
    const SIZE: u64 = 8;
    const PAYLOAD: u64 = 4;
    const LANES: u32 = 1;
}

impl ThreadPacket for LL8Packet {}

impl PacketFormat for LL16Packet {
    const WORDS: usize = 2;
    type Payload = [u8; 8];
    const ZEROS: [u8; 8] = [0; 8];

    fn store<W: SharedWord<Value = u64>>(words: &[W], payload: &[u8; 8], flag: u32) {
        let [a, b, c, d, e, f, g, h] = *payload;
        words[0].store(with_flag([a, b, c, d], flag), Ordering::Relaxed);
        words[1].store(with_flag([e, f, g, h], flag), Ordering::Relaxed);
    }

    fn load<W: SharedWord<Value = u64>>(words: &[W], flag: u32) -> Option<[u8; 8]> {
        let [a, b, c, d] = if_flagged(words[0].load(Ordering::Relaxed), flag)?;
        let [e, f, g, h] = if_flagged(words[1].load(Ordering::Relaxed), flag)?;
        Some([a, b, c, d, e, f, g, h])
    }
}

impl Packet for LL16Packet {
    const SIZE: u64 = 16;
    const PAYLOAD: u64 = 8;
    const LANES: u32 = 1;
}

impl ThreadPacket for LL16Packet {}

impl PacketFormat for LL128Packet {
    const WORDS: usize = 16;
    type Payload = [u8; 120];
    const ZEROS: [u8; 120] = [0; 120];

    fn store<W: SharedWord<Value = u64>>(words: &[W], payload: &[u8; 120], flag: u32) {
        let (data, _) = payload.as_chunks();
        for (word, value) in words.iter().zip(data) {
            word.store(u64::from_le_bytes(*value), Ordering::Relaxed);
        }
        words[15].store(flag.into(), Ordering::Release);
    }

    fn load<W: SharedWord<Value = u64>>(words: &[W], flag: u32) -> Option<[u8; 120]> {
        // Pairs with the release store of the flag, which has all of the line's data before it (invariant 3).
        if words[15].load(Ordering::Acquire) != u64::from(flag) {
            return None;
        }
        let mut payload = Self::ZEROS;
        let (data, _) = payload.as_chunks_mut();
        for (value, word) in data.iter_mut().zip(words) {
            // Acquire keeps what this thread does next, such as to answer, behind it (invariant 4).
            *value = word.load(Ordering::Acquire).to_le_bytes();
        }
        Some(payload)
    }
}

impl Packet for LL128Packet {
    const SIZE: u64 = 128;
    const PAYLOAD: u64 = 120;
    const LANES: u32 = 32;
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    fn goes_through<P: Packet>() {
        assert_eq!(P::SIZE, 8 * P::WORDS as u64);
        let words: Vec<AtomicU64> = (0..P::WORDS).map(|_| AtomicU64::new(0)).collect();
        assert!(P::load(&words, 1).is_none(), "zeroed memory holds no packet");
        let mut payload = P::ZEROS;
        assert_eq!(payload.as_ref().len() as u64, P::PAYLOAD);
        for round in 1..=4u32 {
            payload
                .as_mut()
                .iter_mut()
                .enumerate()
                .for_each(|(i, byte)| *byte = (i as u32 * 7 + round) as u8);
            let flag = round << 30 | round;
            assert!(P::load(&words, flag).is_none(), "what is there is of the round before");
            P::store(&words, &payload, flag);
            assert_eq!(P::load(&words, flag).unwrap().as_ref(), payload.as_ref());
            assert!(P::load(&words, flag ^ 1).is_none());
        }
    }

    #[test]
    fn packets_hold_what_was_put() {
        goes_through::<LL8Packet>();
        goes_through::<LL16Packet>();
        goes_through::<LL128Packet>();
    }

    #[test]
    fn the_layouts_are_those_of_the_header() {
        let words: [AtomicU64; 16] = std::array::from_fn(|_| AtomicU64::new(0));
        let bytes = || words.iter().flat_map(|w| w.load(Ordering::Relaxed).to_le_bytes()).collect::<Vec<_>>();
        LL8Packet::store(&words, &[1, 2, 3, 4], 0x0a0b_0c0d);
        assert_eq!(bytes()[..8], [1, 2, 3, 4, 0x0d, 0x0c, 0x0b, 0x0a]);
        LL16Packet::store(&words, &[1, 2, 3, 4, 5, 6, 7, 8], 9);
        assert_eq!(bytes()[..16], [1, 2, 3, 4, 9, 0, 0, 0, 5, 6, 7, 8, 9, 0, 0, 0]);
        let payload = std::array::from_fn(|i| i as u8);
        LL128Packet::store(&words, &payload, 9);
        assert_eq!(bytes()[..120], payload);
        assert_eq!(bytes()[120..], [9, 0, 0, 0, 0, 0, 0, 0]);
    }
}
