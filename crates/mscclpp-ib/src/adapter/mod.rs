//! Devices and the objects made on them: safe owners of the objects of the verbs library.
//!
//! Each owner keeps alive the object it was made on, and releases its own object when dropped. The library's calls may
//! be used from any thread; where this crate needs one call at a time, it takes `&mut`.

mod completions;
mod device;
mod list;
mod memory;
mod queue_pair;

pub(crate) use completions::{Channel, Completion, Cq};
pub(crate) use device::{Adapter, AsyncEvent, Port};
pub(crate) use list::list;
pub(crate) use memory::{Access, Mr};
pub(crate) use queue_pair::{Path, QpSizes, QueuePair, Reliability, random_psn};

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

use crate::error::{Error, Result};

/// The error of a call on `device` that failed with `errno`.
fn failed(device: &str, call: impl Into<String>, errno: i32) -> Error {
    let hint = match errno {
        libc::ENOMEM => {
            "; the adapter or the system has no memory for it, or the limit of locked memory is too low (ulimit -l, \
             LimitMEMLOCK of systemd, --ulimit memlock=-1 of docker)"
        }
        libc::EPERM | libc::EACCES => "; /dev/infiniband must be readable and writable for this user",
        libc::EIO | libc::ENODEV => "; the device may have been removed",
        _ => "",
    };
    Error::Verbs {
        device: device.to_owned(),
        call: call.into(),
        hint,
        source: io::Error::from_raw_os_error(errno),
    }
}

/// Sets a descriptor of `device` so that reading events does not block while there is none.
fn make_nonblocking(device: &str, descriptor: BorrowedFd<'_>, call: &str) -> Result<()> {
    let fd = descriptor.as_raw_fd();
    // SAFETY: two calls on a descriptor that is open.
    let set = unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        flags >= 0 && libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) == 0
    };
    if set { Ok(()) } else { Err(failed(device, call, last_errno())) }
}

/// Returns the `errno` that the last call left.
fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}
