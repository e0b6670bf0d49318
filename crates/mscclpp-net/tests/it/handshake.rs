//! Tests of two ends that prove to each other that they have one key, and of strangers who do not have it.

use mscclpp_net::{
    frame::FrameReader,
    handshake::{Answer, Claim, Failure, Frame, Initiator, Kind, Responder, Verified},
    key::Key,
};

const PROTOCOL: &str = "mscclpp-test";
const HELLO: &[u8] = b"from 1 to 0, with a nonce of 32 bytes as a rule";

fn key(byte: u8) -> Key {
    Key::from_bytes([byte; 32])
}

fn frame(bytes: &[u8]) -> Frame {
    let mut reader = FrameReader::new(4096);
    reader.push(bytes);
    reader.take().unwrap().unwrap()
}

/// Challenges an initiator that answers. Returns both ends and the initiator's hello.
fn begin(ours: &Key, hello: &[u8], nonce: u8) -> (Responder, Initiator, Frame) {
    let (responder, challenge) = Responder::challenge(PROTOCOL, [nonce; 32]);
    let (initiator, first) = Initiator::answer(PROTOCOL, ours, hello, &frame(&challenge)).unwrap();
    (responder, initiator, frame(&first))
}

fn verify(responder: &Responder, key: &Key, first: &Frame) -> Result<Verified, Failure> {
    responder.verify(key, &Claim::of(first)?)
}

#[test]
fn two_who_have_the_key_agree() {
    for accepted in [true, false] {
        let (responder, initiator, first) = begin(&key(1), HELLO, 9);
        assert_eq!(Claim::of(&first).unwrap().said, HELLO);
        let verified = verify(&responder, &key(1), &first).unwrap();
        let (here, there) = (initiator.session(), verified.session());
        assert!(here == there && here.initiator != here.responder, "each direction has a key of its own");
        let answer = if accepted { verified.accept(b"answer") } else { verified.reject(b"answer") };
        assert_eq!(initiator.conclude(&frame(&answer)), Ok(Answer { accepted, said: b"answer" }));
    }
}

#[test]
fn another_key_and_another_protocol_do_not_get_in() {
    let (responder, initiator, first) = begin(&key(1), HELLO, 9);
    assert_eq!(verify(&responder, &key(2), &first).err(), Some(Failure::Key));
    assert_eq!(initiator.conclude(&frame(&Responder::refusal(4))), Err(Failure::Refused(4)));
    let (other, _) = Responder::challenge("mscclpp-other", [9; 32]);
    assert_eq!(verify(&other, &key(1), &first).err(), Some(Failure::Key));
    let (_, initiator, _) = begin(&key(1), HELLO, 9);
    // The other protocol's answer to the same hello is not accepted.
    let (other, challenge) = Responder::challenge("mscclpp-other", [9; 32]);
    let (_, first) = Initiator::answer("mscclpp-other", &key(1), HELLO, &frame(&challenge)).unwrap();
    let accept = verify(&other, &key(1), &frame(&first)).unwrap().accept(&[]);
    assert_eq!(initiator.conclude(&frame(&accept)), Err(Failure::Key));
}

#[test]
fn a_key_is_never_shown() {
    assert_eq!(format!("{:?}", key(7)), "Key(hidden)");
}

#[test]
fn who_has_no_room_says_so_in_place_of_a_challenge() {
    let answered = |frame: &Frame| Initiator::answer(PROTOCOL, &key(1), HELLO, frame).map(drop);
    let full = frame(&Responder::full(64));
    assert_eq!(answered(&full), Err(Failure::Full(64)));
    let cut = Frame { payload: full.payload[1..].to_vec(), ..full };
    assert!(matches!(answered(&cut), Err(Failure::Malformed(_))));
}

#[test]
fn an_old_proof_is_worth_nothing() {
    let (responder, initiator, first) = begin(&key(1), HELLO, 1);
    let accept = frame(&verify(&responder, &key(1), &first).unwrap().accept(&[5; 16]));
    assert!(initiator.conclude(&accept).is_ok());
    let (later, _) = Responder::challenge(PROTOCOL, [2; 32]);
    assert_eq!(verify(&later, &key(1), &first).err(), Some(Failure::Key));
    // The same challenge again comes from somebody who recorded an earlier handshake.
    let (_, fresh, _) = begin(&key(1), b"another nonce", 1);
    assert_eq!(fresh.conclude(&accept), Err(Failure::Key));
}

#[test]
fn nothing_can_be_sent_back_to_who_said_it() {
    let (responder, challenge) = Responder::challenge(PROTOCOL, [1; 32]);
    let challenge = frame(&challenge);
    let (initiator, first) = Initiator::answer(PROTOCOL, &key(1), HELLO, &challenge).unwrap();
    assert!(verify(&responder, &key(1), &challenge).is_err());
    assert!(Initiator::answer(PROTOCOL, &key(1), HELLO, &frame(&first)).is_err());
    // The hello is not accepted as an answer either.
    let mirrored = Frame { kind: Kind::Accept, payload: frame(&first).payload };
    assert_eq!(initiator.conclude(&mirrored), Err(Failure::Key));
}

#[test]
fn what_was_cut_or_changed_is_worth_nothing() {
    let (responder, challenge) = Responder::challenge(PROTOCOL, [1; 32]);
    let challenge = frame(&challenge);
    let answered = |challenge: &Frame| Initiator::answer(PROTOCOL, &key(1), HELLO, challenge);
    let first = frame(&answered(&challenge).unwrap().1);
    let verified = || verify(&responder, &key(1), &first).unwrap();
    for changed in changes(&first) {
        assert!(verify(&responder, &key(1), &changed).is_err(), "{changed:?}");
    }
    for answer in [verified().accept(&[5; 16]), verified().reject(b"no")] {
        for changed in changes(&frame(&answer)) {
            assert!(answered(&challenge).unwrap().0.conclude(&changed).is_err(), "{changed:?}");
        }
    }
    // An initiator does not notice a changed challenge; but its answer does not fit the true challenge.
    for changed in changes(&challenge) {
        if let Ok((_, bytes)) = answered(&changed) {
            assert_eq!(verify(&responder, &key(1), &frame(&bytes)).err(), Some(Failure::Key));
        }
    }
}

/// Returns a frame with each of its bits flipped, cut to each length, a byte longer, and with another kind.
fn changes(good: &Frame) -> Vec<Frame> {
    let with = |payload: Vec<u8>| Frame { kind: good.kind, payload };
    let flipped = (0..8 * good.payload.len()).map(|bit| {
        let mut payload = good.payload.clone();
        payload[bit / 8] ^= 1 << (bit % 8);
        with(payload)
    });
    let cut = (0..good.payload.len()).map(|end| with(good.payload[..end].to_vec()));
    let longer = with([good.payload.as_slice(), &[0]].concat());
    let kinds = (0..=255).filter_map(|byte| Kind::try_from(byte).ok()).filter(|kind| *kind != good.kind);
    let other = kinds.map(|kind| Frame { kind, payload: good.payload.clone() });
    flipped.chain(cut).chain([longer]).chain(other).collect()
}

/// Pins proofs and keys that another implementation computed. A change of them must raise the version of every
/// protocol.
#[test]
fn what_is_said_is_what_it_was() {
    let hex = |bytes: &[u8]| bytes[..8].iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let (responder, challenge) = Responder::challenge(PROTOCOL, [1; 32]);
    assert_eq!(challenge, [&[0xB5, 1, 1, 0, 32, 0, 0, 0][..], &[1; 32]].concat());
    let (initiator, first) = Initiator::answer(PROTOCOL, &key(1), HELLO, &frame(&challenge)).unwrap();
    assert_eq!(first[..8], [0xB5, 1, 2, 0, 32 + HELLO.len() as u8, 0, 0, 0]);
    assert_eq!((hex(&first[8..40]).as_str(), &first[40..]), ("4c5f9a2c50e589fc", HELLO));
    let session = initiator.session();
    assert_eq!(hex(&session.initiator), "f761826dfabcc1c7");
    assert_eq!(hex(&session.responder), "821c32d082a259fa");
    let accept = verify(&responder, &key(1), &frame(&first)).unwrap().accept(b"in");
    assert_eq!(accept[..8], [0xB5, 1, 3, 0, 34, 0, 0, 0]);
    assert_eq!((hex(&accept[8..40]).as_str(), &accept[40..]), ("48b1751960df6df6", &b"in"[..]));
}
