//! The library, loaded as C programs load it. The test programs share this.

#![allow(dead_code, reason = "each test program uses a part of this")]

pub(crate) mod header;
pub(crate) mod nccl;
