//! The settings on which the ranks agree, and where everything lies in the scratch and in the tables of a routing.

use mscclpp::{DevicePtr, Platform};
use sha2::{Digest, Sha256};

use crate::{
    Error, Result,
    handle::{
        AS_IT_IS, BYTES_OF_LINES, E4M3, E4M3_UE8M0, EpCounts, EpHandle, FIRST_EPOCH, LINE, LINE_KINDS,
        MARK_WORDS, MAX_RANKS, MAX_TOP_K, PART_BYTES, PARTS, PROBLEMS, Places, ROW_WARPS, SEGMENTS,
        VECTORS_OF_LINES,
    },
    payload::{Payload, Quantisation},
};

/// The most shared memory of a block that depends on the experts.
pub(crate) const MOST_SHARED: u64 = 44 << 10;
/// A packet has 8 bytes of data.
const PACKET: u64 = 16;

/// The settings that all ranks give alike.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) experts: u64,
    pub(crate) top_k: u64,
    pub(crate) capacity: u64,
    pub(crate) payload: Payload,
    /// The rank of each expert; none for the usual ones.
    pub(crate) map: Option<Vec<usize>>,
    pub(crate) micro_batches: u64,
    pub(crate) exact: bool,
    /// The largest capacity for which rows travel as packets.
    pub(crate) packets_up_to: u64,
    /// How long calls wait for a rank before they go on without it, in nanoseconds; 0 for ever.
    pub(crate) patience: u64,
    /// The most blocks of 1024 threads, if that was given.
    pub(crate) max_blocks: Option<u64>,
    pub(crate) calls_at_once: u32,
}

impl Settings {
    /// The rank of each expert, of so many ranks.
    fn ranks_of_experts(&self, ranks: usize) -> Vec<usize> {
        match &self.map {
            Some(map) => map.clone(),
            None => (0..self.experts)
                .map(|e| (u128::from(e) * ranks as u128 / u128::from(self.experts)) as usize)
                .collect(),
        }
    }

    /// Checks them for so many ranks.
    pub(crate) fn check(&self, ranks: usize) -> Result<()> {
        let invalid = |why: String| Err(Error::InvalidArgument(why));
        let Self { experts, top_k, capacity, map, micro_batches, .. } = self;
        self.payload.check()?;
        if ranks > MAX_RANKS {
            return invalid(format!("experts of {ranks} ranks; {MAX_RANKS} are the most"));
        }
        if *experts == 0 || *experts > 1 << 15 {
            return invalid(format!("experts({experts}); give 1 to {}", 1 << 15));
        }
        if *top_k == 0 || *top_k > u64::from(MAX_TOP_K) {
            return invalid(format!("top_k({top_k}); give 1 to {MAX_TOP_K}"));
        }
        if !(1..=2).contains(micro_batches) {
            return invalid(format!("micro_batches({micro_batches}); give 1 or 2"));
        }
        if let Some(map) = map
            && (map.len() as u64 != *experts || map.iter().any(|rank| *rank >= ranks))
        {
            return invalid(format!(
                "expert_map of {} experts with ranks up to {}; there are {experts} experts and {ranks} ranks",
                map.len(),
                map.iter().max().unwrap_or(&0)
            ));
        }
        let (most_local, rows) = (self.most_local(ranks), (ranks as u64).saturating_mul(*capacity));
        // Kernels count the rows of all experts, and the choices of all rows, in 32 bits.
        if *capacity == 0 || most_local.max(*top_k).saturating_mul(rows) >= 1 << 31 {
            return invalid(format!(
                "capacity({capacity}) of {ranks} ranks, with {most_local} experts of a rank and top_k({top_k}); give at least 1, and \
                 so few that its product with the ranks and the larger of the other two is less than 2^31"
            ));
        }
        let shared = self.shared_bytes(ranks);
        if shared > MOST_SHARED {
            return invalid(format!(
                "{experts} experts, up to {most_local} of a rank, need {shared} bytes of shared memory of a block, of {MOST_SHARED}: \
                 give fewer experts, or spread them evenly"
            ));
        }
        Ok(())
    }

    fn most_local(&self, ranks: usize) -> u64 {
        let mut local = vec![0u64; ranks.max(1)];
        self.ranks_of_experts(ranks).into_iter().for_each(|rank| local[rank] += 1);
        local.into_iter().max().unwrap_or(0)
    }

    /// The dynamic shared memory of a block of dispatch: see `EpDispatchBlock`.
    pub(crate) fn shared_bytes(&self, ranks: usize) -> u64 {
        let (ranks, local) = (ranks as u64, self.most_local(ranks));
        4 * ((2 + MARK_WORDS) * (self.experts + ranks)).max(ranks * local + 2 * local + 1)
    }

    /// The most blocks of a call, and the threads of each. Many blocks of fewer threads send faster, from the whole device. Few
    /// blocks of many threads leave multiprocessors to other kernels.
    pub(crate) fn blocks(&self, platform: Platform, by_packets: bool) -> (u64, u32) {
        match (self.max_blocks, by_packets) {
            (given, _) if platform == Platform::Sim => {
                (given.unwrap_or(2) * if by_packets { 2 } else { 1 }, 64)
            }
            (Some(blocks), false) => (blocks, 1024),
            (Some(blocks), true) => (2 * blocks, 256),
            (None, false) => (128, 512),
            (None, true) => (128, 256),
        }
    }

    /// The number of the words that `EpHandle::words` is the address of, for calls of so many blocks.
    pub(crate) fn words(&self, ranks: usize, blocks: u64) -> u64 {
        let counts = 2 + (self.experts + ranks as u64).div_ceil(4) * 2;
        FIRST_EPOCH + 4 * blocks + self.micro_batches * blocks * counts
    }

    /// The words that [`agree`](mscclpp::engine::Group::agree) compares.
    pub(crate) fn agreed(&self, ranks: usize) -> Vec<(&'static str, u64)> {
        let mut map = Sha256::new();
        self.ranks_of_experts(ranks).iter().for_each(|rank| map.update([*rank as u8]));
        let digest = map.finalize();
        let map = u64::from_le_bytes(std::array::from_fn(|i| digest[i]));
        let Payload { hidden, number_type, quantisation, .. } = &self.payload;
        let travelling = self.payload.travelling();
        let row = |i: usize| travelling.get(i).copied().unwrap_or(0);
        vec![
            ("experts", self.experts),
            ("top_k", self.top_k),
            ("hidden", *hidden),
            ("capacity", self.capacity),
            ("expert_map (a digest)", map),
            ("number_type (ReduceType)", number_type.reduce_type().into()),
            ("quantise", quantisation_of(*quantisation).into()),
            ("bytes of the first tensor's rows", row(0)),
            ("bytes of the second tensor's rows", row(1)),
            ("bytes of the third tensor's rows", row(2)),
            ("bytes of the fourth tensor's rows", row(3)),
            ("micro_batches", self.micro_batches),
            ("exact", self.exact.into()),
            ("survive_loss (nanoseconds)", self.patience),
            ("max_blocks (0 if not given)", self.max_blocks.unwrap_or(0)),
            ("calls_at_once", self.calls_at_once.into()),
        ]
    }

    /// For each expert its rank, times 2^16, plus its number there.
    pub(crate) fn experts_of_kernels(&self, ranks: usize) -> Vec<u32> {
        let mut next = vec![0u32; ranks];
        let entry = |rank: usize| {
            let local = next[rank];
            next[rank] += 1;
            (rank as u32) << 16 | local
        };
        self.ranks_of_experts(ranks).into_iter().map(entry).collect()
    }
}

/// A number of the kernels, and of this file, which lays out what they access: ranks of different numbers do not work together.
pub(crate) fn build() -> u64 {
    let digest = Sha256::digest(include_str!("scratch.rs"));
    mscclpp_kernels::FINGERPRINT ^ u64::from_le_bytes(std::array::from_fn(|i| digest[i]))
}

fn quantisation_of(quantisation: Option<Quantisation>) -> u32 {
    match quantisation {
        None => AS_IT_IS,
        Some(Quantisation::E4m3) => E4M3,
        Some(Quantisation::E4m3Ue8m0) => E4M3_UE8M0,
    }
}

/// The places of everything in the scratch and in tables.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    /// The parameter of kernels, without addresses.
    pub(crate) handle: EpHandle,
    /// The bytes of the scratch of a rank.
    pub(crate) scratch_bytes: u64,
    /// The bytes of the tables of a routing.
    pub(crate) table_bytes: u64,
}

/// Hands out parts of memory, one behind the other.
#[derive(Default)]
struct Room(u64);

impl Room {
    fn take(&mut self, bytes: u64) -> u64 {
        let at = self.0;
        self.0 += bytes.next_multiple_of(LINE);
        at
    }
}

impl Layout {
    /// Makes them for rank `rank` of `ranks`. The settings have been checked.
    pub(crate) fn new(settings: &Settings, rank: usize, ranks: usize) -> Self {
        let Settings { experts, top_k, capacity, payload, micro_batches, exact, .. } = settings;
        let (experts, top_k, capacity) = (*experts, *top_k, *capacity);
        let (n, most_local) = (ranks as u64, settings.most_local(ranks));
        let local = settings.ranks_of_experts(ranks).iter().filter(|of| **of == rank).count();
        let by_packets = capacity <= settings.packets_up_to;

        let along = 4 + 12 * top_k;
        let result_bytes = payload.hidden * payload.number_type.size();
        let result_stride =
            if by_packets { bytes_of_packets(result_bytes) } else { result_bytes.next_multiple_of(16) };
        let mut handle = EpHandle {
            scratch: [DevicePtr::NULL; MAX_RANKS],
            status: [DevicePtr::NULL; MAX_RANKS],
            words: DevicePtr::NULL,
            experts: DevicePtr::NULL,
            problems: DevicePtr::NULL,
            rank: rank as u32,
            ranks: ranks as u32,
            max_blocks: 0,
            n_experts: experts as u32,
            top_k: top_k as u32,
            capacity: capacity as u32,
            local: local as u32,
            most_local: most_local as u32,
            parts: 0,
            hidden: payload.hidden as u32,
            quantisation: 0,
            source_type: payload.number_type.reduce_type(),
            result_bytes: result_bytes as u32,
            result_stride: result_stride as u32,
            top_k_inverse: (1_u64 << 31).div_ceil(top_k) as u32,
            row_parts: 0,
            patience: settings.patience,
            segment_bytes: [0; SEGMENTS],
            segment_stride: [0; SEGMENTS],
            packet_stride: [0; PARTS],
            places: Places::default(),
        };
        let mut room = Room::default();
        handle.places.lines = room.take(2 * LINE_KINDS * MAX_RANKS as u64 * LINE);
        let tensors = room.0;
        let once = set_rows(&mut handle, payload, along, n * capacity, tensors);
        room.0 = once;
        if by_packets {
            let scales = set_packets(&mut handle, payload, n * capacity, once);
            // The rows of any payload for whose tensors there is memory: each tensor of a row may end with lines that are not
            // full.
            let each = (once - tensors).div_ceil(n * capacity);
            room.0 = scales + n * capacity * (each / LINES_OF_ROWS + PARTS as u64) * BYTES_OF_LINES;
        }
        let places = &mut handle.places;
        places.results = room.take(n * capacity * result_stride);
        let choices = if *exact { top_k } else { 0 };
        places.choice_results = room.take(choices * capacity * result_stride);
        places.headers = room.take(n * (most_local + 2) * PACKET);
        places.routes = room.take(n * capacity * along.div_ceil(8) * PACKET);
        places.weight_packets = room.take(n * capacity * top_k.div_ceil(2) * PACKET);
        places.row_words = if by_packets { 0 } else { room.take(n * capacity * ROW_WARPS * 8) };
        places.other_bytes = if by_packets { room.0 - once } else { 0 };
        places.micro_batch_bytes = room.0 + places.other_bytes;

        let mut tables = Room::default();
        tables.take(size_of::<EpCounts>() as u64 + 4 * local as u64);
        places.table_offsets = tables.take(4 * (local as u64 + 1));
        places.table_rows = tables.take(4 * capacity * n);
        places.table_choices = tables.take(4 * capacity * top_k);
        places.table_weights = tables.take(4 * capacity * top_k);
        places.table_received = tables.take(n * capacity * along.next_multiple_of(16));
        let scratch_bytes = micro_batches * places.micro_batch_bytes;
        Self { handle, scratch_bytes, table_bytes: tables.0 }
    }
}

/// The bytes of a row that [`BYTES_OF_LINES`] bytes of packets have.
const LINES_OF_ROWS: u64 = 16 * VECTORS_OF_LINES;

/// The size of a row of so many bytes as packets: `EpRowPackets`.
fn bytes_of_packets(row: u64) -> u64 {
    row.div_ceil(LINES_OF_ROWS) * BYTES_OF_LINES
}

/// Notes in a handle which tensors travel, with memory for `rows` rows of each from `begin` on. Returns where it ends. Behind the
/// tensors of a row are `along` bytes that the library sends along.
fn set_rows(handle: &mut EpHandle, payload: &Payload, along: u64, rows: u64, begin: u64) -> u64 {
    let tensors = payload.travelling();
    handle.parts = tensors.len() as u32;
    handle.row_parts = tensors.iter().map(|bytes| bytes.div_ceil(PART_BYTES) as u32).sum();
    handle.quantisation = quantisation_of(payload.quantisation);
    (handle.segment_bytes, handle.segment_stride) = ([0; SEGMENTS], [0; SEGMENTS]);
    for (i, bytes) in tensors.iter().copied().chain([along]).enumerate() {
        handle.segment_bytes[i] = bytes as u32;
        handle.segment_stride[i] = bytes.next_multiple_of(16) as u32;
    }
    let mut room = Room(begin);
    for (at, bytes) in handle.places.segments.iter_mut().zip(&tensors) {
        *at = room.take(rows * bytes.next_multiple_of(16));
    }
    room.0
}

/// Notes in a handle where the same rows are as packets. The memory begins with that for the scales of quantised numbers,
/// whose end is returned: packets of different forms never have the same memory, whatever the payload.
fn set_packets(handle: &mut EpHandle, payload: &Payload, rows: u64, begin: u64) -> u64 {
    let mut room = Room(begin);
    let scales = payload.hidden.div_ceil(128).div_ceil(2) * PACKET;
    let scales_at = room.take(rows * scales);
    let scales_end = room.0;
    for (i, bytes) in payload.travelling().into_iter().enumerate() {
        let is_scales = i == 1 && payload.quantisation.is_some();
        let stride = if is_scales { scales } else { bytes_of_packets(bytes) };
        handle.packet_stride[i] = stride as u32;
        handle.places.packets[i] = if is_scales { scales_at } else { room.take(rows * stride) };
    }
    scales_end
}

/// The handle with another payload, whose rows lie in the memory of those of the set-up.
pub(crate) fn with_payload(handle: &EpHandle, payload: &Payload) -> Result<EpHandle> {
    let mut other = *handle;
    let along = handle.segment_bytes[handle.parts as usize].into();
    let rows = u64::from(handle.ranks) * u64::from(handle.capacity);
    let Places { other_bytes, micro_batch_bytes, results, .. } = handle.places;
    let by_packets = other_bytes != 0;
    // Behind the rows are the results, or what is there twice if rows travel as packets.
    let (begin, most) =
        (handle.places.segments[0], if by_packets { micro_batch_bytes - 2 * other_bytes } else { results });
    let end = set_rows(&mut other, payload, along, rows, begin);
    if end > most {
        return Err(Error::InvalidArgument(format!(
            "a payload whose rows need {} bytes of memory; those of the set-up have {}",
            end - begin,
            most - begin
        )));
    }
    if by_packets {
        set_packets(&mut other, payload, rows, most);
    }
    Ok(other)
}

/// The bytes of the words in which kernels say what was wrong with a call.
pub(crate) const PROBLEM_BYTES: u64 = 4 * PROBLEMS;

/// The alignment of tensors with rows of so many bytes, as kernels access them.
pub(crate) fn alignment_of(row_bytes: u64) -> u64 {
    if row_bytes.is_multiple_of(8) { 8 } else { 4 }
}

/// Whether rows of so many bytes at an address begin and end at multiples of 16 bytes.
pub(crate) fn is_aligned(at: DevicePtr, row_bytes: u64) -> bool {
    at.0.is_multiple_of(16) && row_bytes.is_multiple_of(16)
}
