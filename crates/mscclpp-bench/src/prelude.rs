//! The names that most workloads use.

pub(crate) use clap::Args;
pub(crate) use mscclpp::prelude::*;

pub(crate) use crate::{
    Result,
    launches::{Launches, OF_A_GRAPH, Submit},
    measuring::{Arrival, Contender, Goal, Measuring, Messages, Repeats, Time},
    pair::Pair,
    ranks::{Joining, Ranks},
    report::{Row, SizeOf, Times},
    sizes::Sizes,
    stopwatch::Stopwatch,
    table::Table,
};
