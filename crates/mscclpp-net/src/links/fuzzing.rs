//! The parsers of bytes from outside, for fuzz targets. Not part of the API.

use crate::key::Key;

use super::{
    Address, Protocol,
    handshake::{ANSWER, CHALLENGE, HELLO, Initiator, Purpose, Request, Responder},
    header::{Fields, Inbound},
    message::Message,
};

const PROTOCOL: Protocol = Protocol { name: "mscclpp-fuzz", title: "Fuzz", magic: *b"FUZZ", version: 1 };

/// Gives `bytes` to every parser of links.
pub fn parse_everything(bytes: &[u8]) {
    let _ = Address::decode(&PROTOCOL, bytes);
    let key = Key::from_bytes([1; 32]);
    let request = Request { endpoint: [2; 16], from: [3; 16], link: 4, purpose: Purpose::Link };
    let responder = Responder::new(PROTOCOL, [5; 32]);
    let _ = responder.check_front(bytes);
    if let Some(hello) = bytes.first_chunk::<HELLO>() {
        let _ = responder.verify(hello, |_| Some(key.clone()), |_| Ok(()));
    }
    if let Some(challenge) = bytes.first_chunk::<CHALLENGE>() {
        let _ = Initiator::answer(PROTOCOL, &key, &request, [6; 32], challenge);
    }
    let initiator = Initiator::answer(PROTOCOL, &key, &request, [6; 32], responder.challenge());
    if let (Some(answer), Ok((initiator, _))) = (bytes.first_chunk::<ANSWER>(), initiator) {
        let _ = initiator.conclude(answer);
    }
    if let Some(header) = bytes.first_chunk() {
        let _ = Inbound::new(&[7; 16]).open(header);
    }
    // What a member says, whose seal is right.
    if let Some((&[kind, flag], rest)) = bytes.split_first_chunk()
        && let Some(small) = rest.first_chunk()
    {
        let fields = Fields { kind, flag, small: u32::from_le_bytes(*small), numbers: [0; 3] };
        let _ = Message::try_from(fields);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_bytes_never_panic() {
        let responder = Responder::new(PROTOCOL, [5; 32]);
        let begun = [&PROTOCOL.begin()[..], &[0; 200]].concat();
        for sample in [responder.challenge(), &begun[..]] {
            for at in 0..sample.len() {
                for byte in [0, 1, 2, 5, 255] {
                    let mut bytes = sample.to_vec();
                    bytes[at] = byte;
                    parse_everything(&bytes);
                    parse_everything(&bytes[..at]);
                }
            }
        }
    }
}
