//! The first lines that the examples print.

use mscclpp::Platform;

/// Prints the platform and the devices of the program: GPUs, or devices simulated on the CPU.
pub(crate) fn print_devices(platform: Platform, ids: &[usize]) -> mscclpp::Result<()> {
    println!("Platform: {platform}, {} device(s)", platform.device_count()?);
    for id in ids {
        println!("GPU {id}: {}", platform.gpu(*id)?.properties().name);
    }
    Ok(())
}
