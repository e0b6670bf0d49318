//! The device handles are laid out in Rust as a C++ compiler lays them out from the headers.

#[path = "../../mscclpp-core/tests/layout/compare.rs"]
mod compare;

use std::mem::offset_of;

use compare::{Fact, fact, offset, sizes};
use mscclpp_proxy::{
    BasePortChannelHandle, FifoHandle, MAX_MEMORIES, MAX_SEMAPHORES, PortChannelHandle, ProxyTrigger,
    TriggerKind,
    protocol::{POISONED, TRIGGER_RANGE},
};

fn main() {
    compare::main("port_channel_device.hpp", facts);
}

fn facts() -> Vec<Fact> {
    fifo_facts().into_iter().chain(channel_facts()).chain(trigger_facts()).collect()
}

fn fifo_facts() -> Vec<Fact> {
    type Fifo = FifoHandle;
    let cpp = "FifoDeviceHandle";
    let mut facts: Vec<Fact> =
        sizes::<Fifo>(cpp).into_iter().chain(sizes::<ProxyTrigger>("ProxyTrigger")).collect();
    facts.extend([
        offset("ProxyTrigger", "snd", offset_of!(ProxyTrigger, snd)),
        offset(cpp, "triggers", offset_of!(Fifo, triggers)),
        offset(cpp, "head", offset_of!(Fifo, head)),
        offset(cpp, "tail", offset_of!(Fifo, tail)),
        offset(cpp, "tailCache", offset_of!(Fifo, tail_cache)),
        offset(cpp, "status", offset_of!(Fifo, status)),
        offset(cpp, "size", offset_of!(Fifo, size)),
        fact("looking", "mscclpp::WordsToLooking", Fifo::WORDS_TO_LOOKING),
        fact("poisoned", "mscclpp::ReasonFifoPoisoned", POISONED as usize),
        fact("trigger range", "mscclpp::ReasonTriggerRange", TRIGGER_RANGE as usize),
    ]);
    facts
}

fn channel_facts() -> Vec<Fact> {
    type Base = BasePortChannelHandle;
    type Channel = PortChannelHandle;
    let (base, channel) = ("BasePortChannelDeviceHandle", "PortChannelDeviceHandle");
    let mut facts: Vec<Fact> = sizes::<Base>(base).into_iter().chain(sizes::<Channel>(channel)).collect();
    facts.extend([
        offset(base, "semaphore_", offset_of!(Base, semaphore)),
        offset(base, "fifo_", offset_of!(Base, fifo)),
        offset(base, "lastPushed_", offset_of!(Base, last_pushed)),
        offset(base, "completed_", offset_of!(Base, completed)),
        offset(base, "directToken_", offset_of!(Base, direct_token)),
        offset(base, "semaphoreId_", offset_of!(Base, semaphore_id)),
        offset(channel, "fifo_", offset_of!(Channel, base) + offset_of!(Base, fifo)),
        offset(channel, "dst_", offset_of!(Channel, dst)),
        offset(channel, "src_", offset_of!(Channel, src)),
        offset(channel, "dstPtr_", offset_of!(Channel, dst_ptr)),
        offset(channel, "srcPtr_", offset_of!(Channel, src_ptr)),
        offset(channel, "dstSize_", offset_of!(Channel, dst_size)),
        offset(channel, "srcSize_", offset_of!(Channel, src_size)),
        offset(channel, "directPutMax_", offset_of!(Channel, direct_put_max)),
    ]);
    facts
}

/// Where the fields of a trigger begin, and what is in that of its kind.
fn trigger_facts() -> [Fact; 10] {
    let words = |kind, dst, src, semaphore| {
        let trigger = ProxyTrigger::new(kind, dst, src, 0, semaphore).expect("it fits");
        [trigger.fst, trigger.snd]
    };
    let data = TriggerKind::DATA;
    let nothing = words(data, (0, 0), (0, 0), 0);
    // The bit that is set where the fields have a 1 instead of a 0.
    let bit = |set: [u64; 2]| ((set[0] ^ nothing[0]) | (set[1] ^ nothing[1])).trailing_zeros() as usize;
    let type_bit = nothing[1].trailing_zeros();
    let bits = |kind| (words(kind, (0, 0), (0, 0), 0)[1] >> type_bit) as usize;
    [
        fact("source offset", "mscclpp::TriggerSrcOffsetBit", bit(words(data, (0, 0), (0, 1), 0))),
        fact("source", "mscclpp::TriggerSrcIdBit", bit(words(data, (0, 0), (1, 0), 0))),
        fact("destination", "mscclpp::TriggerDstIdBit", bit(words(data, (1, 0), (0, 0), 0))),
        fact("type", "mscclpp::TriggerTypeBit", type_bit as usize),
        fact("semaphore", "mscclpp::TriggerSemaphoreBit", bit(words(data, (0, 0), (0, 0), 1))),
        fact("memories", "mscclpp::TriggerMemoryIds", MAX_MEMORIES as usize),
        fact("semaphores", "mscclpp::TriggerSemaphores", MAX_SEMAPHORES as usize),
        fact("data", "mscclpp::TriggerData", bits(TriggerKind::DATA)),
        fact("flag", "mscclpp::TriggerFlag", bits(TriggerKind::FLAG)),
        fact("sync", "mscclpp::TriggerSync", bits(TriggerKind::SYNC)),
    ]
}
