//! The parsers of bytes from outside, for fuzz targets. Not part of the API.

use crate::{
    handshake::{Frame, Initiator, Responder},
    key::Key,
};

use super::{
    Address, Protocol,
    handshake::{self, Purpose, Request},
    header::{Fields, Inbound},
    message::Message,
};

const PROTOCOL: Protocol = Protocol { name: "mscclpp-fuzz", title: "Fuzz", magic: *b"FUZZ", version: 1 };

fn frame(bytes: &[u8]) -> Option<Frame> {
    let mut reader = handshake::reader();
    reader.push(bytes);
    reader.take().ok().flatten()
}

/// Gives `bytes` to every parser of links.
pub fn parse_everything(bytes: &[u8]) {
    let _ = Address::decode(&PROTOCOL, bytes);
    let key = Key::from_bytes([1; 32]);
    let request = Request { endpoint: [2; 16], from: [3; 16], link: 4, purpose: Purpose::Link };
    let (responder, challenge) = Responder::challenge(PROTOCOL.name, [5; 32]);
    let hello = request.hello(&PROTOCOL, [6; 32]);
    let answer = |challenge: &Frame| Initiator::answer(PROTOCOL.name, &key, &hello, challenge);
    if let Some(said) = frame(bytes) {
        let _ = handshake::answer(&PROTOCOL, &responder, &said, |_| Some(key.clone()), |_| Ok(()));
        let _ = answer(&said);
        if let Some(Ok((initiator, _))) = frame(&challenge).as_ref().map(answer) {
            let _ = handshake::conclude(PROTOCOL.version, initiator, &said);
        }
    }
    if let Some(header) = bytes.first_chunk() {
        let _ = Inbound::new(&[7; 16]).open(header);
    }
    // A message of a member, whose seal is right.
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
        let (_, challenge) = Responder::challenge(PROTOCOL.name, [5; 32]);
        let begun = [&PROTOCOL.begin()[..], &[0; 200]].concat();
        let hello = crate::frame::encode(2, &begun);
        for sample in [&challenge, &begun, &hello] {
            for at in 0..sample.len() {
                for byte in [0, 1, 2, 5, 255] {
                    let mut bytes = sample.clone();
                    bytes[at] = byte;
                    parse_everything(&bytes);
                    parse_everything(&bytes[..at]);
                }
            }
        }
    }
}
