use std::fmt;

use crate::{Error, Gpu, Result, env, host};

/// Where devices come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Platform {
    /// NVIDIA GPUs through the CUDA driver, loaded at run time (feature `cuda`).
    Cuda,
    /// AMD GPUs. This version has no HIP back-end: asking for it is [`Error::Unavailable`].
    Hip,
    /// Devices simulated on the CPU: for machines without a GPU, for tests, never for speed.
    Host,
}

impl Platform {
    /// The platform of `MSCCLPP_PLATFORM`, else CUDA, else HIP.
    ///
    /// Never picks [`Platform::Host`] by itself.
    ///
    /// # Errors
    /// [`Error::Unavailable`] with what was looked for if no GPU is usable.
    pub fn detect() -> Result<Self> {
        let chosen = env::platform()?.unwrap_or(Self::Cuda);
        chosen.device_count().map(|_| chosen)
    }

    /// As [`Platform::detect`], but a machine that has no GPU at all gets [`Platform::Host`].
    ///
    /// For examples, tests and benchmarks, which print the answer first. A machine that has GPU device nodes but
    /// whose driver fails is an error here too: running on the CPU there would hide a broken installation.
    ///
    /// # Errors
    /// As [`Platform::detect`] where `MSCCLPP_PLATFORM` names a platform or device nodes exist.
    pub fn detect_or_host() -> Result<Self> {
        match Self::detect() {
            Err(Error::Unavailable { .. }) if env::platform()?.is_none() && !gpu_device_nodes_exist() => {
                Ok(Self::Host)
            }
            other => other,
        }
    }

    /// How many devices there are.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the platform cannot be used; there is then no device.
    pub fn device_count(self) -> Result<usize> {
        match self {
            Self::Host => host::device_count(),
            #[cfg(feature = "cuda")]
            Self::Cuda => crate::cuda::device_count(),
            #[cfg(not(feature = "cuda"))]
            Self::Cuda => {
                Err(self.not_built("build with the feature `cuda` (of the crate mscclpp: `cuda-ipc`)"))
            }
            Self::Hip => {
                Err(self.not_built("this version has no HIP back-end; use MSCCLPP_PLATFORM=cuda or host"))
            }
        }
    }

    /// Opens device `id`, counted from 0.
    ///
    /// # Errors
    /// [`Error::NoSuchDevice`], or [`Error::Unavailable`].
    pub fn gpu(self, id: usize) -> Result<Gpu> {
        let count = self.device_count()?;
        if id >= count {
            return Err(Error::NoSuchDevice { platform: self, id, count });
        }
        match self {
            Self::Host => host::open(id).map(Gpu::new),
            #[cfg(feature = "cuda")]
            Self::Cuda => crate::cuda::open(id).map(Gpu::new),
            _ => unreachable!("device_count is an error for {self}"),
        }
    }

    /// Opens every device.
    ///
    /// # Errors
    /// As [`Platform::gpu`].
    pub fn gpus(self) -> Result<Vec<Gpu>> {
        (0..self.device_count()?).map(|id| self.gpu(id)).collect()
    }

    /// The device of the calling thread: on CUDA that of the current context, else device 0.
    ///
    /// # Errors
    /// As [`Platform::gpu`].
    pub fn current_gpu(self) -> Result<Gpu> {
        match self {
            #[cfg(feature = "cuda")]
            Self::Cuda => self.gpu(crate::cuda::current_device()?),
            _ => self.gpu(0),
        }
    }

    /// The number of the device with that [`crate::GpuProperties::uuid`], if this process sees it. Opens no device:
    /// on CUDA that would make a context, which takes memory of a GPU that others may be using.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub fn find(self, uuid: &[u8; 16]) -> Result<Option<usize>> {
        match self {
            Self::Host => host::find(uuid),
            #[cfg(feature = "cuda")]
            Self::Cuda => crate::cuda::find(uuid),
            _ => self.device_count().map(|_| None),
        }
    }

    /// The device whose memory `ptr` points into, or `None` for memory that is not a device's.
    ///
    /// # Errors
    /// As [`Platform::gpu`].
    pub fn owner_of(self, ptr: crate::DevicePtr) -> Result<Option<Gpu>> {
        let id = match self {
            Self::Host => host::owner_of(ptr),
            #[cfg(feature = "cuda")]
            Self::Cuda => crate::cuda::owner_of(ptr)?,
            _ => None,
        };
        id.map(|id| self.gpu(id)).transpose()
    }

    /// What to tell a user where [`crate::PeerAccess::reachable`] is false.
    #[must_use]
    pub fn why_no_peer_access(self) -> &'static str {
        match self {
            Self::Host => "MSCCLPP_HOST_PEER_ACCESS=none keeps simulated devices from each other's memory",
            _ => "the driver reports no peer access between them; see `nvidia-smi topo -p2p r`",
        }
    }

    #[allow(dead_code, reason = "not every feature set has a platform that is left out")]
    fn not_built(self, reason: &str) -> Error {
        Error::Unavailable { platform: self, reason: reason.to_owned() }
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cuda => "cuda",
            Self::Hip => "hip",
            Self::Host => "host",
        })
    }
}

fn gpu_device_nodes_exist() -> bool {
    ["/dev/nvidiactl", "/dev/nvidia0", "/dev/kfd", "/dev/dxg"]
        .iter()
        .any(|path| std::path::Path::new(path).exists())
}
