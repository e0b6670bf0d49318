use super::*;
use crate::links::tests::PROTOCOL;

const NAME: Name = [3; 16];

fn key(byte: u8) -> Key {
    Key::from_bytes([byte; 32])
}

fn request() -> Request {
    Request { endpoint: NAME, from: [4; 16], link: 77, purpose: Purpose::Data }
}

fn frame(bytes: &[u8]) -> Frame {
    let mut reader = reader();
    reader.push(bytes);
    reader.take().unwrap().unwrap()
}

type Verdict = Result<(Request, Session), Refusal>;

/// Runs a handshake between a side with key `ours` and an owner of `endpoint` with key `theirs`, who speak these
/// protocols.
fn run(
    protocols: [Protocol; 2],
    [ours, theirs]: [Key; 2],
    endpoint: Name,
    admit: Result<(), Refusal>,
) -> (Verdict, Result<Session, Refusal>) {
    let (responder, challenge) = Responder::challenge(protocols[1].name, [1; 32]);
    let hello = request().hello(&protocols[0], [2; 32]);
    let (initiator, hello) = Initiator::answer(protocols[0].name, &ours, &hello, &frame(&challenge)).unwrap();
    let key_of = |name: &Name| (*name == endpoint).then_some(theirs);
    let (answer, verdict) = answer(&protocols[1], &responder, &frame(&hello), key_of, |_| admit);
    (verdict, conclude(protocols[0].version, initiator, &frame(&answer)))
}

/// Runs a handshake like [`run`], and returns the refusals that the two ends see.
fn refused(
    protocols: [Protocol; 2],
    keys: [Key; 2],
    endpoint: Name,
    admit: Result<(), Refusal>,
) -> [Option<Refusal>; 2] {
    let (verdict, concluded) = run(protocols, keys, endpoint, admit);
    [verdict.err(), concluded.err()]
}

#[test]
fn two_who_know_the_endpoint_agree() {
    let (verdict, concluded) = run([PROTOCOL; 2], [key(1), key(1)], NAME, Ok(()));
    let ((said, there), here) = (verdict.unwrap(), concluded.ok().unwrap());
    assert_eq!(said, request());
    assert_eq!((here.initiator, here.responder), (there.initiator, there.responder));
    assert_ne!(here.initiator, here.responder, "each direction has a key of its own");
}

/// Pins the bytes of a hello. A change of them must raise the version of every protocol.
#[test]
fn what_is_said_is_what_it_was() {
    let said = [&b"TEST\x01\0\0\0"[..], &[2; 32], &[3; 16], &[4; 16], &77u64.to_le_bytes(), &[2]].concat();
    assert_eq!(request().hello(&PROTOCOL, [2; 32]), said);
    assert_eq!(Refusal::NoLink.rejection(), [5]);
    assert_eq!(Refusal::Full.rejection(), [6]);
    assert_eq!(Refusal::Version { theirs: 9, ours: 1 }.rejection(), [2, 1, 0, 0, 0]);
}

#[test]
fn who_does_not_belong_is_told_why() {
    assert_eq!(refused([PROTOCOL; 2], [key(1), key(2)], NAME, Ok(())), [Some(Refusal::Key); 2]);
    assert_eq!(refused([PROTOCOL; 2], [key(1), key(1)], [9; 16], Ok(())), [Some(Refusal::Unknown); 2]);
    // A side that has the key, and speaks another protocol with the same magic.
    let other = Protocol { name: "mscclpp-other", ..PROTOCOL };
    assert_eq!(refused([PROTOCOL, other], [key(1), key(1)], NAME, Ok(())), [Some(Refusal::Key); 2]);
    let other = Protocol { magic: *b"ELSE", ..PROTOCOL };
    assert_eq!(refused([PROTOCOL, other], [key(1), key(1)], NAME, Ok(())), [Some(Refusal::Foreign); 2]);
}

#[test]
fn a_member_is_refused_with_proof() {
    for refusal in [Refusal::NoLink, Refusal::Full, Refusal::Foreign] {
        let told = refused([PROTOCOL; 2], [key(1), key(1)], NAME, Err(refusal));
        assert_eq!(told, [Some(refusal); 2]);
    }
}

#[test]
fn a_mismatch_of_versions_names_both() {
    let newer = Protocol { version: 9, ..PROTOCOL };
    let [here, there] = refused([newer, PROTOCOL], [key(1), key(1)], NAME, Ok(()));
    assert_eq!(here, Some(Refusal::Version { theirs: 9, ours: 1 }));
    assert_eq!(there, Some(Refusal::Version { theirs: 1, ours: 9 }));
    let text = there.unwrap().to_string();
    assert!(text.contains("version 9") && text.contains("version 1"), "{text}");
    // Without the key, the version mismatch cannot be proved.
    assert_eq!(refused([newer, PROTOCOL], [key(1), key(2)], NAME, Ok(())), [Some(Refusal::Key); 2]);
}

#[test]
fn strangers_are_foreign() {
    for (said, foreign) in [(&b"GET / HTTP/1.1"[..], true), (b"GET", true), (b"\xB5\x01", false)] {
        let mut reader = reader();
        reader.push(said);
        assert_eq!(reader.take::<crate::handshake::Kind>().is_err(), foreign, "{said:?}");
    }
    let (responder, _) = Responder::challenge(PROTOCOL.name, [1; 32]);
    let hello = Frame { kind: crate::handshake::Kind::Hello, payload: vec![b'S'; 113] };
    let (_, verdict) = answer(&PROTOCOL, &responder, &hello, |_| Some(key(1)), |_| Ok(()));
    assert_eq!(verdict.err(), Some(Refusal::Foreign));
}
