//! Tests of the encoded addresses of endpoints.

use mscclpp_net::{
    key::Key,
    links::{Address, Error, Protocol},
    wire::Reader,
};

const PROTOCOL: Protocol = Protocol { name: "mscclpp-test", title: "Test", magic: *b"TEST", version: 1 };

fn address() -> Address {
    let addresses = ["192.0.2.1", "fd00::1", "127.0.0.1"].map(|ip| ip.parse().unwrap());
    Address { name: [1; 16], key: Key::from_bytes([2; 32]), addresses: addresses.to_vec(), port: 4711 }
}

#[test]
fn an_address_survives_its_journey() {
    let bytes = address().encode(&PROTOCOL);
    assert_eq!(Address::decode(&PROTOCOL, &bytes).unwrap(), address());
    let longer = [&bytes[..], b"rest"].concat();
    let mut reader = Reader::new(&longer);
    assert_eq!(Address::read(&PROTOCOL, &mut reader).unwrap(), address());
    assert_eq!(reader.rest(), b"rest");
}

#[test]
fn truncated_extended_and_of_another_version() {
    let bytes = address().encode(&PROTOCOL);
    let error = |bytes: &[u8]| Address::decode(&PROTOCOL, bytes).unwrap_err();
    for len in 0..bytes.len() {
        assert!(matches!(error(&bytes[..len]), Error::Malformed(_)), "{len} bytes");
    }
    assert!(matches!(error(&[&bytes[..], &[0]].concat()), Error::Malformed(_)));
    let with = |at: usize, byte: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = byte;
        error(&bytes)
    };
    assert!(matches!(with(0, b'x'), Error::Malformed(_)));
    for count in [0, 17, 255] {
        assert!(matches!(with(58, count), Error::Malformed(_)), "{count} addresses");
    }
    let text = with(4, 2).to_string();
    assert!(text.contains("version 2 of the Test protocol") && text.contains("version 1"), "{text}");
}

#[test]
fn no_more_addresses_are_written_than_are_read() {
    let many = Address { addresses: vec![[127, 0, 0, 1].into(); 300], ..address() };
    let read = Address::decode(&PROTOCOL, &many.encode(&PROTOCOL)).unwrap();
    assert_eq!(read.addresses.len(), 16);
}

#[test]
fn a_peer_on_this_host_is_tried_at_loopback_first() {
    let first = |same_host| address().candidates(same_host)[0].to_string();
    assert_eq!((first(false), first(true)), ("192.0.2.1:4711".to_owned(), "127.0.0.1:4711".to_owned()));
}

#[test]
fn a_key_is_never_shown() {
    assert!(format!("{:?}", address()).contains("hidden"));
}
