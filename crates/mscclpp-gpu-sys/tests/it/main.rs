//! Tests of the values that are declared for drivers.

mod cuda;
mod hip;
