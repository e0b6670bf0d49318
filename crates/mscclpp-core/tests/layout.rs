//! The device handles are laid out in Rust as a C++ compiler lays them out from the headers.

use mscclpp_core::{
    BaseMemoryChannelHandle, DeviceToDeviceSemaphoreHandle, HostToDeviceSemaphoreHandle, LL8Packet,
    LL16Packet, LL128Packet, MemoryChannelHandle, Packet,
};
use mscclpp_test_support::{
    layout::{self, Fact, fact, sizes},
    layouts,
};

fn main() {
    layout::main(mscclpp_kernels::HEADERS, &[("memory_channel_device.hpp", facts)]);
}

fn facts() -> Vec<Fact> {
    let mut facts = layouts! {
        DeviceToDeviceSemaphoreHandle, "MemoryDevice2DeviceSemaphoreDeviceHandle":
            "inboundToken" inbound_token, "expectedInboundToken" expected_inbound_token,
            "remoteInboundToken" remote_inbound_token, "outboundLock" outbound_lock, "status" status;
        HostToDeviceSemaphoreHandle, "Host2DeviceSemaphoreDeviceHandle": "inboundToken" inbound_token,
            "expectedInboundToken" expected_inbound_token, "status" status, "port" port;
        BaseMemoryChannelHandle, "BaseMemoryChannelDeviceHandle": "semaphore_" semaphore;
        MemoryChannelHandle, "MemoryChannelDeviceHandle": "semaphore_" base.semaphore, "dst_" dst, "src_" src,
            "packetBuffer_" packet_buffer, "flags_" flags, "reserved_" reserved;
    };
    facts.push(fact(
        "lines",
        "mscclpp::MemoryChannelLines",
        MemoryChannelHandle::LINES_ARRIVE_WHOLE as usize,
    ));
    facts.extend(packet_facts::<LL8Packet>("LL8Packet"));
    facts.extend(packet_facts::<LL16Packet>("LL16Packet"));
    facts.extend(packet_facts::<LL128Packet>("LL128Packet"));
    // Programs also have this type in structs of their own.
    facts.extend(sizes::<u64>("BulkBarrier"));
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
