use std::fmt;

use mscclpp_gpu::Platform;

use crate::{Device, Transport, identity::ProcessId};

/// The part of an endpoint that travels to peers. Its [`fmt::Debug`] leaves out the provider's part, which may hold a key.
#[derive(Clone)]
#[non_exhaustive]
pub struct EndpointInfo {
    /// The transport over which the endpoint is reached.
    pub transport: Transport,
    /// The device that the endpoint is on, with the number that the endpoint's own process gives it.
    pub device: Device,
    /// The process that the endpoint is in.
    pub process: ProcessId,
    /// A number that no other endpoint of that process has.
    pub id: u64,
    /// The identifier of the endpoint's node, which all processes of the node share.
    pub host: String,
    /// The platform of the endpoint's device.
    pub platform: Platform,
    /// The UUID of the endpoint's device; zeros for a CPU.
    pub device_uuid: [u8; 16],
    /// The part that the peer's provider needs to connect with the endpoint.
    pub blob: Vec<u8>,
}

impl EndpointInfo {
    /// Whether the endpoint is in this process.
    #[must_use]
    pub fn is_in_this_process(&self) -> bool {
        ProcessId::current().is_ok_and(|id| id == self.process)
    }
}

mscclpp_os::debug_fields!(EndpointInfo, |this|
    transport: this.transport, device: this.device, process: this.process, id: this.id, host: this.host,
    platform: this.platform, device_uuid: this.device_uuid, blob: format_args!("{} bytes", this.blob.len())
);

impl fmt::Display for EndpointInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} of process {}", self.platform, self.device, self.process.pid())
    }
}
