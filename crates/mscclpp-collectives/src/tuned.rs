//! How the library chooses by itself: by what was measured, and where nothing was, by prediction.

use crate::{
    model,
    select::{BULK_THREADS, Choice, Devices, Possible, Question, Selector, Shape, Way},
    tables::{OF_HOST, measured},
};

/// The tables of this crate, and where there is none, a prediction.
///
/// There are tables for two and for four GPUs of compute capability 9.0 that NVLink joins: what was fastest between two H200, and
/// between four H100. For all others, a model of the link predicts what is fastest. [`Tuned::is_measured`] says which it is.
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
        let Choice { mut way, mut two_steps, blocks, threads } =
            match measured(question.devices, question.ranks) {
                Some(table) => table.row(question.shape, question.reduces, bytes).choice,
                None if question.devices == Devices::Sim => simulated(question),
                None => return model::choose(question),
            };
        let lines = if two_steps { possible.lines_in_two_steps } else { possible.lines };
        if way == Way::Lines && !lines {
            if possible.packets && !two_steps && bytes <= 256 * KIB {
                way = Way::Packets;
            } else {
                way = Way::Pieces;
                // One step would send more.
                two_steps = question.shape == Shape::AllReduce && possible.pieces_in_two_steps;
            }
        }
        let way = possible.large(way, bytes);
        // On GPUs, and in exchanges whose size all ranks know: for these it was measured.
        let is_measured = question.devices != Devices::Sim && question.shape == Shape::Exchange;
        let few = question.max_blocks <= BULK_BLOCKS;
        if way == Way::Direct && possible.bulk && is_measured && few && bytes >= BULK_MIN {
            return Choice { way: Way::Bulk, two_steps, blocks: question.max_blocks, threads: BULK_THREADS };
        }
        Choice { way, two_steps, blocks, threads }
    }
}

/// The rule for simulated ranks.
fn simulated(question: &Question) -> Choice {
    let Question { bytes, possible, .. } = *question;
    let choice = OF_HOST.row(question.shape, question.reduces, bytes).choice;
    // What each rank must push in one step grows with the ranks; in two, it does not.
    let two_steps = question.shape == Shape::AllReduce
        && question.ranks > 2
        && possible.pieces_in_two_steps
        && bytes.saturating_mul(question.ranks as u64 - 1) > 256 * KIB;
    let way = if two_steps && choice.way == Way::Packets { Way::Lines } else { choice.way };
    Choice { way, two_steps, ..choice }
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

impl Tuned {
    /// A block for each row that a rank sums up, with a thread for each vector, by lines while they fit: that was fastest between two H100, in
    /// one step, of up to 120 rows of 16 KiB. More rows, and two steps, were not measured.
    fn rows(question: &Question, rows: u64) -> Choice {
        let Question { bytes, possible, .. } = *question;
        let ranks = question.ranks as u64;
        let all = bytes.saturating_mul(ranks - 1);
        let two_steps = ranks > 2 && possible.pieces_in_two_steps && all > 256 * KIB;
        let (lines, packets, sent) = match two_steps {
            true => (possible.lines_in_two_steps, possible.packets_in_two_steps, bytes.saturating_mul(2)),
            false => (possible.lines, possible.packets, all),
        };
        let way = match (lines, packets && sent <= MIB) {
            (true, _) => Way::Lines,
            (false, true) => Way::Packets,
            (false, false) => Way::Pieces,
        };
        let threads = match question.devices {
            Devices::Sim => 64,
            Devices::Gpus { .. } => (bytes / rows / 16).next_multiple_of(32).clamp(32, 1024),
        };
        let own = if two_steps { rows.div_ceil(ranks) } else { rows };
        let blocks = own.min(question.max_blocks.into());
        Choice { way, two_steps, blocks: blocks as u32, threads: threads as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::select::{Link, tests::question};

    const ALL: Possible = Possible::ALL_BUT_ROWS;

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
            (Devices::Sim, 2),
        ] {
            assert!(!Tuned::is_measured(&with(devices, ranks)), "{devices:?} {ranks}");
            let choice = Tuned.choose(&with(devices, ranks));
            assert_eq!(choice.way, Way::Packets, "{devices:?} {ranks}");
        }
    }

    #[test]
    fn rows_go_by_lines_or_packets_while_they_are_few() {
        let choice = |rows: u64, ranks, lines: bool| {
            let packets = rows <= 64;
            let possible = Possible {
                packets,
                packets_in_two_steps: packets,
                lines: lines && packets,
                lines_in_two_steps: lines && packets,
                pieces_in_two_steps: rows >= 8,
                ..ALL
            };
            let question = Question { shape: Shape::Rows(rows), ..question(rows << 14, ranks, possible) };
            let Choice { way, two_steps, blocks, threads } = Tuned.choose(&question).mended(&question);
            assert_eq!(threads, 1024);
            (way, two_steps, blocks)
        };
        assert_eq!(choice(1, 2, true), (Way::Lines, false, 1));
        assert_eq!(choice(64, 2, true), (Way::Lines, false, 64));
        assert_eq!(choice(64, 2, false), (Way::Packets, false, 64));
        assert_eq!(choice(256, 2, true), (Way::Pieces, false, 64));
        // Fewer rows than ranks are never shared out.
        assert_eq!(choice(2, 8, true), (Way::Lines, false, 2));
        assert_eq!(choice(16, 8, true), (Way::Lines, true, 2));
        assert_eq!(choice(256, 8, true), (Way::Pieces, true, 32));
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
}
