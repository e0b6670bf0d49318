//! How a communicator's scratch memory is divided: alike on all ranks, so that an offset means the same everywhere.

use crate::{
    Error, Protocol, Result,
    handle::{LINE, Parts, RING},
};

/// The least and the usual size of a piece; places for pieces of this size are there for every block.
const LEAST_PIECE: u64 = 4 << 10;
const MOST_PIECE: u64 = 64 << 10;
/// The most that travels in packets, between two ranks.
const PACKETS_MAX: u64 = 512 << 10;
/// How many blocks move messages between each two ranks, in each direction.
pub(crate) const LANES: u32 = 8;

/// What is where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) ranks: u64,
    pub(crate) slots: u32,
    /// What kernels know.
    pub(crate) parts: Parts,
    pub(crate) message_signals: u64,
    pub(crate) messages: u64,
    pub(crate) message_piece: u64,
    pub(crate) total: u64,
    pub(crate) budget: u64,
}

impl Layout {
    /// For `ranks` ranks and calls of up to `slots` blocks, in `budget` bytes.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if they are too few.
    pub(crate) fn new(ranks: usize, slots: u32, budget: u64) -> Result<Self> {
        let layout = Self::within(ranks, slots, budget);
        if layout.total <= budget {
            return Ok(layout);
        }
        let fits = |shift: &u32| Self::within(ranks, slots, 1 << shift).total <= 1 << shift;
        let enough = 1u64 << (16..40).find(fits).unwrap_or(40);
        Err(Error::InvalidArgument(format!(
            "{budget} bytes of scratch are too few for {ranks} ranks and {slots} blocks; {enough} are enough, or fewer \
             blocks"
        )))
    }

    fn within(ranks: usize, slots: u32, budget: u64) -> Self {
        let (ranks, blocks) = (ranks as u64, u64::from(slots));
        // Slots of other ranks: what a rank sends to itself does not go through the scratch.
        let peers = (ranks - 1).max(1);
        let begun = 0;
        let checks = begun + ranks * LINE;
        let signals = checks + 2 * ranks * LINE;
        let message_signals = signals + 3 * ranks * blocks * LINE;
        let packets = message_signals + 2 * ranks * u64::from(LANES) * LINE;
        // A third for what needs flags, an eighth for messages between two ranks, half for pieces.
        let packet_bytes = (budget / 32 / (2 * peers)).clamp(16, 2 * PACKETS_MAX) / 16 * 16 * peers;
        let lines = (packets + 2 * packet_bytes).next_multiple_of(LINE);
        let line_bytes = (budget * 9 / 64 / LINE).max(1) * LINE;
        let messages = lines + 2 * line_bytes;
        let message_places = peers * u64::from(LANES) * RING;
        let message_piece = piece_of(budget / 8 / message_places);
        let pieces = messages + message_places * message_piece;
        // In two steps each rank has places for what comes and for results. Between two ranks there is but one.
        let steps = if ranks > 2 { 2 } else { 1 };
        let places = steps * peers * blocks * RING;
        let piece_bytes = places * piece_of((budget / 2).min(budget.saturating_sub(pieces)) / 2 / places);
        let total = pieces + 2 * piece_bytes;
        Self {
            ranks,
            slots,
            parts: Parts {
                begun,
                checks,
                signals,
                packets,
                packet_bytes,
                lines,
                line_bytes,
                pieces,
                piece_bytes,
            },
            message_signals,
            messages,
            message_piece,
            total,
            budget,
        }
    }

    /// Whether messages of `most` bytes to each rank fit, in one step or two.
    pub(crate) fn fits(&self, protocol: Protocol, most: u64, two_steps: bool) -> bool {
        let slots = self.slots_of(two_steps);
        match protocol {
            Protocol::Ll16 => {
                !two_steps && most.div_ceil(8).saturating_mul(16 * slots) <= self.parts.packet_bytes
            }
            Protocol::Ll128 => most.div_ceil(120).saturating_mul(LINE * slots) <= self.parts.line_bytes,
            Protocol::Simple | Protocol::Direct | Protocol::Bulk | Protocol::CopyEngine => true,
        }
    }

    /// The size of pieces of messages of `most` bytes, if that is known.
    pub(crate) fn piece(&self, most: Option<u64>, blocks: u32, two_steps: bool) -> u64 {
        let places = self.slots_of(two_steps) * u64::from(blocks) * RING;
        let largest = piece_of(self.parts.piece_bytes / places);
        let Some(most) = most else { return largest };
        most.div_ceil(u64::from(blocks)).next_multiple_of(16).clamp(LEAST_PIECE.min(largest), largest)
    }

    /// Whether `rows` rows of `vectors` vectors of 16 bytes for each rank fit, by packets or lines, with `results` bytes of packets
    /// behind each. Rows have whole lines; of each, a word goes as a packet: see `RowsBlock` of the headers.
    pub(crate) fn fits_rows(&self, vectors: u64, rows: u64, results: u64, by_lines: bool) -> bool {
        let places = self.slots_of(false).saturating_mul(rows);
        let row = vectors.next_multiple_of(8);
        let (lines, packets) = if by_lines { (row * 16, row * 2) } else { (0, row * 32) };
        places.saturating_mul(lines) <= self.parts.line_bytes
            && places.saturating_mul(packets + 2 * results) <= self.parts.packet_bytes
    }

    /// How many blocks may have rings of pieces of this size.
    pub(crate) fn blocks_of_pieces(&self, piece: u64, two_steps: bool) -> u64 {
        self.parts.piece_bytes / (self.slots_of(two_steps) * RING * piece)
    }

    /// How many messages come to a rank.
    fn slots_of(&self, two_steps: bool) -> u64 {
        (self.ranks - 1).max(1) * if two_steps { 2 } else { 1 }
    }
}

fn piece_of(bytes: u64) -> u64 {
    (bytes / 16 * 16).clamp(LEAST_PIECE, MOST_PIECE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_lie_behind_each_other_and_stay_in_the_budget() {
        for ranks in [1, 2, 3, 8, 16] {
            for slots in [1, 2, 16, 128] {
                for budget in [16 << 20, 128 << 20, 1 << 30] {
                    let Ok(layout) = Layout::new(ranks, slots, budget) else {
                        assert!(ranks * slots as usize >= 128, "{ranks} {slots} {budget}");
                        continue;
                    };
                    let Layout { message_signals, messages, total, .. } = layout;
                    let Parts { signals, packets, lines, pieces, .. } = layout.parts;
                    let parts = [0, signals, message_signals, packets, lines, messages, pieces, total];
                    assert!(parts.is_sorted(), "{layout:?}");
                    assert!(lines.is_multiple_of(LINE) && pieces.is_multiple_of(16));
                    assert!(total <= budget);
                    for two_steps in [false, true].into_iter().take(if ranks > 2 { 2 } else { 1 }) {
                        for blocks in [1, slots] {
                            let piece = layout.piece(None, blocks, two_steps);
                            let places = layout.slots_of(two_steps) * u64::from(blocks) * RING;
                            assert!(piece * places <= layout.parts.piece_bytes, "{layout:?}");
                            assert!(layout.piece(Some(1), blocks, two_steps) <= piece);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn the_usual_scratch_has_room_for_what_the_table_chooses() {
        let layout = Layout::new(2, 256, crate::setup::SCRATCH).unwrap();
        assert!(layout.fits(Protocol::Ll16, 128 << 10, false));
        assert!(layout.fits(Protocol::Ll128, 16 << 20, false));
        assert_eq!(layout.piece(Some(1 << 30), 256, false), 32 << 10);
        let layout = Layout::new(8, 128, crate::setup::SCRATCH).unwrap();
        assert!(layout.fits(Protocol::Ll128, (4 << 20) / 8, true));
    }

    #[test]
    fn too_little_is_refused_with_the_least() {
        let error = Layout::new(8, 128, 1 << 16).unwrap_err().to_string();
        assert!(error.contains("65536 bytes of scratch are too few for 8 ranks and 128 blocks"), "{error}");
    }
}
