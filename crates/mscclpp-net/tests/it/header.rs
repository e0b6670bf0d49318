//! Tests of headers with a keyed check.

use mscclpp_net::links::header::{BadHeader, Fields, HEADER, Inbound, Outbound, SealKey};

const SEALED: usize = 40;

const KEY: SealKey = [7; 16];
const FIELDS: Fields = Fields { kind: 1, flag: 2, small: u32::MAX, numbers: [3, 4, u64::MAX] };

#[test]
fn headers_arrive_as_they_were_sent() {
    let (outbound, mut inbound) = (Outbound::new(&KEY), Inbound::new(&KEY));
    for fields in [FIELDS, Fields::default(), FIELDS] {
        assert_eq!(inbound.open(&outbound.seal(fields)), Ok(fields));
    }
}

/// Pins seals that another implementation computed.
#[test]
fn headers_are_what_they_were() {
    let outbound = Outbound::new(&KEY);
    let first = outbound.seal(FIELDS);
    assert_eq!(first[..16], [1, 2, 0, 0, 255, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(first[16..SEALED], [3u64, 4, u64::MAX].map(u64::to_le_bytes).concat());
    assert_eq!(first[SEALED..], 0xae34_4827_8f1c_5f9f_u64.to_le_bytes());
    assert_eq!(outbound.seal(FIELDS)[SEALED..], 0x7a18_4821_917c_444e_u64.to_le_bytes());
}

#[test]
fn a_changed_bit_breaks_the_seal() {
    let header = Outbound::new(&KEY).seal(FIELDS);
    for bit in 0..8 * HEADER {
        let mut changed = header;
        changed[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(Inbound::new(&KEY).open(&changed), Err(BadHeader::Seal), "bit {bit}");
    }
}

#[test]
fn repeated_lost_and_moved_headers_are_seen() {
    let outbound = Outbound::new(&KEY);
    let [first, second, third] = [(); 3].map(|()| outbound.seal(FIELDS));
    let mut inbound = Inbound::new(&KEY);
    inbound.open(&first).unwrap();
    assert_eq!(inbound.open(&first), Err(BadHeader::Sequence { due: 1, came: 0 }));
    assert_eq!(inbound.open(&third), Err(BadHeader::Sequence { due: 1, came: 2 }));
    inbound.open(&second).unwrap();
}

#[test]
fn headers_of_another_connection_are_worth_nothing() {
    let header = Outbound::new(&[8; 16]).seal(FIELDS);
    assert_eq!(Inbound::new(&KEY).open(&header), Err(BadHeader::Seal));
}
