//! The code that the test programs share.

#![allow(dead_code, reason = "each test program uses a part of this")]

pub(crate) mod job;
pub(crate) mod nccl;
