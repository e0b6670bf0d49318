//! Expert parallelism: the tokens of mixture-of-experts layers go to the ranks of their experts and come back, summed, in one
//! launch each way, over the primitives of [`mscclpp`].
//!
//! | call | what it does |
//! | --- | --- |
//! | [`Experts::dispatch`] | sends each token once to every rank with an expert of it; what comes goes into a [`Layout`] |
//! | [`Experts::dispatch_again`] | the same with other rows and the routing of an earlier dispatch |
//! | [`Experts::combine`] | brings the experts' rows back to the token's rank, and sums them with the weights |
//! | [`Experts::dispatch_by`], [`Experts::combine_by`] | the same by kernels of the program |
//! | [`Routed::release`] | gives the rows of a dispatch back without a combine |
//! | [`ChoiceCounter::count`] | counts the tokens for each rank and the choices of each expert, before a dispatch |
//!
//! The rows that a rank gets, and their order, depend on the routing alone, never on what arrives first; sums have the same
//! bits in every run. Nothing waits for the host, so all calls can be captured into graphs. There is no list of sizes: a row
//! has any number of numbers that is a multiple of 4, a token any number of choices up to 64, and a rank any number of tokens
//! up to the capacity that the ranks agree on.
//!
//! ```
//! use mscclpp::{Communicator, prelude::*};
//! use mscclpp_ep::{Combine, Dispatch, Error, Experts, Layout, NumberType};
//!
//! # fn main() -> Result<(), Error> {
//! # let comm = Communicator::with_context(
//! #     std::sync::Arc::new(LocalBootstrap::group(1).pop().unwrap()),
//! #     Context::on(Platform::Sim),
//! # );
//! // All ranks of `comm` do this: 4 experts of which each token chooses 2, and up to 16 tokens of 8 floats a rank.
//! let gpu = comm.context().gpu(0)?;
//! let experts = Experts::builder(&comm, &gpu)
//!     .experts(4)
//!     .top_k(2)
//!     .hidden(8)
//!     .number_type(NumberType::F32)
//!     .capacity(16)
//!     .connect()?;
//!
//! // One token, for experts 3 and 1, with the weights 0.75 and 0.25.
//! let (ids, weights) = (gpu.allocate(8)?, gpu.allocate(8)?);
//! ids.write_params(0, &[3i32, 1])?;
//! weights.write_params(0, &[0.75f32, 0.25])?;
//! let token = gpu.allocate(32)?;
//! token.write_params(0, &[1.0f32; 8])?;
//! // Room for 16 rows of each expert and rank; one process has all four experts here.
//! let rows = gpu.allocate(4 * 16 * 32)?;
//! let stream = gpu.stream()?;
//! let dispatch = Dispatch::new(1, &ids, &token).weights(&weights).into(Layout::Expert, &rows);
//! let routed = experts.dispatch(&dispatch, &stream)?;
//!
//! // The experts would compute here: these give back what they got. The sum is 0.75 + 0.25 times the token.
//! let sums = gpu.allocate(32)?;
//! experts.combine(&Combine::new(&routed, &rows, &sums), &stream)?;
//! experts.synchronize(&stream)?;
//! assert_eq!(routed.rows_of_experts()?, [0, 1, 0, 1]);
//! let mut numbers = [0f32; 8];
//! sums.read_params(0, &mut numbers)?;
//! assert_eq!(numbers, [1.0; 8]);
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//! `cuda-12040` (default), `cuda-13000` and `hip` are those of [`mscclpp`].
//!
//! # What it does not do yet
//! All ranks are on one node, and their devices reach each other's memory. AMD GPUs have not run it.

mod calls;
mod choices;
mod combine;
mod dispatch;
mod error;
mod experts;
mod handle;
mod host_counts;
mod kernels;
mod launch;
mod memory;
mod payload;
mod routed;
mod scratch;
mod setup;
mod tables;

pub use calls::{Combine, Dispatch, IdType, Layout};
pub use choices::{ChoiceCounter, Choices};
pub use error::{Error, Result};
pub use experts::Experts;
pub use handle::MAX_RANKS;
pub use host_counts::HostCounts;
pub use launch::Receive;
pub use memory::Memory;
pub use payload::{NumberType, Payload, Quantisation};
pub use routed::{Received, Routed};
pub use setup::ExpertsBuilder;
