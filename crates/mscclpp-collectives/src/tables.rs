//! What was measured: which way, with how many blocks and threads, was fastest up to a size. `mscclpp-bench tune` prints such
//! tables. What no table is for is predicted: see [`model`](crate::model).

use crate::select::{Devices, Link, Shape, Way};

/// Up to so many bytes: the way, blocks, threads.
pub(crate) type Row = (u64, Way, u32, u32);

/// For one kind of devices, one link and one number of ranks.
pub(crate) struct Table {
    /// By the message.
    all_reduce: &'static [Row],
    /// By what a rank sends to another, for exchanges that reduce.
    reduce_scatter: &'static [Row],
    /// The same, for exchanges that move.
    exchange: &'static [Row],
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Two H200, 2026-11-23. Rows of 512 threads are for a communicator that has the device for itself; where two share it, these
/// blocks have 256.
const TWO_OF_9_0_OVER_NVLINK: Table = Table {
    all_reduce: &[
        (2 * KIB, Way::Packets, 1, 256),
        (8 * KIB, Way::Packets, 4, 256),
        (16 * KIB, Way::Packets, 8, 256),
        (32 * KIB, Way::Packets, 16, 256),
        (64 * KIB, Way::Packets, 64, 128),
        (128 * KIB, Way::Lines, 64, 256),
        (256 * KIB, Way::Lines, 128, 256),
        (16 * MIB, Way::Lines, 256, 512),
        (u64::MAX, Way::Pieces, 256, 256),
    ],
    reduce_scatter: EXCHANGE_OF_TWO_OF_9_0_OVER_NVLINK,
    exchange: EXCHANGE_OF_TWO_OF_9_0_OVER_NVLINK,
};

const EXCHANGE_OF_TWO_OF_9_0_OVER_NVLINK: &[Row] = &[
    (2 * KIB, Way::Packets, 1, 256),
    (8 * KIB, Way::Packets, 8, 256),
    (32 * KIB, Way::Packets, 16, 256),
    (64 * KIB, Way::Packets, 32, 256),
    (128 * KIB, Way::Lines, 64, 256),
    (256 * KIB, Way::Lines, 128, 256),
    (8 * MIB, Way::Lines, 256, 512),
    (u64::MAX, Way::Pieces, 256, 256),
];

/// Simulated threads take turns on few cores; what they do together, as for lines, takes them longest.
const SIMULATED: &[Row] =
    &[(KIB, Way::Packets, 1, 32), (8 * KIB, Way::Packets, 2, 64), (u64::MAX, Way::Pieces, 2, 64)];

/// For any number of simulated ranks. It is a rule, and was not measured.
pub(crate) const OF_HOST: Table =
    Table { all_reduce: SIMULATED, reduce_scatter: SIMULATED, exchange: SIMULATED };

/// What was measured for these, if anything was.
pub(crate) fn measured(devices: Devices, ranks: usize) -> Option<&'static Table> {
    match (devices, ranks) {
        (Devices::Gpus { capability: Some((9, 0)), link: Link::NvLink }, 2) => Some(&TWO_OF_9_0_OVER_NVLINK),
        _ => None,
    }
}

impl Table {
    /// The row for so many bytes.
    pub(crate) fn row(&self, shape: Shape, reduces: bool, bytes: u64) -> Row {
        let rows = match shape {
            Shape::AllReduce => self.all_reduce,
            _ if reduces => self.reduce_scatter,
            _ => self.exchange,
        };
        *rows.iter().find(|row| bytes <= row.0).unwrap_or(&rows[rows.len() - 1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_a_row_for_every_size() {
        for table in [&TWO_OF_9_0_OVER_NVLINK, &OF_HOST] {
            for rows in [table.all_reduce, table.reduce_scatter, table.exchange] {
                assert!(rows.is_sorted_by(|a, b| a.0 < b.0));
                assert_eq!(rows[rows.len() - 1].0, u64::MAX);
                assert!(rows.iter().all(|row| row.2 > 0 && (32..=1024).contains(&row.3) && row.3 % 32 == 0));
            }
            for shape in [Shape::AllReduce, Shape::Exchange, Shape::Rooted] {
                assert_eq!(table.row(shape, false, 0).1, Way::Packets);
                assert_eq!(table.row(shape, true, u64::MAX).1, Way::Pieces);
            }
        }
        let row = TWO_OF_9_0_OVER_NVLINK.row(Shape::AllReduce, true, 2 * KIB + 1);
        assert_eq!(row, (8 * KIB, Way::Packets, 4, 256));
    }
}
