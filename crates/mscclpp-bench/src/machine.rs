//! Where a benchmark ran.

use std::fs;

use mscclpp::Gpu;
use serde::{Deserialize, Serialize};

/// What every row is to be read with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) platform: String,
    pub(crate) devices: Vec<String>,
    pub(crate) driver: String,
    pub(crate) transport: String,
    pub(crate) commit: String,
    pub(crate) cores: usize,
}

impl Machine {
    /// For a workload on devices.
    pub(crate) fn of(gpus: &[Gpu], transport: &str) -> Self {
        let platform = gpus.first().map_or_else(|| "cpu".to_owned(), |gpu| gpu.platform().to_string());
        let driver = match platform.as_str() {
            "cuda" => nvidia_driver(),
            _ => "none".to_owned(),
        };
        Self {
            platform,
            devices: gpus.iter().map(|gpu| gpu.properties().name.clone()).collect(),
            driver,
            transport: transport.to_owned(),
            commit: commit(),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
        }
    }
}

/// As the kernel module says.
fn nvidia_driver() -> String {
    fs::read_to_string("/sys/module/nvidia/version")
        .ok()
        .map(|version| version.trim().to_owned())
        .or_else(|| {
            let text = fs::read_to_string("/proc/driver/nvidia/version").ok()?;
            text.split_whitespace()
                .find(|word| word.starts_with(|c: char| c.is_ascii_digit()))
                .map(str::to_owned)
        })
        .unwrap_or_else(|| "unknown".to_owned())
}

/// `GIT_COMMIT` of the environment, now or when this was built.
fn commit() -> String {
    std::env::var("GIT_COMMIT")
        .ok()
        .filter(|commit| !commit.is_empty())
        .or_else(|| option_env!("GIT_COMMIT").map(str::to_owned))
        .unwrap_or_else(|| "unknown (set GIT_COMMIT)".to_owned())
}
