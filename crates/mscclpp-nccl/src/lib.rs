//! `libnccl.so.2`: NCCL's C interface over the collectives of [`mscclpp_collectives`], so that programs that use NCCL run unchanged.
//!
//! It has no algorithms of its own. What a function does, and where the interface asks for more than the layers below give, is in
//! these modules:
//!
//! | module | what |
//! | --- | --- |
//! | `exports` | the table of all functions |
//! | `abi`, `config`, `id` | NCCL's types: codes, structs, unique ids |
//! | `forming`, `hello`, `split` | how communicators come to be |
//! | `comm`, `ending` | what they are, and how they end |
//! | `group`, `calls`, `operators`, `streams` | collectives, and groups of them |
//! | `memory`, `teams`, `simulation` | the rest of the interface |
//! | `fallback` | NCCL itself, for what is not covered |
//! | `sim` | streams of simulated devices, for C code |
//! | `env`, `interface`, `report`, `statistics`, `failure` | variables, lines for the user, errors |
//!
//! The book's page "In place of NCCL" (`docs/src/nccl.md`) says how to load it, what runs, and what is not covered.
//!
//! The features `cuda-ipc`, `ethernet` and `cuda-12040`, which are on by default, `cuda-13000` and `hip` are those of [`mscclpp`].

pub mod abi;
mod calls;
mod comm;
mod config;
mod ending;
mod env;
pub mod exports;
mod failure;
mod fallback;
mod forming;
mod group;
mod hello;
mod id;
mod interface;
mod memory;
mod operators;
mod report;
pub mod sim;
mod simulation;
mod split;
mod statistics;
mod streams;
mod teams;
