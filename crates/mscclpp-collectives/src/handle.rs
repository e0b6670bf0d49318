//! The parameters of kernels: the structs of `collective_call_device.hpp` and of the headers of its calls, such as
//! `collective_sends_device.hpp`.

use mscclpp::{DevicePtr, gpu::KernelParam};

/// `CollectiveMaxRanks`: the most ranks on one node.
#[allow(unreachable_pub, reason = "a test compiles this file as its own")]
pub const MAX_RANKS: usize = 16;
/// `AcrossTransfers`: the most ranks of collectives whose ranks are on several nodes.
#[allow(unreachable_pub, reason = "a test compiles this file as its own")]
pub const MAX_RANKS_OF_NODES: usize = 64;
/// `AcrossChunks`.
pub(crate) const ACROSS_RING: u64 = 8;
/// `AcrossHead`.
pub(crate) const ACROSS_HEAD: u64 = 16;
/// `CollectiveChunks`.
pub(crate) const RING: u64 = 4;
/// `CollectiveStepChunks`.
pub(crate) const STEP_RING: u64 = 3;
/// `CollectiveLine`.
pub(crate) const LINE: u64 = 128;
/// `CollectiveOverlap`.
pub(crate) const OVERLAP: u32 = 0xffff;
/// `CollectiveNoPlace`.
pub(crate) const NO_PLACE: u32 = 1 << 31;
/// `CollectiveScaledByMemory`.
pub(crate) const BY_MEMORY: u32 = 2;
/// `CollectiveLengths`.
pub(crate) const LENGTHS: u32 = 1 << 30;
/// `MessagesPerPeer`.
pub(crate) const MESSAGES: usize = 2;
/// `ManyMessages`.
pub(crate) const MANY_MESSAGES: usize = 220;
/// `CollectiveMaxParts`.
pub(crate) const PARTS: usize = 96;
/// `CollectiveToAll`.
pub(crate) const TO_ALL: u32 = u32::MAX;
/// `CollectiveMaxMoves`.
pub(crate) const MOVES: usize = 120;
/// `CollectiveMaxMoveCalls`.
pub(crate) const MOVE_CALLS: usize = MOVES / 2;
/// `CollectiveMaxOutputs`.
pub(crate) const OUTPUTS: usize = 4;
/// `CollectiveMaxVectors`.
pub(crate) const VECTORS: u64 = 4;

/// `CollectiveMaxSegments`.
pub(crate) const SEGMENTS: usize = 256;

/// How many words stand in front of the epochs: the least of `CollectiveWords`.
pub(crate) const WORDS_BEFORE: u64 = 4;

/// `CollectiveHandle`.
#[derive(Debug, Clone, Copy, KernelParam)]
#[repr(C)]
pub(crate) struct CollectiveHandle {
    pub(crate) scratch: [DevicePtr; MAX_RANKS],
    pub(crate) status: [DevicePtr; MAX_RANKS],
    pub(crate) epochs: DevicePtr,
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    pub(crate) max_blocks: u32,
    pub(crate) among_nodes: u32,
    pub(crate) mismatch: DevicePtr,
    pub(crate) parts: Parts,
}

impl CollectiveHandle {
    /// A handle without any peer's memory.
    pub(crate) fn of(rank: usize, ranks: usize) -> Self {
        Self {
            scratch: [DevicePtr::NULL; MAX_RANKS],
            status: [DevicePtr::NULL; MAX_RANKS],
            epochs: DevicePtr::NULL,
            // No more than `MAX_RANKS`.
            rank: rank as u32,
            ranks: ranks as u32,
            max_blocks: 0,
            among_nodes: 0,
            mismatch: DevicePtr::NULL,
            parts: Parts::default(),
        }
    }
}

/// Where the parts of the scratch are: the last members of `CollectiveHandle`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, KernelParam)]
#[repr(C)]
pub(crate) struct Parts {
    pub(crate) begun: u64,
    pub(crate) checks: u64,
    pub(crate) signals: u64,
    pub(crate) ll16: u64,
    pub(crate) ll16_bytes: u64,
    pub(crate) ll128: u64,
    pub(crate) ll128_bytes: u64,
    pub(crate) chunks: u64,
    pub(crate) chunk_bytes: u64,
}

/// `CollectiveSegment`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, KernelParam)]
#[repr(C)]
pub(crate) struct Segment {
    pub(crate) send: DevicePtr,
    pub(crate) recv: DevicePtr,
    pub(crate) send_bytes: u64,
    pub(crate) recv_bytes: u64,
}

impl Segment {
    pub(crate) const NONE: Self =
        Self { send: DevicePtr::NULL, recv: DevicePtr::NULL, send_bytes: 0, recv_bytes: 0 };

    /// A segment of what is sent and what is taken: where, and how many bytes.
    pub(crate) fn of(send: Option<(DevicePtr, u64)>, recv: Option<(DevicePtr, u64)>) -> Self {
        let (send, send_bytes) = send.unwrap_or((DevicePtr::NULL, 0));
        let (recv, recv_bytes) = recv.unwrap_or((DevicePtr::NULL, 0));
        Self { send, recv, send_bytes, recv_bytes }
    }
}

/// `CollectiveCall`.
#[derive(Debug, Clone, Copy, KernelParam)]
#[repr(C)]
pub(crate) struct CollectiveCall {
    pub(crate) segments: [Segment; MAX_RANKS],
    pub(crate) most_bytes: u64,
    pub(crate) chunk: u64,
    pub(crate) data_type: u32,
    pub(crate) op: u32,
    pub(crate) scale: u64,
    pub(crate) scaled: u32,
    pub(crate) one_way: u32,
    pub(crate) checked: u32,
    pub(crate) in_place: u32,
    pub(crate) signature: [u64; 2],
}

/// `CollectiveDirectCall`.
#[derive(Debug, Clone, Copy, KernelParam)]
#[repr(C)]
pub(crate) struct CollectiveDirectCall {
    pub(crate) call: CollectiveCall,
    pub(crate) places: [CollectivePlace; MAX_RANKS],
    /// The address of a [`Reach`].
    pub(crate) reach: DevicePtr,
}

/// `CollectivePlace`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, KernelParam)]
#[repr(C)]
pub(crate) struct CollectivePlace {
    pub(crate) segment: u64,
    pub(crate) offset: u64,
}

impl CollectivePlace {
    pub(crate) const NONE: Self = Self { segment: 0, offset: 0 };
}

/// `CollectiveMappedSegments`.
#[derive(Debug, Clone, Copy, KernelParam)]
#[repr(C)]
pub(crate) struct MappedSegments {
    pub(crate) at: [DevicePtr; MAX_RANKS],
    pub(crate) bytes: [u64; MAX_RANKS],
}

/// `CollectiveReach`.
#[derive(Debug, Clone, Copy, KernelParam)]
#[repr(C)]
pub(crate) struct Reach {
    pub(crate) mapped: [MappedSegments; SEGMENTS],
    pub(crate) ready: [u64; SEGMENTS],
    pub(crate) expects: [u64; MAX_RANKS],
}

/// `CollectivePart`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, KernelParam)]
#[repr(C)]
pub(crate) struct Part {
    pub(crate) send: DevicePtr,
    pub(crate) recv: DevicePtr,
    pub(crate) bytes: u32,
    pub(crate) before: u32,
    pub(crate) to: u32,
    pub(crate) reserved: u32,
}

impl Part {
    pub(crate) const NONE: Self =
        Self { send: DevicePtr::NULL, recv: DevicePtr::NULL, bytes: 0, before: 0, to: TO_ALL, reserved: 0 };
}

/// `CollectiveGroup`.
#[derive(Debug, Clone, Copy, KernelParam)]
#[repr(C)]
pub(crate) struct CollectiveGroup {
    pub(crate) call: CollectiveCall,
    pub(crate) parts: [Part; PARTS],
    pub(crate) count: u64,
}

/// `CollectiveMove`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, KernelParam)]
#[repr(C)]
pub(crate) struct Move {
    pub(crate) send: DevicePtr,
    pub(crate) recv: DevicePtr,
    pub(crate) send_bytes: u32,
    pub(crate) recv_bytes: u32,
}

impl Move {
    pub(crate) const NONE: Self =
        Self { send: DevicePtr::NULL, recv: DevicePtr::NULL, send_bytes: 0, recv_bytes: 0 };
}

/// `CollectiveMoves`.
#[derive(Debug, Clone, Copy, KernelParam)]
#[repr(C)]
pub(crate) struct CollectiveMoves {
    pub(crate) call: CollectiveCall,
    pub(crate) moves: [Move; MOVES],
    pub(crate) ends: [u32; MOVE_CALLS],
    pub(crate) count: u32,
    pub(crate) pairs: u32,
    pub(crate) uneven: u32,
    pub(crate) reserved: u32,
}

/// `CollectiveOutput`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, KernelParam)]
#[repr(C)]
pub(crate) struct Output {
    pub(crate) memory: DevicePtr,
    pub(crate) vector_bytes: u32,
    pub(crate) at: u32,
}

impl Output {
    pub(crate) const NONE: Self = Self { memory: DevicePtr::NULL, vector_bytes: 0, at: Self::NOT_SENT };
    /// `at` of what stays on its rank.
    pub(crate) const NOT_SENT: u32 = u32::MAX;
}

/// `CollectiveRows`.
#[derive(Debug, Clone, Copy, KernelParam)]
#[repr(C)]
pub(crate) struct CollectiveRows {
    pub(crate) call: CollectiveCall,
    pub(crate) send: DevicePtr,
    pub(crate) rows: u64,
    pub(crate) most: u64,
    pub(crate) outputs: [Output; OUTPUTS],
    pub(crate) vectors: u32,
    pub(crate) result_bytes: u32,
    pub(crate) two_steps: u32,
    /// [`RowsProtocol`].
    pub(crate) protocol: u32,
}

/// `CollectiveRowsProtocol`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RowsProtocol {
    Simple,
    Ll16,
    Ll128,
}

/// `CollectiveMessage`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, KernelParam)]
#[repr(C)]
pub(crate) struct Message {
    pub(crate) memory: DevicePtr,
    pub(crate) bytes: u64,
}

impl Message {
    pub(crate) const NONE: Self = Self { memory: DevicePtr::NULL, bytes: 0 };
}

/// `CollectiveRings`.
#[derive(Debug, Clone, Copy, KernelParam)]
#[repr(C)]
pub(crate) struct CollectiveRings {
    pub(crate) counts: DevicePtr,
    pub(crate) signals: u64,
    pub(crate) places: u64,
    pub(crate) chunk: u64,
    pub(crate) lanes: u32,
    pub(crate) reserved: u32,
}

/// `CollectiveSends`.
#[derive(Debug, Clone, Copy, KernelParam)]
#[repr(C)]
pub(crate) struct CollectiveSends {
    pub(crate) messages: [[[Message; MESSAGES]; 2]; MAX_RANKS],
    pub(crate) rings: CollectiveRings,
}

/// `CollectiveManySends`.
#[derive(Debug, Clone, Copy, KernelParam)]
#[repr(C)]
pub(crate) struct CollectiveManySends {
    pub(crate) messages: [Message; MANY_MESSAGES],
    pub(crate) ends: [u32; 2 * MAX_RANKS],
    pub(crate) rings: CollectiveRings,
}

/// `AcrossTransfer`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, KernelParam)]
#[repr(C)]
pub(crate) struct Transfer {
    pub(crate) send: DevicePtr,
    pub(crate) recv: DevicePtr,
    pub(crate) send_bytes: u64,
    pub(crate) recv_bytes: u64,
    pub(crate) channel: u32,
    pub(crate) ring: u32,
    pub(crate) their_ring: u32,
    pub(crate) chunk: u32,
}

impl Transfer {
    pub(crate) const NONE: Self = Self {
        send: DevicePtr::NULL,
        recv: DevicePtr::NULL,
        send_bytes: 0,
        recv_bytes: 0,
        channel: u32::MAX,
        ring: 0,
        their_ring: 0,
        chunk: 16,
    };
}

/// `CollectiveAcross`.
#[derive(Debug, Clone, Copy, KernelParam)]
#[repr(C)]
pub(crate) struct CollectiveAcross {
    pub(crate) transfers: [Transfer; MAX_RANKS_OF_NODES],
    pub(crate) channels: DevicePtr,
    pub(crate) counts: DevicePtr,
    pub(crate) memory: DevicePtr,
    pub(crate) inbox: u64,
    pub(crate) outbox: u64,
    pub(crate) place: u64,
    pub(crate) most: u64,
    pub(crate) count: u32,
    pub(crate) lanes: u32,
    pub(crate) own: u32,
    pub(crate) data_type: u32,
    pub(crate) op: u32,
    pub(crate) divisor: u32,
    pub(crate) scale: u64,
    pub(crate) scaled: u32,
    pub(crate) messages: u32,
    pub(crate) epochs: DevicePtr,
    pub(crate) found: DevicePtr,
}
