//! How [`Tuned`](crate::Tuned) chooses where nothing was measured: it predicts how long each protocol takes, and takes the
//! shortest.
//!
//! A call takes a start, and then as long as the link takes for what a rank sends to all others:
//!
//! | protocol | start | bytes on the link for one of the message |
//! | --- | --- | --- |
//! | LL16 | a hop | 2 |
//! | LL128 | a hop, and `LL128` for each other rank | 128 / 120 |
//! | Simple | a hop and `SIMPLE`: the first chunks are under way before any can be taken | 1 |
//!
//! An `all_reduce` in one step sends the message to all others; in two, it sends a part to each and then one part to all,
//! with two starts.
//!
//! The time of a hop and the part of the nominal bandwidth that links give were measured. What LL128 and Simple need more is
//! such that the fastest protocol changes about where it does in the measured tables. Nominal bandwidths are the vendor's. All
//! else that follows is a prediction, which nobody has measured.

use super::selector::{Devices, Interconnect, Protocol, Query, Selection, Shape};

/// The times of a hop, of each other rank for LL128, and of the start of Simple, in microseconds.
const HOP: f64 = 1.25;
const LL128: f64 = 0.2;
const SIMPLE: f64 = 8.0;
const OF_NOMINAL: f64 = 0.78;
/// The threads of a block, and in GB/s, what a block adds to the bandwidth where all that comes is combined: 256 of 256
/// threads fill the link. Between more than two ranks there is less scratch for blocks, so they are larger.
const OF_TWO: (u32, f64) = (256, 1.37);
const OF_MORE: (u32, f64) = (512, 2.75);
/// A block has at least so many bytes to send, if it is not the first.
const WORTH_A_BLOCK: u64 = 2 << 10;

/// The fastest of what is possible, by prediction.
pub(crate) fn choose(query: &Query) -> Selection {
    let possible = query.possible;
    let protocols = [
        (Protocol::Ll16, false, possible.ll16),
        (Protocol::Ll128, false, possible.ll128),
        (Protocol::Simple, false, true),
        (Protocol::Ll128, true, possible.ll128_in_two_steps && possible.simple_in_two_steps),
        (Protocol::Simple, true, possible.simple_in_two_steps),
    ];
    let two_steps_help = query.shape == Shape::AllReduce && query.ranks > 2;
    let protocols =
        protocols.iter().filter(|(_, two_steps, possible)| *possible && (two_steps_help || !two_steps));
    let times =
        protocols.map(|(protocol, two_steps, _)| (*protocol, *two_steps, time(query, *protocol, *two_steps)));
    let (protocol, two_steps, _) =
        times.min_by(|a, b| a.2.total_cmp(&b.2)).unwrap_or((Protocol::Simple, false, 0.0));
    let (threads, of_a_block) = if query.ranks > 2 { OF_MORE } else { OF_TWO };
    // No more than fill the link, and none that has next to nothing to do.
    let fill = ((bandwidth(query.devices) / of_a_block) as u64).clamp(8, 256).next_power_of_two();
    let blocks = (sent(query, two_steps) / WORTH_A_BLOCK).clamp(1, fill).next_power_of_two() as u32;
    Selection { protocol: possible.large(protocol, query.bytes), two_steps, blocks, threads }
}

/// The predicted time of a call, in microseconds.
pub(crate) fn time(query: &Query, protocol: Protocol, two_steps: bool) -> f64 {
    let (start, on_the_link) = match protocol {
        Protocol::Ll16 => (HOP, 2.0),
        Protocol::Ll128 => (HOP + LL128 * (query.ranks - 1) as f64, 128.0 / 120.0),
        Protocol::Simple | Protocol::SimpleByBulk | Protocol::Direct | Protocol::Bulk => (HOP + SIMPLE, 1.0),
        Protocol::CopyEngine => (2.0 * HOP + SIMPLE, 1.0),
    };
    let starts = if two_steps { 2.0 } else { 1.0 };
    starts * start + sent(query, two_steps) as f64 * on_the_link / (bandwidth(query.devices) * 1e3)
}

/// The bytes that a rank sends to all others.
fn sent(query: &Query, two_steps: bool) -> u64 {
    let ranks = query.ranks as u64;
    let to_each = if two_steps { (query.bytes / ranks).saturating_mul(2) } else { query.bytes };
    to_each.saturating_mul(ranks - 1)
}

/// The bandwidth of a device to all others together, in one direction, in GB/s.
fn bandwidth(devices: Devices) -> f64 {
    let nominal = match devices {
        Devices::Gpus { capability: Some((7, _)), interconnect: Interconnect::NvLink } => 150.0,
        Devices::Gpus { capability: Some((8, 0)), interconnect: Interconnect::NvLink } => 300.0,
        // Bridges between two cards.
        Devices::Gpus { capability: Some((8, _)), interconnect: Interconnect::NvLink } => 56.0,
        Devices::Gpus { capability: None | Some((..=9, _)), interconnect: Interconnect::NvLink } => 450.0,
        Devices::Gpus { interconnect: Interconnect::NvLink, .. } => 900.0,
        // PCIe of 16 lanes, of the fifth generation or the fourth.
        Devices::Gpus { capability: Some((9.., _)), interconnect: Interconnect::Other } => 64.0,
        Devices::Gpus { interconnect: Interconnect::Other, .. } | Devices::Sim => 32.0,
    };
    nominal * OF_NOMINAL
}

#[cfg(test)]
mod tests {
    use super::super::{selector::Possible, tables::measured};
    use super::*;

    const H200: Devices = Devices::Gpus { capability: Some((9, 0)), interconnect: Interconnect::NvLink };
    const ALL: Possible = Possible::ALL_BUT_ROWS;

    fn query(devices: Devices, ranks: usize, bytes: u64, possible: Possible) -> Query {
        let query = super::super::selector::tests::query(bytes, ranks, possible);
        Query { max_blocks: 256, max_threads: 132 * 512, devices, ..query }
    }

    /// The model is made from what was measured between two, so it must say nearly the same, also of four.
    #[test]
    fn it_agrees_with_what_was_measured() {
        for ranks in [2, 4] {
            let table = measured(H200, ranks).unwrap();
            for shape in [Shape::AllReduce, Shape::Exchange] {
                for shift in 6..31 {
                    let bytes = 1 << shift;
                    let possible =
                        Possible { simple_in_two_steps: ranks > 2, ll128_in_two_steps: ranks > 2, ..ALL };
                    let predicted = choose(&Query { shape, ..query(H200, ranks, bytes, possible) });
                    let near =
                        [bytes / 4, bytes, bytes * 4].map(|bytes| table.row(shape, true, bytes).selection);
                    let is_near = |it: &Selection| {
                        (it.protocol, it.two_steps) == (predicted.protocol, predicted.two_steps)
                    };
                    assert!(
                        near.iter().any(is_near),
                        "{ranks} ranks, {bytes} bytes: {predicted:?}, measured {near:?}"
                    );
                }
            }
        }
    }

    /// From LL16 through LL128 to Simple, from one step to two, to more blocks and threads.
    #[test]
    fn it_grows_with_the_size() {
        let gpus = |capability, interconnect| Devices::Gpus { capability, interconnect };
        for devices in [
            H200,
            gpus(Some((7, 0)), Interconnect::NvLink),
            gpus(Some((8, 0)), Interconnect::NvLink),
            gpus(Some((8, 6)), Interconnect::Other),
            gpus(Some((10, 0)), Interconnect::NvLink),
            gpus(None, Interconnect::Other),
        ] {
            for ranks in [2, 3, 4, 8, 16] {
                let all: Vec<_> =
                    (0..40).map(|shift| choose(&query(devices, ranks, 1 << shift, ALL))).collect();
                let key = |it: &Selection| (it.two_steps, it.protocol as u8);
                assert!(all.is_sorted_by_key(key), "{devices:?} {ranks}: {all:?}");
                assert!(all[0].protocol == Protocol::Ll16 && !all[0].two_steps && all[0].blocks == 1);
                let last = all[39];
                assert!(last.protocol == Protocol::Simple && last.two_steps == (ranks > 2));
                assert!(all.iter().all(|it| it.blocks <= 256 && it.blocks.is_power_of_two()));
            }
        }
    }

    #[test]
    fn it_does_only_what_is_possible() {
        for bits in 0..16 {
            let is = |bit: u32| bits >> bit & 1 == 1;
            let possible = Possible {
                ll16: is(0),
                ll128: is(1),
                ll128_in_two_steps: is(2),
                simple_in_two_steps: is(3),
                ..Possible::default()
            };
            for ranks in [2, 8] {
                for shift in [0, 10, 20, 30, 63] {
                    let query = query(H200, ranks, 1 << shift, possible);
                    let selection = choose(&query);
                    assert_eq!(selection.mended(&query), selection, "{query:?}");
                }
            }
        }
    }

    #[test]
    fn a_slow_link_takes_few_multiprocessors() {
        let slow = Devices::Gpus { capability: Some((8, 6)), interconnect: Interconnect::Other };
        assert_eq!(choose(&query(slow, 2, 1 << 30, ALL)).blocks, 32);
        assert_eq!(choose(&query(H200, 2, 1 << 30, ALL)).blocks, 256);
    }
}
