//! The engine of ranks whose kernels reach each other's memory.

mod copy_engines;
mod engine;
mod grouped;
mod kernels;
mod launch;
mod registered;
mod rows;
mod scratch;
mod suspension;

pub(crate) use engine::OneNode;
pub(crate) use kernels::WordOperation;
