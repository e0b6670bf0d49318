//! The state of a rank, and its agreement with the others.

mod agreement;
mod communicators;
mod counters;
mod engine;
mod group;
mod history;
mod options;
mod order;
mod registrations;
mod state;
mod watch;

pub(crate) use counters::LANES;
pub(crate) use engine::Engine;
pub(crate) use group::{Group, Purpose};
pub(crate) use options::Options;
pub(crate) use order::can_fork;
pub(crate) use registrations::{CopyPlaces, List, Mapping, Memory, Part, Symmetric};
#[cfg(test)]
pub(crate) use state::SCRATCH;
pub(crate) use state::{Call, RankState};
pub(crate) use watch::Watch;
