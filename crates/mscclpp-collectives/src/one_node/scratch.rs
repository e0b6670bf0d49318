//! How a communicator's scratch memory is divided: alike on all ranks, so that an offset means the same everywhere.

use crate::{
    Error, Protocol, Result,
    handle::{LINE, Parts, RING, STEP_RING},
    rank::LANES,
};

/// The least and the usual size of a chunk; places for chunks of this size are there for every block.
const LEAST_CHUNK: u64 = 4 << 10;
const MOST_CHUNK: u64 = 64 << 10;
/// The largest chunks are a multiple of this.
const CHUNK_STEP: u64 = 16 << 10;
/// The most that travels by LL16, between two ranks.
const PACKETS_MAX: u64 = 512 << 10;
/// The most bytes of the lines of LL128: kernels count those of a message with 32 bits.
const LINES_MAX: u64 = 1 << 31;

/// The layout of the scratch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) ranks: u64,
    pub(crate) max_blocks: u32,
    /// The offsets and sizes that kernels know.
    pub(crate) parts: Parts,
    pub(crate) message_signals: u64,
    pub(crate) messages: u64,
    pub(crate) message_chunk: u64,
    pub(crate) total: u64,
}

impl Layout {
    /// For `ranks` ranks and calls of up to `max_blocks` blocks, in `scratch_bytes` bytes.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if they are too few.
    pub(crate) fn new(ranks: usize, max_blocks: u32, scratch_bytes: u64) -> Result<Self> {
        let layout = Self::within(ranks, max_blocks, scratch_bytes);
        if layout.total <= scratch_bytes {
            return Ok(layout);
        }
        let fits = |shift: &u32| Self::within(ranks, max_blocks, 1 << shift).total <= 1 << shift;
        let enough = 1u64 << (16..40).find(fits).unwrap_or(40);
        Err(Error::InvalidArgument(format!(
            "{scratch_bytes} bytes of scratch are too few for {ranks} ranks and {max_blocks} blocks; {enough} are enough, or fewer \
             blocks"
        )))
    }

    /// For calls of up to `most` blocks, or half as many and so on, until they have room in the scratch.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no room for one.
    pub(crate) fn with_room(ranks: usize, most: u32, scratch_bytes: u64) -> Result<Self> {
        let halves = std::iter::successors(Some(most), |blocks| Some(blocks / 2).filter(|half| *half > 0));
        let fits = |blocks: &u32| Self::within(ranks, *blocks, scratch_bytes).total <= scratch_bytes;
        Self::new(ranks, halves.into_iter().find(fits).unwrap_or(1), scratch_bytes)
    }

    fn within(ranks: usize, max_blocks: u32, scratch_bytes: u64) -> Self {
        let (ranks, blocks) = (ranks as u64, u64::from(max_blocks));
        // Slots of other ranks: what a rank sends to itself does not go through the scratch.
        let peers = (ranks - 1).max(1);
        let begun = 0;
        let checks = begun + ranks * LINE;
        let signals = checks + 2 * ranks * LINE;
        let message_signals = signals + 3 * ranks * blocks * LINE;
        let ll16 = message_signals + 2 * ranks * u64::from(LANES) * LINE;
        // A third for what needs flags, an eighth for messages between two ranks, the rest for chunks.
        let ll16_bytes = (scratch_bytes / 32 / (2 * peers)).clamp(16, 2 * PACKETS_MAX) / 16 * 16 * peers;
        let ll128 = (ll16 + 2 * ll16_bytes).next_multiple_of(LINE);
        let ll128_bytes = (scratch_bytes * 9 / 64).clamp(LINE, LINES_MAX) / LINE * LINE;
        let messages = ll128 + 2 * ll128_bytes;
        let message_places = peers * u64::from(LANES) * RING;
        let message_chunk = chunk_of(scratch_bytes / 8 / message_places);
        let chunks = messages + message_places * message_chunk;
        // In two steps each rank has places for what comes and for results. Between two ranks there is but one.
        let steps = if ranks > 2 { 2 } else { 1 };
        let places = steps * peers * blocks * RING;
        let chunk_bytes = places * chunk_of(scratch_bytes.saturating_sub(chunks) / 2 / places);
        let total = chunks + 2 * chunk_bytes;
        Self {
            ranks,
            max_blocks,
            parts: Parts {
                begun,
                checks,
                signals,
                ll16,
                ll16_bytes,
                ll128,
                ll128_bytes,
                chunks,
                chunk_bytes,
            },
            message_signals,
            messages,
            message_chunk,
            total,
        }
    }

    /// Whether messages of `most` bytes to each rank fit, in one step or two.
    pub(crate) fn fits(&self, protocol: Protocol, most: u64, two_steps: bool) -> bool {
        let messages = self.messages_of(two_steps);
        match protocol {
            Protocol::Ll16 => {
                !two_steps && most.div_ceil(8).saturating_mul(16 * messages) <= self.parts.ll16_bytes
            }
            Protocol::Ll128 => most.div_ceil(120).saturating_mul(LINE * messages) <= self.parts.ll128_bytes,
            Protocol::Simple
            | Protocol::SimpleByBulk
            | Protocol::Direct
            | Protocol::Bulk
            | Protocol::CopyEngine => true,
        }
    }

    /// The size of chunks of messages of `most` bytes, if that is known. `even`: each of the `lanes` lanes has about as many, and
    /// at least two unless they would be small.
    pub(crate) fn chunk(&self, most: Option<u64>, lanes: u32, two_steps: bool, even: bool) -> u64 {
        let ring = if two_steps { STEP_RING } else { RING };
        let largest =
            chunk_of(self.parts.chunk_bytes / (self.messages_of(two_steps) * u64::from(lanes) * ring));
        // Threads move whole rows of vectors then.
        let largest = if largest < CHUNK_STEP { largest } else { largest / CHUNK_STEP * CHUNK_STEP };
        let Some(most) = most else { return largest };
        let of_lane = most.div_ceil(u64::from(lanes));
        let mut chunk = if even { of_lane.div_ceil(of_lane.div_ceil(largest).max(2)) } else { of_lane };
        // A few lanes with a chunk more take less time than an incomplete row at the end of each chunk.
        let rows = chunk.next_multiple_of(CHUNK_STEP).min(largest);
        let count = of_lane.div_ceil(rows);
        if even && count > 2 && count * rows <= of_lane + of_lane / 7 {
            chunk = rows;
        }
        chunk.next_multiple_of(16).clamp(LEAST_CHUNK.min(largest), largest)
    }

    /// Whether `rows` rows of `vectors` vectors of 16 bytes for each rank fit, by LL16 or LL128, with `results` bytes of packets
    /// behind each. Rows have whole lines; of each, a word goes as a packet: see `RowsBlock` of the headers.
    pub(crate) fn fits_rows(&self, vectors: u64, rows: u64, results: u64, by_ll128: bool) -> bool {
        let places = self.messages_of(false).saturating_mul(rows);
        let row = vectors.next_multiple_of(8);
        let (lines, packets) = if by_ll128 { (row * 16, row * 2) } else { (0, row * 32) };
        places.saturating_mul(lines) <= self.parts.ll128_bytes
            && places.saturating_mul(packets + 2 * results) <= self.parts.ll16_bytes
    }

    /// How many blocks may have rings of chunks of this size.
    pub(crate) fn blocks_of_chunks(&self, chunk: u64, two_steps: bool) -> u64 {
        self.parts.chunk_bytes / (self.messages_of(two_steps) * RING * chunk)
    }

    /// How many messages come to a rank.
    fn messages_of(&self, two_steps: bool) -> u64 {
        (self.ranks - 1).max(1) * if two_steps { 2 } else { 1 }
    }
}

fn chunk_of(bytes: u64) -> u64 {
    (bytes / 16 * 16).clamp(LEAST_CHUNK, MOST_CHUNK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_lie_behind_each_other_and_stay_within_the_scratch() {
        for ranks in [1, 2, 3, 8, 16] {
            for max_blocks in [1, 2, 16, 128] {
                for scratch_bytes in [16 << 20, 128 << 20, 1 << 30] {
                    let Ok(layout) = Layout::new(ranks, max_blocks, scratch_bytes) else {
                        assert!(ranks * max_blocks as usize >= 128, "{ranks} {max_blocks} {scratch_bytes}");
                        continue;
                    };
                    let Layout { message_signals, messages, total, .. } = layout;
                    let Parts { signals, ll16, ll128, chunks, .. } = layout.parts;
                    let parts = [0, signals, message_signals, ll16, ll128, messages, chunks, total];
                    assert!(parts.is_sorted(), "{layout:?}");
                    assert!(ll128.is_multiple_of(LINE) && chunks.is_multiple_of(16));
                    assert!(total <= scratch_bytes);
                    for two_steps in [false, true].into_iter().take(if ranks > 2 { 2 } else { 1 }) {
                        for blocks in [1, max_blocks] {
                            let chunk = layout.chunk(None, blocks, two_steps, false);
                            let ring = if two_steps { STEP_RING } else { RING };
                            let places = layout.messages_of(two_steps) * u64::from(blocks) * ring;
                            assert!(chunk * places <= layout.parts.chunk_bytes, "{layout:?}");
                            assert!(layout.chunk(Some(1), blocks, two_steps, false) <= chunk);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn the_usual_scratch_has_room_for_what_the_table_chooses() {
        let layout = Layout::new(2, 256, crate::rank::SCRATCH).unwrap();
        assert!(layout.fits(Protocol::Ll16, 128 << 10, false));
        assert!(layout.fits(Protocol::Ll128, 16 << 20, false));
        assert_eq!(layout.chunk(Some(1 << 30), 256, false, false), 32 << 10);
        let layout = Layout::new(8, 128, crate::rank::SCRATCH).unwrap();
        assert!(layout.fits(Protocol::Ll128, (4 << 20) / 8, true));
        let layout = Layout::new(4, 256, crate::rank::SCRATCH).unwrap();
        // Whole rows, if few lanes have a chunk more; otherwise as many chunks for each lane.
        assert_eq!(layout.chunk(Some(128 * 460_800), 128, false, true), 16 << 10);
        assert_eq!(layout.chunk(Some(128 * 20_000), 128, false, true), 10_000);
    }

    #[test]
    fn blocks_are_fewer_where_the_scratch_has_no_room() {
        let blocks = |ranks, most, mebibytes: u64| {
            Layout::with_room(ranks, most, mebibytes << 20).map(|layout| layout.max_blocks)
        };
        let cases =
            [(8, 128, 128, 128), (16, 128, 128, 64), (8, 128, 16, 16), (16, 128, 16, 8), (2, 256, 1, 16)];
        for (ranks, most, mebibytes, expected) in cases {
            assert_eq!(blocks(ranks, most, mebibytes).unwrap(), expected, "{ranks} {mebibytes}");
        }
        let error = blocks(16, 128, 1).unwrap_err().to_string();
        assert!(error.contains("1048576 bytes of scratch are too few for 16 ranks and 1 blocks"), "{error}");
    }

    #[test]
    fn too_little_is_refused_with_the_least() {
        let error = Layout::new(8, 128, 1 << 16).unwrap_err().to_string();
        assert!(error.contains("65536 bytes of scratch are too few for 8 ranks and 128 blocks"), "{error}");
    }
}
