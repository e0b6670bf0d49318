//! The device handles have the same layout in Rust as a C++ compiler gives them from the headers.

use mscclpp_proxy::{
    BasePortChannelHandle, FifoHandle, MAX_MEMORIES, MAX_SEMAPHORES, MemoryId, PortChannelHandle,
    ProxyTrigger, SemaphoreId, TriggerKind,
    protocol::{POISONED, TRIGGER_RANGE},
};
use mscclpp_test_support::{
    layout::{self, Fact, fact},
    layouts,
};

fn main() {
    layout::main(mscclpp_kernels::HEADERS, &[("port_channel_device.hpp", facts)]);
}

fn facts() -> Vec<Fact> {
    let mut facts = layouts! {
        FifoHandle, "FifoDeviceHandle": "triggers" triggers, "head" head, "tail" tail, "tailCache" tail_cache,
            "status" status, "size" size, "sizeMask" size_mask, "sizeShift" size_shift;
        ProxyTrigger, "ProxyTrigger": "snd" snd;
        BasePortChannelHandle, "BasePortChannelDeviceHandle": "semaphore_" semaphore, "fifo_" fifo,
            "lastPushed_" last_pushed, "flushDonePos_" completed, "directToken_" direct_token,
            "semaphoreId_" semaphore_id;
        PortChannelHandle, "PortChannelDeviceHandle": "fifo_" base.fifo, "dst_" dst, "src_" src,
            "dstPtr_" dst_ptr, "srcPtr_" src_ptr, "dstSize_" dst_size, "srcSize_" src_size,
            "directPutMax_" direct_put_max, "bulkPutMax_" bulk_put_max;
    };
    facts.extend([
        fact("looking", "mscclpp::WordsToLooking", FifoHandle::WORDS_TO_LOOKING),
        fact("poisoned", "mscclpp::ReasonFifoPoisoned", POISONED as usize),
        fact("trigger range", "mscclpp::ReasonTriggerRange", TRIGGER_RANGE as usize),
    ]);
    facts.extend(trigger_facts());
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
