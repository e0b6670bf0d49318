//! Port channels over a transport, on simulated devices: the cases that each transport passes.

#![allow(dead_code, reason = "each test program uses a part of this")]

mod failures;
mod introspection;
#[path = "../kernels/mod.rs"]
pub(crate) mod kernels;
mod lifetimes;
mod order;
pub(crate) mod pair;
mod puts;
mod queues;
mod sharing;

use libtest_mimic::Trial;
use mscclpp_core::{ContextBuilder, Transport};

pub(crate) use pair::{Pair, Side};

/// The transport and options that a suite runs over.
#[derive(Clone)]
pub(crate) struct Setup {
    /// Starts a context of one of the two sides.
    pub(crate) builder: std::sync::Arc<dyn Fn() -> ContextBuilder + Send + Sync>,
    pub(crate) transport: Transport,
    /// Whether kernels reach the peer's memory, and whether they reach it with atomics.
    pub(crate) reach: [bool; 2],
    /// The number of operations that queues hold, unless that is left to the transport.
    pub(crate) queue_size: Option<u32>,
    /// How many puts are many: a put takes longer where its queue is full or a socket is in between.
    pub(crate) many_puts: u64,
}

type Case = (&'static str, fn(&Setup));

/// Returns one trial for each case.
pub(crate) fn trials(prefix: &str, setup: &Setup) -> Vec<Trial> {
    let cases = [
        puts::CASES,
        order::CASES,
        queues::CASES,
        sharing::CASES,
        failures::CASES,
        lifetimes::CASES,
        introspection::CASES,
    ]
    .concat();
    let trial = |(name, case): Case| {
        let setup = setup.clone();
        Trial::test(format!("{prefix}{name}"), move || {
            case(&setup);
            Ok(())
        })
    };
    cases.into_iter().map(trial).collect()
}
