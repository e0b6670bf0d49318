//! From requests to what a rank sends to whom: pure arithmetic, the same on all ranks.

mod calls;
mod exchange;
mod joined;
mod messages;
mod signature;

pub(crate) use calls::{Calls, Exchange};
pub(crate) use exchange::{Plan, Planned, TWO_STEPS_MIN, Whole, overlap, plan};
pub(crate) use joined::joined;
pub(crate) use messages::{Batch, Messages};
pub(crate) use signature::{described, rows_signature, signature};
