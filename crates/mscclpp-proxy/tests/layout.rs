//! The device handles have the same layout in Rust as a C++ compiler gives them from the headers.

use std::mem::offset_of;

use mscclpp_proxy::{
    BasePortChannelHandle, FifoHandle, MAX_MEMORIES, MAX_SEMAPHORES, MemoryId, PortChannelHandle,
    ProxyTrigger, SemaphoreId, TriggerKind,
    protocol::{POISONED, TRIGGER_RANGE},
};
use mscclpp_test_support::layout::{self, Fact, fact, offset, sizes};

fn main() {
    layout::main(mscclpp_kernels::HEADERS, &[("port_channel_device.hpp", facts)]);
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
        offset(cpp, "sizeMask", offset_of!(Fifo, size_mask)),
        offset(cpp, "sizeShift", offset_of!(Fifo, size_shift)),
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
        offset(base, "flushDonePos_", offset_of!(Base, completed)),
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
        offset(channel, "bulkPutMax_", offset_of!(Channel, bulk_put_max)),
    ]);
    facts
}

/// Returns facts about a trigger's words, made of the same fields here and by the header, which also returns its
/// fields.
fn trigger_facts() -> Vec<Fact> {
    let kind = TriggerKind::FLAG | TriggerKind::SYNC;
    let trigger = ProxyTrigger::new(
        kind,
        (MemoryId::from_raw(0x1a5), 0xdead_beef),
        (MemoryId::from_raw(0x0c3), 0x8765_4321),
        0x1234_5678,
        SemaphoreId::from_raw(0x2b7),
    );
    let ProxyTrigger { fst, snd } = trigger.expect("it fits");
    let made = "mscclpp::ProxyTrigger(mscclpp::TriggerFlag | mscclpp::TriggerSync, 0x1a5, 0xdeadbeef, 0x0c3, \
                0x87654321, 0x12345678, 0x2b7)";
    let limit = |bits| format!("1 << mscclpp::TriggerBits{bits}");
    let mut facts = vec![
        fact("first word", format!("{made}.fst"), fst as usize),
        fact("second word", format!("{made}.snd"), snd as usize),
        fact("memories", limit("MemoryId"), MAX_MEMORIES as usize),
        fact("semaphores", limit("SemaphoreId"), MAX_SEMAPHORES as usize),
    ];
    let fields = [
        ("size", 0x1234_5678),
        ("srcOffset", 0x8765_4321),
        ("dstOffset", 0xdead_beef),
        ("srcMemoryId", 0x0c3),
        ("dstMemoryId", 0x1a5),
        ("type", 6),
        ("semaphoreId", 0x2b7),
        ("reserved", 0),
    ];
    facts.extend(fields.map(|(field, value)| fact(field, format!("{made}.fields.{field}"), value)));
    facts
}
