//! How the library chooses by itself: by what was measured, and where nothing was, by prediction.

use super::{
    model,
    selector::{
        BULK_THREADS, Devices, LANES_OF_BLOCK, Possible, Protocol, Query, Selection, Selector, Shape,
    },
    tables::{OF_SIM, measured},
};

/// The tables of this crate, and where there is none, a prediction.
///
/// There are tables for two and for four GPUs of compute capability 9.0 that NVLink joins. For all others, a model of
/// the link predicts what is fastest. [`Tuned::is_measured`] says which it is.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tuned;

impl Tuned {
    /// Whether the answer to a query was measured on devices like these, by a link like theirs, with as many ranks.
    /// Others are predictions or rules.
    #[must_use]
    pub fn is_measured(query: &Query) -> bool {
        measured(query.devices, query.ranks).is_some()
    }
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

impl Selector for Tuned {
    fn choose(&self, query: &Query) -> Selection {
        if let Shape::Rows(rows) = query.shape {
            return Self::rows(query, rows);
        }
        let Query { bytes, possible, .. } = *query;
        let Selection { mut protocol, mut two_steps, blocks, threads } =
            match measured(query.devices, query.ranks) {
                Some(table) => table.row(query.shape, query.reduces, bytes).selection,
                None if query.devices == Devices::Sim => simulated(query),
                None => return model::choose(query),
            };
        if protocol == Protocol::Ll16 && !possible.ll16 && possible.ll128 {
            protocol = Protocol::Ll128;
        }
        let ll128 = if two_steps { possible.ll128_in_two_steps } else { possible.ll128 };
        if protocol == Protocol::Ll128 && !ll128 {
            if possible.ll16 && !two_steps && bytes <= 256 * KIB {
                protocol = Protocol::Ll16;
            } else {
                protocol = Protocol::Simple;
                // One step would send more.
                two_steps = query.shape == Shape::AllReduce && possible.simple_in_two_steps;
            }
        }
        let few = query.max_blocks <= BULK_BLOCKS;
        if protocol == Protocol::Ll128 && few && query.shape != Shape::AllReduce && bytes > LINES_OF_FEW {
            protocol = Protocol::Simple;
        }
        let protocol = possible.large(protocol, bytes);
        // On GPUs, and in exchanges whose size all ranks know: for these it was measured.
        let is_measured = query.devices != Devices::Sim && query.shape == Shape::Exchange;
        let has_blocks = query.max_blocks >= BLOCKS_BESIDE_OTHERS * LANES_OF_BLOCK;
        let by_bulk = query.overlap && query.ranks == 2 && is_measured && has_blocks;
        if protocol == Protocol::Simple && by_bulk && bytes >= MIN_BESIDE_OTHERS {
            return Selection {
                protocol: Protocol::SimpleByBulk,
                two_steps,
                blocks: BLOCKS_BESIDE_OTHERS,
                threads: 1024,
            };
        }
        if protocol == Protocol::Direct && possible.bulk && is_measured && few && bytes >= BULK_MIN {
            return Selection {
                protocol: Protocol::Bulk,
                two_steps,
                blocks: query.max_blocks,
                threads: BULK_THREADS,
            };
        }
        Selection { protocol, two_steps, blocks, threads }
    }
}

/// The rule for simulated ranks.
fn simulated(query: &Query) -> Selection {
    let Query { bytes, possible, .. } = *query;
    let selection = OF_SIM.row(query.shape, query.reduces, bytes).selection;
    // In one step, the bytes that a rank pushes grow with the number of ranks; in two, they do not.
    let two_steps = query.shape == Shape::AllReduce
        && query.ranks > 2
        && possible.simple_in_two_steps
        && bytes.saturating_mul(query.ranks as u64 - 1) > 256 * KIB;
    let protocol =
        if two_steps && selection.protocol == Protocol::Ll16 { Protocol::Ll128 } else { selection.protocol };
    Selection { protocol, two_steps, ..selection }
}

/// Up to so many blocks, and from so many bytes to a peer on, bulk copies took less time than stores by blocks of 1024 threads.
/// With more blocks or fewer bytes it depends.
const BULK_BLOCKS: u32 = 16;
const BULK_MIN: u64 = 32 * MIB;

/// The most bytes to a peer that go by LL128 in an exchange with up to [`BULK_BLOCKS`] blocks. For larger messages, LL128 was
/// measured to be faster than Simple with more blocks only.
const LINES_OF_FEW: u64 = 8 * MIB;

/// The fewest bytes to the other rank with which a call goes by [`Protocol::SimpleByBulk`] if other kernels run beside it, and
/// its blocks. With fewer of either, a call alone takes much longer than by [`Protocol::Simple`].
const MIN_BESIDE_OTHERS: u64 = 64 * MIB;
const BLOCKS_BESIDE_OTHERS: u32 = 32;

/// From how many bytes to a peer on the copy engines are worth their two barriers, as measured: in place, and if the own part is
/// copied, too.
const COPY_ENGINES_MIN: [u64; 2] = [48 * MIB, 384 * MIB];

impl Possible {
    /// Replaces [`Protocol::Simple`] by [`Protocol::CopyEngine`] or [`Protocol::Direct`] where that is possible.
    pub(crate) fn large(self, protocol: Protocol, bytes: u64) -> Protocol {
        match protocol {
            Protocol::Simple
                if self.copy_engine && bytes >= COPY_ENGINES_MIN[usize::from(!self.in_place)] =>
            {
                Protocol::CopyEngine
            }
            Protocol::Simple if self.direct => Protocol::Direct,
            protocol => protocol,
        }
    }
}

impl Tuned {
    /// Selects a block for each row that a rank sums up, with a thread for each vector, by LL128 while they fit: that was the
    /// fastest in one step of few rows. More rows, and two steps, were not measured.
    fn rows(query: &Query, rows: u64) -> Selection {
        let Query { bytes, possible, .. } = *query;
        let ranks = query.ranks as u64;
        let all = bytes.saturating_mul(ranks - 1);
        let two_steps = ranks > 2 && possible.simple_in_two_steps && all > 256 * KIB;
        let (ll128, ll16, sent) = match two_steps {
            true => (possible.ll128_in_two_steps, possible.ll16_in_two_steps, bytes.saturating_mul(2)),
            false => (possible.ll128, possible.ll16, all),
        };
        let protocol = match (ll128, ll16 && sent <= MIB) {
            (true, _) => Protocol::Ll128,
            (false, true) => Protocol::Ll16,
            (false, false) => Protocol::Simple,
        };
        let threads = match query.devices {
            Devices::Sim => 64,
            Devices::Gpus { .. } => (bytes / rows / 16).next_multiple_of(32).clamp(32, 1024),
        };
        let own = if two_steps { rows.div_ceil(ranks) } else { rows };
        let blocks = own.min(query.max_blocks.into());
        Selection { protocol, two_steps, blocks: blocks as u32, threads: threads as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::super::selector::{Interconnect, tests::query};
    use super::*;

    const ALL: Possible = Possible::ALL_BUT_ROWS;

    #[test]
    fn the_table_grows_with_the_size() {
        let protocol = |bytes, ranks| {
            let selection = Tuned.choose(&query(bytes, ranks, ALL));
            (selection.protocol, selection.two_steps)
        };
        assert_eq!(protocol(1 << 10, 2), (Protocol::Ll16, false));
        assert_eq!(protocol(1 << 20, 2), (Protocol::Ll128, false));
        assert_eq!(protocol(1 << 30, 2), (Protocol::Simple, false));
        assert_eq!(protocol(1 << 20, 8), (Protocol::Ll128, true));
        assert_eq!(protocol(1 << 30, 8), (Protocol::Simple, true));
    }

    #[test]
    fn large_exchanges_beside_other_kernels_take_few_multiprocessors() {
        let chosen_of = |max_blocks, overlap, shape, ranks, bytes| {
            let query = Query { max_blocks, overlap, shape, ..query(bytes, ranks, ALL) };
            Tuned.choose(&query).protocol
        };
        let chosen = |overlap, shape, ranks, bytes| chosen_of(256, overlap, shape, ranks, bytes);
        assert_eq!(chosen(true, Shape::Exchange, 2, 64 << 20), Protocol::SimpleByBulk);
        assert_eq!(chosen(false, Shape::Exchange, 2, 64 << 20), Protocol::Simple);
        assert_eq!(chosen(true, Shape::Exchange, 2, 32 << 20), Protocol::Simple);
        assert_eq!(chosen(true, Shape::AllReduce, 2, 64 << 20), Protocol::Simple);
        assert_eq!(chosen(true, Shape::Exchange, 4, 64 << 20), Protocol::Simple);
        assert_eq!(chosen_of(64, true, Shape::Exchange, 2, 64 << 20), Protocol::Simple);
    }

    #[test]
    fn what_was_measured_is_told_from_what_was_predicted() {
        let with = |devices, ranks| Query { devices, ..query(1 << 10, ranks, ALL) };
        let gpus = |capability, interconnect| Devices::Gpus { capability, interconnect };
        assert!(Tuned::is_measured(&query(1 << 10, 2, ALL)));
        for (devices, ranks) in [
            (gpus(Some((9, 0)), Interconnect::NvLink), 8),
            (gpus(Some((9, 0)), Interconnect::Other), 2),
            (gpus(Some((8, 0)), Interconnect::NvLink), 2),
            (gpus(None, Interconnect::Other), 2),
            (Devices::Sim, 2),
        ] {
            assert!(!Tuned::is_measured(&with(devices, ranks)), "{devices:?} {ranks}");
            let selection = Tuned.choose(&with(devices, ranks));
            assert_eq!(selection.protocol, Protocol::Ll16, "{devices:?} {ranks}");
        }
    }

    #[test]
    fn rows_go_by_ll128_or_ll16_while_they_are_few() {
        let selection = |rows: u64, ranks, ll128: bool| {
            let ll16 = rows <= 64;
            let possible = Possible {
                ll16,
                ll16_in_two_steps: ll16,
                ll128: ll128 && ll16,
                ll128_in_two_steps: ll128 && ll16,
                simple_in_two_steps: rows >= 8,
                ..ALL
            };
            let query = Query { shape: Shape::Rows(rows), ..query(rows << 14, ranks, possible) };
            let Selection { protocol, two_steps, blocks, threads } = Tuned.choose(&query).mended(&query);
            assert_eq!(threads, 1024);
            (protocol, two_steps, blocks)
        };
        assert_eq!(selection(1, 2, true), (Protocol::Ll128, false, 1));
        assert_eq!(selection(64, 2, true), (Protocol::Ll128, false, 64));
        assert_eq!(selection(64, 2, false), (Protocol::Ll16, false, 64));
        assert_eq!(selection(256, 2, true), (Protocol::Simple, false, 64));
        // Fewer rows than ranks are never shared out.
        assert_eq!(selection(2, 8, true), (Protocol::Ll128, false, 2));
        assert_eq!(selection(16, 8, true), (Protocol::Ll128, true, 2));
        assert_eq!(selection(256, 8, true), (Protocol::Simple, true, 32));
    }

    #[test]
    fn registered_memory_takes_the_place_of_simple() {
        let possible = Possible { direct: true, bulk: false, simple_in_two_steps: false, ..ALL };
        let protocol = |bytes, ranks| {
            let query = Query { shape: Shape::Exchange, ..query(bytes, ranks, possible) };
            Tuned.choose(&query).mended(&query).protocol
        };
        for ranks in [2, 8] {
            assert_eq!(
                [protocol(1 << 10, ranks), protocol(1 << 30, ranks)],
                [Protocol::Ll16, Protocol::Direct]
            );
        }
        let engines = |in_place, bytes| {
            Possible { copy_engine: true, in_place, ..possible }.large(Protocol::Simple, bytes)
        };
        assert_eq!(
            [engines(true, 1 << 25), engines(true, 1 << 26)],
            [Protocol::Direct, Protocol::CopyEngine]
        );
        assert_eq!(
            [engines(false, 1 << 28), engines(false, 1 << 29)],
            [Protocol::Direct, Protocol::CopyEngine]
        );
        // An all_reduce in two steps is not done so.
        let asked = Selection { protocol: Protocol::Direct, two_steps: true, blocks: 1, threads: 32 };
        assert_eq!(
            asked.mended(&query(1 << 20, 4, Possible { direct: true, bulk: false, ..ALL })).protocol,
            Protocol::Simple
        );
    }

    #[test]
    fn ll128_takes_the_place_of_ll16() {
        let protocol = |ll16, ll128| {
            let query = query(48 << 10, 2, Possible { ll16, ll128, simple_in_two_steps: false, ..ALL });
            Tuned.choose(&query).mended(&query).protocol
        };
        assert_eq!(protocol(true, true), Protocol::Ll16);
        assert_eq!(protocol(false, true), Protocol::Ll128);
        assert_eq!(protocol(false, false), Protocol::Simple);
    }

    #[test]
    fn few_blocks_copy_in_bulk() {
        let selection = |bytes, max_blocks, bulk| {
            let possible = Possible { direct: true, bulk, simple_in_two_steps: false, ..ALL };
            let shape = Shape::Exchange;
            let query = Query { shape, reduces: false, max_blocks, ..query(bytes, 2, possible) };
            let Selection { protocol, blocks, threads, .. } = Tuned.choose(&query).mended(&query);
            (protocol, blocks, threads)
        };
        assert_eq!(selection(32 * MIB, 8, true), (Protocol::Bulk, 8, BULK_THREADS));
        assert_eq!(selection(32 * MIB, 8, false), (Protocol::Direct, 8, 1024));
        assert_eq!(selection(32 * MIB, 64, true).0, Protocol::Direct);
        assert_eq!(selection(16 * MIB, 8, true).0, Protocol::Direct);
        assert_eq!(selection(16 * MIB, 64, true).0, Protocol::Ll128);
        assert_eq!(selection(4 * MIB, 8, true).0, Protocol::Ll128);
    }
}
