//! The parts of endpoints and regions that are sent to peers, and the messages between the two ends of a queue.
//!
//! ```text
//! endpoint:  the address of its link | atomics 1 | Ethernet 1 | GID 16 | device name
//! region:    magic 4 | version 4 | region id 8 | address 8 | length 8 | key for data 4 | key for updates 4
//! ```
//! A process that has the blobs of an endpoint and of a region can write into the region: adapters check keys and
//! bounds, and nothing else.

use mscclpp_net::{
    links::{
        self, Address, Protocol,
        header::{Fields, Header, Inbound, Outbound},
    },
    wire::{Malformed, Reader, Wire},
};

use crate::{
    adapter::Path,
    error::{Error, Result},
    gid::Gid,
};

/// The protocol between peers of this transport.
pub(crate) const PROTOCOL: Protocol =
    Protocol { name: "mscclpp-ib", title: "InfiniBand", magic: *b"MSIB", version: 5 };

/// The part of an endpoint that a peer needs to reach it and to connect to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EndpointBlob {
    pub(crate) address: Address,
    /// Whether signals to this endpoint may be atomics: the adapter has them, and the mode allows it.
    pub(crate) atomics: bool,
    pub(crate) is_ethernet: bool,
    pub(crate) gid: Gid,
    /// The name of the device, for messages.
    pub(crate) device: String,
}

impl EndpointBlob {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = self.address.encode(&PROTOCOL);
        (self.atomics, self.is_ethernet, self.gid.0).put(&mut out);
        self.device.put(&mut out);
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let parse = || -> Result<_, links::Error> {
            let mut reader = Reader::new(bytes);
            let address = Address::read(&PROTOCOL, &mut reader)?;
            let (atomics, is_ethernet, gid, device) = Wire::parse(reader.rest())?;
            Ok(Self { address, atomics, is_ethernet, gid: Gid(gid), device })
        };
        parse().map_err(|error| Error::in_part_of("an endpoint", error))
    }
}

/// The part of a region that a peer's adapter needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RegionBlob {
    pub(crate) id: u64,
    pub(crate) address: u64,
    pub(crate) len: u64,
    pub(crate) data_key: u32,
    pub(crate) update_key: u32,
}

impl RegionBlob {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = PROTOCOL.begin();
        (self.id, self.address, self.len, self.data_key, self.update_key).put(&mut out);
        out
    }

    /// Reads the blob of a region. `id` and `len` come from the envelope around the blob.
    pub(crate) fn decode(bytes: &[u8], id: u64, len: u64) -> Result<Self> {
        let parse = || -> Result<_, links::Error> {
            let mut reader = Reader::new(bytes);
            PROTOCOL.check(&mut reader)?;
            let (own_id, address, own_len, data_key, update_key) =
                <(u64, u64, u64, u32, u32)>::parse(reader.rest())?;
            if (own_id, own_len) != (id, len) {
                return Err(Malformed("it belongs to a different region than the memory it came in").into());
            }
            if address.checked_add(len).is_none() {
                return Err(Malformed("it goes past the end of the address space").into());
            }
            Ok(Self { id, address, len, data_key, update_key })
        };
        parse().map_err(|error| Error::in_part_of("a registered memory", error))
    }
}

/// The message in which the side that opens a queue describes its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) path: Path,
    /// Whether signals come as immediate data, which needs receives.
    pub(crate) immediates: bool,
    /// The address and key to which the other side writes how many receives it has posted again.
    pub(crate) credit: (u64, u32),
}

/// The message with which the other side answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) path: Path,
    /// The number of receives that it has posted.
    pub(crate) receives: u32,
}

/// The length in bytes of each of the two messages.
pub(crate) const EXCHANGE: usize = 2 * size_of::<Header>();

const OFFER: u8 = 1;
const ANSWER: u8 = 2;
const REST: u8 = 3;

impl Offer {
    pub(crate) fn seal(&self, outbound: &Outbound) -> [u8; EXCHANGE] {
        let rest = Fields { kind: REST, flag: 0, small: self.credit.1, numbers: [self.credit.0, 0, 0] };
        both(outbound.seal(path_fields(OFFER, self.immediates, &self.path)), outbound.seal(rest))
    }

    pub(crate) fn open(inbound: &mut Inbound, bytes: &[u8; EXCHANGE]) -> Result<Self> {
        let (first, rest) = open(inbound, bytes, OFFER)?;
        Ok(Self { path: path(&first)?, immediates: first.flag == 1, credit: (rest.numbers[0], rest.small) })
    }
}

impl Answer {
    pub(crate) fn seal(&self, outbound: &Outbound) -> [u8; EXCHANGE] {
        let rest = Fields { kind: REST, flag: 0, small: self.receives, numbers: [0; 3] };
        both(outbound.seal(path_fields(ANSWER, false, &self.path)), outbound.seal(rest))
    }

    pub(crate) fn open(inbound: &mut Inbound, bytes: &[u8; EXCHANGE]) -> Result<Self> {
        let (first, rest) = open(inbound, bytes, ANSWER)?;
        Ok(Self { path: path(&first)?, receives: rest.small })
    }
}

fn both(first: Header, second: Header) -> [u8; EXCHANGE] {
    std::array::from_fn(|i| if i < first.len() { first[i] } else { second[i - first.len()] })
}

fn open(inbound: &mut Inbound, bytes: &[u8; EXCHANGE], kind: u8) -> Result<(Fields, Fields)> {
    let bad = |problem| Error::Malformed { what: "a queue pair", problem };
    let (first, second) = bytes.split_at(size_of::<Header>());
    let mut header = |bytes: &[u8]| {
        let header = bytes.try_into().map_err(|_| bad("it is too short"))?;
        inbound.open(header).map_err(|_| bad("it does not have the seal of this connection"))
    };
    let (first, second) = (header(first)?, header(second)?);
    match (first.kind == kind && first.flag <= 1, second.kind) {
        (true, REST) => Ok((first, second)),
        _ => Err(bad("it says something that does not belong there")),
    }
}

pub(crate) fn path_fields(kind: u8, flag: bool, path: &Path) -> Fields {
    let [high, low] = [0, 8].map(|at| u64::from_be_bytes(std::array::from_fn(|i| path.gid.0[at + i])));
    let rest = u64::from(path.psn)
        | u64::from(path.lid) << 24
        | u64::from(path.mtu as u8) << 40
        | u64::from(path.atomics) << 48;
    Fields { kind, flag: flag.into(), small: path.qpn, numbers: [rest, high, low] }
}

pub(crate) fn path(fields: &Fields) -> Result<Path> {
    let [rest, high, low] = fields.numbers;
    let mtu = (rest >> 40) as u8;
    if !(1..=5).contains(&mtu) || fields.small >= 1 << 24 {
        let problem = "its MTU or its number is none";
        return Err(Error::Malformed { what: "a queue pair", problem });
    }
    let mut gid = [0; 16];
    gid[..8].copy_from_slice(&high.to_be_bytes());
    gid[8..].copy_from_slice(&low.to_be_bytes());
    Ok(Path {
        qpn: fields.small,
        psn: (rest & 0xff_ffff) as u32,
        lid: (rest >> 24) as u16,
        gid: Gid(gid),
        mtu: mtu.into(),
        atomics: (rest >> 48) as u8,
    })
}

#[cfg(test)]
mod tests {
    use mscclpp_net::key::Key;

    use super::*;

    fn endpoint() -> EndpointBlob {
        let addresses = vec!["192.0.2.1".parse().unwrap()];
        EndpointBlob {
            address: Address { name: [1; 16], key: Key::from_bytes([2; 32]), addresses, port: 4711 },
            atomics: true,
            is_ethernet: false,
            gid: Gid([3; 16]),
            device: "mlx5_0".to_owned(),
        }
    }

    const REGION: RegionBlob = RegionBlob { id: 5, address: 4096, len: 6, data_key: 7, update_key: 8 };

    #[test]
    fn blobs_survive_their_journey() {
        assert_eq!(EndpointBlob::decode(&endpoint().encode()).unwrap(), endpoint());
        assert_eq!(RegionBlob::decode(&REGION.encode(), 5, 6).unwrap(), REGION);
    }

    #[test]
    fn what_is_cut_short_lengthened_or_of_another_region_is_refused() {
        let (endpoint, region) = (endpoint().encode(), REGION.encode());
        for len in 0..endpoint.len() {
            assert!(EndpointBlob::decode(&endpoint[..len]).is_err(), "{len} bytes of an endpoint");
        }
        for len in 0..region.len() {
            assert!(RegionBlob::decode(&region[..len], 5, 6).is_err(), "{len} bytes of a region");
        }
        assert!(EndpointBlob::decode(&[&endpoint[..], &[0]].concat()).is_err());
        assert!(RegionBlob::decode(&[&region[..], &[0]].concat(), 5, 6).is_err());
        for (id, len) in [(4, 6), (5, 7)] {
            assert!(RegionBlob::decode(&region, id, len).is_err());
        }
        let high = RegionBlob { address: u64::MAX, ..REGION };
        assert!(RegionBlob::decode(&high.encode(), 5, 6).is_err());
    }

    #[test]
    fn the_ends_of_a_queue_tell_each_other() {
        let path =
            Path { qpn: 0xab_cdef, psn: 0x12_3456, lid: 0xffff, gid: Gid([9; 16]), mtu: 5, atomics: 16 };
        let (outbound, mut inbound) = (Outbound::new(&[4; 16]), Inbound::new(&[4; 16]));
        let offer = Offer { path, immediates: true, credit: (u64::MAX, 77) };
        assert_eq!(Offer::open(&mut inbound, &offer.seal(&outbound)).unwrap(), offer);
        let answer = Answer { path, receives: 16 };
        let sealed = answer.seal(&outbound);
        assert!(Answer::open(&mut Inbound::new(&[5; 16]), &sealed).is_err(), "another key");
        assert_eq!(Answer::open(&mut inbound, &sealed).unwrap(), answer);
        assert!(Answer::open(&mut inbound, &sealed).is_err(), "the same once more");
        let none = Offer { path: Path { mtu: 6, ..path }, ..offer };
        let (outbound, mut inbound) = (Outbound::new(&[4; 16]), Inbound::new(&[4; 16]));
        assert!(Offer::open(&mut inbound, &none.seal(&outbound)).is_err());
    }
}
