//! Choices that differ from run to run.

use mscclpp::prelude::*;
#[allow(unused_imports, reason = "each test program uses a part of this")]
pub(crate) use mscclpp_test_support::Random;

/// Returns numbers of blocks and threads, of which some have nothing to do. They are whole warps if asked for.
pub(crate) fn shape(random: &mut Random, whole_warps: bool) -> LaunchConfig {
    let threads = match whole_warps {
        true => 32 * random.of(1..=32),
        false => random.of(1..=1024),
    };
    LaunchConfig::linear(random.of(1..=4) as u32, threads as u32)
}
