//! The notice of a job's failure that one rank sends to another.

use std::time::Duration;

use crate::protocol::frame::MAX_PAYLOAD;
use crate::{Error, Party};
use mscclpp_net::Report;
use mscclpp_net::wire::{MAX_TEXT, Malformed, Reader, Wire};

/// The most missing ranks that are named.
const MAX_NAMED: usize = 1024;

/// Encodes a notice about `error`, as `rank` sees it.
pub fn encode(error: &Error, rank: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let out = &mut bytes;
    match error {
        Error::PeerLost { rank, detail } => (1_u8, *rank, detail.clone()).put(out),
        Error::Aborted { rank, reason } => (2_u8, *rank, reason.clone()).put(out),
        Error::Timeout { operation, after, missing, .. } => {
            (3_u8, operation.clone(), after.as_millis() as u64).put(out);
            put_ranks(out, missing);
        }
        Error::Mismatch { what, ours, theirs } => {
            (4_u8, what.clone()).put(out);
            for Party { rank, address, value } in [&**ours, theirs] {
                (*rank, address.clone().unwrap_or_default(), value.clone()).put(out);
            }
        }
        Error::DuplicateRank { rank, first, second, address } => {
            (5_u8, *rank, first.clone(), second.clone(), address.clone()).put(out);
        }
        // Any other error concerns the rank that met it; the others see that this rank has given up.
        other => (2_u8, rank, Report(other).to_string()).put(out),
    }
    bytes
}

pub fn parse(payload: &[u8]) -> Result<Error, Malformed> {
    let mut reader = Reader::new(payload);
    let error = match reader.take::<u8>()? {
        1 => Error::PeerLost { rank: reader.take()?, detail: reader.take()? },
        2 => Error::Aborted { rank: reader.take()?, reason: reader.take()? },
        3 => Error::Timeout {
            operation: reader.take()?,
            after: Duration::from_millis(reader.take()?),
            missing: take_ranks(&mut reader)?,
            attempts: Vec::new(),
        },
        4 => Error::Mismatch {
            what: reader.take()?,
            ours: Box::new(take_party(&mut reader)?),
            theirs: Box::new(take_party(&mut reader)?),
        },
        5 => Error::DuplicateRank {
            rank: reader.take()?,
            first: reader.take()?,
            second: reader.take()?,
            address: reader.take()?,
        },
        _ => return Err(Malformed("a notice is of no known kind")),
    };
    reader.end()?;
    Ok(error)
}

fn take_party(reader: &mut Reader<'_>) -> Result<Party, Malformed> {
    let (rank, address, value) = reader.take::<(_, String, _)>()?;
    Ok(Party { rank, address: Some(address).filter(|text| !text.is_empty()), value })
}

/// Writes a list of ranks, cut to `MAX_NAMED`.
pub fn put_ranks(out: &mut Vec<u8>, ranks: &[usize]) {
    let named = &ranks[..ranks.len().min(MAX_NAMED)];
    named.len().put(out);
    named.iter().for_each(|rank| rank.put(out));
}

pub fn take_ranks(reader: &mut Reader<'_>) -> Result<Vec<usize>, Malformed> {
    let count = reader.take::<usize>()?;
    if count > MAX_NAMED {
        return Err(Malformed("a list of ranks is too long"));
    }
    (0..count).map(|_| reader.take()).collect()
}

const _: () = assert!(MAX_NAMED * 4 + 5 * MAX_TEXT + 64 <= MAX_PAYLOAD, "every notice fits a frame");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_concerns_all_arrives_as_it_was() {
        let party = |rank, address: Option<&str>| Party {
            rank,
            address: address.map(str::to_owned),
            value: "2".to_owned(),
        };
        for error in [
            Error::PeerLost { rank: 3, detail: "x".into() },
            Error::Aborted { rank: 4, reason: "y".into() },
            Error::Timeout {
                operation: "z".into(),
                after: Duration::from_secs(3),
                missing: vec![5, 6],
                attempts: vec![],
            },
            Error::Mismatch {
                what: "w".into(),
                ours: Box::new(party(1, None)),
                theirs: Box::new(party(2, Some("a:1"))),
            },
            Error::DuplicateRank { rank: 1, first: "a".into(), second: "b".into(), address: "c".into() },
        ] {
            let payload = encode(&error, 9);
            assert_eq!(parse(&payload).unwrap().to_string(), error.to_string());
            for end in 0..payload.len() {
                assert!(parse(&payload[..end]).is_err());
            }
        }
    }

    #[test]
    fn what_concerns_one_rank_names_it() {
        let error = parse(&encode(&Error::InvalidArgument("q".into()), 9)).unwrap();
        assert!(matches!(&error, Error::Aborted { rank: 9, reason } if reason.contains('q')), "{error}");
    }

    #[test]
    fn long_texts_are_cut() {
        let error = Error::Aborted { rank: 0, reason: "ä".repeat(5000) };
        let Error::Aborted { reason, .. } = parse(&encode(&error, 0)).unwrap() else { panic!() };
        assert_eq!(reason, "ä".repeat(MAX_TEXT / 2));
    }
}
