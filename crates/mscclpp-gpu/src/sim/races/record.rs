//! One access as the shadow memory keeps it, and which two of them exclude each other.

/// Who accessed some bytes, when, from where, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// The time of the access. For a thread: the number of barriers of its block that it had passed (the high half), and
    /// of its releases since then. For the host: the host's clock.
    pub(super) clock: u64,
    /// The block of a kernel's thread, one number for each block that ever ran; 0 for others.
    pub(super) block: u32,
    /// The stream in which it happened; 0 for the host itself.
    pub(super) stream: u32,
    /// The operation of that stream.
    pub(super) sequence: u32,
    /// When, very roughly: see [`super::words`].
    pub(super) stamp: u32,
    /// The place in the code: see [`super::sites`].
    pub(super) site: u32,
    /// The thread in its block, and whether its bulk copies did it.
    pub(super) thread: u16,
    /// Which of the 8 bytes.
    pub(super) bytes: u8,
    pub(super) how: How,
}

const _: () = assert!(size_of::<Record>() == 32);

/// Among whom an access is one for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Scope {
    #[default]
    Block,
    Device,
    System,
}

/// The kind of an access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct How(u8);

impl How {
    const WRITE: u8 = 1;
    const STRONG: u8 = 2;
    const SCOPE: u8 = 2;
    const PACKET: u8 = 16;
    const SIZE: u8 = 5;

    pub(super) fn plain(is_write: bool) -> Self {
        Self(u8::from(is_write) * Self::WRITE)
    }

    /// Makes the record of an atomic access at a scope, of any size: the sizes in which hosts, streams, transports and bulk
    /// copies access memory are not known.
    pub(super) fn strong(is_write: bool, scope: Scope) -> Self {
        Self(Self::plain(is_write).0 | Self::STRONG | (scope as u8) << Self::SCOPE)
    }

    /// The same, in words of so many bytes each.
    pub(super) fn of_bytes(self, bytes: usize) -> Self {
        let size = if bytes <= 8 { bytes.trailing_zeros() as u8 + 1 } else { 0 };
        Self(self.0 & !(7 << Self::SIZE) | size << Self::SIZE)
    }

    /// How many bytes each of its words has, if that is known.
    pub(super) fn bytes(self) -> Option<u32> {
        (self.0 >> Self::SIZE).checked_sub(1).map(|size| 1 << size)
    }

    /// The same, of a packet: data and a flag in one access.
    pub(super) fn of_packet(self) -> Self {
        Self(self.0 | Self::PACKET)
    }

    pub(super) fn is_packet(self) -> bool {
        self.0 & Self::PACKET != 0
    }

    pub(super) fn is_write(self) -> bool {
        self.0 & Self::WRITE != 0
    }

    pub(super) fn is_strong(self) -> bool {
        self.0 & Self::STRONG != 0
    }

    pub(super) fn scope(self) -> Scope {
        match self.0 >> Self::SCOPE & 3 {
            0 => Scope::Block,
            1 => Scope::Device,
            _ => Scope::System,
        }
    }

    /// Whether both access words of the same size, as far as is known. If both access one byte, their words are the same then, as
    /// a word's address is a multiple of its size.
    pub(super) fn is_of_size(self, other: Self) -> bool {
        self.bytes().zip(other.bytes()).is_none_or(|(a, b)| a == b)
    }

    /// Whether it races with whatever `other` would race with.
    pub(super) fn is_as_strict_as(self, other: Self) -> bool {
        !self.is_strong()
            || (other.is_strong()
                && self.scope() <= other.scope()
                && (other.bytes().is_none() || self.bytes() == other.bytes()))
    }
}

/// Where the number of the device begins in that of a stream.
pub(super) const DEVICE_SHIFT: u32 = 20;

impl Record {
    /// Flags in a thread's number, for the reads and the writes of its bulk copies.
    pub(super) const ASYNC_READ: u16 = 1 << 10;
    pub(super) const ASYNC_WRITE: u16 = 2 << 10;
    const ASYNC: u16 = Self::ASYNC_READ | Self::ASYNC_WRITE;

    /// Who it is, as clocks name threads.
    pub(super) fn key(&self) -> u64 {
        u64::from(self.block) << 16 | u64::from(self.thread)
    }

    pub(super) fn block_of(key: u64) -> u32 {
        (key >> 16) as u32
    }

    pub(super) fn key_is_async(key: u64) -> bool {
        key as u16 & Self::ASYNC != 0
    }

    pub(super) fn phase_of(clock: u64) -> u32 {
        (clock >> 32) as u32
    }

    pub(super) fn phase(&self) -> u32 {
        Self::phase_of(self.clock)
    }

    pub(super) fn is_async(&self) -> bool {
        self.thread & Self::ASYNC != 0
    }

    /// The number of a kernel's thread in its block.
    pub(super) fn number(&self) -> usize {
        usize::from(self.thread & !Self::ASYNC)
    }

    /// The device of a kernel's thread, or of a stream.
    pub(super) fn device(&self) -> u32 {
        self.stream >> DEVICE_SHIFT
    }

    /// Whether both are of one thread, or of one operation of a stream, or of the host: these are in order.
    pub(super) fn is_of_same(&self, other: &Self) -> bool {
        self.key() == other.key()
            && self.stream == other.stream
            && (self.block != 0 || self.sequence == other.sequence)
    }

    /// Whether an atomic access at `scope` is one for `other` too.
    fn reaches(&self, scope: Scope, other: &Self) -> bool {
        match scope {
            Scope::System => true,
            Scope::Device => self.stream != 0 && other.stream != 0 && self.device() == other.device(),
            Scope::Block => self.block != 0 && self.block == other.block,
        }
    }

    /// Whether each is atomic for the thread of the other.
    pub(super) fn is_one_for(&self, other: &Self) -> bool {
        self.how.is_strong()
            && other.how.is_strong()
            && self.reaches(self.how.scope(), other)
            && other.reaches(other.how.scope(), self)
    }

    /// Whether the two, which share bytes, are of one word and atomic for each other: PTX calls them morally strong.
    pub(super) fn is_strong_for(&self, other: &Self) -> bool {
        self.is_one_for(other) && self.how.is_of_size(other.how)
    }

    /// Whether the two, which share bytes, must be in some order: one writes, and they are not atomic for each other.
    pub(super) fn excludes(&self, other: &Self) -> bool {
        (self.how.is_write() || other.how.is_write()) && !self.is_strong_for(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(device: u32, block: u32, how: How) -> Record {
        Record { block, stream: device << DEVICE_SHIFT | 1, how, ..Record::default() }
    }

    #[test]
    fn atomic_accesses_are_atomic_within_their_scope() {
        let write = |scope| How::strong(true, scope);
        let read = |scope| How::strong(false, scope);
        let pairs = [
            (of(0, 1, write(Scope::System)), of(1, 2, read(Scope::System)), false),
            (of(0, 1, write(Scope::Device)), of(0, 2, read(Scope::Device)), false),
            (of(0, 1, write(Scope::Device)), of(1, 2, read(Scope::System)), true),
            (of(0, 1, write(Scope::System)), of(1, 2, read(Scope::Device)), true),
            (of(0, 1, write(Scope::Block)), of(0, 1, read(Scope::System)), false),
            (of(0, 1, write(Scope::Block)), of(0, 2, read(Scope::System)), true),
            (of(0, 1, write(Scope::System)), of(0, 2, How::plain(false)), true),
            (of(0, 1, How::plain(false)), of(0, 2, How::plain(false)), false),
            (of(0, 1, write(Scope::System).of_bytes(4)), of(0, 2, read(Scope::System).of_bytes(4)), false),
            (of(0, 1, write(Scope::System).of_bytes(8)), of(0, 2, read(Scope::System).of_bytes(4)), true),
            (of(0, 1, read(Scope::System).of_bytes(8)), of(0, 2, read(Scope::System).of_bytes(4)), false),
            (of(0, 1, write(Scope::System)), of(0, 2, read(Scope::System).of_bytes(4)), false),
        ];
        for (a, b, excluded) in pairs {
            assert_eq!(a.excludes(&b), excluded, "{a:?} {b:?}");
            assert_eq!(b.excludes(&a), excluded, "{b:?} {a:?}");
        }
    }
}
