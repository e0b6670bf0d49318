//! What a port reports about itself.

use std::{ffi::CStr, net::Ipv6Addr};

use mscclpp_verbs_sys as sys;

use super::Adapter;
use crate::{
    describe::{GidReport, PortReport},
    error::Result,
};

impl Adapter {
    /// Port `number`, whether or not it can be used.
    pub(crate) fn report_port(&self, number: u8) -> Result<PortReport> {
        let attr = self.query_port(number)?;
        // SAFETY: the library gives a text of its own for every number.
        let state = unsafe { CStr::from_ptr((self.verbs.port_state_str)(attr.state)) };
        let gids = self.gids(number, &attr)?.into_iter().map(|entry| GidReport {
            index: entry.index,
            gid: Ipv6Addr::from(entry.gid.0),
            kind: entry.kind.to_string(),
            in_this_namespace: entry.reachable,
        });
        Ok(PortReport {
            number,
            is_active: attr.state == sys::IBV_PORT_ACTIVE,
            state: state.to_string_lossy().into_owned(),
            is_ethernet: attr.link_layer == sys::IBV_LINK_LAYER_ETHERNET as u8,
            mtu: mtu_bytes(attr.active_mtu),
            gids: gids.collect(),
        })
    }
}

/// The header counts MTUs: 1 is 256 bytes, and each next one is twice as large.
fn mtu_bytes(mtu: u32) -> u32 {
    if (1..=8).contains(&mtu) { 128 << mtu } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_mtus_are_sizes() {
        assert_eq!(mtu_bytes(sys::IBV_MTU_256), 256);
        assert_eq!(mtu_bytes(sys::IBV_MTU_4096), 4096);
        assert_eq!(mtu_bytes(0), 0);
    }
}
