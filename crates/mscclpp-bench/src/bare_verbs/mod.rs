//! RDMA by bare verbs, as a program would write it that does not use this library. The library's figures are compared
//! with these, so the code here does only what the work needs.
//!
//! Objects made here are never released before the process ends.

mod device;
mod queue_pair;

pub(crate) use device::{Device, Registered};
pub(crate) use queue_pair::{QueuePair, Request, Sizes};

use std::io;

use crate::Result;

/// What a call of the library says: 0, or an errno.
fn check(call: &str, errno: i32) -> Result<()> {
    match errno {
        0 => Ok(()),
        // Some providers leave the number elsewhere.
        -1 => Err(last(call)),
        errno => Err(format!("{call}: {}", io::Error::from_raw_os_error(errno.abs())).into()),
    }
}

/// The error of a call that gave a null pointer.
fn last(call: &str) -> Box<dyn std::error::Error + Send + Sync> {
    format!("{call}: {}", io::Error::last_os_error()).into()
}
