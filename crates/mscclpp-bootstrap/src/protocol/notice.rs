//! The failure of a job, as one rank tells it to another.

use std::time::Duration;

use crate::protocol::frame::MAX_PAYLOAD;
use crate::{Error, Party};
use mscclpp_net::Report;
use mscclpp_net::wire::{MAX_TEXT, Malformed, Reader, put_text};

/// Missing ranks are named up to this many.
const MAX_NAMED: usize = 1024;

/// The payload of a notice about `error`, as `rank` sees it.
pub(crate) fn encode(error: &Error, rank: usize) -> Vec<u8> {
    let mut out = Vec::new();
    match error {
        Error::PeerLost { rank, detail } => {
            out.push(1);
            out.extend((*rank as u32).to_le_bytes());
            put_text(&mut out, detail);
        }
        Error::Aborted { rank, reason } => {
            out.push(2);
            out.extend((*rank as u32).to_le_bytes());
            put_text(&mut out, reason);
        }
        Error::Timeout { operation, after, missing, .. } => {
            out.push(3);
            put_text(&mut out, operation);
            out.extend((after.as_millis() as u64).to_le_bytes());
            put_ranks(&mut out, missing);
        }
        Error::Mismatch { what, ours, theirs } => {
            out.push(4);
            put_text(&mut out, what);
            for party in [ours, theirs] {
                out.extend((party.rank as u32).to_le_bytes());
                put_text(&mut out, party.address.as_deref().unwrap_or(""));
                put_text(&mut out, &party.value);
            }
        }
        Error::DuplicateRank { rank, first, second, address } => {
            out.push(5);
            out.extend((*rank as u32).to_le_bytes());
            for text in [first, second, address] {
                put_text(&mut out, text);
            }
        }
        // Anything else concerns the rank that met it; for the others it has given up.
        other => {
            out.push(2);
            out.extend((rank as u32).to_le_bytes());
            put_text(&mut out, &Report(other).to_string());
        }
    }
    out
}

/// Reads a notice.
pub(crate) fn parse(payload: &[u8]) -> Result<Error, Malformed> {
    let mut reader = Reader::new(payload);
    let error = match reader.u8()? {
        1 => Error::PeerLost { rank: reader.u32()? as usize, detail: reader.text()? },
        2 => Error::Aborted { rank: reader.u32()? as usize, reason: reader.text()? },
        3 => Error::Timeout {
            operation: reader.text()?,
            after: Duration::from_millis(reader.u64()?),
            missing: take_ranks(&mut reader)?,
            attempts: Vec::new(),
        },
        4 => Error::Mismatch {
            what: reader.text()?,
            ours: Box::new(take_party(&mut reader)?),
            theirs: Box::new(take_party(&mut reader)?),
        },
        5 => Error::DuplicateRank {
            rank: reader.u32()? as usize,
            first: reader.text()?,
            second: reader.text()?,
            address: reader.text()?,
        },
        _ => return Err(Malformed("a notice is of no known kind")),
    };
    reader.end()?;
    Ok(error)
}

fn take_party(reader: &mut Reader<'_>) -> Result<Party, Malformed> {
    let rank = reader.u32()? as usize;
    let address = Some(reader.text()?).filter(|text| !text.is_empty());
    Ok(Party { rank, address, value: reader.text()? })
}

/// Writes a list of ranks, cut to [`MAX_NAMED`].
pub(crate) fn put_ranks(out: &mut Vec<u8>, ranks: &[usize]) {
    let named = &ranks[..ranks.len().min(MAX_NAMED)];
    out.extend((named.len() as u32).to_le_bytes());
    for &rank in named {
        out.extend((rank as u32).to_le_bytes());
    }
}

/// Reads a list of ranks.
pub(crate) fn take_ranks(reader: &mut Reader<'_>) -> Result<Vec<usize>, Malformed> {
    let count = reader.u32()? as usize;
    if count > MAX_NAMED {
        return Err(Malformed("a list of ranks is too long"));
    }
    (0..count).map(|_| Ok(reader.u32()? as usize)).collect()
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
