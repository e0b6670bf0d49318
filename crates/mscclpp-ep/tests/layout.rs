//! The parameters of kernels have the same layout in Rust as a C++ compiler gives it from the headers.

#[allow(dead_code, reason = "only the layout is looked at")]
#[path = "../src/handle.rs"]
mod handle;

use handle::{
    AS_IT_IS, BYTES_OF_LINES, DROPPED, E4M3, E4M3_UE8M0, EpChoices, EpCombine, EpCounts, EpDispatch,
    EpHandle, FIRST_EPOCH, LINE, LINE_KINDS, LOST_CHOICES, MARK_WORDS, MAX_RANKS, MAX_TOP_K, PART_BYTES,
    PARTS, PROBLEMS, REST_MASKED, REST_ZERO, ROW_WARPS, SAID_ALL, SEGMENTS, TOKENS_AT_ONCE, VECTORS_OF_LINES,
};
use mscclpp_test_support::{
    layout::{self, Fact, fact},
    layouts,
};

fn main() {
    layout::main(
        mscclpp_kernels::HEADERS,
        &[("ep_device.hpp", facts), ("ep_choices_device.hpp", facts_of_choices)],
    );
}

fn facts_of_choices() -> Vec<Fact> {
    layouts! {
        EpChoices, "EpChoices": "ids" ids, "counts" counts, "isInRank" is_in_rank, "tokens" tokens,
            "topK" top_k, "idBytes" id_bytes, "nExperts" n_experts, "ranks" ranks, "local" local;
    }
}

fn facts() -> Vec<Fact> {
    let mut facts = layouts! {
        EpHandle, "EpHandle": "scratch" scratch, "status" status, "words" words, "experts" experts,
            "problems" problems, "rank" rank, "ranks" ranks, "maxBlocks" max_blocks, "nExperts" n_experts,
            "topK" top_k, "capacity" capacity, "local" local, "mostLocal" most_local, "parts" parts,
            "patience" patience, "hidden" hidden, "quantisation" quantisation, "sourceType" source_type,
            "resultBytes" result_bytes, "resultStride" result_stride, "topKInverse" top_k_inverse,
            "rowParts" row_parts, "segmentBytes" segment_bytes,
            "segmentStride" segment_stride, "packetStride" packet_stride, "segments" places.segments,
            "packets" places.packets, "lines" places.lines, "headers" places.headers, "routes" places.routes,
            "results" places.results, "choiceResults" places.choice_results,
            "weightPackets" places.weight_packets, "rowWords" places.row_words,
            "microBatchBytes" places.micro_batch_bytes, "otherBytes" places.other_bytes,
            "tableOffsets" places.table_offsets, "tableRows" places.table_rows,
            "tableChoices" places.table_choices, "tableWeights" places.table_weights,
            "tableReceived" places.table_received;
        EpCounts, "EpCounts": "epoch" epoch, "tokens" tokens, "layout" layout, "sent" sent,
            "received" received, "theirs" theirs;
        EpDispatch, "EpDispatch": "ids" ids, "weights" weights, "rows" rows, "tables" tables, "out" out,
            "outIds" out_ids, "outWeights" out_weights, "outSources" out_sources, "addedCounts" added_counts,
            "addedWaits" added_waits, "outRows" out_rows, "columnRows" column_rows, "tokens" tokens,
            "idBytes" id_bytes, "layout" layout, "alignment" alignment, "microBatch" micro_batch,
            "again" again, "refused" refused, "rest" rest;
        EpCombine, "EpCombine": "rows" rows, "tables" tables, "weights" weights, "bias" bias, "out" out,
            "rowWeights" row_weights, "outWeights" out_weights, "addedWaits" added_waits, "outRows" out_rows,
            "tokens" tokens, "microBatch" micro_batch, "exact" exact, "oneRow" one_row, "late" late,
            "layout" layout;
    };
    facts.extend([
        fact("ranks", "mscclpp::EpMaxRanks", MAX_RANKS),
        fact("parts", "mscclpp::EpMaxParts", PARTS),
        fact("segments", "mscclpp::EpMaxSegments", SEGMENTS),
        fact("choices", "mscclpp::EpMaxTopK", MAX_TOP_K as usize),
        fact("line", "mscclpp::EpLine", LINE as usize),
        fact("bytes of parts", "mscclpp::EpPartBytes", PART_BYTES as usize),
        fact("bytes of lines", "mscclpp::EpBytesOfLines", BYTES_OF_LINES as usize),
        fact("vectors of lines", "mscclpp::EpVectorsOfLines", VECTORS_OF_LINES as usize),
        fact("tokens at once", "mscclpp::EpTokensAtOnce", TOKENS_AT_ONCE as usize),
        fact("words of marks", "mscclpp::EpMarkWords", MARK_WORDS as usize),
        fact("kinds of lines", "mscclpp::EpLineKinds", LINE_KINDS as usize),
        fact("choices that were dropped", "mscclpp::EpDropped", DROPPED as usize),
        fact("choices that were lost", "mscclpp::EpLostChoices", LOST_CHOICES as usize),
        fact("first epoch", "mscclpp::EpFirstEpoch", FIRST_EPOCH as usize),
        fact("warps of a row", "mscclpp::EpRowWarps", ROW_WARPS as usize),
        fact("all waits end", "mscclpp::EpSaidAll", SAID_ALL as usize),
        fact("rows as they are", "mscclpp::EpAsItIs", AS_IT_IS as usize),
        fact("e4m3", "mscclpp::EpE4m3", E4M3 as usize),
        fact("e4m3 with exponents", "mscclpp::EpE4m3Ue8m0", E4M3_UE8M0 as usize),
        fact("zero rows", "mscclpp::EpRestZero", REST_ZERO as usize),
        fact("masked rows", "mscclpp::EpRestMasked", REST_MASKED as usize),
        fact("problems", "mscclpp::EpSaid + 1", PROBLEMS as usize),
    ]);
    facts
}
