//! The library as C programs load it, on simulated devices: ranks are threads of one process.

#[path = "../support/mod.rs"]
mod support;

mod calls;
mod configured;
mod exports;
mod groups;
mod growing;
mod lives;
mod queries;
mod rest;
mod signals;
