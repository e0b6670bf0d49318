//! How [`Tuned`](crate::Tuned) chooses where nothing was measured: it predicts how long each way takes, and takes the
//! shortest.
//!
//! A call takes a start, and then as long as the link takes for what a rank sends to all others:
//!
//! | way | start | bytes on the link for one of the message |
//! | --- | --- | --- |
//! | packets | a hop | 2 |
//! | lines | a hop, and 0.2 us for each other rank | 128 / 120 |
//! | pieces | a hop and 8 us: the first are under way before any can be taken | 1 |
//!
//! An `all_reduce` in one step sends the message to all others; in two, it sends a part to each and then one part to all,
//! with two starts.
//!
//! A hop takes 1.25 us, and links give 0.78 of their nominal bandwidth: so it was measured between two H200. What lines
//! and pieces need more is such that between these two, and between four H100, the ways change about where they do in the
//! measured tables. Nominal bandwidths are the vendor's. All else that follows is a prediction, which nobody has measured.

use crate::select::{Choice, Devices, Link, Question, Shape, Way};

const HOP: f64 = 1.25;
const LINES: f64 = 0.2;
const PIECES: f64 = 8.0;
const OF_NOMINAL: f64 = 0.78;
/// The threads of a block, and in GB/s, what a block adds to the bandwidth where all that comes is combined: 256 of 256
/// threads fill the link of an H200. Between more than two ranks there is less scratch for blocks, so they are larger.
const OF_TWO: (u32, f64) = (256, 1.37);
const OF_MORE: (u32, f64) = (512, 2.75);
/// A block has at least so many bytes to send, if it is not the first.
const WORTH_A_BLOCK: u64 = 2 << 10;

/// The fastest of what is possible, by prediction.
pub(crate) fn choose(question: &Question) -> Choice {
    let possible = question.possible;
    let ways = [
        (Way::Packets, false, possible.packets),
        (Way::Lines, false, possible.lines),
        (Way::Pieces, false, true),
        (Way::Lines, true, possible.lines_in_two_steps && possible.pieces_in_two_steps),
        (Way::Pieces, true, possible.pieces_in_two_steps),
    ];
    let two_steps_help = question.shape == Shape::AllReduce && question.ranks > 2;
    let ways = ways.iter().filter(|(_, two_steps, possible)| *possible && (two_steps_help || !two_steps));
    let times = ways.map(|(way, two_steps, _)| (*way, *two_steps, time(question, *way, *two_steps)));
    let (way, two_steps, _) = times.min_by(|a, b| a.2.total_cmp(&b.2)).unwrap_or((Way::Pieces, false, 0.0));
    let (threads, of_a_block) = if question.ranks > 2 { OF_MORE } else { OF_TWO };
    // No more than fill the link, and none that has next to nothing to do.
    let fill = ((bandwidth(question.devices) / of_a_block) as u64).clamp(8, 256).next_power_of_two();
    let blocks = (sent(question, two_steps) / WORTH_A_BLOCK).clamp(1, fill).next_power_of_two() as u32;
    Choice { way: possible.large(way, question.bytes), two_steps, blocks, threads }
}

/// In microseconds.
pub(crate) fn time(question: &Question, way: Way, two_steps: bool) -> f64 {
    let (start, on_the_link) = match way {
        Way::Packets => (HOP, 2.0),
        Way::Lines => (HOP + LINES * (question.ranks - 1) as f64, 128.0 / 120.0),
        Way::Pieces | Way::Direct | Way::Bulk => (HOP + PIECES, 1.0),
        Way::Engines => (2.0 * HOP + PIECES, 1.0),
    };
    let starts = if two_steps { 2.0 } else { 1.0 };
    starts * start + sent(question, two_steps) as f64 * on_the_link / (bandwidth(question.devices) * 1e3)
}

/// The bytes that a rank sends to all others.
fn sent(question: &Question, two_steps: bool) -> u64 {
    let ranks = question.ranks as u64;
    let to_each = if two_steps { (question.bytes / ranks).saturating_mul(2) } else { question.bytes };
    to_each.saturating_mul(ranks - 1)
}

/// Of a device's link to all others together, one way, in GB/s.
fn bandwidth(devices: Devices) -> f64 {
    let nominal = match devices {
        Devices::Gpus { capability: Some((7, _)), link: Link::NvLink } => 150.0,
        Devices::Gpus { capability: Some((8, 0)), link: Link::NvLink } => 300.0,
        // Bridges between two cards.
        Devices::Gpus { capability: Some((8, _)), link: Link::NvLink } => 56.0,
        Devices::Gpus { capability: None | Some((..=9, _)), link: Link::NvLink } => 450.0,
        Devices::Gpus { link: Link::NvLink, .. } => 900.0,
        // PCIe of 16 lanes, of the fifth generation or the fourth.
        Devices::Gpus { capability: Some((9.., _)), link: Link::Other } => 64.0,
        Devices::Gpus { link: Link::Other, .. } | Devices::Sim => 32.0,
    };
    nominal * OF_NOMINAL
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{select::Possible, tables::measured};

    const H200: Devices = Devices::Gpus { capability: Some((9, 0)), link: Link::NvLink };
    const ALL: Possible = Possible::ALL_BUT_ROWS;

    fn question(devices: Devices, ranks: usize, bytes: u64, possible: Possible) -> Question {
        Question {
            shape: Shape::AllReduce,
            reduces: true,
            bytes,
            ranks,
            possible,
            max_blocks: 256,
            max_threads: 132 * 512,
            devices,
        }
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
                        Possible { pieces_in_two_steps: ranks > 2, lines_in_two_steps: ranks > 2, ..ALL };
                    let predicted = choose(&Question { shape, ..question(H200, ranks, bytes, possible) });
                    let near =
                        [bytes / 4, bytes, bytes * 4].map(|bytes| table.row(shape, true, bytes).choice);
                    let is_near =
                        |it: &Choice| (it.way, it.two_steps) == (predicted.way, predicted.two_steps);
                    assert!(
                        near.iter().any(is_near),
                        "{ranks} ranks, {bytes} bytes: {predicted:?}, measured {near:?}"
                    );
                }
            }
        }
    }

    /// From packets through lines to pieces, from one step to two, to more blocks and threads.
    #[test]
    fn it_grows_with_the_size() {
        let gpus = |capability, link| Devices::Gpus { capability, link };
        for devices in [
            H200,
            gpus(Some((7, 0)), Link::NvLink),
            gpus(Some((8, 0)), Link::NvLink),
            gpus(Some((8, 6)), Link::Other),
            gpus(Some((10, 0)), Link::NvLink),
            gpus(None, Link::Other),
        ] {
            for ranks in [2, 3, 4, 8, 16] {
                let all: Vec<_> =
                    (0..40).map(|shift| choose(&question(devices, ranks, 1 << shift, ALL))).collect();
                let key = |it: &Choice| (it.two_steps, it.way as u8);
                assert!(all.is_sorted_by_key(key), "{devices:?} {ranks}: {all:?}");
                assert!(all[0].way == Way::Packets && !all[0].two_steps && all[0].blocks == 1);
                let last = all[39];
                assert!(last.way == Way::Pieces && last.two_steps == (ranks > 2));
                assert!(all.iter().all(|it| it.blocks <= 256 && it.blocks.is_power_of_two()));
            }
        }
    }

    #[test]
    fn it_does_only_what_is_possible() {
        for bits in 0..16 {
            let is = |bit: u32| bits >> bit & 1 == 1;
            let possible = Possible {
                packets: is(0),
                lines: is(1),
                packets_in_two_steps: false,
                lines_in_two_steps: is(2),
                pieces_in_two_steps: is(3),
                direct: false,
                bulk: false,
                engines: false,
                in_place: false,
            };
            for ranks in [2, 8] {
                for shift in [0, 10, 20, 30, 63] {
                    let question = question(H200, ranks, 1 << shift, possible);
                    let choice = choose(&question);
                    assert_eq!(choice.mended(&question), choice, "{question:?}");
                }
            }
        }
    }

    #[test]
    fn a_slow_link_takes_few_multiprocessors() {
        let slow = Devices::Gpus { capability: Some((8, 6)), link: Link::Other };
        assert_eq!(choose(&question(slow, 2, 1 << 30, ALL)).blocks, 32);
        assert_eq!(choose(&question(H200, 2, 1 << 30, ALL)).blocks, 256);
    }
}
