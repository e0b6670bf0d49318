use std::fmt;

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

impl Platform {
    fn name(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            Self::Hip => "hip",
            Self::Sim => "sim",
        }
    }

    /// Returns the platform of that name, in upper or lower case.
    pub(crate) fn named(name: &str) -> Option<Self> {
        [Self::Cuda, Self::Hip, Self::Sim].into_iter().find(|p| p.name().eq_ignore_ascii_case(name))
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
