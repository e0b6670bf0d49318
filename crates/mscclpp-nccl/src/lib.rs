//! `libnccl.so.2`: NCCL's C interface over the collectives of [`mscclpp_collectives`]. Programs that use NCCL run on it
//! unchanged.
//!
//! The library has no algorithms of its own: these modules translate NCCL's calls into requests to the layers below, and add
//! what NCCL's interface has beyond them:
//!
//! | module | contents |
//! | --- | --- |
//! | `exports` | the table of all functions |
//! | `abi`, `pointers`, `config`, `id` | NCCL's types: codes, structs, pointers, unique ids |
//! | `answers` | codes and texts of failures for C code |
//! | `forming`, `hello`, `split`, `growing` | how communicators are formed |
//! | `comm`, `ours`, `ending`, `exit` | communicators and their handles, and how they and the process end |
//! | `group`, `calls`, `submit`, `choice`, `operators`, `streams` | collectives, and groups of them |
//! | `signals`, `one_sided` | writing into a peer's window, and signals |
//! | `memory`, `registrations`, `teams`, `simulation`, `properties`, `parameters` | the rest of the interface |
//! | `fallback`, `nccl` | NCCL itself, for communicators that this library does not cover |
//! | `sim` | streams of simulated devices, for C code |
//! | `env`, `files`, `interface`, `report`, `statistics`, `recorder`, `dump`, `failure` | variables, lines for the user, errors |
//!
//! The modules use each other without cycles.
//!
//! The book's page "In place of NCCL" (`docs/src/nccl.md`) says how to load it and what is different, and "NCCL's functions"
//! (`docs/src/nccl-functions.md`) what there is.
//!
//! The features are those of [`mscclpp`]: `cuda-ipc`, `ethernet`, `ib` and `cuda-12040`, which are on by default, `cuda-13000`
//! and `hip`.

pub mod abi;
mod answers;
mod calls;
mod choice;
mod comm;
mod config;
mod dump;
mod ending;
mod env;
mod exit;
pub mod exports;
mod failure;
mod fallback;
mod files;
mod forming;
mod group;
mod growing;
mod hello;
mod id;
mod interface;
mod memory;
mod nccl;
mod one_sided;
mod operators;
mod ours;
mod parameters;
mod pointers;
mod properties;
mod recorder;
mod registrations;
mod report;
mod signals;
pub mod sim;
mod simulation;
mod split;
mod statistics;
mod streams;
mod submit;
mod teams;
