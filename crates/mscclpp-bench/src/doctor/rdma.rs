//! The verbs library, the devices that it knows, their ports and GIDs, and which of these would be used.

use mscclpp_ib::{DeviceDetails, DeviceReport, InfiniBand, Inventory};
use serde_json::json;

use super::{child::Teller, devices, finding::Section::Rdma as SECTION};

const DEVICES: &str = "MSCCLPP_HCA_DEVICES";
const NOT_THERE: &str =
    "set MSCCLPP_HCA_DEVICES to names of devices that are there, or unset it; and see the lines above";
const NO_DEVICE: &str = "none is needed without an adapter; with one, load its driver, and in a container pass /dev/infiniband in \
     (docker: --device /dev/infiniband)";
const NO_PORT: &str = "connect the port, and bring the interface behind it up (`ip link set ... up`) with an address; see `ibv_devinfo`";
const NO_GID: &str = "unset MSCCLPP_IB_GID_INDEX or set it to one of these; if there are none, give the interface behind the port \
     an address";

pub(super) fn examine(teller: &Teller) {
    teller.trying("loading the verbs library and opening its devices");
    let infiniband = InfiniBand::new();
    let inventory = infiniband.describe();
    let is_asked_for = std::env::var_os(DEVICES).is_some_and(|names| !names.is_empty());
    match &inventory {
        Ok(inventory) => library(teller, inventory),
        Err(error) => {
            let (reason, remedy) = (&error.reason, error.remedy.as_str());
            teller.found(SECTION.failed("libibverbs", reason, remedy, is_asked_for));
        }
    }
    let found = inventory.as_ref().ok().map(|inventory| inventory.devices.len());
    choice(teller, &infiniband, found, is_asked_for);
    let Ok(inventory) = inventory else { return };
    for device in &inventory.devices {
        report(teller, device);
    }
    if !inventory.devices.is_empty() {
        nearest(teller, &infiniband);
    }
}

fn library(teller: &Teller, inventory: &Inventory) {
    let text = format!("{}, {} devices", inventory.library, inventory.devices.len());
    let facts = json!({"library": inventory.library, "devices": inventory.devices.len()});
    teller.found(SECTION.ok("libibverbs", text).facts(facts));
    for (i, missing) in inventory.missing.iter().enumerate() {
        let remedy = "install a newer rdma-core; until then an older function is used where there is one";
        teller.found(SECTION.unavailable(format!("missing function {}", i + 1), missing, remedy));
    }
}

/// Reports which devices are `IB0` and so on. `found` is the number of devices; none without a library.
fn choice(teller: &Teller, infiniband: &InfiniBand, found: Option<usize>, is_asked_for: bool) {
    let item = "IB0 to IB7";
    let (names, finding) = match infiniband.device_names() {
        Ok(names) => {
            let list: Vec<_> = names.iter().enumerate().map(|(i, name)| format!("IB{i} is {name}")).collect();
            (names, SECTION.ok(item, list.join(", ")))
        }
        Err(reason) => {
            // Malformed variables are reported first, even if there is no library.
            let is_malformed = !is_asked_for && reason.starts_with("MSCCLPP_");
            let (reason, remedy) = match found {
                _ if is_asked_for => (reason, NOT_THERE),
                _ if is_malformed => (reason, "set the variable to such a value, or unset it"),
                None => ("there are none without the library".to_owned(), "see libibverbs above"),
                Some(0) => (reason, NO_DEVICE),
                Some(_) => (reason, NO_PORT),
            };
            (Vec::new(), SECTION.failed(item, reason, remedy, is_asked_for || is_malformed))
        }
    };
    teller.found(finding.facts(json!({"devices": names})));
}

fn report(teller: &Teller, device: &DeviceReport) {
    let name = device.name.as_str();
    let transport = device.transport.map(|transport| transport.to_string());
    let place = device.pci.as_ref().map_or("in software".to_owned(), |pci| format!("PCI {pci}"));
    let facts = json!({"device": name, "pci": device.pci, "transport": transport, "why": device.why});
    let details = match &device.details {
        Ok(details) => details,
        Err(reason) => {
            let remedy = "give this user /dev/infiniband (docker: --device /dev/infiniband), and see dmesg";
            return teller.found(SECTION.unavailable(name, reason, remedy).facts(facts));
        }
    };
    let atomics =
        if details.atomics { "has atomics" } else { "no atomics: signals travel as immediate data" };
    let finding = match (&transport, &details.used) {
        (Some(transport), Ok(_)) => {
            SECTION.ok(name, format!("{transport}: {}; {place}, {atomics}", device.why))
        }
        (Some(transport), Err(reason)) => {
            let has_active_port = details.ports.iter().flatten().any(|port| port.is_active);
            let remedy = if has_active_port { NO_GID } else { NO_PORT };
            SECTION.problem(name, format!("{transport}: {reason}"), remedy)
        }
        (None, _) => SECTION.note(name, format!("not chosen: {}; {place}, {atomics}", device.why)),
    };
    teller.found(finding.facts(facts).facts(json!({"atomics": details.atomics})));
    ports(teller, name, details, transport.is_some());
}

/// Reports the ports of a device. `is_chosen`: whether the device is one of `IB0` and so on.
fn ports(teller: &Teller, name: &str, details: &DeviceDetails, is_chosen: bool) {
    let used = details.used.as_ref().ok();
    for (number, port) in (1..).zip(&details.ports) {
        let item = format!("{name} port {number}");
        let port = match port {
            Ok(port) => port,
            Err(reason) => {
                let remedy = "see dmesg for what the driver says";
                teller.found(SECTION.unavailable(item, reason, remedy).facts(json!({"device": name})));
                continue;
            }
        };
        let used = used.filter(|used| used.number == port.number);
        let chosen_gid = used.filter(|_| is_chosen).map(|used| used.gid_index);
        let layer = if port.is_ethernet { "Ethernet (RoCE)" } else { "InfiniBand" };
        let text = format!("{}, {layer}, MTU {}", port.state, port.mtu);
        let finding = match (port.is_active, used) {
            (true, Some(used)) => {
                let gid = format!("with GID {}: {}", used.gid_index, used.why);
                match is_chosen {
                    true => SECTION.ok(item, format!("{text}; chosen {gid}")),
                    false => SECTION.note(item, format!("{text}; if the device were chosen, {gid}")),
                }
            }
            (true, None) => SECTION.note(item, format!("{text}; not chosen")),
            (false, _) => SECTION.unavailable(item, text, NO_PORT),
        };
        teller.found(finding.facts(json!({
            "device": name,
            "port": port.number,
            "active": port.is_active,
            "state": port.state,
            "link_layer": if port.is_ethernet { "ethernet" } else { "infiniband" },
            "mtu": port.mtu,
            "chosen_gid": chosen_gid,
        })));
        for gid in &port.gids {
            let is_chosen = chosen_gid == Some(gid.index);
            let chosen = if is_chosen { ", chosen" } else { "" };
            let elsewhere = match gid.in_this_namespace {
                Some(false) => ", its interface is in another network namespace",
                _ => "",
            };
            let text = format!("{} ({}){elsewhere}{chosen}", gid.gid, gid.kind);
            let item = format!("{name}/{} GID {}", port.number, gid.index);
            teller.found(SECTION.note(item, text).facts(json!({
                "device": name,
                "port": port.number,
                "index": gid.index,
                "gid": gid.gid.to_string(),
                "kind": gid.kind,
                "chosen": is_chosen,
            })));
        }
    }
}

/// Reports which adapter is closest to each GPU.
fn nearest(teller: &Teller, infiniband: &InfiniBand) {
    let gpus = devices::open(teller, |_, _| {});
    if gpus.iter().any(|gpu| gpu.properties().pci_bus_id.is_none()) {
        let text = "simulated devices have no nearest adapter";
        return teller.found(SECTION.note("nearest", text));
    }
    for gpu in &gpus {
        let transport = infiniband.nearest_ib(gpu).map(|transport| transport.to_string());
        let item = format!("nearest to {} {}", gpu.platform(), gpu.id());
        let finding = SECTION.note(item, transport.as_deref().unwrap_or("not known"));
        teller.found(finding.facts(json!({"gpu": gpu.id(), "transport": transport})));
    }
}
