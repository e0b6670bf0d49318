//! The machine on which a benchmark ran, and the choice of a single device.

use std::fs;

use mscclpp::provider::host_id;
use serde::{Deserialize, Serialize};

use crate::prelude::*;

/// The facts about the machine that a reader needs to judge a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) platform: String,
    pub(crate) devices: Vec<String>,
    pub(crate) driver: String,
    pub(crate) transport: String,
    pub(crate) commit: String,
    pub(crate) cores: usize,
}

/// A device that a rank uses, as it is described to the other ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UsedDevice {
    pub(crate) platform: String,
    pub(crate) name: String,
    uuid: [u8; 16],
    /// The id of the device's node.
    node: String,
}

impl UsedDevice {
    /// Describes a device of this process.
    pub(crate) fn of(gpu: &Gpu) -> Result<Self> {
        let properties = gpu.properties();
        Ok(Self {
            platform: gpu.platform().to_string(),
            name: properties.name.clone(),
            uuid: properties.uuid,
            node: host_id()?,
        })
    }

    /// Whether both are the same device.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.uuid == other.uuid && self.node == other.node
    }

    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        !self.is(other) && self.node == other.node
    }
}

impl Machine {
    /// A short text about the platform and its devices: `cuda, 2 x NVIDIA H200`.
    pub(crate) fn described(&self) -> String {
        let devices = match &self.devices[..] {
            [] => "no devices".to_owned(),
            [first, others @ ..] if !others.is_empty() && others.iter().all(|other| other == first) => {
                format!("{} x {first}", self.devices.len())
            }
            devices => devices.join(", "),
        };
        format!("{}, {devices}", self.platform)
    }

    /// The machine of a workload on this device, in this process alone.
    pub(crate) fn of_one(gpu: &Gpu) -> Result<Self> {
        Ok(Self::of(&[UsedDevice::of(gpu)?], "none"))
    }

    pub(crate) fn of(devices: &[UsedDevice], transport: &str) -> Self {
        let platform = devices.first().map_or_else(|| "cpu".to_owned(), |device| device.platform.clone());
        let driver = match platform.as_str() {
            "cuda" => nvidia_driver(),
            _ => "none".to_owned(),
        };
        Self {
            platform,
            devices: devices.iter().map(|device| device.name.clone()).collect(),
            driver,
            transport: transport.to_owned(),
            commit: commit(),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
        }
    }
}

/// The version that the NVIDIA kernel module reports: the first word with a digit at its beginning.
fn nvidia_driver() -> String {
    let version =
        ["/sys/module/nvidia/version", "/proc/driver/nvidia/version"].into_iter().find_map(|path| {
            let text = fs::read_to_string(path).ok()?;
            let mut words = text.split_whitespace();
            words.find(|word| word.starts_with(|c: char| c.is_ascii_digit())).map(str::to_owned)
        });
    version.unwrap_or_else(|| "unknown".to_owned())
}

/// The commit: `MSCCLPP_GIT_COMMIT` or `GIT_COMMIT` of the environment now, or when this was built, or else git's at that
/// time.
fn commit() -> String {
    let now = |name: &str| std::env::var(name).ok().filter(|commit| !commit.is_empty());
    now("MSCCLPP_GIT_COMMIT")
        .or_else(|| now("GIT_COMMIT"))
        .or_else(|| option_env!("MSCCLPP_GIT_COMMIT").map(str::to_owned))
        .unwrap_or_else(|| "unknown (set MSCCLPP_GIT_COMMIT)".to_owned())
}

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
