//! The suite over a transport of somebody else's: one that neither maps memory nor stores completions, as a network, so
//! that everything goes through the proxy and completions are in pinned memory; and ones that map more and more.

#[path = "../../mscclpp-core/tests/courier/mod.rs"]
mod courier;
mod suite;

use std::sync::Arc;

use courier::{Courier, Reach};
use libtest_mimic::Arguments;
use mscclpp_core::Context;
use suite::Setup;

fn main() {
    let mut trials = Vec::new();
    for reach in [Reach::Nothing, Reach::Stores, Reach::Atomics] {
        let courier = Courier::new(reach);
        let setup = Setup {
            builder: Arc::new(move || Context::builder().provider(courier.clone())),
            transport: Courier::TRANSPORT,
            reach: [reach != Reach::Nothing, reach == Reach::Atomics],
        };
        trials.extend(suite::trials(&format!("{reach:?}::"), &setup));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
