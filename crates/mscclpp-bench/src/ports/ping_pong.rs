//! `port-pingpong` and `port-packet-pingpong`: two devices put a message to each other in turns, from inside one kernel
//! each.

use std::borrow::Cow;

use mscclpp::channels::{LL16Packet, Packet};

use super::{Carriage, Common, Ports};
use crate::{ethernet::Tuning, kernels::PORT_BENCH, pair::Block, prelude::*};

#[derive(Args)]
pub(crate) struct PacketOptions {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    block: Block,
}

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    options: PacketOptions,
    #[command(flatten)]
    carriage: Carriage,
}

struct Kind {
    workload: &'static str,
    kernel: &'static str,
    /// The bytes of an element's data, and the bytes that are put for it.
    element: u64,
    as_put: u64,
    notes: [&'static str; 2],
}

const PUTS: Kind = Kind {
    workload: "port-pingpong",
    kernel: "port_ping_pong",
    element: 4,
    as_put: 4,
    notes: [
        "one round trip, two processes, one block and a proxy each: wait, check, fill, put with signal, flush; the \
         rounds in one launch; timed by the device's events",
        "every element of every round is compared in the kernel, and the last message by the host",
    ],
};

const PACKETS: Kind = Kind {
    workload: "port-packet-pingpong",
    kernel: "port_packet_ping_pong",
    element: LL16Packet::PAYLOAD,
    as_put: LL16Packet::SIZE,
    notes: [
        "one round trip, two processes, one block and a proxy each: LL16 packets are filled, put, read and checked; \
         the rounds in one launch; timed by the device's events",
        "every element of every round is compared in the kernel, and the last packets by the host",
    ],
};

/// Runs `port-pingpong`: puts that signal, waits and flushes.
pub(crate) fn ping_pong(options: &Options, joining: &Joining, table: &mut Table) -> Result<()> {
    let Carriage { transport, tuning } = &options.carriage;
    run(&PUTS, *transport, &options.options, tuning, joining, table)
}

/// Runs `port-packet-pingpong`: packets, which need no waits.
pub(crate) fn packet_ping_pong(options: &PacketOptions, joining: &Joining, table: &mut Table) -> Result<()> {
    // Over other transports, the 8 bytes of an element might not arrive at once.
    run(&PACKETS, Transport::CUDA_IPC, options, &Tuning::default(), joining, table)
}

/// The value of an element in a round, on the side that begins (1) or the other (0); the kernels compute the same.
fn element(round: u32, side: u32, index: u32) -> u32 {
    round.wrapping_mul(2_654_435_761).wrapping_add(index.wrapping_mul(2)).wrapping_add(side + 1)
}

impl Kind {
    fn has_packets(&self) -> bool {
        self.as_put != self.element
    }

    /// The message that arrives from a side in a round. `flag` is that of packets.
    fn message(&self, round: u32, side: u32, count: u32, flag: u32) -> Vec<u8> {
        let words = |index| {
            let x = element(round, side, index);
            if self.has_packets() { vec![x, flag, !x, flag] } else { vec![x] }
        };
        (0..count).flat_map(words).flat_map(u32::to_le_bytes).collect()
    }
}

fn run(
    kind: &Kind,
    transport: Transport,
    options: &PacketOptions,
    tuning: &Tuning,
    joining: &Joining,
    table: &mut Table,
) -> Result<()> {
    let PacketOptions { common, block } = options;
    let Messages { sizes, measuring } = &common.messages;
    let sizes = sizes.of_elements(kind.element)?;
    let pair = Pair::join(2, &measuring.devices, |platform| tuning.context(platform), joining)?;
    let block = block.on(&pair)?;
    let side = u32::from(pair.ranks.rank == 0);
    let module = Module::load(&pair.gpu, &PORT_BENCH)?;
    let kernel = module.kernel(kind.kernel)?;
    let ports = Ports::new(&pair, common, transport, sizes.end / kind.element * kind.as_put)?;

    table.begin(pair.machine(transport), sizes.count())?;
    kind.notes.into_iter().for_each(|note| table.note(note));
    for bytes in sizes.iter() {
        let (rounds, label) = (measuring.rounds(&pair, bytes), SizeOf::Bytes.show(bytes));
        let count = u32::try_from(bytes / kind.element)?;
        if kind.has_packets() && u64::from(rounds) * measuring.repeats.times() as u64 >= u64::from(u32::MAX) {
            return Err(
                "the rounds of all launches are the flags of packets, so there must be less than 2^32".into(),
            );
        }
        let flag = |launch: u32| 1 + launch * rounds;
        let before = ports.service.stats();
        let mismatches = block.mismatches()?;
        let once = ports.arrival().once(
            1,
            |stream, launch, _| {
                let args = KernelArgs::new()
                    .with(ports.channel.device_handle())
                    .with(ports.source.ptr())
                    .with(ports.arrivals())
                    .with(count)
                    .with(rounds as i32)
                    .with(side as i32);
                let args = if kind.has_packets() { args.with(flag(launch)) } else { args };
                let args = args.with(mismatches).with(ports.stopwatch.failed());
                // SAFETY: these are the kernel's arguments. The stopwatch is dropped before the memory that the kernel uses, and
                // waits for the kernel's end.
                unsafe { kernel.launch(stream, block.config(), &args) }
            },
            |launch| {
                let (last, flag) = (rounds - 1, if kind.has_packets() { flag(launch) } else { 0 });
                Cow::Owned(kind.message(last, 1 - side, count, flag + last))
            },
        );
        // A round trip has a time and no bandwidth.
        let row = block.row(kind.workload, bytes, rounds);
        let contender = Contender { bus: None, ..Contender::new(row, once) };
        let row = table.measure(measuring.repeats, &pair.ranks, contender);
        let row = row.map_err(|error| ports.explain(error))?;
        table.push(row.only_if(block.found_all_right()?))?;
        table.note(ports.remark(&label, &before));
    }
    ports.finish(&pair)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_its_elements_and_packets_their_flags() {
        let kind = |element, as_put| Kind { workload: "", kernel: "", element, as_put, notes: [""; 2] };
        let x = element(2, 1, 0).to_le_bytes();
        assert_eq!(kind(4, 4).message(2, 1, 1, 9), x);
        let not_x = x.map(|byte| !byte);
        assert_eq!(kind(8, 16).message(2, 1, 1, 9), [x, [9, 0, 0, 0], not_x, [9, 0, 0, 0]].concat());
        assert_eq!(kind(8, 16).message(2, 1, 5, 9).len(), 80);
    }

    #[test]
    fn elements_differ_between_rounds_sides_and_neighbours() {
        for other in [element(8, 0, 3), element(7, 1, 3), element(7, 0, 4), element(7, 1, 2)] {
            assert_ne!(element(7, 0, 3), other);
        }
    }
}
