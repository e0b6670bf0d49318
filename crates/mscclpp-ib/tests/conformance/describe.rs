//! The description of the node's RDMA devices agrees with what is used.

use libtest_mimic::{Failed, Trial};
use mscclpp_core::{Context, Device, EndpointConfig, Transport};
use mscclpp_ib::InfiniBand;

pub(crate) fn trials() -> Vec<Trial> {
    let missing = InfiniBand::new().device_names().is_err();
    vec![
        Trial::test("devices_that_are_chosen_have_a_port_and_a_gid", chosen)
            .with_kind("needs an InfiniBand device")
            .with_ignored_flag(missing),
        Trial::test("the_number_of_a_device_is_its_transport", numbers),
    ]
}

fn chosen() -> Result<(), Failed> {
    let infiniband = InfiniBand::new();
    let inventory = infiniband.describe()?;
    let context = Context::builder().provider(InfiniBand::new()).build();
    for name in infiniband.device_names()? {
        let device = inventory.devices.iter().find(|device| device.name == name);
        let device = device.ok_or_else(|| format!("{name} is not described"))?;
        let transport = device.transport.ok_or_else(|| format!("{name} has no transport"))?;
        let details = device.details.as_ref().map_err(|error| format!("{name}: {error}"))?;
        let used = details.used.as_ref().map_err(|error| format!("{name}: {error}"))?;
        let port = details.ports[usize::from(used.number) - 1].as_ref().map_err(Clone::clone)?;
        assert!(port.number == used.number && port.is_active && port.mtu >= 256, "{port:?}");
        let gid = port.gids.iter().find(|gid| gid.index == used.gid_index);
        let gid = gid.ok_or_else(|| format!("GID {} is not in {port:?}", used.gid_index))?;
        // The GID goes into the endpoint, as 16 bytes.
        let endpoint = context.create_endpoint(EndpointConfig::new(transport, Device::CPU))?;
        let bytes = endpoint.serialize()?;
        assert!(bytes.windows(16).any(|part| part == gid.gid.octets()), "{gid:?} in {endpoint:?}");
    }
    Ok(())
}

/// Compares the description with the device names, also on a node without devices or without the library.
fn numbers() -> Result<(), Failed> {
    let infiniband = InfiniBand::new();
    let names = infiniband.device_names().unwrap_or_default();
    let inventory = match infiniband.describe() {
        Ok(inventory) => inventory,
        Err(missing) => {
            assert!(
                names.is_empty() && !missing.reason.is_empty() && !missing.remedy.is_empty(),
                "{missing}"
            );
            return Ok(());
        }
    };
    for device in &inventory.devices {
        let number = names.iter().position(|name| *name == device.name);
        let expected = number.map(|number| format!("IB{number}").parse::<Transport>()).transpose()?;
        assert_eq!(device.transport, expected, "{device:?} in {names:?}");
        assert!(!device.why.is_empty());
    }
    Ok(())
}
