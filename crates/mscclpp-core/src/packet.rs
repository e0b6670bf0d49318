//! The formats of packets: data with flags that tell the receiver that it has arrived. `packet_device.hpp` defines
//! what kernels do with them.

/// A packet format of the device API: [`LL8Packet`], [`LL16Packet`] or [`LL128Packet`].
pub trait Packet: sealed::Sealed {
    /// The bytes that a packet takes in a packet buffer. Packets are aligned to their size.
    const SIZE: u64;

    /// The bytes of data in a packet.
    const PAYLOAD: u64;

    /// The number of adjacent threads that store or load a packet together.
    const LANES: u32;

    /// Returns the size that a packet buffer needs for `bytes` bytes of data put at its start.
    ///
    /// ```
    /// # use mscclpp_core::{LL8Packet, LL16Packet, LL128Packet, Packet};
    /// assert_eq!(LL8Packet::buffer_size(1000), 2000);
    /// assert_eq!(LL16Packet::buffer_size(1001), 126 * 16);
    /// assert_eq!(LL128Packet::buffer_size(1000), 9 * 128);
    /// ```
    #[must_use]
    fn buffer_size(bytes: u64) -> u64 {
        bytes.div_ceil(Self::PAYLOAD) * Self::SIZE
    }
}

/// A packet of 8 bytes: 4 of data, 4 of flag. It has the lowest latency.
#[derive(Debug, Clone, Copy)]
pub enum LL8Packet {}

/// A packet of 16 bytes: twice 4 of data and 4 of flag.
#[derive(Debug, Clone, Copy)]
pub enum LL16Packet {}

/// A packet of 128 bytes, a line that a warp stores: 120 of data, 8 of flag.
///
/// Only for links on which such a line arrives whole; see
/// [`MemoryChannel::check_lines`](crate::MemoryChannel::check_lines).
#[derive(Debug, Clone, Copy)]
pub enum LL128Packet {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::LL8Packet {}
    impl Sealed for super::LL16Packet {}
    impl Sealed for super::LL128Packet {}
}

impl Packet for LL8Packet {
    const SIZE: u64 = 8;
    const PAYLOAD: u64 = 4;
    const LANES: u32 = 1;
}

impl Packet for LL16Packet {
    const SIZE: u64 = 16;
    const PAYLOAD: u64 = 8;
    const LANES: u32 = 1;
}

impl Packet for LL128Packet {
    const SIZE: u64 = 128;
    const PAYLOAD: u64 = 120;
    const LANES: u32 = 32;
}
