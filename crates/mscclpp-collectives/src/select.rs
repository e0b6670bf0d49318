//! Which way a collective goes, and with how many blocks and threads.
//!
//! All ranks must choose alike, so a selector sees only what all of them know: see [`Question`].

use std::fmt;

use mscclpp::Platform;

use crate::{
    model,
    tables::{OF_HOST, measured},
};

/// How messages travel. `collective_device.hpp` describes each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Way {
    /// Packets of 8 bytes and two flags (LL16): for small messages.
    Packets,
    /// Lines of 120 bytes and a flag (LL128): valid by themselves as packets are, with less overhead.
    Lines,
    /// Plain stores, and a signal behind each piece: for large messages.
    Pieces,
    /// Plain stores into the receive memory itself, where that is [registered](crate::Collectives::register) and nothing
    /// is reduced: for large messages. What is not registered goes by pieces, with a little more to wait for.
    Direct,
    /// As [`Way::Direct`], by bulk copies: a few blocks nearly fill the link. It needs compute capability 9.0 on all ranks, and a
    /// multiprocessor of its own for each block. [`Tuned`] takes it where calls have few blocks.
    Bulk,
    /// The copy engines, into the receive memory itself, where that is
    /// [symmetric](crate::Collectives::register_symmetric): for the largest messages. It takes no multiprocessors, but for
    /// two short barriers.
    Engines,
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
    /// [`Rows`](crate::Rows). Rows do not go by lines.
    Rows(u64),
    /// Not every rank takes something from every other: one sends to all, all send to one, or counts differ.
    Rooted,
}

/// What a selector is asked. All ranks ask the same.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Question {
    /// The shape.
    pub shape: Shape,
    /// Whether numbers are reduced.
    pub reduces: bool,
    /// The most that a rank sends to another, in bytes; of an `all_reduce`, also of rows, the message.
    pub bytes: u64,
    /// How many ranks there are.
    pub ranks: usize,
    /// Which ways are possible for this many bytes.
    pub possible: Possible,
    /// The most blocks that a call may have.
    pub max_blocks: u32,
    /// The most threads that a call may have, in all its blocks.
    pub max_threads: u32,
    /// What the devices of all ranks are.
    pub devices: Devices,
}

/// Which ways are possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Possible {
    /// By packets: the message fits.
    pub packets: bool,
    /// By lines: they arrive whole between all ranks, and the message fits.
    pub lines: bool,
    /// As an `all_reduce` of rows in two steps, by packets.
    pub packets_in_two_steps: bool,
    /// As an `all_reduce` in two steps, by lines. Never between two ranks, to whom it gains nothing.
    pub lines_in_two_steps: bool,
    /// As an `all_reduce` in two steps, by pieces.
    pub pieces_in_two_steps: bool,
    /// Directly: nothing is reduced, and the ranks have registered memory. Whether that of a call is, a rank knows of itself
    /// alone, so it is not said here.
    pub direct: bool,
    /// By bulk copies: as directly, and all devices have them.
    pub bulk: bool,
    /// By the copy engines: the call is an `all_gather` or an `all_to_all` into memory that is registered as symmetric.
    pub engines: bool,
    /// Where engines are possible: that each rank's own part is in its place already, which is not copied then.
    pub in_place: bool,
}

#[cfg(test)]
impl Possible {
    /// All that an `all_reduce` may do.
    pub(crate) const ALL_BUT_ROWS: Self = Self {
        packets: true,
        lines: true,
        packets_in_two_steps: false,
        lines_in_two_steps: true,
        pieces_in_two_steps: true,
        direct: false,
        bulk: false,
        engines: false,
        in_place: false,
    };
}

/// What the devices of all ranks are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Devices {
    /// Simulated.
    Host,
    /// GPUs.
    Gpus {
        /// The lowest compute capability among them, major and minor; none for AMD GPUs.
        capability: Option<(u32, u32)>,
        /// What joins them: the least link between two.
        link: Link,
    },
}

impl Devices {
    /// Whether all have bulk copies between global and shared memory.
    pub(crate) fn have_bulk_copies(self) -> bool {
        match self {
            Self::Host => has_bulk_copies(Platform::Host, None),
            Self::Gpus { capability, .. } => has_bulk_copies(Platform::Cuda, capability),
        }
    }
}

/// Whether a device does.
pub(crate) fn has_bulk_copies(platform: Platform, capability: Option<(u32, u32)>) -> bool {
    platform == Platform::Host || capability.is_some_and(|capability| capability >= (9, 0))
}

/// What joins GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Link {
    /// NVLink; also of ranks that share a GPU.
    NvLink,
    /// PCIe, and everything of which nothing is known.
    Other,
}

/// How a collective is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// The way of its messages.
    pub way: Way,
    /// Of an `all_reduce`: whether each rank reduces a part and gives it to all, instead of all that all send.
    pub two_steps: bool,
    /// How many blocks.
    pub blocks: u32,
    /// How many threads each has: a multiple of 32, up to 1024.
    pub threads: u32,
}

/// Chooses how collectives are done. It must give the same answer to the same question on all ranks.
///
/// What a choice cannot be is mended: blocks and threads are brought into their ranges, and if there is no room for so many
/// threads, blocks become half as large, or fewer; a way that is not possible
/// becomes [`Way::Pieces`], in one step if two are not possible.
///
/// ```
/// use mscclpp_collectives::{Choice, Question, Selector, Tuned, Way};
///
/// /// Leaves multiprocessors to others.
/// #[derive(Debug)]
/// struct AFewBlocks;
///
/// impl Selector for AFewBlocks {
///     fn choose(&self, question: &Question) -> Choice {
///         let tuned = Tuned.choose(question);
///         Choice { blocks: tuned.blocks.min(8), ..tuned }
///     }
/// }
/// ```
pub trait Selector: Send + Sync + fmt::Debug {
    /// How this is to be done.
    fn choose(&self, question: &Question) -> Choice;
}

/// The tables of this crate, and where there is none, a prediction.
///
/// There is one for two GPUs of compute capability 9.0 that NVLink joins: what was fastest between two H200. For all others,
/// a model of the link predicts what is fastest. [`Tuned::is_measured`] says which it is.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tuned;

impl Tuned {
    /// Whether the answer to a question was measured on devices like these, by a link like theirs, with as many ranks.
    /// Others are predictions or rules.
    #[must_use]
    pub fn is_measured(question: &Question) -> bool {
        measured(question.devices, question.ranks).is_some()
    }
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

impl Selector for Tuned {
    fn choose(&self, question: &Question) -> Choice {
        if let Shape::Rows(rows) = question.shape {
            return Self::rows(question, rows);
        }
        let Question { bytes, possible, .. } = *question;
        let table = match (measured(question.devices, question.ranks), question.devices) {
            (Some(table), _) => table,
            (None, Devices::Host) => &OF_HOST,
            (None, Devices::Gpus { .. }) => return model::choose(question),
        };
        // What each rank must push in one step grows with the ranks; in two, it does not.
        let two_steps = question.shape == Shape::AllReduce
            && question.ranks > 2
            && possible.pieces_in_two_steps
            && bytes.saturating_mul(question.ranks as u64 - 1) > 256 * KIB;
        let (_, mut way, blocks, threads) = table.row(question.shape, question.reduces, bytes);
        let lines = if two_steps { possible.lines_in_two_steps } else { possible.lines };
        if two_steps && way == Way::Packets {
            way = Way::Lines;
        }
        if way == Way::Lines && !lines {
            way =
                if possible.packets && !two_steps && bytes <= 256 * KIB { Way::Packets } else { Way::Pieces };
        }
        let way = possible.large(way, bytes);
        // On GPUs, and in exchanges whose size all ranks know: for these it was measured.
        let is_measured = question.devices != Devices::Host && question.shape == Shape::Exchange;
        let few = question.max_blocks <= BULK_BLOCKS;
        if way == Way::Direct && possible.bulk && is_measured && few && bytes >= BULK_MIN {
            return Choice { way: Way::Bulk, two_steps, blocks: question.max_blocks, threads: BULK_THREADS };
        }
        Choice { way, two_steps, blocks, threads }
    }
}

/// Up to so many blocks, and from so many bytes to a peer on, bulk copies take less time than stores by blocks of 1024 threads:
/// measured between two H100. With more blocks or fewer bytes it depends.
const BULK_BLOCKS: u32 = 16;
const BULK_MIN: u64 = 32 * MIB;

/// From how many bytes to a peer on the engines are worth their two barriers, in place and if the own part is copied, too: measured
/// between two H100 over NVLink.
const ENGINES_MIN: [u64; 2] = [48 * MIB, 384 * MIB];

impl Possible {
    /// Instead of pieces, by the copy engines or directly, if that is possible.
    pub(crate) fn large(self, way: Way, bytes: u64) -> Way {
        match way {
            Way::Pieces if self.engines && bytes >= ENGINES_MIN[usize::from(!self.in_place)] => Way::Engines,
            Way::Pieces if self.direct => Way::Direct,
            way => way,
        }
    }
}

/// Blocks are not made smaller than this for want of room, if they can be fewer.
pub(crate) const LEAST_THREADS: u32 = 128;

/// The threads of a block that copy in bulk; others have something to do only where that is not possible.
pub(crate) const BULK_THREADS: u32 = 64;

/// How many blocks of so many threads run at once where there is room for `max_threads`. A multiprocessor has room for
/// 1024, so blocks count as large as the next divisor of that.
pub(crate) fn blocks_with_room(max_threads: u32, threads: u32) -> u32 {
    max_threads / threads.next_power_of_two()
}

impl Tuned {
    /// What nobody has measured yet: a block for each row that a rank sums up, or for each 256 vectors that it sends as packets.
    fn rows(question: &Question, rows: u64) -> Choice {
        let Question { bytes, possible, .. } = *question;
        let ranks = question.ranks as u64;
        let all = bytes.saturating_mul(ranks - 1);
        let two_steps = ranks > 2 && possible.pieces_in_two_steps && all > 256 * KIB;
        let (packets, sent) = match two_steps {
            true => (possible.packets_in_two_steps, bytes.saturating_mul(2)),
            false => (possible.packets, all),
        };
        let way = if packets && sent <= MIB { Way::Packets } else { Way::Pieces };
        let threads = match question.devices {
            Devices::Host => 64,
            Devices::Gpus { .. } => (bytes / rows / 16).next_multiple_of(32).clamp(256, 1024),
        };
        let own = if two_steps { rows.div_ceil(ranks) } else { rows };
        let sending = if way == Way::Packets { sent / 16 / 256 } else { 0 };
        let blocks = own.max(sending).min(question.max_blocks.into());
        Choice { way, two_steps, blocks: blocks as u32, threads: threads as u32 }
    }
}

impl Choice {
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

    /// What can be done of it.
    pub(crate) fn mended(mut self, question: &Question) -> Self {
        let possible = question.possible;
        if self.two_steps && !possible.pieces_in_two_steps {
            self.two_steps = false;
        }
        let can = match (self.way, self.two_steps) {
            (Way::Packets, false) => possible.packets,
            (Way::Packets, true) => possible.packets_in_two_steps,
            (Way::Lines, false) => possible.lines,
            (Way::Lines, true) => possible.lines_in_two_steps,
            (Way::Pieces, _) => true,
            (Way::Direct, two_steps) => possible.direct && !two_steps,
            (Way::Bulk, two_steps) => possible.bulk && !two_steps,
            (Way::Engines, two_steps) => possible.engines && !two_steps,
        };
        if !can {
            let direct = self.way == Way::Bulk && possible.direct && !self.two_steps;
            self.way = if direct { Way::Direct } else { Way::Pieces };
        }
        let blocks = self.blocks.clamp(1, question.max_blocks);
        self.threads = self.threads_in(blocks);
        self.blocks = blocks;
        let most_threads = 1 << question.max_threads.clamp(32, 1024).ilog2();
        self.threads = self.threads.next_multiple_of(32).clamp(32, most_threads);
        if self.way == Way::Bulk {
            self.threads = self.threads.max(BULK_THREADS);
            self.blocks = self.blocks.min(blocks_with_room(question.max_threads, 1024)).max(1);
        }
        let room = |threads| blocks_with_room(question.max_threads, threads);
        if self.blocks > room(self.threads) {
            // As many blocks of half the threads do better than fewer blocks, where they fill the room.
            let half = self.threads.next_power_of_two() / 2;
            let fills = u64::from(self.blocks) * u64::from(half) * 4 >= u64::from(question.max_threads) * 3;
            if half >= LEAST_THREADS && self.blocks <= room(half) && fills {
                self.threads = half;
            }
            self.blocks = self.blocks.min(room(self.threads)).max(1);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Possible = Possible::ALL_BUT_ROWS;

    fn question(bytes: u64, ranks: usize, possible: Possible) -> Question {
        Question {
            shape: Shape::AllReduce,
            reduces: true,
            bytes,
            ranks,
            possible,
            max_blocks: 64,
            max_threads: 64 * 1024,
            devices: Devices::Gpus { capability: Some((9, 0)), link: Link::NvLink },
        }
    }

    #[test]
    fn the_table_grows_with_the_size() {
        let way = |bytes, ranks| {
            let choice = Tuned.choose(&question(bytes, ranks, ALL));
            (choice.way, choice.two_steps)
        };
        assert_eq!(way(1 << 10, 2), (Way::Packets, false));
        assert_eq!(way(1 << 20, 2), (Way::Lines, false));
        assert_eq!(way(1 << 30, 2), (Way::Pieces, false));
        assert_eq!(way(1 << 20, 8), (Way::Lines, true));
        assert_eq!(way(1 << 30, 8), (Way::Pieces, true));
    }

    #[test]
    fn what_was_measured_is_told_from_what_was_predicted() {
        let with = |devices, ranks| Question { devices, ..question(1 << 10, ranks, ALL) };
        let gpus = |capability, link| Devices::Gpus { capability, link };
        assert!(Tuned::is_measured(&question(1 << 10, 2, ALL)));
        for (devices, ranks) in [
            (gpus(Some((9, 0)), Link::NvLink), 8),
            (gpus(Some((9, 0)), Link::Other), 2),
            (gpus(Some((8, 0)), Link::NvLink), 2),
            (gpus(None, Link::Other), 2),
            (Devices::Host, 2),
        ] {
            assert!(!Tuned::is_measured(&with(devices, ranks)), "{devices:?} {ranks}");
            let choice = Tuned.choose(&with(devices, ranks));
            assert_eq!(choice.way, Way::Packets, "{devices:?} {ranks}");
        }
    }

    #[test]
    fn rows_go_by_packets_while_they_are_few() {
        let choice = |rows: u64, ranks| {
            let packets = rows <= 64;
            let possible =
                Possible { packets, packets_in_two_steps: packets, pieces_in_two_steps: rows >= 8, ..ALL };
            let question = Question { shape: Shape::Rows(rows), ..question(rows << 14, ranks, possible) };
            let Choice { way, two_steps, blocks, threads } = Tuned.choose(&question).mended(&question);
            assert_eq!(threads, 1024);
            (way, two_steps, blocks)
        };
        assert_eq!(choice(1, 2), (Way::Packets, false, 4));
        assert_eq!(choice(16, 2), (Way::Packets, false, 64));
        assert_eq!(choice(256, 2), (Way::Pieces, false, 64));
        // Fewer rows than ranks are never shared out.
        assert_eq!(choice(2, 8), (Way::Packets, false, 56));
        assert_eq!(choice(16, 8), (Way::Packets, true, 64));
        assert_eq!(choice(256, 8), (Way::Pieces, true, 32));
    }

    #[test]
    fn registered_memory_takes_the_place_of_pieces() {
        let possible = Possible { direct: true, bulk: false, pieces_in_two_steps: false, ..ALL };
        let way = |bytes, ranks| {
            let question = Question { shape: Shape::Exchange, ..question(bytes, ranks, possible) };
            Tuned.choose(&question).mended(&question).way
        };
        for ranks in [2, 8] {
            assert_eq!([way(1 << 10, ranks), way(1 << 30, ranks)], [Way::Packets, Way::Direct]);
        }
        let engines =
            |in_place, bytes| Possible { engines: true, in_place, ..possible }.large(Way::Pieces, bytes);
        assert_eq!([engines(true, 1 << 25), engines(true, 1 << 26)], [Way::Direct, Way::Engines]);
        assert_eq!([engines(false, 1 << 28), engines(false, 1 << 29)], [Way::Direct, Way::Engines]);
        // An all_reduce in two steps is not done so.
        let asked = Choice { way: Way::Direct, two_steps: true, blocks: 1, threads: 32 };
        assert_eq!(
            asked.mended(&question(1 << 20, 4, Possible { direct: true, bulk: false, ..ALL })).way,
            Way::Pieces
        );
    }

    #[test]
    fn few_blocks_copy_in_bulk() {
        let choice = |bytes, max_blocks, bulk| {
            let possible = Possible { direct: true, bulk, pieces_in_two_steps: false, ..ALL };
            let shape = Shape::Exchange;
            let question = Question { shape, reduces: false, max_blocks, ..question(bytes, 2, possible) };
            let Choice { way, blocks, threads, .. } = Tuned.choose(&question).mended(&question);
            (way, blocks, threads)
        };
        assert_eq!(choice(32 * MIB, 8, true), (Way::Bulk, 8, BULK_THREADS));
        assert_eq!(choice(32 * MIB, 8, false), (Way::Direct, 8, 1024));
        assert_eq!(choice(32 * MIB, 64, true).0, Way::Direct);
        assert_eq!(choice(16 * MIB, 8, true).0, Way::Direct);
        assert_eq!(choice(4 * MIB, 8, true).0, Way::Lines);
    }

    #[test]
    fn what_cannot_be_is_mended() {
        let none = Possible {
            packets: false,
            lines: false,
            packets_in_two_steps: false,
            lines_in_two_steps: false,
            pieces_in_two_steps: false,
            direct: false,
            bulk: false,
            engines: false,
            in_place: false,
        };
        for way in [Way::Packets, Way::Lines, Way::Pieces, Way::Direct, Way::Engines] {
            let asked = Choice { way, two_steps: true, blocks: 0, threads: 5000 };
            let mended = asked.mended(&question(1 << 20, 4, none));
            assert_eq!(mended, Choice { way: Way::Pieces, two_steps: false, blocks: 1, threads: 1024 });
        }
        let asked = Choice { way: Way::Lines, two_steps: true, blocks: 1000, threads: 33 };
        let mended = asked.mended(&question(1 << 20, 4, ALL));
        assert_eq!(mended, Choice { way: Way::Lines, two_steps: true, blocks: 64, threads: 1024 });
        let within = |max_threads, blocks, threads| {
            let asked = Choice { way: Way::Pieces, two_steps: false, blocks, threads };
            let question = Question { max_blocks: 256, max_threads, ..question(1 << 20, 2, ALL) };
            let mended = asked.mended(&question);
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
        assert_eq!(Tuned.choose(&question(1 << 20, 2, none)).way, Way::Pieces);
    }

    #[test]
    fn fewer_blocks_have_more_threads() {
        let of = |blocks, threads| Choice { way: Way::Pieces, two_steps: false, blocks, threads };
        assert_eq!(of(256, 256).threads_in(256), 256);
        assert_eq!(of(256, 256).threads_in(300), 256);
        assert_eq!(of(256, 256).threads_in(100), 1024);
        assert_eq!(of(256, 256).threads_in(1), 1024);
        assert_eq!(of(4, 32).threads_in(2), 64);
    }
}
