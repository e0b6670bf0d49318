//! How calls are done: which protocol, which kernel, how many blocks. Pure functions of what all ranks know.

mod algorithm;
mod model;
mod nodes_model;
mod selector;
mod tables;
mod tuned;

pub use algorithm::{Algorithm, Asked, Launch};
pub(crate) use model::time;
pub use nodes_model::{NodesModel, NodesPrediction, Pattern};
pub use selector::{Devices, Interconnect, Possible, Protocol, Query, Selection, Selector, Shape};
pub(crate) use selector::{
    LANES_OF_BLOCK, LEAST_THREADS, blocks_with_room, has_bulk_copies, threads_with_room,
};
pub use tuned::Tuned;
