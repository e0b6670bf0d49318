//! Failures in the form of NCCL's interface: a code, and a text for `ncclGetLastError`.

use std::panic::{AssertUnwindSafe, catch_unwind};

use mscclpp::{
    Error as Below, ErrorKind,
    errors::{BootstrapError, CoreError, GpuError, Report},
};
use mscclpp_collectives::Error;

use crate::abi::Code;

/// The failure of a call.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{text}")]
pub(crate) struct Failure {
    pub(crate) code: Code,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn new(code: Code, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    /// The failure of a call with an argument that is wrong in every situation.
    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self::new(Code::INVALID_ARGUMENT, text)
    }

    /// The failure of a call that is wrong in this situation, or that this library does not cover.
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self::new(Code::INVALID_USAGE, text)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::InvalidArgument(_) => Code::INVALID_ARGUMENT,
            Error::Below(below) if is_of_driver(below) => Code::UNHANDLED_CUDA_ERROR,
            Error::Failed { source, .. } if is_of_driver(source) => Code::UNHANDLED_CUDA_ERROR,
            other => code_of(other.kind()),
        };
        Self::new(code, Report(&error).to_string())
    }
}

fn is_of_driver(error: &Below) -> bool {
    matches!(error, Below::Gpu(GpuError::Driver { .. } | GpuError::Unavailable { .. }))
}

fn code_of(kind: ErrorKind) -> Code {
    match kind {
        ErrorKind::System => Code::SYSTEM_ERROR,
        ErrorKind::Remote | ErrorKind::Timeout | ErrorKind::Aborted => Code::REMOTE_ERROR,
        ErrorKind::InvalidUsage => Code::INVALID_USAGE,
        _ => Code::INTERNAL_ERROR,
    }
}

macro_rules! by_error {
    ($($below:ty),*) => {
        $(
            impl From<$below> for Failure {
                fn from(error: $below) -> Self {
                    Error::from(error).into()
                }
            }
        )*
    };
}
by_error!(Below, GpuError, CoreError, BootstrapError);

/// Turns a panic of `body` into a failure.
pub(crate) fn guarded<T>(name: &str, body: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it says nothing");
        let text = format!("a defect in mscclpp-nccl, please report it: {name} panicked: {said}");
        Err(Failure::new(Code::INTERNAL_ERROR, text))
    })
}
