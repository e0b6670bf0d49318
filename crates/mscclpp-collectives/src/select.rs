//! Which way a collective goes, and with how many blocks and threads.
//!
//! All ranks must choose alike, so a selector sees only what all of them know: see [`Question`].

use std::fmt;

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
}

/// The shape of a collective: what ranks do with what the others send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Shape {
    /// An `all_reduce`.
    AllReduce,
    /// Each rank sends to each other rank, and reduces what comes (`reduce_scatter`), or moves it.
    Exchange,
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
    /// The most that a rank sends to another, in bytes; of an `all_reduce` the message.
    pub bytes: u64,
    /// How many ranks there are.
    pub ranks: usize,
    /// Which ways are possible for this many bytes.
    pub possible: Possible,
    /// The most blocks that a call may have.
    pub max_blocks: u32,
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
    /// As an `all_reduce` in two steps, by lines.
    pub lines_in_two_steps: bool,
    /// As an `all_reduce` in two steps, by pieces.
    pub pieces_in_two_steps: bool,
}

/// What the devices of all ranks are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Devices {
    /// Simulated.
    Host,
    /// GPUs.
    Gpus,
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
/// What a choice cannot be is mended: blocks and threads are brought into their ranges, and a way that is not possible
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

/// The tables of this crate.
///
/// Those for GPUs follow what was fastest for bare kernels of the same ways between two H200. Calls of this crate have not
/// been measured, and for more ranks the rows are a guess.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tuned;

/// Up to so many bytes: the way, blocks, threads.
type Row = (u64, Way, u32, u32);

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

const ALL_REDUCE: &[Row] = &[
    (2 * KIB, Way::Packets, 2, 256),
    (8 * KIB, Way::Packets, 4, 256),
    (16 * KIB, Way::Packets, 8, 256),
    (32 * KIB, Way::Packets, 32, 256),
    (64 * KIB, Way::Packets, 64, 256),
    (256 * KIB, Way::Lines, 128, 256),
    (512 * KIB, Way::Lines, 128, 512),
    (4 * MIB, Way::Lines, 128, 1024),
    (u64::MAX, Way::Pieces, 128, 1024),
];

/// By what a rank sends to another, which is half of the message between two.
const EXCHANGE: &[Row] = &[
    (2 * KIB, Way::Packets, 2, 256),
    (8 * KIB, Way::Packets, 8, 256),
    (32 * KIB, Way::Packets, 32, 256),
    (128 * KIB, Way::Lines, 64, 256),
    (256 * KIB, Way::Lines, 128, 256),
    (512 * KIB, Way::Lines, 128, 512),
    (4 * MIB, Way::Lines, 128, 1024),
    (u64::MAX, Way::Pieces, 128, 1024),
];

/// Simulated threads take turns on few cores; what they do together, as for lines, takes them longest.
const HOST: &[Row] =
    &[(KIB, Way::Packets, 1, 32), (8 * KIB, Way::Packets, 2, 64), (u64::MAX, Way::Pieces, 2, 64)];

impl Selector for Tuned {
    fn choose(&self, question: &Question) -> Choice {
        let Question { bytes, possible, .. } = *question;
        let table = match (question.devices, question.shape) {
            (Devices::Host, _) => HOST,
            (Devices::Gpus, Shape::AllReduce) => ALL_REDUCE,
            (Devices::Gpus, _) => EXCHANGE,
        };
        // What each rank must push in one step grows with the ranks; in two, it does not.
        let two_steps = question.shape == Shape::AllReduce
            && question.ranks > 2
            && possible.pieces_in_two_steps
            && bytes.saturating_mul(question.ranks as u64 - 1) > 256 * KIB;
        let row = table.iter().find(|row| bytes <= row.0).unwrap_or(&table[table.len() - 1]);
        let &(_, mut way, blocks, threads) = row;
        let lines = if two_steps { possible.lines_in_two_steps } else { possible.lines };
        if two_steps && way == Way::Packets {
            way = Way::Lines;
        }
        if way == Way::Lines && !lines {
            way =
                if possible.packets && !two_steps && bytes <= 256 * KIB { Way::Packets } else { Way::Pieces };
        }
        Choice { way, two_steps, blocks, threads }
    }
}

impl Choice {
    /// What can be done of it.
    pub(crate) fn mended(mut self, question: &Question) -> Self {
        let possible = question.possible;
        if self.two_steps && !possible.pieces_in_two_steps {
            self.two_steps = false;
        }
        let can = match (self.way, self.two_steps) {
            (Way::Packets, two_steps) => possible.packets && !two_steps,
            (Way::Lines, false) => possible.lines,
            (Way::Lines, true) => possible.lines_in_two_steps,
            (Way::Pieces, _) => true,
        };
        if !can {
            self.way = Way::Pieces;
        }
        self.blocks = self.blocks.clamp(1, question.max_blocks);
        self.threads = self.threads.next_multiple_of(32).clamp(32, 1024);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Possible =
        Possible { packets: true, lines: true, lines_in_two_steps: true, pieces_in_two_steps: true };

    fn question(bytes: u64, ranks: usize, possible: Possible) -> Question {
        Question {
            shape: Shape::AllReduce,
            reduces: true,
            bytes,
            ranks,
            possible,
            max_blocks: 64,
            devices: Devices::Gpus,
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
    fn what_cannot_be_is_mended() {
        let none =
            Possible { packets: false, lines: false, lines_in_two_steps: false, pieces_in_two_steps: false };
        for way in [Way::Packets, Way::Lines, Way::Pieces] {
            let asked = Choice { way, two_steps: true, blocks: 0, threads: 5000 };
            let mended = asked.mended(&question(1 << 20, 4, none));
            assert_eq!(mended, Choice { way: Way::Pieces, two_steps: false, blocks: 1, threads: 1024 });
        }
        let asked = Choice { way: Way::Lines, two_steps: true, blocks: 1000, threads: 33 };
        let mended = asked.mended(&question(1 << 20, 4, ALL));
        assert_eq!(mended, Choice { way: Way::Lines, two_steps: true, blocks: 64, threads: 64 });
        assert_eq!(Tuned.choose(&question(1 << 20, 2, none)).way, Way::Pieces);
    }
}
