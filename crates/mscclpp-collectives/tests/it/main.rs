//! The tests of collectives whose ranks are threads of this process.

mod algorithm;
mod averages;
mod calls;
mod chunks;
mod failing_calls;
mod groups;
mod messages;
mod nodes;
mod nodes_adapters;
mod nodes_of_one;
mod oracle;
mod published;
mod registered;
mod replays;
mod rows;
mod rows_calls;
mod support;
mod suspended;
mod symmetric;
