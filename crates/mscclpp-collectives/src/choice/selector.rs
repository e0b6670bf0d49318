//! Which protocol a collective uses, and how many blocks and threads.
//!
//! All ranks must choose alike, so a selector sees only what all of them know: see [`Query`].

use std::fmt;

use mscclpp::Platform;

/// How the data of a collective travels. `collective_device.hpp` describes each protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Protocol {
    /// Packets of 8 bytes and two flags each: for small messages.
    Ll16,
    /// Packets of 120 bytes and a flag each, with less overhead than those of [`Protocol::Ll16`].
    Ll128,
    /// Plain stores, and a signal behind each chunk: for large messages. Messages that move, and the results of an `all_reduce`
    /// in two steps, go straight into [published](crate::Collectives::publish) receive memory, as by [`Protocol::Direct`].
    Simple,
    /// Bulk copies in place of the stores of [`Protocol::Simple`] to the peer, by warps that do nothing else: a few blocks nearly
    /// fill the link. It needs two ranks with compute capability 9.0 or later and
    /// [`CollectivesBuilder::overlap`](crate::CollectivesBuilder::overlap). A block has 1024 threads and a multiprocessor for
    /// itself, and counts as four of those that
    /// [`CollectivesBuilder::max_blocks`](crate::CollectivesBuilder::max_blocks) allows.
    SimpleByBulk,
    /// Plain stores into the receive memory itself, where that is [registered](crate::Collectives::register) and nothing
    /// is reduced: for large messages. Messages for other memory go by [`Protocol::Simple`].
    Direct,
    /// Bulk copies in place of the stores of [`Protocol::Direct`]: a few blocks nearly fill the link. It needs compute
    /// capability 9.0 on all ranks, and a
    /// multiprocessor of its own for each block. [`Tuned`](crate::Tuned) takes it where calls have few blocks.
    Bulk,
    /// The copy engines, into the receive memory itself, where that is
    /// [symmetric](crate::Collectives::register_symmetric): for the largest messages. It takes no multiprocessors, but for
    /// two short barriers.
    CopyEngine,
}

impl Protocol {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Ll16,
        Self::Ll128,
        Self::Simple,
        Self::SimpleByBulk,
        Self::Direct,
        Self::Bulk,
        Self::CopyEngine,
    ];
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ll16 => "ll16",
            Self::Ll128 => "ll128",
            Self::Simple => "simple",
            Self::SimpleByBulk => "simple-by-bulk",
            Self::Direct => "direct",
            Self::Bulk => "bulk",
            Self::CopyEngine => "copy-engine",
        })
    }
}

/// The shape of a collective: what ranks do with what the others send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Shape {
    /// An `all_reduce`.
    AllReduce,
    /// Each rank sends to each other rank, and reduces what comes (`reduce_scatter`), or moves it.
    Exchange,
    /// An `all_reduce` of this many rows, each of which a block has, with a kernel of the program's: see
    /// [`Rows`](crate::Rows).
    Rows(u64),
    /// Not every rank takes something from every other: one sends to all, all send to one, or counts differ.
    Rooted,
}

/// The description of a call that a selector is given. All ranks give the same.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Query {
    /// The shape.
    pub shape: Shape,
    /// Whether numbers are reduced.
    pub reduces: bool,
    /// The most that a rank sends to another, in bytes; of an `all_reduce`, also of rows, the message.
    pub bytes: u64,
    /// How many ranks there are.
    pub ranks: usize,
    /// Which protocols are possible for this many bytes.
    pub possible: Possible,
    /// The most blocks that a call may have.
    pub max_blocks: u32,
    /// The most threads that a call may have, in all its blocks.
    pub max_threads: u32,
    /// Whether calls run beside other kernels: see [`CollectivesBuilder::overlap`](crate::CollectivesBuilder::overlap).
    pub overlap: bool,
    /// The devices of all ranks.
    pub devices: Devices,
}

/// Which protocols are possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Possible {
    /// [`Protocol::Ll16`]: the message fits.
    pub ll16: bool,
    /// [`Protocol::Ll128`]: its packets arrive whole between all ranks, and the message fits.
    pub ll128: bool,
    /// [`Protocol::Ll16`] for an `all_reduce` of rows in two steps.
    pub ll16_in_two_steps: bool,
    /// [`Protocol::Ll128`] for an `all_reduce` in two steps. Never between two ranks, which gain nothing by it.
    pub ll128_in_two_steps: bool,
    /// [`Protocol::Simple`] for an `all_reduce` in two steps.
    pub simple_in_two_steps: bool,
    /// [`Protocol::Direct`]: nothing is reduced, and the ranks have registered memory. Whether the memory of this call is
    /// registered is not said here, since a rank knows that of itself alone.
    pub direct: bool,
    /// [`Protocol::Bulk`]: `direct` is possible, and all devices have bulk copies.
    pub bulk: bool,
    /// [`Protocol::CopyEngine`]: the call is an `all_gather` or an `all_to_all` into memory that is registered as symmetric.
    pub copy_engine: bool,
    /// Whether each rank's own part is in its place already, so that copy engines need not copy it.
    pub in_place: bool,
}

#[cfg(test)]
impl Possible {
    /// All that an `all_reduce` may do.
    pub(crate) const ALL_BUT_ROWS: Self = Self {
        ll16: true,
        ll128: true,
        ll16_in_two_steps: false,
        ll128_in_two_steps: true,
        simple_in_two_steps: true,
        direct: false,
        bulk: false,
        copy_engine: false,
        in_place: false,
    };
}

/// The devices of all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Devices {
    /// Simulated.
    Sim,
    /// GPUs.
    Gpus {
        /// The lowest compute capability among them, major and minor; none for AMD GPUs.
        capability: Option<(u32, u32)>,
        /// The slowest interconnect between two of them.
        interconnect: Interconnect,
    },
}

impl Devices {
    /// Whether all have bulk copies between global and shared memory.
    pub(crate) fn have_bulk_copies(self) -> bool {
        match self {
            Self::Sim => has_bulk_copies(Platform::Sim, None),
            Self::Gpus { capability, .. } => has_bulk_copies(Platform::Cuda, capability),
        }
    }
}

/// Whether a device does.
pub(crate) fn has_bulk_copies(platform: Platform, capability: Option<(u32, u32)>) -> bool {
    platform == Platform::Sim || capability.is_some_and(|capability| capability >= (9, 0))
}

/// The interconnect between GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Interconnect {
    /// NVLink; also of ranks that share a GPU.
    NvLink,
    /// PCIe, and everything of which nothing is known.
    Other,
}

/// How a collective is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selection {
    /// How its data travels.
    pub protocol: Protocol,
    /// Whether each rank of an `all_reduce` reduces a part and gives it to all, instead of reducing all that all send.
    pub two_steps: bool,
    /// How many blocks.
    pub blocks: u32,
    /// How many threads each has: a multiple of 32, up to 1024.
    pub threads: u32,
}

/// Chooses how collectives are done. It must give the same answer to the same query on all ranks.
///
/// A selection that is not possible is changed: blocks and threads are brought into their ranges, and if there is no
/// room for so many threads, blocks become half as large, or fewer; a protocol that is not possible becomes
/// [`Protocol::Simple`], in one step if two are not possible.
///
/// ```
/// use mscclpp_collectives::{Query, Selection, Selector, Tuned};
///
/// /// Leaves multiprocessors to others.
/// #[derive(Debug)]
/// struct AFewBlocks;
///
/// impl Selector for AFewBlocks {
///     fn choose(&self, query: &Query) -> Selection {
///         let tuned = Tuned.choose(query);
///         Selection { blocks: tuned.blocks.min(8), ..tuned }
///     }
/// }
/// ```
pub trait Selector: Send + Sync + fmt::Debug {
    /// How this is to be done.
    fn choose(&self, query: &Query) -> Selection;
}

/// Blocks are not made smaller than this for want of room, if they can be fewer.
pub(crate) const LEAST_THREADS: u32 = 128;

/// The threads of a block that copy in bulk; others have something to do only where that is not possible.
pub(crate) const BULK_THREADS: u32 = 64;

/// The lanes of a block of [`Protocol::SimpleByBulk`].
pub(crate) const LANES_OF_BLOCK: u32 = 4;

/// How many blocks of so many threads run at once where there is room for `max_threads`. A multiprocessor has room for
/// 1024, so blocks count as large as the next divisor of that.
pub(crate) fn blocks_with_room(max_threads: u32, threads: u32) -> u32 {
    max_threads / threads.next_power_of_two()
}

/// How many threads each of so many blocks has that run at once where there is room for `max_threads`: at most `most`, at least a
/// warp.
pub(crate) fn threads_with_room(max_threads: u32, blocks: u32, most: u32) -> u32 {
    most.min(1 << (max_threads / blocks).max(32).ilog2())
}

impl Selection {
    /// How many threads a block has if there are `blocks`: fewer blocks have more, so that as many threads work together.
    #[must_use]
    pub fn threads_in(&self, blocks: u32) -> u32 {
        let blocks = blocks.max(1);
        if blocks >= self.blocks {
            return self.threads;
        }
        let threads = u64::from(self.threads) * u64::from(self.blocks) / u64::from(blocks);
        (threads.next_power_of_two() as u32).min(1024).max(self.threads)
    }

    /// Returns the selection of [`Protocol::Simple`] with as many lanes as one of [`Protocol::SimpleByBulk`]: kernels of both
    /// work together. Returns any other selection as it is.
    pub(crate) fn without_bulk(self, max_threads: u32) -> Self {
        if self.protocol != Protocol::SimpleByBulk {
            return self;
        }
        let blocks = self.blocks * LANES_OF_BLOCK;
        let threads = threads_with_room(max_threads, blocks, self.threads / 2);
        Self { protocol: Protocol::Simple, blocks, threads, ..self }
    }

    /// Returns the nearest selection that is possible.
    pub(crate) fn mended(mut self, query: &Query) -> Self {
        let possible = query.possible;
        if self.two_steps && !possible.simple_in_two_steps {
            self.two_steps = false;
        }
        let can = match (self.protocol, self.two_steps) {
            (Protocol::Ll16, false) => possible.ll16,
            (Protocol::Ll16, true) => possible.ll16_in_two_steps,
            (Protocol::Ll128, false) => possible.ll128,
            (Protocol::Ll128, true) => possible.ll128_in_two_steps,
            (Protocol::Simple, _) => true,
            (Protocol::SimpleByBulk, two_steps) => {
                let is_for_rows = matches!(query.shape, Shape::Rows(_));
                let has_room = query.max_blocks >= LANES_OF_BLOCK && query.max_threads >= 1024;
                let is_of_two = query.ranks == 2 && query.overlap && query.devices.have_bulk_copies();
                is_of_two && has_room && !two_steps && !is_for_rows
            }
            (Protocol::Direct, two_steps) => possible.direct && !two_steps,
            (Protocol::Bulk, two_steps) => possible.bulk && !two_steps,
            (Protocol::CopyEngine, two_steps) => possible.copy_engine && !two_steps,
        };
        if !can {
            let direct = self.protocol == Protocol::Bulk && possible.direct && !self.two_steps;
            self.protocol = if direct { Protocol::Direct } else { Protocol::Simple };
        }
        if self.protocol == Protocol::SimpleByBulk {
            let most = (query.max_blocks / LANES_OF_BLOCK).min(blocks_with_room(query.max_threads, 1024));
            let threads = if query.devices == Devices::Sim { 64 * LANES_OF_BLOCK } else { 1024 };
            return Self { blocks: self.blocks.clamp(1, most), threads, ..self };
        }
        let blocks = self.blocks.clamp(1, query.max_blocks);
        self.threads = self.threads_in(blocks);
        self.blocks = blocks;
        let most_threads = 1 << query.max_threads.clamp(32, 1024).ilog2();
        self.threads = self.threads.next_multiple_of(32).clamp(32, most_threads);
        if self.protocol == Protocol::Bulk {
            self.threads = self.threads.max(BULK_THREADS);
            self.blocks = self.blocks.min(blocks_with_room(query.max_threads, 1024)).max(1);
        }
        let room = |threads| blocks_with_room(query.max_threads, threads);
        if self.blocks > room(self.threads) {
            // Blocks keep their number and have half the threads, if they fill the room so: that is faster than fewer
            // blocks. A block that has rows keeps its threads.
            let half = self.threads.next_power_of_two() / 2;
            let fills = !matches!(query.shape, Shape::Rows(_))
                && u64::from(self.blocks) * u64::from(half) * 4 >= u64::from(query.max_threads) * 3;
            if half >= LEAST_THREADS && self.blocks <= room(half) && fills {
                self.threads = half;
            }
            self.blocks = self.blocks.min(room(self.threads)).max(1);
        }
        self
    }
}
#[cfg(test)]
pub(crate) mod tests {
    use super::{super::tuned::Tuned, *};

    const ALL: Possible = Possible::ALL_BUT_ROWS;

    pub(crate) fn query(bytes: u64, ranks: usize, possible: Possible) -> Query {
        Query {
            shape: Shape::AllReduce,
            reduces: true,
            bytes,
            ranks,
            possible,
            max_blocks: 64,
            max_threads: 64 * 1024,
            overlap: false,
            devices: Devices::Gpus { capability: Some((9, 0)), interconnect: Interconnect::NvLink },
        }
    }

    #[test]
    fn what_cannot_be_is_mended() {
        let none = Possible {
            ll16: false,
            ll128: false,
            ll16_in_two_steps: false,
            ll128_in_two_steps: false,
            simple_in_two_steps: false,
            direct: false,
            bulk: false,
            copy_engine: false,
            in_place: false,
        };
        for protocol in
            [Protocol::Ll16, Protocol::Ll128, Protocol::Simple, Protocol::Direct, Protocol::CopyEngine]
        {
            let asked = Selection { protocol, two_steps: true, blocks: 0, threads: 5000 };
            let mended = asked.mended(&query(1 << 20, 4, none));
            assert_eq!(
                mended,
                Selection { protocol: Protocol::Simple, two_steps: false, blocks: 1, threads: 1024 }
            );
        }
        let asked = Selection { protocol: Protocol::Ll128, two_steps: true, blocks: 1000, threads: 33 };
        let mended = asked.mended(&query(1 << 20, 4, ALL));
        assert_eq!(
            mended,
            Selection { protocol: Protocol::Ll128, two_steps: true, blocks: 64, threads: 1024 }
        );
        let within = |max_threads, blocks, threads| {
            let asked = Selection { protocol: Protocol::Simple, two_steps: false, blocks, threads };
            let query = Query { max_blocks: 256, max_threads, ..query(1 << 20, 2, ALL) };
            let mended = asked.mended(&query);
            (mended.blocks, mended.threads)
        };
        assert_eq!(within(132 * 512, 256, 512), (256, 256));
        assert_eq!(within(108 * 512, 256, 256), (216, 256));
        assert_eq!(within(16 * 1024, 256, 512), (32, 512));
        assert_eq!(within(128, 8, 1024), (1, 128));
        // Two blocks of 608 threads do not fit on a multiprocessor.
        assert_eq!(within(132 * 512, 132, 608), (132, 512));
        assert_eq!(within(132 * 512, 80, 608), (66, 608));
        assert_eq!(within(132 * 512, 8, 1024), (8, 1024));
        assert_eq!(Tuned.choose(&query(1 << 20, 2, none)).protocol, Protocol::Simple);
    }

    #[test]
    fn blocks_with_lanes_have_a_multiprocessor_each() {
        let asked =
            Selection { protocol: Protocol::SimpleByBulk, two_steps: false, blocks: 100, threads: 64 };
        let mended = |max_blocks, max_threads, ranks| {
            asked.mended(&Query { max_blocks, max_threads, overlap: true, ..query(1 << 30, ranks, ALL) })
        };
        let by_bulk = |blocks| Selection { blocks, threads: 1024, ..asked };
        assert_eq!(mended(256, 132 * 1024, 2), by_bulk(64));
        assert_eq!(mended(256, 33 * 1024, 2), by_bulk(33));
        assert_eq!(mended(8, 33 * 1024, 2), by_bulk(2));
        for (max_blocks, max_threads, ranks) in [(3, 33 * 1024, 2), (256, 512, 2), (256, 33 * 1024, 3)] {
            assert_eq!(mended(max_blocks, max_threads, ranks).protocol, Protocol::Simple);
        }
        let alone = asked.mended(&Query { max_blocks: 256, ..query(1 << 30, 2, ALL) });
        assert_eq!(alone.protocol, Protocol::Simple, "its kernels are loaded for calls beside other kernels");
        // The kernel of Simple that works together with it has as many lanes, in the same room.
        let simple = by_bulk(32).without_bulk(33 * 1024);
        assert_eq!((simple.protocol, simple.blocks, simple.threads), (Protocol::Simple, 128, 256));
    }

    #[test]
    fn fewer_blocks_have_more_threads() {
        let of =
            |blocks, threads| Selection { protocol: Protocol::Simple, two_steps: false, blocks, threads };
        assert_eq!(of(256, 256).threads_in(256), 256);
        assert_eq!(of(256, 256).threads_in(300), 256);
        assert_eq!(of(256, 256).threads_in(100), 1024);
        assert_eq!(of(256, 256).threads_in(1), 1024);
        assert_eq!(of(4, 32).threads_in(2), 64);
    }

    #[test]
    fn messages_of_many_ranks_take_no_more_than_a_call_may() {
        // Two, eight and sixteen ranks on 132 multiprocessors.
        assert_eq!(threads_with_room(132 * 1024 / 2, 32, 512), 512);
        assert_eq!(threads_with_room(132 * 1024 / 4, 128, 512), 256);
        assert_eq!(threads_with_room(132 * 1024 / 8, 256, 512), 64);
        assert_eq!(threads_with_room(100, 256, 512), 32);
        assert_eq!(threads_with_room(u32::MAX, 32, 32), 32);
    }
}
