//! The platforms of this build, and the detection of those that are usable.

use std::fmt;

#[cfg(any(feature = "cuda", feature = "hip"))]
use crate::driver::platform::OfDriver;
use crate::{Error, Result, backend::PlatformBackend, env, fork, sim};

/// A kind of device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Platform {
    /// NVIDIA GPUs through the CUDA driver, loaded at run time (feature `cuda`).
    Cuda,
    /// AMD GPUs through the HIP runtime, loaded at run time (feature `hip`). It has not been run on a GPU yet: it is
    /// compiled, and tested against a fake of the runtime. The log says so when a device is opened.
    Hip,
    /// Devices simulated on the CPU: for machines without a GPU and for tests, never for speed.
    Sim,
}

/// A platform of this build. All that depends on the platform is behind its back-end.
struct Entry {
    platform: Platform,
    name: &'static str,
    /// The back-end, or advice how to get it.
    backend: Result<&'static dyn PlatformBackend, &'static str>,
    /// Files that exist where the hardware is. A platform without any is not detected.
    device_nodes: &'static [&'static str],
}

impl Entry {
    fn backend(&self) -> Result<&'static dyn PlatformBackend> {
        self.backend
            .map_err(|reason| Error::Unavailable { platform: self.platform, reason: reason.to_owned() })
    }

    fn device_nodes_exist(&self) -> bool {
        self.device_nodes.iter().any(|path| std::path::Path::new(path).exists())
    }
}

/// The platforms, in the order of the enumeration and of detection.
static PLATFORMS: [Entry; 3] = [
    Entry {
        platform: Platform::Cuda,
        name: "cuda",
        #[cfg(feature = "cuda")]
        backend: Ok(&OfDriver::<mscclpp_gpu_sys::cuda::Driver>::NEW),
        #[cfg(not(feature = "cuda"))]
        backend: Err("build with the feature `cuda` (of the crate mscclpp: `cuda-ipc`)"),
        device_nodes: &["/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg"],
    },
    Entry {
        platform: Platform::Hip,
        name: "hip",
        #[cfg(feature = "hip")]
        backend: Ok(&OfDriver::<mscclpp_gpu_sys::hip::Hip>::NEW),
        #[cfg(not(feature = "hip"))]
        backend: Err("build with the feature `hip`"),
        device_nodes: &["/dev/kfd"],
    },
    Entry { platform: Platform::Sim, name: "sim", backend: Ok(&sim::Sim), device_nodes: &[] },
];

impl Platform {
    fn entry(self) -> &'static Entry {
        &PLATFORMS[self as usize]
    }

    /// Returns the platform of that name, in upper or lower case.
    pub(crate) fn named(name: &str) -> Option<Self> {
        PLATFORMS.iter().find(|entry| entry.name.eq_ignore_ascii_case(name)).map(|entry| entry.platform)
    }

    pub(crate) fn backend(self) -> Result<&'static dyn PlatformBackend> {
        fork::check_devices().and_then(|()| self.entry().backend())
    }

    /// Returns the platform that `MSCCLPP_PLATFORM` names; if it is not set, CUDA, or else HIP if this build has it.
    ///
    /// Never chooses [`Platform::Sim`] by itself; [`Platform::detect_or_sim`] does.
    ///
    /// # Errors
    /// [`Error::Unavailable`], which says what was looked for, if no GPU is usable; [`Error::Forked`].
    pub fn detect() -> Result<Self> {
        fork::check_devices()?;
        if let Some(chosen) = env::platform()? {
            return chosen.device_count().map(|_| chosen);
        }
        let mut failed = Vec::new();
        for entry in PLATFORMS.iter().filter(|entry| !entry.device_nodes.is_empty()) {
            match entry.backend().and_then(PlatformBackend::device_count) {
                Ok(_) => return Ok(entry.platform),
                Err(error) => failed.push((entry, error)),
            }
        }
        // The error is about the hardware that is there, else about CUDA, the first.
        let there = failed.iter().position(|(entry, _)| entry.device_nodes_exist()).unwrap_or(0);
        Err(match failed.swap_remove(there).1 {
            Error::Unavailable { platform, reason } => Error::Unavailable {
                platform,
                // Python's programs show this text, too.
                reason: format!(
                    "{reason}. To run without a GPU, on simulated devices, set MSCCLPP_PLATFORM=sim"
                ),
            },
            other => other,
        })
    }

    /// Detects like [`Platform::detect`], but returns [`Platform::Sim`] on a machine that has no GPU at all.
    ///
    /// For examples, tests and benchmarks, which print the answer first. If a machine has GPU device nodes but its
    /// driver fails, that is an error here too: running on the CPU would hide a broken installation.
    ///
    /// # Errors
    /// The errors of [`Platform::detect`], if `MSCCLPP_PLATFORM` names a platform or if device nodes exist.
    pub fn detect_or_sim() -> Result<Self> {
        match Self::detect() {
            Err(Error::Unavailable { .. })
                if env::platform()?.is_none() && !PLATFORMS.iter().any(Entry::device_nodes_exist) =>
            {
                Ok(Self::Sim)
            }
            other => other,
        }
    }

    /// Returns the number of devices.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the platform cannot be used, and so has no device; [`Error::Forked`].
    pub fn device_count(self) -> Result<usize> {
        self.backend()?.device_count()
    }

    /// Returns the number of the device with this [`GpuProperties::uuid`](crate::GpuProperties::uuid), if this process
    /// sees it.
    /// Opens no device: on CUDA that would make a context, which takes memory of a GPU that others may be using.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub fn find(self, uuid: &[u8; 16]) -> Result<Option<usize>> {
        self.backend()?.find(uuid)
    }

    /// Returns the text for a user if [`PeerAccess::reachable`](crate::PeerAccess::reachable) is false.
    #[must_use]
    pub fn why_no_peer_access(self) -> &'static str {
        self.entry().backend.map_or_else(|reason| reason, PlatformBackend::why_no_peer_access)
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.entry().name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_platforms() {
        for (index, entry) in PLATFORMS.iter().enumerate() {
            assert_eq!(entry.platform as usize, index);
            let name = entry.platform.to_string();
            assert_eq!(Platform::named(&name.to_uppercase()), Some(entry.platform));
        }
        assert_eq!(Platform::named("metal"), None);
    }
}
