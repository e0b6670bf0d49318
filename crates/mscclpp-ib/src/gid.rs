//! Chooses an entry of a port's GID table.

use std::{fmt, net::Ipv6Addr};

use mscclpp_verbs_sys as sys;

/// A global identifier: an IPv6 address, or one of InfiniBand's own identifiers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gid(pub(crate) [u8; 16]);

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Ipv6Addr::from(self.0), f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The kind of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GidKind {
    InfiniBand,
    RoceV1,
    RoceV2,
    /// The library does not say.
    Unknown,
}

impl GidKind {
    pub(crate) fn from_number(kind: u32) -> Self {
        match kind {
            sys::IBV_GID_TYPE_IB => Self::InfiniBand,
            sys::IBV_GID_TYPE_ROCE_V1 => Self::RoceV1,
            sys::IBV_GID_TYPE_ROCE_V2 => Self::RoceV2,
            _ => Self::Unknown,
        }
    }
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InfiniBand => "InfiniBand",
            Self::RoceV1 => "RoCE v1",
            Self::RoceV2 => "RoCE v2",
            Self::Unknown => "of an unknown type",
        })
    }
}

/// An entry of a GID table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GidEntry {
    pub(crate) index: u32,
    pub(crate) gid: Gid,
    pub(crate) kind: GidKind,
    /// Whether the network interface behind the entry is in this process's network namespace; `None` if that is not
    /// known, or if there is no interface.
    pub(crate) reachable: Option<bool>,
}

impl fmt::Display for GidEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({})", self.index, self.gid, self.kind)?;
        if self.reachable == Some(false) {
            f.write_str(", whose interface is in another network namespace")?;
        }
        Ok(())
    }
}

/// Chooses the entry to use if the user named none. On Ethernet: RoCE v2 before v1, routed addresses before
/// link-local ones, and never an entry of another network namespace. On InfiniBand: the first.
pub(crate) fn choose(entries: &[GidEntry], is_ethernet: bool) -> Option<&GidEntry> {
    let usable = entries.iter().filter(|entry| entry.reachable != Some(false));
    if is_ethernet {
        // Of equally good entries, the first is taken.
        usable.min_by_key(|entry| (rank(entry), entry.index))
    } else {
        usable.min_by_key(|entry| entry.index)
    }
}

/// Ranks an entry; less is better.
fn rank(entry: &GidEntry) -> (u8, u8) {
    let version = match entry.kind {
        GidKind::RoceV2 => 0,
        GidKind::Unknown => 1,
        GidKind::RoceV1 => 2,
        GidKind::InfiniBand => 3,
    };
    let address = Ipv6Addr::from(entry.gid.0);
    let scope = if address.to_ipv4_mapped().is_some() {
        0
    } else if address.segments()[0] & 0xffc0 == 0xfe80 {
        2
    } else {
        1
    };
    (version, scope)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u32, address: &str, kind: GidKind) -> GidEntry {
        let gid = Gid(address.parse::<Ipv6Addr>().unwrap().octets());
        GidEntry { index, gid, kind, reachable: None }
    }

    #[test]
    fn the_best_of_a_roce_port() {
        use GidKind::{RoceV1, RoceV2};
        let mut table = vec![
            entry(0, "fe80::1", RoceV1),
            entry(1, "fe80::1", RoceV2),
            entry(2, "::ffff:10.0.0.1", RoceV1),
            entry(3, "::ffff:10.0.0.1", RoceV2),
            entry(4, "2001:db8::1", RoceV2),
            entry(5, "::ffff:10.0.0.2", RoceV2),
        ];
        let chosen = |table: &[GidEntry]| choose(table, true).map(|entry| entry.index);
        for best in [3, 5, 4, 1, 2, 0] {
            assert_eq!(chosen(&table), Some(best));
            table.retain(|entry| entry.index != best);
        }
        assert_eq!(chosen(&table), None);
    }

    #[test]
    fn what_is_in_another_namespace_is_not_chosen() {
        let mut table = [entry(0, "fe80::1", GidKind::RoceV2), entry(1, "::ffff:10.0.0.1", GidKind::RoceV2)];
        table[1].reachable = Some(false);
        assert_eq!(choose(&table, true).unwrap().index, 0);
        assert!(table[1].to_string().contains("another network namespace"));
    }

    #[test]
    fn the_first_of_an_infiniband_port() {
        let table = [entry(0, "fe80::2", GidKind::InfiniBand), entry(1, "fd00::2", GidKind::InfiniBand)];
        assert_eq!(choose(&table, false).unwrap().index, 0);
    }
}
