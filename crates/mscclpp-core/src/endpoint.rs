use std::sync::Arc;

use mscclpp_gpu::{Gpu, fork::OfProcess};

use crate::{
    Device, DeviceType, EndpointConfig, EndpointInfo, Error, Result, Transport,
    identity::ProcessId,
    provider::LocalEndpoint,
    wire::{Kind, Reader, Writer},
};

/// One end of connections: which device it is on and how it can be reached.
///
/// Made by [`Context::create_endpoint`](crate::Context::create_endpoint), or by [`Endpoint::deserialize`] from the
/// bytes that a peer sent. Cheap to clone. A connection joins one that was made here with one that came from a peer
/// (or with another that was made here).
#[derive(Clone)]
pub struct Endpoint {
    info: Arc<EndpointInfo>,
    local: Option<Local>,
}

/// The parts of an endpoint that exist only in the process that made it.
#[derive(Clone)]
pub(crate) struct Local {
    pub(crate) config: EndpointConfig,
    pub(crate) gpu: Option<Gpu>,
    pub(crate) endpoint: OfProcess<Arc<dyn LocalEndpoint>>,
}

impl Local {
    /// Checks that both devices are on the same platform. A CPU has none; GPUs of different platforms would disagree
    /// about the contents of their memory.
    pub(crate) fn check_platform(&self, remote: &EndpointInfo) -> Result<()> {
        match &self.gpu {
            Some(gpu) if remote.device.kind == DeviceType::Gpu && remote.platform != gpu.platform() => {
                Err(Error::Unreachable {
                    local: gpu.to_string(),
                    remote: remote.to_string(),
                    transport: self.config.transport,
                    reason: format!(
                        "the peer is on platform {}, this side on {}; set MSCCLPP_PLATFORM alike",
                        remote.platform,
                        gpu.platform()
                    ),
                })
            }
            _ => Ok(()),
        }
    }
}

impl Endpoint {
    pub(crate) fn local(info: EndpointInfo, local: Local) -> Self {
        Self { info: Arc::new(info), local: Some(local) }
    }

    pub(crate) fn as_local(&self) -> Option<&Local> {
        self.local.as_ref()
    }

    /// The configuration that the endpoint was made with; `None` for one that came from a peer, as it is not sent.
    #[must_use]
    pub fn config(&self) -> Option<&EndpointConfig> {
        self.local.as_ref().map(|local| &local.config)
    }

    /// The transport over which the endpoint is reached.
    #[must_use]
    pub fn transport(&self) -> Transport {
        self.info.transport
    }

    /// The device that the endpoint is on, with the number that the endpoint's own process gives it.
    #[must_use]
    pub fn device(&self) -> Device {
        self.info.device
    }

    /// How many operations may wait to be sent, as the endpoint's configuration says; `None` for the transport's own
    /// limit, and for an endpoint that came from a peer.
    #[must_use]
    pub fn max_write_queue_size(&self) -> Option<u32> {
        self.config().and_then(|config| config.max_write_queue_size)
    }

    /// Everything that a peer knows of the endpoint.
    #[must_use]
    pub fn info(&self) -> &Arc<EndpointInfo> {
        &self.info
    }

    /// Returns the bytes to send to the peer, a few hundred.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a provider's part is over the wire's limit of 64 KiB.
    pub fn serialize(&self) -> Result<Vec<u8>> {
        if let Some(local) = &self.local {
            local.endpoint.here()?;
        }
        let EndpointInfo { transport, device, process, id, host, platform, device_uuid, blob } = &*self.info;
        let mut out = Writer::new(Kind::Endpoint);
        out.array(&process.to_bytes());
        out.u64(*id);
        out.blob(host.as_bytes());
        out.platform(*platform)?;
        out.u8(transport.code());
        out.u8(match device.kind {
            DeviceType::Unknown => 0,
            DeviceType::Cpu => 1,
            DeviceType::Gpu => 2,
        });
        out.u64(device.id.map_or(u64::MAX, |id| id as u64));
        out.array(device_uuid);
        out.blob(blob);
        out.finish()
    }

    /// Reads the bytes that a peer's [`Endpoint::serialize`] returned.
    ///
    /// # Errors
    /// [`Error::Malformed`] for bytes that are truncated, foreign, of another version or of another kind.
    pub fn deserialize(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::open(Kind::Endpoint, bytes)?;
        let process = ProcessId::from_bytes(r.array("the process id")?);
        let id = r.u64("the endpoint id")?;
        let host = r.text("the host id")?;
        let platform = r.platform()?;
        let transport = r.transport()?;
        let kind = match r.u8("the device type")? {
            0 => DeviceType::Unknown,
            1 => DeviceType::Cpu,
            2 => DeviceType::Gpu,
            other => return Err(r.malformed(format!("device type {other} is unknown"))),
        };
        let device_id = match r.u64("the device id")? {
            u64::MAX => None,
            id => Some(usize::try_from(id).map_err(|_| r.malformed(format!("device id {id} is too large")))?),
        };
        let device_uuid = r.array("the device uuid")?;
        let blob = r.blob("the transport's part")?.to_vec();
        r.finish()?;
        let device = Device { kind, id: device_id };
        Ok(Self::from(EndpointInfo { transport, device, process, id, host, platform, device_uuid, blob }))
    }
}

/// Makes an endpoint as a peer has it that was sent this information.
impl From<EndpointInfo> for Endpoint {
    fn from(info: EndpointInfo) -> Self {
        Self { info: Arc::new(info), local: None }
    }
}

mscclpp_os::debug_fields!(Endpoint, |this| info: this.info, local: this.local.is_some());
