//! What the examples say first.

use mscclpp::Platform;

/// Says on what this runs: GPUs, or devices simulated on the CPU.
pub(crate) fn print_devices(platform: Platform, ids: &[usize]) -> mscclpp::Result<()> {
    println!("Platform: {platform}, {} device(s)", platform.device_count()?);
    for id in ids {
        println!("GPU {id}: {}", platform.gpu(*id)?.properties().name);
    }
    Ok(())
}
