//! The engine of ranks on several nodes: within a node through each other's memory, and between nodes through port channels.
//! `docs/design/nodes.md` says why it is so.

mod channels;
mod engine;
mod failing;
mod moving;
mod patterns;
mod reducing;
mod steps;
mod topology;

pub(crate) use channels::Network;
pub(crate) use engine::Nodes;
pub(crate) use topology::Topology;
