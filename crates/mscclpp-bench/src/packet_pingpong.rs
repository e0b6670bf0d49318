//! `ll8-pingpong` and `ll16-pingpong`: two devices send each other a message in packets in turns, from inside one
//! kernel each.

use std::borrow::Cow;

use mscclpp::{
    channels::{LL8Packet, LL16Packet, Packet},
    gpu::KernelParam,
};

use crate::{data::fresh_seed, exchange::Exchange, kernels::PACKET_PING_PONG, pair::Block, prelude::*};

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    messages: Messages,
    #[command(flatten)]
    block: Block,
}

pub(crate) struct Kind {
    workload: &'static str,
    kernel: &'static str,
    /// The bytes of data in a packet.
    element: u64,
    buffer_size: fn(u64) -> u64,
}

pub(crate) const LL8: Kind = Kind {
    workload: "ll8-pingpong",
    kernel: "ll8_ping_pong",
    element: LL8Packet::PAYLOAD,
    buffer_size: LL8Packet::buffer_size,
};

pub(crate) const LL16: Kind = Kind {
    workload: "ll16-pingpong",
    kernel: "ll16_ping_pong",
    element: LL16Packet::PAYLOAD,
    buffer_size: LL16Packet::buffer_size,
};

/// The kernel's argument `seeds`.
#[derive(Debug, Clone, Copy, KernelParam)]
#[repr(C)]
struct Seeds {
    mine: u64,
    peers: u64,
}

/// The message of a side with that seed in a round, in elements of 4 or 8 bytes; the kernels compute the same.
fn message(seed: u64, round: u64, bytes: u64, element: u64) -> Vec<u8> {
    let word = |index: u64| {
        let x = seed.wrapping_add(round).wrapping_add(index << 32);
        x.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()
    };
    // Smaller elements get the half of the word that depends on all its bits.
    (0..bytes / element).flat_map(|index| word(index).into_iter().skip(8 - element as usize)).collect()
}

pub(crate) fn run(kind: &Kind, options: &Options, joining: &Joining, table: &mut Table) -> Result<()> {
    let Messages { sizes, measuring } = &options.messages;
    let sizes = sizes.of_elements(kind.element)?;
    let pair = measuring.join(2, joining)?;
    let block = options.block.on(&pair)?;
    let module = Module::load(&pair.gpu, &PACKET_PING_PONG)?;
    let kernel = module.kernel(kind.kernel)?;
    // The number of rounds that were played, plus one.
    let played = pair.gpu.allocate(8)?;
    let exchange = Exchange::new(&pair, sizes.end, (kind.buffer_size)(sizes.end), 1)?;
    let handle = exchange.channels[0].device_handle();

    table.begin(pair.machine(Transport::CUDA_IPC), sizes.count())?;
    for bytes in sizes.iter() {
        let rounds = measuring.rounds(&pair, bytes);
        let mine = fresh_seed();
        let seeds = Seeds { mine, peers: pair.ranks.swap(&mine)? };
        // The number of a round is its flag, and 0 is never one.
        played.write(0, &1u64.to_le_bytes())?;
        exchange.load(&[])?;
        let args = KernelArgs::new()
            .with(handle)
            .with(bytes)
            .with(exchange.incoming)
            .with(rounds as i32)
            .with(i32::from(pair.ranks.rank == 0))
            .with(seeds)
            .with(played.ptr())
            .with(block.mismatches()?)
            .with(exchange.stopwatch.failed());
        let once = exchange.arrival().once(
            1,
            // SAFETY: these are the kernel's arguments. The exchange, which has the memory and the channel, is dropped
            // before the buffers, and waits for the kernel's end.
            |stream, _, _| unsafe { kernel.launch(stream, block.config(), &args) },
            |time| {
                let last = u64::from(time + 1) * u64::from(rounds);
                Cow::Owned(message(seeds.peers, last, bytes, kind.element))
            },
        );
        let row = block.row(kind.workload, bytes, rounds);
        // A round has two hops.
        let contender = Contender { per: 2.0 * f64::from(rounds), ..Contender::new(row, once) };
        let row = table.measure(measuring.repeats, &pair.ranks, contender)?;
        table.push(row.only_if(block.found_all_right()?))?;
    }
    table.note(
        "one hop, two processes, one block each, the rounds in one launch; timed by the device's events",
    );
    table.note("every element of every round is compared in the kernel, and the last message by the host");
    pair.ranks.meet()
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
