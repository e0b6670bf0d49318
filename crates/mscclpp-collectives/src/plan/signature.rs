//! The signature of a call, by which ranks see whether they make the same one.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::{DataType, Kind, ReduceOp, Request};

/// A call in two words: kind, type, operation and root, and how many numbers. Only ranks of one build compare them.
pub(crate) fn signature(request: &Request<'_>) -> [u64; 2] {
    let (kind, op, root) = match request.kind {
        Kind::AllReduce(op) => (1, Some(op), 0),
        Kind::AllGather => (2, None, 0),
        Kind::AllGatherV(_) => (3, None, 0),
        Kind::ReduceScatter(op) => (4, Some(op), 0),
        Kind::AllToAll => (5, None, 0),
        Kind::AllToAllV { .. } => (6, None, 0),
        Kind::Broadcast { root } => (7, None, root),
        Kind::Reduce { root, op } => (8, Some(op), root),
        Kind::Gather { root } => (9, None, root),
        Kind::Scatter { root } => (10, None, root),
        Kind::Barrier => (11, None, 0),
        // Of two ranks alone: not compared.
        Kind::Send { .. } | Kind::Recv { .. } => (0, None, 0),
    };
    let op = op.map_or(0, |op| 1 + op_number(op));
    let count = match request.kind {
        // The same counts on all ranks, or another number.
        Kind::AllGatherV(counts) => {
            let mut hasher = DefaultHasher::new();
            counts.hash(&mut hasher);
            hasher.finish()
        }
        Kind::AllToAllV { .. } => 0,
        _ => request.count,
    };
    [kind | op << 8 | u64::from(request.data_type as u32) << 16 | (root as u64) << 32, count]
}

/// An `all_reduce` of rows, in the same way.
pub(crate) fn rows_signature(rows: u64, columns: u64, data_type: DataType) -> [u64; 2] {
    [ROWS | u64::from(data_type as u32) << 16 | columns << 32, rows]
}

const ROWS: u64 = 12;

/// A signature in words.
pub(crate) fn described([what, count]: [u64; 2]) -> String {
    let byte = |at: u64| (what >> at & 0xff) as usize;
    let name = KINDS.get(byte(0)).copied().unwrap_or("something else");
    let data_type =
        DataType::ALL.get(byte(16)).map_or_else(|| "?".to_owned(), |data_type| format!("{data_type:?}"));
    let op =
        byte(8).checked_sub(1).and_then(|op| OPS.get(op)).map_or_else(String::new, |op| format!(" ({op})"));
    let root = match byte(0) {
        7..=10 => format!(", root {}", what >> 32),
        _ => String::new(),
    };
    match byte(0) {
        3 => format!("{name} of {data_type}, with counts of its own"),
        12 => format!("{name} of {count} rows of {} {data_type}", what >> 32),
        6 | 11 => format!("{name} of {data_type}"),
        _ => format!("{name}{op} of {count} {data_type}{root}"),
    }
}

fn op_number(op: ReduceOp) -> u64 {
    match op {
        ReduceOp::PreMulSum(_) | ReduceOp::PreMulSumAt(_) => 5,
        op => op.number().into(),
    }
}

const OPS: [&str; 6] = ["Sum", "Prod", "Max", "Min", "Avg", "PreMulSum"];
const KINDS: [&str; 13] = [
    "messages",
    "all_reduce",
    "all_gather",
    "all_gather_v",
    "reduce_scatter",
    "all_to_all",
    "all_to_all_v",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "barrier",
    "all_reduce_rows",
];

#[cfg(test)]
mod tests {
    use mscclpp::DevicePtr;

    use super::*;

    #[test]
    fn calls_are_described_by_what_makes_them_different() {
        let of = |kind| {
            let request = Request {
                kind,
                send: DevicePtr(8),
                recv: DevicePtr(16),
                count: 100,
                data_type: DataType::F16,
            };
            described(signature(&request))
        };
        assert_eq!(of(Kind::AllReduce(ReduceOp::PreMulSum(2.0))), "all_reduce (PreMulSum) of 100 F16");
        assert_eq!(of(Kind::Broadcast { root: 3 }), "broadcast of 100 F16, root 3");
        assert_eq!(of(Kind::Reduce { root: 1, op: ReduceOp::Max }), "reduce (Max) of 100 F16, root 1");
        assert_eq!(of(Kind::AllToAll), "all_to_all of 100 F16");
        assert_eq!(described(rows_signature(7, 64, DataType::Bf16)), "all_reduce_rows of 7 rows of 64 Bf16");
        assert_eq!(described([250, 7]), "something else of 7 I8");
    }
}
