use std::{path::PathBuf, sync::Arc, time::Duration};

use mscclpp_os::{SystemFailure, env::BadVariable};

use crate::Platform;

/// The result of this crate's calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a device. Each variant is a situation to which a caller can respond.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This process was forked from one that had opened devices, and uses one of them, or an object that was made there.
    #[error(
        "process {child} is a fork of process {parent}, in which this was made or devices were opened: a fork has none of its \
         parent's devices, threads and connections; start processes as new programs (Python: \
         multiprocessing.get_context(\"spawn\")), or fork before the first use of a device"
    )]
    Forked {
        /// The process that has devices.
        parent: u32,
        /// The process that called.
        child: u32,
    },
    /// A platform cannot be used here: no driver, no device, or not compiled in.
    #[error("platform {platform} is not usable here: {reason}")]
    Unavailable {
        /// The platform that was requested.
        platform: Platform,
        /// The part that is missing, the places where it was looked for, and advice.
        reason: String,
    },
    /// There is no device with this number.
    #[error("there is no {platform} device {id}: {count} found")]
    NoSuchDevice {
        /// The platform.
        platform: Platform,
        /// The number that was requested.
        id: usize,
        /// The number of devices that exist.
        count: usize,
    },
    /// A call of the GPU driver failed.
    #[error("{operation} failed: {name} ({code}): {description}")]
    Driver {
        /// The driver entry point, with the arguments that matter.
        operation: String,
        /// The driver's code.
        code: u32,
        /// The code's name.
        name: String,
        /// The driver's description of the code.
        description: String,
    },
    /// A call of the operating system failed.
    #[error(transparent)]
    System(SystemFailure),
    /// A range is not inside the memory it names.
    #[error(transparent)]
    OutOfBounds(OutOfBounds),
    /// An argument that is wrong in every situation.
    #[error("{0}")]
    InvalidArgument(String),
    /// Memory cannot be shared with other processes, or not in this way.
    #[error("memory at {address:#x} ({len} bytes) cannot be exported: {reason}")]
    NotExportable {
        /// Start of the range.
        address: u64,
        /// Length of the range.
        len: u64,
        /// The reason, and what to do.
        reason: String,
    },
    /// One device cannot reach the memory of another.
    #[error("{from} cannot access the memory of {to}: {reason}")]
    NoPeerAccess {
        /// The device that would access.
        from: String,
        /// The device that owns the memory.
        to: String,
        /// The reason, and what to do.
        reason: String,
    },
    /// There is no kernel or module symbol with this name.
    #[error(
        "no {kind} named {name:?} in this module (it has: {available}){}",
        if *.kind == "kernel" { EXTERN_C } else { "" }
    )]
    NoSuchSymbol {
        /// `kernel` or `symbol`.
        kind: &'static str,
        /// The name that was requested.
        name: String,
        /// The names that exist, if the platform can tell.
        available: String,
    },
    /// A kernel source did not compile or load.
    #[error("{name} did not compile:\n{log}")]
    Compile {
        /// The program's name.
        name: String,
        /// The compiler's log.
        log: String,
    },
    /// A kernel without PTX is not in the cache, and cannot be compiled for CUDA because there is no NVRTC.
    #[error(
        "{name} has no PTX, the cache of compiled kernels does not have it, and it cannot be compiled here; where the kernels of this repository \
         are missing, run `cargo xtask build-kernels`, or set MSCCLPP_CACHE_DIR to the folder `cache` of `cargo xtask dist`"
    )]
    NoPtx {
        /// The kernels' source.
        name: String,
        /// The reason why it cannot be compiled.
        source: Box<Error>,
    },
    /// A kernel is not in the cache, and cannot be compiled for simulated devices because there is no C++ compiler.
    #[error(
        "the simulated platform compiles kernels with a C++ compiler, and none runs here ({tried}); install one (Debian and \
         Ubuntu: `apt-get install g++`) or name one in MSCCLPP_CXX; the cache of compiled kernels does not have this one \
         either"
    )]
    NoCompiler {
        /// The compilers that were tried, and the reason why each failed.
        tried: String,
    },
    /// Others may write to a folder or a file of the cache of compiled kernels, whose content would be run.
    #[error(
        "{} is refused as cache of compiled kernels: {reason}; give it to this user alone (`chmod go-w`), or set \
         MSCCLPP_CACHE_DIR to another folder", path.display()
    )]
    Cache {
        /// The folder or file.
        path: PathBuf,
        /// The users who may write to it.
        reason: String,
    },
    /// A kernel of a simulated device failed; the stream stays failed.
    #[error("kernel {kernel} failed: {message}")]
    KernelFailed {
        /// The kernel's name.
        kernel: String,
        /// The kernel's message.
        message: String,
    },
    /// An access of the host or of a stream to memory of a simulated device is in a data race (`MSCCLPP_SIM_RACES=1`).
    #[error("{operation}: {message}")]
    Race {
        /// The call.
        operation: &'static str,
        /// The report of the race.
        message: String,
    },
    /// A wait of a kernel ended without its signal, through an object that its launch was given. The object's own error
    /// is in it, such as that the peer was lost. The work itself is complete.
    ///
    /// `CoreError`, `ProxyError` and the facade's `Error`, made of this, are the object's own error.
    #[error(transparent)]
    Wait(Arc<dyn std::error::Error + Send + Sync>),
    /// A wait ran out of time. Nothing was consumed; the call can be repeated.
    #[error("{operation} did not finish within {after:?}{remedy}")]
    Timeout {
        /// The work that was waited for.
        operation: String,
        /// The time that was waited.
        after: Duration,
        /// Advice where to look: empty, or `"; see ..."`.
        remedy: &'static str,
    },
    /// An environment variable has a malformed value.
    #[error(transparent)]
    Environment(BadVariable),
}

/// A range is not inside the memory it names.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: offset {offset} + {len} bytes is past the end of {size} bytes")]
pub struct OutOfBounds {
    /// The call, and the memory of it that is meant.
    pub what: &'static str,
    /// The first byte of the range.
    pub offset: u64,
    /// The number of bytes.
    pub len: u64,
    /// The size of the memory.
    pub size: u64,
}

impl OutOfBounds {
    /// Checks that the range is inside memory of `size` bytes.
    ///
    /// # Errors
    /// Fails if it is not.
    pub fn check(what: &'static str, offset: u64, len: u64, size: u64) -> Result<(), Self> {
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(()),
            _ => Err(Self { what, offset, len, size }),
        }
    }
}

/// The advice for a kernel that is not found.
const EXTERN_C: &str = "; a kernel is found by its name only if it is declared extern \"C\" __global__";

mscclpp_os::debug_as_report!(Error);

impl Error {
    pub(crate) fn system(
        operation: impl Into<String>,
        error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::System(SystemFailure::new(operation, error))
    }

    pub(crate) fn bounds(what: &'static str, offset: u64, len: u64, size: u64) -> Result<()> {
        OutOfBounds::check(what, offset, len, size).map_err(Self::OutOfBounds)
    }

    pub(crate) fn invalid(why: impl Into<String>) -> Self {
        Self::InvalidArgument(why.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_main_prints_is_the_message_with_its_causes() {
        let refused = std::io::Error::from_raw_os_error(13);
        let text = format!("opening a device failed: {refused}");
        let error = Error::system("opening a device", refused);
        assert_eq!(format!("{error:?}"), text);
        let error = Error::NoPtx { name: "a kernel".to_owned(), source: Box::new(error) };
        assert_eq!(format!("{error:?}"), format!("{error}: {text}"));
    }
}
