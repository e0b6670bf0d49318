//! `ll8-pingpong` and `ll16-pingpong`: two devices send each other a message in packets in turns, from inside one
//! kernel each.

use std::borrow::Cow;

use clap::Args;
use mscclpp::{
    channels::{LL8Packet, LL16Packet, Packet},
    gpu::KernelParam,
    prelude::*,
};

use crate::{
    Result,
    data::fresh_seed,
    exchange::Exchange,
    kernels::PACKET_PING_PONG,
    machine::Machine,
    measuring::Measuring,
    progress::Progress,
    ranks::Joining,
    report::{Bandwidth, Report, Row, SizeOf, Times, Unit},
    sizes::{self, Sizes},
};

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    sizes: sizes::Range,
    #[command(flatten)]
    measuring: Measuring,
    /// Threads of the one block [default: 1024, 32 on simulated devices].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
}

/// A kind of packet, and what is known of its speed on two H200 for a message of one element.
pub(crate) struct Kind {
    workload: &'static str,
    kernel: &'static str,
    /// Bytes of data in a packet.
    element: u64,
    buffer_size: fn(u64) -> u64,
    baseline: f64,
    goal: f64,
}

pub(crate) const LL8: Kind = Kind {
    workload: "ll8-pingpong",
    kernel: "ll8_ping_pong",
    element: LL8Packet::PAYLOAD,
    buffer_size: LL8Packet::buffer_size,
    baseline: 1.42,
    goal: 1.25,
};

pub(crate) const LL16: Kind = Kind {
    workload: "ll16-pingpong",
    kernel: "ll16_ping_pong",
    element: LL16Packet::PAYLOAD,
    buffer_size: LL16Packet::buffer_size,
    baseline: 1.62,
    goal: 1.30,
};

/// The kernel's argument of that name.
#[derive(Debug, Clone, Copy, KernelParam)]
#[repr(C)]
struct Seeds {
    mine: u64,
    peers: u64,
}

/// What a side with that seed sends in a round, in elements of 4 or 8 bytes; the kernels compute the same.
fn message(seed: u64, round: u64, bytes: u64, element: u64) -> Vec<u8> {
    let word = |index: u64| {
        let x = seed.wrapping_add(round).wrapping_add(index << 32);
        x.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()
    };
    // Of the smaller elements, the half that depends on all of the word.
    (0..bytes / element).flat_map(|index| word(index).into_iter().skip(8 - element as usize)).collect()
}

pub(crate) fn run(kind: &Kind, options: &Options, joining: &Joining) -> Result<Option<Report>> {
    let one = Sizes { begin: kind.element, end: kind.element, factor: 2 };
    let sizes = options.sizes.or(one, kind.element)?;
    let pair = options.measuring.join(joining)?;
    let (platform, comparable) = (pair.gpu.platform(), pair.is_of_two_gpus());
    let threads = options.threads.unwrap_or(if platform == Platform::Host { 32 } else { 1024 });
    let module = Module::load(&pair.gpu, &PACKET_PING_PONG)?;
    let kernel = module.kernel(kind.kernel)?;
    // How many rounds were played, and how many elements were wrong.
    let (played, mismatches) = (pair.gpu.allocate(8)?, pair.gpu.allocate(8)?);
    let exchange = Exchange::new(&pair, sizes.end, (kind.buffer_size)(sizes.end), 1)?;
    let handle = exchange.channels()[0].device_handle();

    let mut progress = Progress::new(sizes.count() * options.measuring.launches(), !joining.reports());
    let mut rows = Vec::new();
    for bytes in sizes.iter() {
        let rounds = options.measuring.rounds(&pair, bytes);
        let mine = fresh_seed();
        let seeds = Seeds { mine, peers: pair.ranks.swap(mine)? };
        // The number of a round is its flag, and 0 is never one.
        played.write(0, &1u64.to_le_bytes())?;
        mismatches.fill(0, 8, 0)?;
        exchange.load(&[])?;
        let args = KernelArgs::new()
            .with(handle)
            .with(bytes)
            .with(exchange.incoming())
            .with(rounds as i32)
            .with(i32::from(pair.ranks.rank == 0))
            .with(seeds)
            .with(played.ptr())
            .with(mismatches.ptr())
            .with(exchange.stopwatch.failed());
        let config = LaunchConfig::linear(1, threads);
        let times = exchange.arrival().measure(
            &options.measuring,
            &mut progress,
            &format!("{} {}", kind.workload, SizeOf::Bytes.show(bytes)),
            // SAFETY: these are the kernel's arguments. The exchange, which has the memory and the channel, is dropped
            // before the buffers, and waits for the kernel's end.
            |stream, _| unsafe { kernel.launch(stream, config, &args) },
            |launch| {
                let last = u64::from(launch + 1) * u64::from(rounds);
                Cow::Owned(message(seeds.peers, last, bytes, kind.element))
            },
        )?;
        let mut wrong = [0; 8];
        mismatches.read(0, &mut wrong)?;
        let all_right = pair.ranks.both(wrong == [0; 8])?;
        let hops = times.filter(|_| all_right).map(|all| {
            // Two hops a round.
            all.into_iter().map(|us| us / (2.0 * f64::from(rounds))).collect()
        });
        let times = hops.and_then(Times::of);
        let known = comparable && bytes == kind.element && threads == 1024;
        rows.push(Row {
            workload: kind.workload.to_owned(),
            variant: format!("1x{threads}"),
            size: bytes,
            size_of: SizeOf::Bytes,
            unit: Unit::Microseconds,
            times,
            rounds,
            repeats: options.measuring.repeats(),
            bandwidth: times.map(|times| Bandwidth::of(bytes, times.median)),
            baseline: known.then_some(kind.baseline),
            goal: known.then_some(kind.goal),
            cpu: None,
        });
    }
    drop(progress);
    // Nobody closes a connection that the other still uses.
    pair.ranks.meet()?;
    let notes = vec![
        "one hop, two processes, one block each, the rounds in one launch; timed by the device's events"
            .to_owned(),
        "every element of every round is compared in the kernel, and the last message by the host".to_owned(),
    ];
    let machine = Machine::of(&pair.devices, &Transport::CUDA_IPC.to_string());
    Ok(joining.reports().then_some(Report { machine, rows, notes }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_differ_in_every_element_from_round_to_round_and_between_seeds() {
        for element in [4, 8] {
            let message = |seed, round| message(seed, round, 64, element);
            assert_eq!(message(7, 1).len(), 64);
            for other in [message(7, 2), message(8, 2), message(9, 1)] {
                let element = element as usize;
                assert!(message(7, 1).chunks(element).zip(other.chunks(element)).all(|(a, b)| a != b));
            }
        }
    }
}
