//! Workloads on one device, which run in this process alone.

use crate::{
    machine::{Machine, UsedDevice},
    prelude::*,
};

/// The options of all workloads on one device.
#[derive(Args)]
pub(crate) struct OneDevice {
    /// The device number.
    #[arg(long, value_name = "GPU", default_value_t = 0)]
    device: usize,
}

impl OneDevice {
    pub(crate) fn open(&self) -> Result<Gpu> {
        Ok(Platform::detect_or_sim()?.gpu(self.device)?)
    }
}

/// The machine of a workload on this device.
pub(crate) fn machine(gpu: &Gpu) -> Result<Machine> {
    Ok(Machine::of(&[UsedDevice::of(gpu)?], "none"))
}
