//! The platforms, and whether each can be used.

use mscclpp::Platform;
use mscclpp_gpu::Error;
use serde_json::json;

use super::{child::Teller, finding::Finding, finding::Section::Platform as SECTION};

const NO_NVIDIA: &str =
    "install the driver, or pass the GPUs into the container; to do without GPUs, set MSCCLPP_PLATFORM=sim";
const NO_AMD: &str = "only AMD GPUs need it, and none has run it so far: build with the feature, and install ROCm's HIP runtime";

pub(super) fn examine(teller: &Teller) {
    teller.trying("looking for devices of each platform");
    let chosen = Platform::detect_or_sim();
    if let Err(error @ Error::Environment(bad)) = &chosen {
        let remedy = "set it to one of these, or unset it";
        teller.found(SECTION.problem(bad.variable, error, remedy));
    }
    for platform in [Platform::Cuda, Platform::Hip, Platform::Sim] {
        teller.trying(format!("looking for devices of platform {platform}"));
        let is_chosen = chosen.as_ref().is_ok_and(|chosen| *chosen == platform);
        let finding = match platform.device_count() {
            Ok(count) => found(platform, count, is_chosen),
            Err(error) => {
                let is_asked_for =
                    matches!(&chosen, Err(Error::Unavailable { platform: asked, .. }) if *asked == platform);
                missing(platform, &error, is_asked_for)
            }
        };
        teller.found(finding.facts(json!({"chosen": is_chosen})));
    }
}

fn found(platform: Platform, count: usize, is_chosen: bool) -> Finding {
    let devices = if count == 1 { "1 device".to_owned() } else { format!("{count} devices") };
    let devices = devices
        + match platform {
            Platform::Sim => ", simulated on the CPU",
            Platform::Hip => ". No AMD GPU has run this platform; see the page on AMD GPUs",
            _ => "",
        };
    let item = platform.to_string();
    let finding = match (is_chosen, platform) {
        (true, Platform::Sim) => SECTION.ok(
            item,
            format!(
                "{devices}; used here, and by examples, tests and benchmarks. A program of your own uses them with \
                 MSCCLPP_PLATFORM=sim or Platform::detect_or_sim(), as the library does not choose them by itself"
            ),
        ),
        (true, _) => SECTION.ok(item, format!("{devices}; used here")),
        (false, _) => SECTION.note(item, format!("{devices}, with MSCCLPP_PLATFORM={platform}")),
    };
    finding.facts(json!({"devices": count}))
}

/// The finding for a platform without devices. `is_asked_for`: whether a variable or this machine's hardware needs it.
fn missing(platform: Platform, error: &Error, is_asked_for: bool) -> Finding {
    let reason = match error {
        Error::Unavailable { reason, .. } => reason.clone(),
        other => other.to_string(),
    };
    let remedy = match platform {
        Platform::Cuda => NO_NVIDIA,
        Platform::Hip => NO_AMD,
        _ => "set the variable to a valid value, or unset it",
    };
    // Simulated devices are missing only if a variable is malformed.
    let is_needed = is_asked_for || platform == Platform::Sim;
    SECTION.failed(platform.to_string(), reason, remedy, is_needed).facts(json!({"devices": 0}))
}
