//! The parsers of bytes from outside, for the fuzz target. Not part of the API.

use mscclpp_net::{
    links::header::{Fields, Inbound, Outbound},
    wire::Reader,
};

use crate::blob::{Answer, EndpointBlob, Offer, RegionBlob};

const SEAL: [u8; 16] = [7; 16];

/// Gives `bytes` to every parser of this crate. Returns how often a parser accepted them.
///
/// # Panics
/// If a parser accepted bytes and the values it read do not match them.
pub fn parse_everything(bytes: &[u8]) -> usize {
    let mut good = 0;
    if let Ok(endpoint) = EndpointBlob::decode(bytes) {
        // The bytes may differ the first time: a name that is no UTF-8 is repaired, and a long one is then cut. The
        // second encoding must equal the first.
        let again = EndpointBlob::decode(&endpoint.encode()).unwrap();
        assert_eq!(EndpointBlob::decode(&again.encode()).unwrap(), again);
        good += 1;
    }
    for len in [0, 6, 1 << 40, u64::MAX] {
        if let Ok(region) = RegionBlob::decode(bytes, 5, len) {
            assert_eq!(region.encode(), bytes);
            good += 1;
        }
    }
    if let Some(exchange) = bytes.first_chunk() {
        good += usize::from(Offer::open(&mut Inbound::new(&SEAL), exchange).is_ok());
    }
    // A message of a member, whose seal is right.
    let mut reader = Reader::new(bytes);
    while let Some(first) = fields(&mut reader) {
        let outbound = Outbound::new(&SEAL);
        let rest = Fields { kind: 3, ..first };
        let sealed: Vec<u8> = [outbound.seal(first), outbound.seal(rest)].concat();
        let Some(exchange) = sealed.first_chunk() else { unreachable!("two headers are an exchange") };
        if let Ok(offer) = Offer::open(&mut Inbound::new(&SEAL), exchange) {
            assert_eq!(
                Offer::open(&mut Inbound::new(&SEAL), &offer.seal(&Outbound::new(&SEAL))).unwrap(),
                offer
            );
            good += 1;
        }
        good += usize::from(Answer::open(&mut Inbound::new(&SEAL), exchange).is_ok());
    }
    good
}

fn fields(reader: &mut Reader<'_>) -> Option<Fields> {
    let [kind, flag] = reader.take().ok()?;
    let small = reader.take().ok()?;
    let mut number = || reader.take().ok();
    Some(Fields { kind, flag, small, numbers: [number()?, number()?, number()?] })
}

#[cfg(test)]
mod tests {
    use mscclpp_net::{key::Key, links::Address};
    use mscclpp_test_support::Random;

    use super::*;
    use crate::gid::Gid;

    #[test]
    fn changed_messages_never_panic() {
        let addresses = vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
        let endpoint = EndpointBlob {
            address: Address { name: [1; 16], key: Key::from_bytes([2; 32]), addresses, port: 4711 },
            atomics: true,
            is_ethernet: false,
            gid: Gid([3; 16]),
            device: "mlx5_0".to_owned(),
        };
        let region = RegionBlob { id: 5, address: 4096, len: 6, data_key: 7, update_key: 8 };
        let mut offer = vec![0; 90];
        (offer[0], offer[11]) = (1, 3);
        let sent = [endpoint.encode(), region.encode(), offer];
        for bytes in &sent {
            assert!(parse_everything(bytes) > 0, "{bytes:?}");
        }
        let (mut random, mut good) = (Random::with_seed(1), 0);
        for round in 0..20_000 {
            let mut bytes = sent[round % sent.len()].clone();
            for _ in 0..random.below(3) {
                let at = random.below(bytes.len());
                bytes[at] = random.below(256) as u8;
            }
            if random.below(4) == 0 {
                bytes.truncate(random.below(bytes.len()));
            }
            good += usize::from(parse_everything(&bytes) > 0);
        }
        // A low number would mean that the parsers after the first were hardly reached.
        assert!(good > 5_000, "only {good} of 20000 changed messages were good ones");
    }
}
