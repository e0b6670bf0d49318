//! Collectives between GPUs, such as `all_reduce`, on one node or several, over the channels of [`mscclpp`].
//!
//! All ranks make their [`Collectives`] together. Then they make the same calls in the same order, on [`DeviceSlice`]s. Bindings
//! for other languages pass addresses to [`Collectives::enqueue`].
//!
//! | collective | what a rank gets |
//! | --- | --- |
//! | [`all_reduce`](Collectives::all_reduce) | the sums (or another reduction) of the numbers of all ranks |
//! | [`reduce_scatter`](Collectives::reduce_scatter) | its part of the sums |
//! | [`reduce`](Collectives::reduce) | on one rank, all sums; on the others, nothing |
//! | [`all_gather`](Collectives::all_gather) | the numbers of all ranks, one after the other |
//! | [`all_gather_v`](Collectives::all_gather_v) | the same, where ranks may give different counts |
//! | [`gather`](Collectives::gather) | on one rank, the numbers of all ranks; on the others, nothing |
//! | [`all_to_all`](Collectives::all_to_all), [`all_to_all_v`](Collectives::all_to_all_v) | a part from each rank |
//! | [`broadcast`](Collectives::broadcast) | the numbers of one rank |
//! | [`scatter`](Collectives::scatter) | its part of the numbers of one rank |
//! | [`send`](Collectives::send), [`recv`](Collectives::recv) | the message of one rank |
//! | [`exchange`](Collectives::exchange) | the messages of several ranks |
//! | [`barrier`](Collectives::barrier) | nothing: its stream waits for this call of all ranks |
//! | [`all_reduce_rows`](Collectives::all_reduce_rows) | what your kernel computes from the sums, in the same launch |
//!
//! A [`Selector`] chooses how a call is carried out, from its size and what else all ranks know. A program may replace the
//! kernel of a collective by its own ([`Algorithm`]). The kernels are in the headers `mscclpp/collective_device.hpp` and those
//! that it includes.
//!
//! # Features
//! `half` (default): `half::f16` and `half::bf16` as numbers. `cuda-ipc`, `ethernet`, `cuda-12040`, `cuda-13000` and
//! `hip` are those of [`mscclpp`], of which `cuda-ipc`, `ethernet` and `cuda-12040` are on by default, too. `cudarc`:
//! calls with `CudaSlice` and `CudaStream` of the crate cudarc (`Collectives::on_cudarc`), which is compiled and has
//! not been run.
//!
//! # What it does not do yet
//! - If devices of a node cannot access each other's memory, each counts as a [node](CollectivesBuilder::node) of its own.
//!   All data between them goes through port channels, which is slow.
//! - Jobs of [several nodes](CollectivesBuilder::between_nodes) have at most 64 ranks, and some calls work on one node only.
//! - Not all selections of protocols were measured: [`Tuned`] says which are predictions.

mod choice;
mod collectives;
mod connect;
#[cfg(feature = "cudarc")]
mod cudarc;
mod data;
mod env;
mod error;
mod handle;
mod nodes;
mod one_node;
mod pending;
mod plan;
mod publish;
mod rank;
mod register;
mod request;
mod row_calls;
mod rows;
mod setup;
mod suspension;
mod typed;

pub use choice::{
    Algorithm, Asked, Devices, Interconnect, Launch, NodesModel, NodesPrediction, Pattern, Possible,
    Protocol, Query, Selection, Selector, Shape, Tuned,
};
pub use collectives::Collectives;
#[cfg(feature = "cudarc")]
pub use cudarc::CudarcCalls;
pub use data::{DataType, DeviceSlice, Element, F8E4m3, F8E5m2};
pub use error::{Error, Result};
pub use handle::{MAX_RANKS, MAX_RANKS_OF_NODES};
pub use pending::Pending;
pub use publish::Published;
pub use register::Registered;
pub use request::{Kind, ReduceOp, Request};
pub use rows::Rows;
pub use setup::CollectivesBuilder;
pub use typed::Transfer;
