//! The results that collectives should give, computed on the host in another way than by the kernels.

use mscclpp_collectives::{DataType, Kind, ReduceOp};
use mscclpp_test_support::f8;

/// A number, as the kernels combine it.
#[derive(Clone, Copy, Debug)]
enum Value {
    Float(f32),
    Double(f64),
    Signed(i64),
    Unsigned(u64),
}

/// The numbers of all ranks, reduced: each is the bytes of as many numbers. `factors` are those of `PreMulSum`.
pub(crate) fn reduced(data_type: DataType, op: ReduceOp, ranks: &[Vec<u8>], factors: &[f64]) -> Vec<u8> {
    reduced_by_nodes(&[(0..ranks.len()).collect()], data_type, op, ranks, factors)
}

/// The same, node by node, and then those of the nodes, in their order.
///
/// An average of f32 and f64 is a sum of numbers that were multiplied by 1/N. Any other is a sum that is divided by N at the end.
pub(crate) fn reduced_by_nodes(
    nodes: &[Vec<usize>],
    data_type: DataType,
    op: ReduceOp,
    ranks: &[Vec<u8>],
    factors: &[f64],
) -> Vec<u8> {
    if op == ReduceOp::Avg && matches!(data_type, DataType::F32 | DataType::F64) {
        let parts = vec![1.0 / ranks.len() as f64; ranks.len()];
        return reduced_by_nodes(nodes, data_type, ReduceOp::PreMulSum(parts[0]), ranks, &parts);
    }
    if nodes.len() == 1 {
        return reduced_for(ranks.len(), data_type, op, ranks, factors);
    }
    let within = if op == ReduceOp::Avg { ReduceOp::Sum } else { op };
    let of_node = |node: &Vec<usize>| {
        let of = node.iter().map(|rank| ranks[*rank].clone()).collect::<Vec<_>>();
        let factors = node.iter().map(|rank| factors[*rank]).collect::<Vec<_>>();
        reduced_for(1, data_type, within, &of, &factors)
    };
    let of_nodes: Vec<_> = nodes.iter().map(of_node).collect();
    let op = if matches!(op, ReduceOp::PreMulSum(_)) { ReduceOp::Sum } else { op };
    reduced_for(ranks.len(), data_type, op, &of_nodes, &vec![1.0; nodes.len()])
}

/// The reduced numbers of `ranks`, averages divided by `divisor`.
fn reduced_for(
    divisor: usize,
    data_type: DataType,
    op: ReduceOp,
    ranks: &[Vec<u8>],
    factors: &[f64],
) -> Vec<u8> {
    // Those of one rank stay as they are.
    if ranks.len() == 1 && !matches!(op, ReduceOp::PreMulSum(_)) {
        return ranks[0].clone();
    }
    let size = data_type.size() as usize;
    let mut result = Vec::with_capacity(ranks[0].len());
    for at in (0..ranks[0].len()).step_by(size) {
        let numbers = ranks.iter().zip(factors).map(|(bytes, factor)| {
            let value = decode(data_type, &bytes[at..at + size]);
            match op {
                ReduceOp::PreMulSum(_) => rounded(data_type, scaled(value, *factor)),
                _ => value,
            }
        });
        let all = numbers.reduce(|a, b| combined(op, a, b)).expect("a rank");
        let all = if op == ReduceOp::Avg { divided(data_type, all, divisor) } else { all };
        encode(data_type, all, &mut result);
    }
    result
}

/// Whether these are the same numbers. One NaN is like another.
pub(crate) fn same(data_type: DataType, a: &[u8], b: &[u8]) -> bool {
    let is_nan = |bytes: &[u8]| match decode(data_type, bytes) {
        Value::Float(value) => value.is_nan(),
        Value::Double(value) => value.is_nan(),
        _ => false,
    };
    let size = data_type.size() as usize;
    a.len() == b.len() && a.chunks(size).zip(b.chunks(size)).all(|(a, b)| a == b || (is_nan(a) && is_nan(b)))
}

fn scaled(value: Value, factor: f64) -> Value {
    match value {
        Value::Float(value) => Value::Float(value * factor as f32),
        Value::Double(value) => Value::Double(value * factor),
        Value::Signed(value) => Value::Signed(value.wrapping_mul(factor as i64)),
        Value::Unsigned(value) => Value::Unsigned(value.wrapping_mul(factor as i64 as u64)),
    }
}

fn combined(op: ReduceOp, a: Value, b: Value) -> Value {
    macro_rules! whole {
        ($kind:ident, $a:expr, $b:expr) => {
            Value::$kind(match op {
                ReduceOp::Prod => $a.wrapping_mul($b),
                ReduceOp::Max => $a.max($b),
                ReduceOp::Min => $a.min($b),
                _ => $a.wrapping_add($b),
            })
        };
    }
    macro_rules! float {
        ($kind:ident, $a:expr, $b:expr) => {
            Value::$kind(match op {
                ReduceOp::Prod => $a * $b,
                ReduceOp::Max if $a.is_nan() || $b.is_nan() => $a + $b,
                ReduceOp::Min if $a.is_nan() || $b.is_nan() => $a + $b,
                // The first of equal ones, such as 0 and -0.
                ReduceOp::Max => {
                    if $b > $a {
                        $b
                    } else {
                        $a
                    }
                }
                ReduceOp::Min => {
                    if $b < $a {
                        $b
                    } else {
                        $a
                    }
                }
                _ => $a + $b,
            })
        };
    }
    match (a, b) {
        (Value::Float(a), Value::Float(b)) => float!(Float, a, b),
        (Value::Double(a), Value::Double(b)) => float!(Double, a, b),
        (Value::Signed(a), Value::Signed(b)) => whole!(Signed, a, b),
        (Value::Unsigned(a), Value::Unsigned(b)) => whole!(Unsigned, a, b),
        _ => unreachable!("numbers of one type"),
    }
}

/// An average of this sum. A whole number has wrapped before, as its type does.
fn divided(data_type: DataType, sum: Value, by: usize) -> Value {
    match (sum, rounded(data_type, sum)) {
        (Value::Float(sum), _) => Value::Float(sum / by as f32),
        (_, Value::Signed(wrapped)) => Value::Signed(wrapped / by as i64),
        (_, Value::Unsigned(wrapped)) => Value::Unsigned(wrapped / by as u64),
        _ => unreachable!("f64 is multiplied first"),
    }
}

fn decode(data_type: DataType, bytes: &[u8]) -> Value {
    macro_rules! number {
        ($type:ty) => {
            <$type>::from_le_bytes(bytes.try_into().expect("the size"))
        };
    }
    match data_type {
        DataType::I8 => Value::Signed(number!(i8).into()),
        DataType::I16 => Value::Signed(number!(i16).into()),
        DataType::I32 => Value::Signed(number!(i32).into()),
        DataType::I64 => Value::Signed(number!(i64)),
        DataType::U8 => Value::Unsigned(number!(u8).into()),
        DataType::U16 => Value::Unsigned(number!(u16).into()),
        DataType::U32 => Value::Unsigned(number!(u32).into()),
        DataType::U64 => Value::Unsigned(number!(u64)),
        DataType::F32 => Value::Float(number!(f32)),
        DataType::F64 => Value::Double(number!(f64)),
        DataType::F16 => Value::Float(half::f16::from_le_bytes(bytes.try_into().expect("2")).to_f32()),
        DataType::Bf16 => Value::Float(half::bf16::from_le_bytes(bytes.try_into().expect("2")).to_f32()),
        DataType::F8E4m3 => Value::Float(f8::value(bytes[0], 3) as f32),
        DataType::F8E5m2 => Value::Float(f8::value(bytes[0], 2) as f32),
        _ => unreachable!("a type that this does not know"),
    }
}

/// The number of this type that is stored for a value.
fn rounded(data_type: DataType, value: Value) -> Value {
    let mut bytes = Vec::with_capacity(8);
    encode(data_type, value, &mut bytes);
    decode(data_type, &bytes)
}

fn encode(data_type: DataType, value: Value, into: &mut Vec<u8>) {
    match (data_type, value) {
        (DataType::F16, Value::Float(value)) => {
            into.extend_from_slice(&half::f16::from_f32(value).to_le_bytes());
        }
        (DataType::Bf16, Value::Float(value)) => {
            into.extend_from_slice(&half::bf16::from_f32(value).to_le_bytes());
        }
        (DataType::F8E4m3, Value::Float(value)) => into.push(f8::nearest(value, 3)),
        (DataType::F8E5m2, Value::Float(value)) => into.push(f8::nearest(value, 2)),
        (_, Value::Float(value)) => into.extend_from_slice(&value.to_le_bytes()),
        (_, Value::Double(value)) => into.extend_from_slice(&value.to_le_bytes()),
        (_, Value::Signed(value)) => {
            into.extend_from_slice(&value.to_le_bytes()[..data_type.size() as usize]);
        }
        (_, Value::Unsigned(value)) => {
            into.extend_from_slice(&value.to_le_bytes()[..data_type.size() as usize]);
        }
    }
}

/// The content of `recv` of rank `rank` after a collective of ranks on these nodes: where, and what. `sent` is what each
/// rank gave, `factors` those of `PreMulSum`.
pub(crate) fn received(
    nodes: &[Vec<usize>],
    kind: &Kind<'_>,
    data_type: DataType,
    sent: &[Vec<u8>],
    factors: &[f64],
    rank: usize,
) -> Vec<u8> {
    let reduced = |op: ReduceOp, of: &[Vec<u8>]| reduced_by_nodes(nodes, data_type, op, of, factors);
    let ranks = sent.len();
    let part = |bytes: &[u8]| {
        let size = bytes.len() / ranks;
        bytes[rank * size..(rank + 1) * size].to_vec()
    };
    match kind {
        Kind::AllReduce(op) => reduced(*op, sent),
        Kind::ReduceScatter(op) => {
            let parts: Vec<_> = sent.iter().map(|bytes| part(bytes)).collect();
            reduced(*op, &parts)
        }
        Kind::AllGather | Kind::AllGatherV(_) => sent.concat(),
        Kind::AllToAll => sent.iter().flat_map(|bytes| part(bytes)).collect(),
        Kind::Broadcast { root } => sent[*root].clone(),
        Kind::Reduce { root, op } if *root == rank => reduced(*op, sent),
        Kind::Gather { root } if *root == rank => sent.concat(),
        Kind::Scatter { root } => part(&sent[*root]),
        _ => Vec::new(),
    }
}
