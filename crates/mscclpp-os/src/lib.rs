//! What a process asks of its operating system, whether or not it talks to others.
//!
//! - [`host`]: which host it is on;
//! - [`env`](mod@env): environment variables whose values have a form;
//! - [`waiting`]: how threads wait, and saying what a long wait is for;
//! - [`random()`], [`SystemError`], [`Report`]: random bytes, failed system calls, errors with their causes.
//!
//! It depends on no crate of the repository, and serves the others; its API changes with theirs.
#![forbid(unsafe_code)]

mod backoff;
pub mod env;
mod error;
pub mod host;
mod random;
pub mod waiting;

pub use error::{Report, SystemCall, SystemError};
pub use random::random;
