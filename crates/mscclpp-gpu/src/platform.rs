use std::fmt;

#[cfg(any(feature = "cuda", feature = "hip"))]
use crate::driver::platform::OfDriver;
#[cfg(not(all(feature = "cuda", feature = "hip")))]
use crate::missing::Missing;
use crate::{DevicePtr, Error, Gpu, Result, backend::PlatformBackend, env, fork, host};

/// A kind of devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Platform {
    /// NVIDIA GPUs through the CUDA driver, loaded at run time (feature `cuda`).
    Cuda,
    /// AMD GPUs through the HIP runtime, loaded at run time (feature `hip`). It has not been run on a GPU yet: it is
    /// compiled, and tested against a fake of the runtime. The log says so when a device is opened.
    Hip,
    /// Devices simulated on the CPU: for machines without a GPU and for tests, never for speed.
    Host,
}

/// What this crate knows of a platform. All that depends on the platform is behind its back-end.
struct Entry {
    platform: Platform,
    name: &'static str,
    backend: &'static dyn PlatformBackend,
    /// Whether [`Platform::detect`] takes it when nobody has chosen.
    is_detected: bool,
    /// Files that are there where the hardware is.
    device_nodes: &'static [&'static str],
}

impl Entry {
    fn device_nodes_exist(&self) -> bool {
        self.device_nodes.iter().any(|path| std::path::Path::new(path).exists())
    }
}

#[cfg(feature = "cuda")]
static CUDA: OfDriver<mscclpp_gpu_sys::cuda::Driver> = OfDriver::NEW;
#[cfg(not(feature = "cuda"))]
static CUDA: Missing = Missing {
    platform: Platform::Cuda,
    reason: "build with the feature `cuda` (of the crate mscclpp: `cuda-ipc`)",
};

#[cfg(feature = "hip")]
static HIP: OfDriver<mscclpp_gpu_sys::hip::Hip> = OfDriver::NEW;
#[cfg(not(feature = "hip"))]
static HIP: Missing = Missing { platform: Platform::Hip, reason: "build with the feature `hip`" };

/// The platforms, in the order of the enumeration and of detection.
static PLATFORMS: [Entry; 3] = [
    Entry {
        platform: Platform::Cuda,
        name: "cuda",
        backend: &CUDA,
        is_detected: true,
        device_nodes: &["/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg"],
    },
    Entry {
        platform: Platform::Hip,
        name: "hip",
        backend: &HIP,
        is_detected: true,
        device_nodes: &["/dev/kfd"],
    },
    Entry {
        platform: Platform::Host,
        name: "host",
        backend: &host::Host,
        is_detected: false,
        device_nodes: &[],
    },
];

impl Platform {
    fn entry(self) -> &'static Entry {
        &PLATFORMS[self as usize]
    }

    fn backend(self) -> Result<&'static dyn PlatformBackend> {
        fork::check_devices().map(|()| self.entry().backend)
    }

    /// The platform of that name, in any case.
    pub(crate) fn named(name: &str) -> Option<Self> {
        PLATFORMS.iter().find(|entry| entry.name.eq_ignore_ascii_case(name)).map(|entry| entry.platform)
    }

    /// The platform that `MSCCLPP_PLATFORM` names; if it is not set, CUDA, or else HIP if this build has it.
    ///
    /// Never chooses [`Platform::Host`] by itself.
    ///
    /// # Errors
    /// [`Error::Unavailable`], which says what was looked for, if no GPU is usable; [`Error::Forked`].
    pub fn detect() -> Result<Self> {
        fork::check_devices()?;
        if let Some(chosen) = env::platform()? {
            return chosen.device_count().map(|_| chosen);
        }
        let mut failed = Vec::new();
        for entry in PLATFORMS.iter().filter(|entry| entry.is_detected) {
            match entry.backend.device_count() {
                Ok(_) => return Ok(entry.platform),
                Err(error) => failed.push((entry, error)),
            }
        }
        // What is said is about the hardware that is there, else about CUDA, the first.
        let there = failed.iter().position(|(entry, _)| entry.device_nodes_exist()).unwrap_or(0);
        Err(match failed.swap_remove(there).1 {
            Error::Unavailable { platform, reason } => Error::Unavailable {
                platform,
                reason: format!(
                    "{reason}. To run without a GPU, on simulated devices, set MSCCLPP_PLATFORM=host; a Rust program can \
                     take them by itself, with Platform::detect_or_host()"
                ),
            },
            other => other,
        })
    }

    /// Like [`Platform::detect`], but gives [`Platform::Host`] on a machine that has no GPU at all.
    ///
    /// For examples, tests and benchmarks, which print the answer first. If a machine has GPU device nodes but its
    /// driver fails, that is an error here too: running on the CPU would hide a broken installation.
    ///
    /// # Errors
    /// As for [`Platform::detect`], if `MSCCLPP_PLATFORM` names a platform or if device nodes exist.
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
    /// [`Error::Unavailable`] if the platform cannot be used, and so has no device; [`Error::Forked`].
    pub fn device_count(self) -> Result<usize> {
        self.backend()?.device_count()
    }

    /// Opens device `id`, counted from 0.
    ///
    /// # Errors
    /// [`Error::NoSuchDevice`], or [`Error::Unavailable`]; [`Error::Forked`] if this process was forked from one that had
    /// opened a device.
    pub fn gpu(self, id: usize) -> Result<Gpu> {
        let count = self.device_count()?;
        if id >= count {
            return Err(Error::NoSuchDevice { platform: self, id, count });
        }
        let gpu = self.backend()?.open(id).map(Gpu::new);
        fork::device_opened();
        gpu
    }

    /// Opens every device.
    ///
    /// # Errors
    /// As [`Platform::gpu`].
    pub fn gpus(self) -> Result<Vec<Gpu>> {
        (0..self.device_count()?).map(|id| self.gpu(id)).collect()
    }

    /// The device that this thread last made current, with [`Gpu::make_current`] or, on CUDA and HIP, through another
    /// library. Device 0 if there was none.
    ///
    /// # Errors
    /// As [`Platform::gpu`].
    pub fn current_gpu(self) -> Result<Gpu> {
        self.gpu(self.backend()?.current_device()?)
    }

    /// The number of the device with this [`GpuProperties::uuid`](crate::GpuProperties::uuid), if this process sees it.
    /// Opens no device: on CUDA that would make a context, which takes memory of a GPU that others may be using.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub fn find(self, uuid: &[u8; 16]) -> Result<Option<usize>> {
        self.backend()?.find(uuid)
    }

    /// The device into whose memory `ptr` points, or `None` if it is not device memory.
    ///
    /// # Errors
    /// As [`Platform::gpu`].
    pub fn owner_of(self, ptr: DevicePtr) -> Result<Option<Gpu>> {
        self.backend()?.owner_of(ptr)?.map(|id| self.gpu(id)).transpose()
    }

    /// What to tell a user if [`PeerAccess::reachable`](crate::PeerAccess::reachable) is false.
    #[must_use]
    pub fn why_no_peer_access(self) -> &'static str {
        self.entry().backend.why_no_peer_access()
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.entry().name)
    }
}

fn gpu_device_nodes_exist() -> bool {
    PLATFORMS.iter().any(Entry::device_nodes_exist)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_platforms() {
        for (index, entry) in PLATFORMS.iter().enumerate() {
            assert_eq!(entry.platform as usize, index);
            assert_eq!(Platform::named(&entry.name.to_uppercase()), Some(entry.platform));
            assert_eq!(entry.platform.to_string(), entry.name);
        }
        assert_eq!(Platform::named("metal"), None);
    }
}
