//! The parameters of the kernels between nodes have the same layout in Rust as a C++ compiler gives it from the header.

#[allow(dead_code, reason = "only the layout is looked at")]
#[path = "../src/handle.rs"]
mod handle;

use std::mem::offset_of;

use handle::{ACROSS_RING, CollectiveAcross, MAX_RANKS_OF_NODES, Transfer};
use mscclpp_test_support::layout::{self, Fact, fact, offset, sizes};

fn main() {
    layout::main(&mscclpp_kernels::HEADERS, "collective_nodes_device.hpp", facts);
}

fn facts() -> Vec<Fact> {
    let mut facts: Vec<Fact> = sizes::<CollectiveAcross>("CollectiveAcross")
        .into_iter()
        .chain(sizes::<Transfer>("AcrossTransfer"))
        .collect();
    macro_rules! offsets {
        ($type:ident, $cpp:literal: $($theirs:literal $ours:ident),*) => {
            facts.extend([$(offset($cpp, $theirs, offset_of!($type, $ours))),*]);
        };
    }
    offsets!(CollectiveAcross, "CollectiveAcross": "transfers" transfers, "channels" channels, "counts" counts,
        "memory" memory, "inbox" inbox, "outbox" outbox, "place" place, "most" most, "count" count, "lanes" lanes,
        "own" own, "type" data_type, "op" op, "divisor" divisor, "scale" scale, "scaled" scaled, "epochs" epochs);
    offsets!(Transfer, "AcrossTransfer": "send" send, "recv" recv, "sendBytes" send_bytes, "recvBytes" recv_bytes,
        "channel" channel, "ring" ring, "theirRing" their_ring, "chunk" chunk);
    facts.extend([
        fact("ranks", "mscclpp::AcrossTransfers", MAX_RANKS_OF_NODES),
        fact("chunks", "mscclpp::AcrossChunks", ACROSS_RING as usize),
    ]);
    facts
}
