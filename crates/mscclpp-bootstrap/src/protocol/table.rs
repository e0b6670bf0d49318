//! The table of the addresses at which ranks listen and of the nodes they are on.
//!
//! It is kept as the bytes that came, with the position of each rank's entry: about 40 bytes per rank.

use std::net::{IpAddr, SocketAddr};

use crate::host::HostId;
use mscclpp_net::wire::{Malformed, Reader, Wire};
use mscclpp_net::wire_struct;

/// The most addresses that a rank gives.
pub const MAX_ADDRESSES: usize = 6;

/// The description that a rank gives of itself when it joins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub host: HostId,
    pub domain: HostId,
    pub place: Place,
}

wire_struct!(Entry { host, domain, place });

/// The port and the addresses at which a rank listens, best first. At most [`MAX_ADDRESSES`] are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub port: u16,
    pub addresses: Vec<IpAddr>,
}

impl Place {
    pub fn socket_addresses(&self) -> Vec<SocketAddr> {
        self.addresses.iter().map(|ip| SocketAddr::new(*ip, self.port)).collect()
    }
}

impl Wire for Place {
    fn put(&self, out: &mut Vec<u8>) {
        let addresses = &self.addresses[..self.addresses.len().min(MAX_ADDRESSES)];
        (self.port, addresses.len() as u8).put(out);
        addresses.iter().for_each(|ip| ip.put(out));
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (port, count) = reader.take::<(u16, u8)>()?;
        if usize::from(count) > MAX_ADDRESSES {
            return Err(Malformed("a rank has too many addresses"));
        }
        let addresses = (0..count).map(|_| reader.take()).collect::<Result<_, _>>()?;
        Ok(Self { port, addresses })
    }
}

/// The entries of all ranks.
pub struct Table {
    bytes: Vec<u8>,
    /// The position in `bytes` at which each rank's entry begins.
    entries: Vec<u32>,
    generation: u64,
    per_node: usize,
    per_domain: usize,
}

/// Returns the most bytes that a table of `n` ranks can have.
pub fn most_bytes(n: usize) -> usize {
    const HOST: usize = 16;
    const ADDRESS: usize = 17;
    8 + 4 + n * (2 * HOST + 8 + 3 + MAX_ADDRESSES * ADDRESS)
}

/// Encodes a table. Nodes are named once and referred to by number.
pub fn encode(entries: &[Entry], generation: u64) -> Vec<u8> {
    let mut hosts: Vec<HostId> = entries.iter().flat_map(|e| [e.host, e.domain]).collect();
    hosts.sort_unstable();
    hosts.dedup();
    let number = |id: &HostId| hosts.binary_search(id).unwrap_or(0);
    let mut out = (generation, hosts.len()).to_bytes();
    out.extend(hosts.iter().flatten());
    for entry in entries {
        (number(&entry.host), number(&entry.domain)).put(&mut out);
        entry.place.put(&mut out);
    }
    out
}

impl Table {
    /// Checks the bytes of a table, on rank `rank` of `n`.
    pub fn parse(bytes: Vec<u8>, rank: usize, n: usize) -> Result<Self, Malformed> {
        let mut reader = Reader::new(&bytes);
        let (generation, hosts) = reader.take::<(u64, usize)>()?;
        let hosts_bytes = hosts.checked_mul(16).ok_or(Malformed("a table has too many hosts"))?;
        reader.bytes(hosts_bytes)?;
        let mut entries = Vec::new();
        let mut members = Vec::new();
        for _ in 0..n {
            entries.push((bytes.len() - reader.rest().len()) as u32);
            let member = reader.take::<(usize, usize)>()?;
            if member.0 >= hosts || member.1 >= hosts {
                return Err(Malformed("a table refers to a node it does not name"));
            }
            members.push(member);
            reader.take::<Place>()?;
        }
        reader.end()?;
        let me = *members.get(rank).ok_or(Malformed("a table is too short"))?;
        let per_node = members.iter().filter(|m| m.0 == me.0).count();
        let per_domain = members.iter().filter(|m| m.1 == me.1).count();
        Ok(Self { bytes, entries, generation, per_node, per_domain })
    }

    /// Returns the addresses at which a rank listens, best first.
    pub fn addresses(&self, rank: usize) -> Vec<SocketAddr> {
        Place::parse(self.place(rank)).map(|place| place.socket_addresses()).unwrap_or_default()
    }

    /// Returns the part of the table with a rank's addresses; empty for a rank that does not exist.
    pub fn place(&self, rank: usize) -> &[u8] {
        let Some(&start) = self.entries.get(rank) else { return &[] };
        let end = self.entries.get(rank + 1).map_or(self.bytes.len(), |&next| next as usize);
        self.bytes.get(start as usize + 8..end).unwrap_or_default()
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns how often this job has formed, this time included.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    pub fn ranks(&self) -> usize {
        self.entries.len()
    }

    /// Returns how many ranks are on this rank's node.
    pub fn per_node(&self) -> usize {
        self.per_node
    }

    /// Returns how many ranks are in this rank's IPC domain.
    pub fn per_domain(&self) -> usize {
        self.per_domain
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(host: u8, domain: u8, port: u16, addresses: &[&str]) -> Entry {
        Entry {
            host: [host; 16],
            domain: [domain; 16],
            place: Place { port, addresses: addresses.iter().map(|a| a.parse().unwrap()).collect() },
        }
    }

    fn three() -> Vec<Entry> {
        vec![
            entry(1, 9, 11, &["10.0.0.1", "fd00::1"]),
            entry(1, 9, 12, &["10.0.0.1"]),
            entry(2, 9, 13, &["10.0.0.2", "127.0.0.1"]),
        ]
    }

    #[test]
    fn a_table_says_what_the_entries_said() {
        let bytes = encode(&three(), 3);
        let table = Table::parse(bytes, 1, 3).unwrap();
        assert_eq!((table.generation(), table.per_node(), table.per_domain()), (3, 2, 3));
        assert_eq!(table.addresses(0), ["10.0.0.1:11".parse().unwrap(), "[fd00::1]:11".parse().unwrap()]);
        assert_eq!(table.addresses(2).len(), 2);
        assert_eq!(table.addresses(3), []);
    }

    #[test]
    fn every_truncation_is_malformed() {
        let bytes = encode(&three(), 3);
        for end in 0..bytes.len() {
            assert!(Table::parse(bytes[..end].to_vec(), 0, 3).is_err());
        }
        assert!(Table::parse([&bytes[..], &[0]].concat(), 0, 3).is_err());
        assert!(Table::parse(bytes, 0, 4).is_err());
        let mut huge = encode(&three(), 3);
        huge[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(Table::parse(huge, 0, 3).is_err());
    }

    #[test]
    fn no_table_is_larger_than_the_most_and_places_are_parts_of_it() {
        let ranks: Vec<Entry> = (0..9).map(|i| entry(i, 100 + i, 1, &["fd00::1"; MAX_ADDRESSES])).collect();
        let bytes = encode(&ranks, 1);
        assert_eq!(bytes.len(), most_bytes(9));
        let table = Table::parse(bytes, 0, 9).unwrap();
        assert_eq!(Place::parse(table.place(8)).unwrap().socket_addresses(), table.addresses(8));
        assert_eq!(table.addresses(8).len(), MAX_ADDRESSES);
        assert!(table.place(9).is_empty() && Place::parse(&[]).is_err());
    }

    #[test]
    fn entries_survive_the_wire() {
        for entry in three() {
            assert_eq!(Entry::parse(&entry.to_bytes()).unwrap(), entry);
        }
        assert!(Entry::parse(&[0; 20]).is_err());
    }
}
