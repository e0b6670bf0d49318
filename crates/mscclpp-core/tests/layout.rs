//! The device handles are laid out in Rust as a C++ compiler lays them out from the headers.

use std::mem::offset_of;

use mscclpp_core::{
    BaseMemoryChannelHandle, DeviceToDeviceSemaphoreHandle, HostToDeviceSemaphoreHandle, LL8Packet,
    LL16Packet, LL128Packet, MemoryChannelHandle, Packet,
};
use mscclpp_test_support::layout::{self, Fact, fact, offset, sizes};

fn main() {
    layout::main(mscclpp_kernels::HEADERS, &[("memory_channel_device.hpp", facts)]);
}

fn facts() -> Vec<Fact> {
    semaphore_facts()
        .into_iter()
        .chain(host_semaphore_facts())
        .chain(memory_channel_facts())
        .chain(packet_facts::<LL8Packet>("LL8Packet"))
        .chain(packet_facts::<LL16Packet>("LL16Packet"))
        .chain(packet_facts::<LL128Packet>("LL128Packet"))
        // Programs also have this type in structs of their own.
        .chain(sizes::<u64>("BulkBarrier"))
        .collect()
}

fn semaphore_facts() -> Vec<Fact> {
    type Semaphore = DeviceToDeviceSemaphoreHandle;
    let cpp = "MemoryDevice2DeviceSemaphoreDeviceHandle";
    let mut facts = Vec::from(sizes::<Semaphore>(cpp));
    facts.extend([
        offset(cpp, "inboundToken", offset_of!(Semaphore, inbound_token)),
        offset(cpp, "expectedInboundToken", offset_of!(Semaphore, expected_inbound_token)),
        offset(cpp, "remoteInboundToken", offset_of!(Semaphore, remote_inbound_token)),
        offset(cpp, "outboundLock", offset_of!(Semaphore, outbound_lock)),
        offset(cpp, "status", offset_of!(Semaphore, status)),
    ]);
    facts
}

fn host_semaphore_facts() -> Vec<Fact> {
    type Semaphore = HostToDeviceSemaphoreHandle;
    let cpp = "Host2DeviceSemaphoreDeviceHandle";
    let mut facts = Vec::from(sizes::<Semaphore>(cpp));
    facts.extend([
        offset(cpp, "inboundToken", offset_of!(Semaphore, inbound_token)),
        offset(cpp, "expectedInboundToken", offset_of!(Semaphore, expected_inbound_token)),
        offset(cpp, "status", offset_of!(Semaphore, status)),
        offset(cpp, "port", offset_of!(Semaphore, port)),
    ]);
    facts
}

fn memory_channel_facts() -> Vec<Fact> {
    type Base = BaseMemoryChannelHandle;
    type Channel = MemoryChannelHandle;
    let (base, channel) = ("BaseMemoryChannelDeviceHandle", "MemoryChannelDeviceHandle");
    let mut facts: Vec<Fact> = sizes::<Base>(base).into_iter().chain(sizes::<Channel>(channel)).collect();
    facts.extend([
        offset(base, "semaphore_", offset_of!(Base, semaphore)),
        offset(channel, "semaphore_", offset_of!(Channel, base) + offset_of!(Base, semaphore)),
        offset(channel, "dst_", offset_of!(Channel, dst)),
        offset(channel, "src_", offset_of!(Channel, src)),
        offset(channel, "packetBuffer_", offset_of!(Channel, packet_buffer)),
        offset(channel, "flags_", offset_of!(Channel, flags)),
        offset(channel, "reserved_", offset_of!(Channel, reserved)),
        fact("lines", "mscclpp::MemoryChannelLines", Channel::LINES_ARRIVE_WHOLE as usize),
    ]);
    facts
}

/// Returns the facts of a packet. The offset of its data is checked by its own unit test.
fn packet_facts<P: Packet>(cpp: &str) -> [Fact; 3] {
    [
        fact("size", format!("sizeof(mscclpp::{cpp})"), P::SIZE as usize),
        fact("alignment", format!("alignof(mscclpp::{cpp})"), P::SIZE as usize),
        fact("payload", format!("mscclpp::{cpp}::PayloadBytes"), P::PAYLOAD as usize),
    ]
}
