//! The state of a rank, and its agreement with the others.

mod counters;
mod engine;
mod fork;
mod history;
mod meeting;
mod options;
mod pause;
mod peer_segments;
mod publisher;
mod registrations;
mod registry;
mod served;
mod state;
mod watch;

pub(crate) use counters::LANES;
pub(crate) use engine::{Engine, Lengths};
pub(crate) use fork::can_fork;
pub(crate) use meeting::{check_size, devices, least_device, meet, purpose, sharing, unreached};
pub(crate) use options::Options;
pub(crate) use peer_segments::{MappedSegment, is_slot};
pub(crate) use publisher::Publisher;
pub(crate) use registrations::{CopyPlaces, List, Mapping, Memory, Part, Symmetric};
pub(crate) use registry::{Places, Registry, Segment, SegmentMemory};
#[cfg(test)]
pub(crate) use state::SCRATCH;
pub(crate) use state::{Call, RankState};
pub(crate) use watch::Watch;
