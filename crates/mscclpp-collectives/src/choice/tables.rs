//! Tables of what was measured: which protocol, with how many blocks and threads, was fastest up to a size. `mscclpp-bench tune`
//! prints such tables. What no table is for is predicted: see the module `model`.

use super::selector::{Devices, Interconnect, Protocol, Selection, Shape};

/// The selection up to so many bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) up_to: u64,
    pub(crate) selection: Selection,
}

const fn one_step(up_to: u64, protocol: Protocol, blocks: u32, threads: u32) -> Row {
    Row { up_to, selection: Selection { protocol, two_steps: false, blocks, threads } }
}

const fn two_steps(up_to: u64, protocol: Protocol, blocks: u32, threads: u32) -> Row {
    Row { up_to, selection: Selection { protocol, two_steps: true, blocks, threads } }
}

/// For one kind of devices, one link and one number of ranks.
pub(crate) struct Table {
    /// The rows for `all_reduce`, by the size of the message.
    all_reduce: &'static [Row],
    /// The rows for exchanges that reduce, by what a rank sends to another.
    reduce_scatter: &'static [Row],
    /// The rows for exchanges that move, by what a rank sends to another.
    exchange: &'static [Row],
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The table of two GPUs. Rows of 512 threads are for a communicator that has the device for itself; where two share it, these
/// blocks have 256.
const TWO_OF_9_0_OVER_NVLINK: Table = Table {
    all_reduce: &[
        one_step(2 * KIB, Protocol::Ll16, 1, 256),
        one_step(8 * KIB, Protocol::Ll16, 4, 256),
        one_step(16 * KIB, Protocol::Ll16, 8, 256),
        one_step(32 * KIB, Protocol::Ll16, 16, 256),
        one_step(64 * KIB, Protocol::Ll16, 64, 128),
        one_step(128 * KIB, Protocol::Ll128, 64, 256),
        one_step(256 * KIB, Protocol::Ll128, 128, 256),
        one_step(16 * MIB, Protocol::Ll128, 256, 512),
        one_step(u64::MAX, Protocol::Simple, 256, 256),
    ],
    reduce_scatter: EXCHANGE_OF_TWO_OF_9_0_OVER_NVLINK,
    exchange: EXCHANGE_OF_TWO_OF_9_0_OVER_NVLINK,
};

const EXCHANGE_OF_TWO_OF_9_0_OVER_NVLINK: &[Row] = &[
    one_step(2 * KIB, Protocol::Ll16, 1, 256),
    one_step(8 * KIB, Protocol::Ll16, 8, 256),
    one_step(32 * KIB, Protocol::Ll16, 16, 256),
    one_step(64 * KIB, Protocol::Ll16, 32, 256),
    one_step(128 * KIB, Protocol::Ll128, 64, 256),
    one_step(256 * KIB, Protocol::Ll128, 128, 256),
    one_step(16 * MIB, Protocol::Ll128, 256, 512),
    one_step(u64::MAX, Protocol::Simple, 256, 256),
];

/// The table of four GPUs, measured with the scratch and the room on the device that calls have if nothing else is asked for.
const FOUR_OF_9_0_OVER_NVLINK: Table = Table {
    all_reduce: &[
        one_step(2 * KIB, Protocol::Ll16, 1, 128),
        one_step(8 * KIB, Protocol::Ll16, 4, 128),
        one_step(32 * KIB, Protocol::Ll16, 16, 128),
        one_step(64 * KIB, Protocol::Ll16, 16, 512),
        one_step(128 * KIB, Protocol::Ll128, 64, 256),
        one_step(384 * KIB, Protocol::Ll128, 128, 256),
        two_steps(2 * MIB, Protocol::Ll128, 128, 256),
        two_steps(8 * MIB, Protocol::Ll128, 128, 512),
        two_steps(32 * MIB, Protocol::Simple, 256, 256),
        two_steps(u64::MAX, Protocol::Simple, 128, 512),
    ],
    reduce_scatter: REDUCE_SCATTER_OF_FOUR_OF_9_0_OVER_NVLINK,
    exchange: EXCHANGE_OF_FOUR_OF_9_0_OVER_NVLINK,
};

const REDUCE_SCATTER_OF_FOUR_OF_9_0_OVER_NVLINK: &[Row] = &exchange_of_four(128, 512);
const EXCHANGE_OF_FOUR_OF_9_0_OVER_NVLINK: &[Row] = &exchange_of_four(256, 256);

/// The rows of four GPUs for exchanges, with the blocks and threads of Simple.
const fn exchange_of_four(blocks: u32, threads: u32) -> [Row; 8] {
    [
        one_step(2 * KIB, Protocol::Ll16, 1, 256),
        one_step(8 * KIB, Protocol::Ll16, 4, 128),
        one_step(32 * KIB, Protocol::Ll16, 16, 128),
        one_step(128 * KIB, Protocol::Ll16, 32, 256),
        one_step(512 * KIB, Protocol::Ll128, 128, 256),
        one_step(2 * MIB, Protocol::Ll128, 128, 512),
        one_step(5 * MIB, Protocol::Ll128, 128, 256),
        one_step(u64::MAX, Protocol::Simple, blocks, threads),
    ]
}

/// Simulated threads take turns on few cores; what they do together, as for LL128, takes them longest.
const SIMULATED: &[Row] = &[
    one_step(KIB, Protocol::Ll16, 1, 32),
    one_step(8 * KIB, Protocol::Ll16, 2, 64),
    one_step(u64::MAX, Protocol::Simple, 2, 64),
];

/// For any number of simulated ranks. It is a rule, and was not measured.
pub(crate) const OF_SIM: Table =
    Table { all_reduce: SIMULATED, reduce_scatter: SIMULATED, exchange: SIMULATED };

/// The table that was measured for these devices and so many ranks, if there is one.
pub(crate) fn measured(devices: Devices, ranks: usize) -> Option<&'static Table> {
    match (devices, ranks) {
        (Devices::Gpus { capability: Some((9, 0)), interconnect: Interconnect::NvLink }, 2) => {
            Some(&TWO_OF_9_0_OVER_NVLINK)
        }
        (Devices::Gpus { capability: Some((9, 0)), interconnect: Interconnect::NvLink }, 4) => {
            Some(&FOUR_OF_9_0_OVER_NVLINK)
        }
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
        *rows.iter().find(|row| bytes <= row.up_to).unwrap_or(&rows[rows.len() - 1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_a_row_for_every_size() {
        for table in [&TWO_OF_9_0_OVER_NVLINK, &FOUR_OF_9_0_OVER_NVLINK, &OF_SIM] {
            for rows in [table.all_reduce, table.reduce_scatter, table.exchange] {
                assert!(rows.is_sorted_by(|a, b| a.up_to < b.up_to));
                assert_eq!(rows[rows.len() - 1].up_to, u64::MAX);
                let is_right = |it: &Selection| {
                    it.blocks > 0 && (32..=1024).contains(&it.threads) && it.threads.is_multiple_of(32)
                };
                assert!(rows.iter().all(|row| is_right(&row.selection)));
            }
            for shape in [Shape::AllReduce, Shape::Exchange, Shape::Rooted] {
                assert_eq!(table.row(shape, false, 0).selection.protocol, Protocol::Ll16);
                assert_eq!(table.row(shape, true, u64::MAX).selection.protocol, Protocol::Simple);
            }
        }
        let row = TWO_OF_9_0_OVER_NVLINK.row(Shape::AllReduce, true, 2 * KIB + 1);
        assert_eq!(row, one_step(8 * KIB, Protocol::Ll16, 4, 256));
    }
}
