//! The parameters of kernels have the same layout in Rust as a C++ compiler gives it from the headers.

#[allow(dead_code, reason = "only the layout is looked at")]
#[path = "../src/handle.rs"]
mod handle;

use handle::{
    ACROSS_HEAD, ACROSS_RING, BY_MEMORY, CollectiveAcross, CollectiveCall, CollectiveDirectCall,
    CollectiveGroup, CollectiveHandle, CollectiveManySends, CollectiveMoves, CollectivePlace,
    CollectiveRings, CollectiveRows, CollectiveSends, LENGTHS, LINE, MANY_MESSAGES, MAX_RANKS,
    MAX_RANKS_OF_NODES, MESSAGES, MOVE_CALLS, MOVES, MappedSegments, Message, Move, NO_PLACE, OUTPUTS,
    OVERLAP, Output, PARTS, Part, RING, Reach, RowsProtocol, SEGMENTS, STEP_RING, Segment, TO_ALL, Transfer,
    VECTORS, WORDS_BEFORE,
};
use mscclpp_test_support::{
    layout::{self, Fact, fact},
    layouts,
};

fn main() {
    layout::main(
        mscclpp_kernels::HEADERS,
        &[
            ("collective_device.hpp", facts),
            ("collective_moves_device.hpp", facts_of_moves),
            ("collective_nodes_device.hpp", facts_of_nodes),
        ],
    );
}

fn facts() -> Vec<Fact> {
    let mut facts = layouts! {
        CollectiveHandle, "CollectiveHandle": "scratch" scratch, "status" status, "epochs" epochs,
            "rank" rank, "ranks" ranks, "maxBlocks" max_blocks, "amongNodes" among_nodes, "mismatch" mismatch,
            "begun" parts.begun, "checks" parts.checks, "signals" parts.signals, "ll16" parts.ll16,
            "ll16Bytes" parts.ll16_bytes, "ll128" parts.ll128, "ll128Bytes" parts.ll128_bytes,
            "chunks" parts.chunks, "chunkBytes" parts.chunk_bytes;
        CollectiveCall, "CollectiveCall": "segments" segments, "mostBytes" most_bytes, "chunk" chunk,
            "type" data_type, "op" op, "scale" scale, "scaled" scaled, "oneWay" one_way, "checked" checked,
            "inPlace" in_place, "signature" signature;
        CollectiveDirectCall, "CollectiveDirectCall": "call" call, "places" places, "reach" reach;
        CollectivePlace, "CollectivePlace": "segment" segment, "offset" offset;
        MappedSegments, "CollectiveMappedSegments": "at" at, "bytes" bytes;
        Reach, "CollectiveReach": "mapped" mapped, "ready" ready, "expects" expects;
        CollectiveGroup, "CollectiveGroup": "call" call, "parts" parts, "count" count;
        Part, "CollectivePart": "send" send, "recv" recv, "bytes" bytes, "before" before, "to" to;
        CollectiveRings, "CollectiveRings": "counts" counts, "signals" signals, "places" places,
            "chunk" chunk, "lanes" lanes;
        CollectiveSends, "CollectiveSends": "messages" messages, "rings" rings;
        CollectiveManySends, "CollectiveManySends": "messages" messages, "ends" ends, "rings" rings;
        CollectiveRows, "CollectiveRows": "call" call, "send" send, "rows" rows, "most" most,
            "outputs" outputs, "vectors" vectors, "resultBytes" result_bytes, "twoSteps" two_steps,
            "protocol" protocol;
        Output, "CollectiveOutput": "memory" memory, "vectorBytes" vector_bytes, "at" at;
        Segment, "CollectiveSegment": "send" send, "recv" recv, "sendBytes" send_bytes,
            "recvBytes" recv_bytes;
        Message, "CollectiveMessage": "memory" memory, "bytes" bytes;
    };
    facts.extend([
        fact("ranks", "mscclpp::CollectiveMaxRanks", MAX_RANKS),
        fact("chunks", "mscclpp::CollectiveChunks", RING as usize),
        fact("chunks of two steps", "mscclpp::CollectiveStepChunks", STEP_RING as usize),
        fact("line", "mscclpp::CollectiveLine", LINE as usize),
        fact("words before the epochs", "-mscclpp::CollectiveGaveUp", WORDS_BEFORE as usize),
        fact("overlap", "mscclpp::CollectiveOverlap", OVERLAP as usize),
        fact("factor in memory", "mscclpp::CollectiveScaledByMemory", BY_MEMORY as usize),
        fact("lengths", "mscclpp::CollectiveLengths", LENGTHS as usize),
        fact("rows by Simple", "mscclpp::RowsBySimple", RowsProtocol::Simple as usize),
        fact("rows by LL16", "mscclpp::RowsByLl16", RowsProtocol::Ll16 as usize),
        fact("rows by LL128", "mscclpp::RowsByLl128", RowsProtocol::Ll128 as usize),
        fact("no place", "mscclpp::CollectiveNoPlace", NO_PLACE as usize),
        fact("segments", "mscclpp::CollectiveMaxSegments", SEGMENTS),
        fact("parts", "mscclpp::CollectiveMaxParts", PARTS),
        fact("to all", "mscclpp::CollectiveToAll", TO_ALL as usize),
        fact("outputs", "mscclpp::CollectiveMaxOutputs", OUTPUTS),
        fact("vectors", "mscclpp::CollectiveMaxVectors", VECTORS as usize),
        fact("messages", "mscclpp::MessagesPerPeer", MESSAGES),
        fact("many messages", "mscclpp::ManyMessages", MANY_MESSAGES),
    ]);
    facts
}

fn facts_of_moves() -> Vec<Fact> {
    let mut facts = layouts! {
        CollectiveMoves, "CollectiveMoves": "moves" moves, "ends" ends, "count" count, "pairs" pairs, "uneven" uneven;
        Move, "CollectiveMove": "recv" recv, "sendBytes" send_bytes, "recvBytes" recv_bytes;
    };
    facts.extend([
        fact("moves", "mscclpp::CollectiveMaxMoves", MOVES),
        fact("calls that move", "mscclpp::CollectiveMaxMoveCalls", MOVE_CALLS),
    ]);
    facts
}

fn facts_of_nodes() -> Vec<Fact> {
    let mut facts = layouts! {
        CollectiveAcross, "CollectiveAcross": "transfers" transfers, "channels" channels, "counts" counts,
            "memory" memory, "inbox" inbox, "outbox" outbox, "place" place, "most" most, "count" count,
            "lanes" lanes, "own" own, "type" data_type, "op" op, "divisor" divisor, "scale" scale,
            "scaled" scaled, "messages" messages, "epochs" epochs, "found" found;
        Transfer, "AcrossTransfer": "send" send, "recv" recv, "sendBytes" send_bytes, "recvBytes" recv_bytes,
            "channel" channel, "ring" ring, "theirRing" their_ring, "chunk" chunk;
    };
    facts.extend([
        fact("ranks", "mscclpp::AcrossTransfers", MAX_RANKS_OF_NODES),
        fact("chunks", "mscclpp::AcrossChunks", ACROSS_RING as usize),
        fact("head", "mscclpp::AcrossHead", ACROSS_HEAD as usize),
    ]);
    facts
}
