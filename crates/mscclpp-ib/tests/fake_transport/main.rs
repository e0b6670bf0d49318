//! Tests with simulated adapters: order if adapters reorder, everything that can fail, and how much is posted.

#[path = "../support/ends.rs"]
mod ends;
#[path = "../fake/mod.rs"]
mod fake;

mod completions;
mod counts;
mod events;
mod order;
mod posting;
mod setting_up;
mod tokens;
mod turns;
mod world;
