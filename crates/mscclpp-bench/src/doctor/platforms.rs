//! Where devices come from.

use mscclpp::Platform;
use mscclpp_gpu::Error;

use super::{child::Teller, finding::Finding, finding::Section::Platform as SECTION};

const NO_GPU: &str =
    "install the driver, or pass the GPUs into the container; to do without GPUs, set MSCCLPP_PLATFORM=host";

pub(super) fn examine(teller: &Teller) {
    teller.trying("looking for devices of each platform");
    let chosen = Platform::detect_or_host();
    if let Err(error @ Error::Environment { variable, .. }) = &chosen {
        let remedy = "set it to one of these, or unset it";
        teller.found(Finding::problem(SECTION, *variable, error, remedy));
    }
    for platform in [Platform::Cuda, Platform::Hip, Platform::Host] {
        teller.trying(format!("looking for devices of platform {platform}"));
        let is_chosen = chosen.as_ref().is_ok_and(|chosen| *chosen == platform);
        let finding = match platform.device_count() {
            Ok(count) => found(platform, count, is_chosen),
            Err(error) => missing(platform, &error, chosen.is_err()),
        };
        teller.found(finding.fact("chosen", is_chosen));
    }
}

fn found(platform: Platform, count: usize, is_chosen: bool) -> Finding {
    let devices = match (platform, count) {
        (Platform::Host, 1) => "1 device, simulated on the CPU".to_owned(),
        (Platform::Host, _) => format!("{count} devices, simulated on the CPU"),
        (_, 1) => "1 device".to_owned(),
        _ => format!("{count} devices"),
    };
    let item = platform.to_string();
    let finding = match (is_chosen, platform) {
        (true, Platform::Host) => Finding::ok(
            SECTION,
            item,
            format!(
                "{devices}; used here, and by examples, tests and benchmarks. A program of your own needs \
                 MSCCLPP_PLATFORM=host, as the library does not choose simulated devices by itself"
            ),
        ),
        (true, _) => Finding::ok(SECTION, item, format!("{devices}; used here")),
        (false, _) => Finding::note(SECTION, item, format!("{devices}, with MSCCLPP_PLATFORM={platform}")),
    };
    finding.fact("devices", count)
}

/// Where no platform can be used, that is a problem of the one that this machine or its user asks for.
fn missing(platform: Platform, error: &Error, none_is_chosen: bool) -> Finding {
    let item = platform.to_string();
    let reason = match error {
        Error::Unavailable { reason, .. } => reason.clone(),
        other => other.to_string(),
    };
    match platform {
        Platform::Cuda if none_is_chosen => Finding::problem(SECTION, item, reason, NO_GPU),
        Platform::Cuda => Finding::unavailable(SECTION, item, reason, NO_GPU),
        Platform::Hip => Finding::unavailable(SECTION, item, reason, "none in this version"),
        _ => Finding::problem(SECTION, item, reason, "set the variable to a valid value, or unset it"),
    }
    .fact("devices", 0)
}
