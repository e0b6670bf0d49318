//! Tests with simulated adapters: order if adapters reorder, everything that can fail, and how much is posted.

#[path = "../ends/mod.rs"]
mod ends;

mod completions;
mod counts;
mod events;
mod order;
mod posting;
mod setting_up;
mod tokens;
mod turns;
mod world;
