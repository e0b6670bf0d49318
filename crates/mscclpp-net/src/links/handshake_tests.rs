use super::*;
use crate::links::tests::PROTOCOL;

const NAME: Name = [3; 16];

fn key(byte: u8) -> Key {
    Key::from_bytes([byte; 32])
}

fn request() -> Request {
    Request { endpoint: NAME, from: [4; 16], link: 77, purpose: Purpose::Data }
}

fn fixed<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().unwrap()
}

type Verdict = Result<(Request, Session), Refusal>;

/// Runs a handshake between somebody with `ours` and an owner of endpoint `NAME` with `theirs`.
fn run(ours: &Key, theirs: &Key, admit: Result<(), Refusal>) -> (Verdict, Result<Session, Refusal>) {
    let responder = Responder::new(PROTOCOL, [1; 32]);
    let (initiator, hello) =
        Initiator::answer(PROTOCOL, ours, &request(), [2; 32], responder.challenge()).unwrap();
    responder.check_front(&hello).unwrap();
    let (answer, verdict) =
        responder.verify(&fixed(&hello), |name| (*name == NAME).then(|| theirs.clone()), |_| admit);
    (verdict, initiator.conclude(&fixed(&answer)))
}

#[test]
fn two_who_know_the_endpoint_agree() {
    let (verdict, concluded) = run(&key(1), &key(1), Ok(()));
    let (said, there) = verdict.unwrap();
    let here = concluded.unwrap();
    assert_eq!(said, request());
    assert_eq!((here.initiator, here.responder), (there.initiator, there.responder));
    assert_ne!(here.initiator, here.responder, "each direction has a key of its own");
}

/// Bytes that another implementation computed. Whoever changes them raises the version of every protocol.
#[test]
fn what_is_said_is_what_it_was() {
    let hex = |bytes: &[u8]| bytes[..8].iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let responder = Responder::new(PROTOCOL, [1; 32]);
    assert_eq!(*responder.challenge(), *[&b"TEST\x01\0\0\0"[..], &[1; 32]].concat());
    let (_, hello) =
        Initiator::answer(PROTOCOL, &key(1), &request(), [2; 32], responder.challenge()).unwrap();
    let said = [&b"TEST\x01\0\0\0"[..], &[2; 32], &[3; 16], &[4; 16], &77u64.to_le_bytes(), &[2]].concat();
    assert_eq!(hello[..81], said);
    assert_eq!(hex(&hello[81..]), "d60f9f6f6d25e8c8");
    let (answer, verdict) = responder.verify(&fixed(&hello), |_| Some(key(1)), |_| Ok(()));
    assert_eq!(answer[..9], *b"TEST\x01\0\0\0\0");
    assert_eq!(hex(&answer[9..]), "651188636ef944f4");
    let (_, session) = verdict.unwrap();
    assert_eq!(hex(&session.initiator), "d24809e8edcf7319");
    assert_eq!(hex(&session.responder), "974017b27319f3c3");
}

#[test]
fn another_key_does_not_get_in() {
    let (verdict, concluded) = run(&key(1), &key(2), Ok(()));
    assert_eq!(verdict.err(), Some(Refusal::Key));
    assert_eq!(concluded.err(), Some(Refusal::Key));
}

#[test]
fn a_member_is_refused_with_proof() {
    for refusal in [Refusal::NoLink, Refusal::Full] {
        let (verdict, concluded) = run(&key(1), &key(1), Err(refusal));
        assert_eq!(verdict.err(), Some(refusal));
        assert_eq!(concluded.err(), Some(refusal));
    }
}

#[test]
fn an_unknown_endpoint_is_told() {
    let responder = Responder::new(PROTOCOL, [1; 32]);
    let (initiator, hello) =
        Initiator::answer(PROTOCOL, &key(1), &request(), [2; 32], responder.challenge()).unwrap();
    let (answer, verdict) = responder.verify(&fixed(&hello), |_| None, |_| Ok(()));
    assert_eq!(verdict.err(), Some(Refusal::Unknown));
    assert_eq!(initiator.conclude(&fixed(&answer)).err(), Some(Refusal::Unknown));
}

#[test]
fn a_mismatch_of_versions_names_both() {
    let responder = Responder::new(PROTOCOL, [1; 32]);
    let mut challenge = *responder.challenge();
    challenge[4] = 9;
    let Err(refusal) = Initiator::answer(PROTOCOL, &key(1), &request(), [2; 32], &challenge) else {
        panic!("accepted")
    };
    let text = refusal.to_string();
    assert!(text.contains("version 9") && text.contains("version 1"), "{text}");

    let (_, mut hello) =
        Initiator::answer(PROTOCOL, &key(1), &request(), [2; 32], responder.challenge()).unwrap();
    hello[4] = 9;
    assert_eq!(
        responder.check_front(&hello[..8]),
        Err(Refusal::Version { theirs: 9, ours: PROTOCOL.version })
    );
    let (answer, verdict) = responder.verify(&fixed(&hello), |_| Some(key(1)), |_| Ok(()));
    assert_eq!(verdict.err(), Some(Refusal::Version { theirs: 9, ours: PROTOCOL.version }));
    assert_eq!(answer[4..8], PROTOCOL.version.to_le_bytes(), "the answer says which version is spoken here");
}

#[test]
fn what_was_changed_or_is_old_is_worth_nothing() {
    let responder = Responder::new(PROTOCOL, [1; 32]);
    let begin = || Initiator::answer(PROTOCOL, &key(1), &request(), [2; 32], responder.challenge()).unwrap();
    let hello = begin().1;
    let verify = |responder: &Responder, hello: &[u8]| {
        responder.verify(&fixed(hello), |name| (*name == NAME).then(|| key(1)), |_| Ok(()))
    };
    let (answer, verdict) = verify(&responder, &hello);
    assert!(verdict.is_ok());
    for bit in 0..8 * HELLO {
        let mut changed = hello.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert!(verify(&responder, &changed).1.is_err(), "bit {bit} of the hello");
    }
    for bit in 0..8 * ANSWER {
        let mut changed = answer.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert!(begin().0.conclude(&fixed(&changed)).is_err(), "bit {bit} of the answer");
    }
    // A hello that somebody recorded, against a new challenge; an answer that somebody recorded, against a new hello.
    assert_eq!(verify(&Responder::new(PROTOCOL, [9; 32]), &hello).1.err(), Some(Refusal::Key));
    let (later, _) =
        Initiator::answer(PROTOCOL, &key(1), &request(), [8; 32], responder.challenge()).unwrap();
    assert_eq!(later.conclude(&fixed(&answer)).err(), Some(Refusal::Key));
}

#[test]
fn a_challenge_does_not_depend_on_any_key() {
    assert_eq!(Responder::new(PROTOCOL, [1; 32]).challenge(), Responder::new(PROTOCOL, [1; 32]).challenge());
    assert_ne!(Responder::new(PROTOCOL, [1; 32]).challenge(), Responder::new(PROTOCOL, [2; 32]).challenge());
}

/// Whoever has the key, and speaks another protocol with the same magic.
#[test]
fn a_proof_of_another_protocol_is_worth_nothing() {
    let other = Protocol { name: "mscclpp-other", ..PROTOCOL };
    let responder = Responder::new(other, [1; 32]);
    let (initiator, hello) =
        Initiator::answer(PROTOCOL, &key(1), &request(), [2; 32], responder.challenge()).unwrap();
    let (answer, verdict) = responder.verify(&fixed(&hello), |_| Some(key(1)), |_| Ok(()));
    assert_eq!(verdict.err(), Some(Refusal::Key));
    assert_eq!(initiator.conclude(&fixed(&answer)).err(), Some(Refusal::Key));
}

#[test]
fn strangers_are_foreign() {
    let responder = Responder::new(PROTOCOL, [1; 32]);
    assert_eq!(responder.check_front(b"GET / HTTP/1.1"), Err(Refusal::Foreign));
    assert_eq!(responder.check_front(b"GET"), Ok(()));
    assert!(matches!(
        Initiator::answer(PROTOCOL, &key(1), &request(), [2; 32], &[b'S'; CHALLENGE]),
        Err(Refusal::Foreign)
    ));
}
