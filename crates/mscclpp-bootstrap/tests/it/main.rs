//! Tests of ranks that are threads of this process.

mod environment;
mod exchange;
mod forming;
mod impostors;
mod launched;
#[path = "../ranks/mod.rs"]
mod ranks;
mod rendezvous;
mod starting;
mod waits;
