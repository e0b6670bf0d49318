//! The parameters of kernels: the structs of `ep_call_device.hpp`.

use mscclpp::{DevicePtr, gpu::KernelParam};

/// `EpMaxRanks`: the most ranks.
#[allow(unreachable_pub, reason = "a test compiles this file as its own")]
pub const MAX_RANKS: usize = 16;
/// `EpMaxParts`.
pub(crate) const PARTS: usize = 4;
/// `EpMaxSegments`.
pub(crate) const SEGMENTS: usize = 5;
/// `EpMaxTopK`.
pub(crate) const MAX_TOP_K: u32 = 64;
/// `EpLine`.
pub(crate) const LINE: u64 = 128;
/// `EpLineKinds`.
pub(crate) const LINE_KINDS: u64 = 9;
/// `EpPartBytes`.
pub(crate) const PART_BYTES: u64 = 2048;
/// `EpBytesOfLines`: the size of [`VECTORS_OF_LINES`] vectors of 16 bytes as packets.
pub(crate) const BYTES_OF_LINES: u64 = 1152;
/// `EpVectorsOfLines`.
pub(crate) const VECTORS_OF_LINES: u64 = 64;
/// `EpTokensAtOnce` of GPUs.
pub(crate) const TOKENS_AT_ONCE: u64 = 128;
/// The same of simulated devices.
pub(crate) const TOKENS_AT_ONCE_OF_SIM: u64 = 4;
/// The fewest tokens of a dispatch by row (X8) on GPUs.
pub(crate) const MANY_TOKENS: u32 = 512;
/// The same of simulated devices.
pub(crate) const MANY_TOKENS_OF_SIM: u32 = 6;
/// The fewest tokens of a dispatch whose warps share them (X7) on GPUs.
pub(crate) const SHARED_TOKENS: u32 = 3072;
/// The same of simulated devices.
pub(crate) const SHARED_TOKENS_OF_SIM: u32 = 7;
/// The fewest blocks of such a dispatch on GPUs.
pub(crate) const SHARING_BLOCKS: u32 = 52;
/// `EpMarkWords` of GPUs.
pub(crate) const MARK_WORDS: u64 = 4;
/// `EpDropped`.
pub(crate) const DROPPED: u64 = 1;
/// `EpInUse`.
pub(crate) const IN_USE: u64 = 4;
/// `EpRowsGone`.
pub(crate) const ROWS_GONE: u64 = 5;
/// `EpNewlyLost`.
pub(crate) const NEWLY_LOST: u64 = 6;
/// `EpSaid`.
pub(crate) const SAID: u64 = NEWLY_LOST + MAX_RANKS as u64;
/// `EpSaidAll`.
pub(crate) const SAID_ALL: u32 = 1 << 31;
/// `EpLostChoices`.
pub(crate) const LOST_CHOICES: u64 = 6;
/// `EpAsItIs`.
pub(crate) const AS_IT_IS: u32 = 0;
/// `EpE4m3`.
pub(crate) const E4M3: u32 = 1;
/// `EpE4m3Ue8m0`.
pub(crate) const E4M3_UE8M0: u32 = 2;
/// `EpRestZero`.
pub(crate) const REST_ZERO: u32 = 1;
/// `EpRestMasked`.
pub(crate) const REST_MASKED: u32 = 2;
/// `EpRowWarps`.
pub(crate) const ROW_WARPS: u64 = 2;
/// `EpFirstEpoch`.
pub(crate) const FIRST_EPOCH: u64 = 20;
/// The number of words of `EpProblem`.
pub(crate) const PROBLEMS: u64 = SAID + 1;

/// `EpHandle`.
#[derive(Debug, Clone, Copy, KernelParam)]
#[repr(C)]
pub(crate) struct EpHandle {
    pub(crate) scratch: [DevicePtr; MAX_RANKS],
    pub(crate) status: [DevicePtr; MAX_RANKS],
    pub(crate) words: DevicePtr,
    pub(crate) experts: DevicePtr,
    pub(crate) problems: DevicePtr,
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    pub(crate) max_blocks: u32,
    pub(crate) n_experts: u32,
    pub(crate) top_k: u32,
    pub(crate) capacity: u32,
    pub(crate) local: u32,
    pub(crate) most_local: u32,
    pub(crate) parts: u32,
    pub(crate) hidden: u32,
    pub(crate) quantisation: u32,
    pub(crate) source_type: u32,
    pub(crate) result_bytes: u32,
    pub(crate) result_stride: u32,
    pub(crate) top_k_inverse: u32,
    pub(crate) row_parts: u32,
    pub(crate) patience: u64,
    pub(crate) segment_bytes: [u32; SEGMENTS],
    pub(crate) segment_stride: [u32; SEGMENTS],
    pub(crate) packet_stride: [u32; PARTS],
    pub(crate) places: Places,
}

/// The offsets at the end of `EpHandle`: in the scratch of a micro-batch, and in the tables of a routing.
#[derive(Debug, Clone, Copy, Default, KernelParam)]
#[repr(C)]
pub(crate) struct Places {
    pub(crate) segments: [u64; PARTS],
    pub(crate) packets: [u64; PARTS],
    pub(crate) lines: u64,
    pub(crate) headers: u64,
    pub(crate) routes: u64,
    pub(crate) results: u64,
    pub(crate) choice_results: u64,
    pub(crate) weight_packets: u64,
    pub(crate) row_words: u64,
    pub(crate) micro_batch_bytes: u64,
    pub(crate) other_bytes: u64,
    pub(crate) table_offsets: u64,
    pub(crate) table_rows: u64,
    pub(crate) table_choices: u64,
    pub(crate) table_weights: u64,
    pub(crate) table_received: u64,
}

/// `EpCounts`.
#[derive(Debug, Clone, Copy, Default, KernelParam)]
#[repr(C)]
pub(crate) struct EpCounts {
    pub(crate) epoch: u64,
    pub(crate) tokens: u32,
    pub(crate) layout: u32,
    pub(crate) sent: [u32; MAX_RANKS],
    pub(crate) received: [u32; MAX_RANKS],
    pub(crate) theirs: [u32; MAX_RANKS],
}

/// `EpDispatch`.
#[derive(Debug, Clone, Copy, KernelParam)]
#[repr(C)]
pub(crate) struct EpDispatch {
    pub(crate) ids: DevicePtr,
    pub(crate) weights: DevicePtr,
    pub(crate) rows: [DevicePtr; PARTS],
    pub(crate) tables: DevicePtr,
    pub(crate) out: [DevicePtr; PARTS],
    pub(crate) out_ids: DevicePtr,
    pub(crate) out_weights: DevicePtr,
    pub(crate) out_sources: DevicePtr,
    pub(crate) added_counts: DevicePtr,
    pub(crate) added_waits: DevicePtr,
    pub(crate) out_rows: u64,
    pub(crate) column_rows: u64,
    pub(crate) tokens: u32,
    pub(crate) id_bytes: u32,
    pub(crate) layout: u32,
    pub(crate) alignment: u32,
    pub(crate) micro_batch: u32,
    pub(crate) again: u32,
    pub(crate) refused: u32,
    pub(crate) rest: u32,
}

/// `EpCombine`.
#[derive(Debug, Clone, Copy, KernelParam)]
#[repr(C)]
pub(crate) struct EpCombine {
    pub(crate) rows: DevicePtr,
    pub(crate) tables: DevicePtr,
    pub(crate) weights: DevicePtr,
    pub(crate) bias: [DevicePtr; 2],
    pub(crate) out: DevicePtr,
    pub(crate) row_weights: DevicePtr,
    pub(crate) out_weights: DevicePtr,
    pub(crate) added_waits: DevicePtr,
    pub(crate) out_rows: u64,
    pub(crate) tokens: u32,
    pub(crate) micro_batch: u32,
    pub(crate) exact: u32,
    pub(crate) one_row: u32,
    pub(crate) late: u32,
    pub(crate) layout: u32,
}

/// `EpChoices`.
#[derive(Debug, Clone, Copy, KernelParam)]
#[repr(C)]
pub(crate) struct EpChoices {
    pub(crate) ids: DevicePtr,
    pub(crate) counts: DevicePtr,
    pub(crate) is_in_rank: DevicePtr,
    pub(crate) tokens: u32,
    pub(crate) top_k: u32,
    pub(crate) id_bytes: u32,
    pub(crate) n_experts: u32,
    pub(crate) ranks: u32,
    pub(crate) local: u32,
}
