//! Tests of frames that are cut out of a stream of bytes.

use std::io::{self, Read};

use mscclpp_net::{
    frame::{FrameReader, encode},
    handshake::Kind,
};

const LIMIT: usize = 32 * 1024;

#[test]
fn frames_survive_any_cutting() {
    let frames = [(2, vec![1, 2, 3]), (36, vec![]), (16, vec![7; 1000])];
    let stream: Vec<u8> = frames.iter().flat_map(|(kind, payload)| encode(*kind, payload)).collect();
    for piece in [1, 2, 3, 7, 8, 9, 500, stream.len()] {
        let mut reader = FrameReader::new(LIMIT);
        let mut got = Vec::new();
        for bytes in stream.chunks(piece) {
            reader.push(bytes);
            while let Some(frame) = reader.take::<u8>().unwrap() {
                got.push((frame.kind, frame.payload));
            }
        }
        assert_eq!(got, frames);
        reader.push(b"x");
        assert!(reader.take::<u8>().is_err(), "no part of another frame has arrived");
    }
}

#[test]
fn a_broken_header_is_seen_as_early_as_can_be() {
    for (bytes, reason) in [
        (&[0x47][..], "mark"),
        (&[0xB5, 2], "version"),
        (&[0xB5, 1, 99, 0, 0, 0, 0, 0], "kind"),
        (&[0xB5, 1, 1, 1, 0, 0, 0, 0], "reserved"),
    ] {
        let mut reader = FrameReader::new(LIMIT);
        reader.push(bytes);
        assert!(reader.take::<Kind>().unwrap_err().to_string().contains(reason));
    }
}

/// A stream that gives a few bytes at a time, and would block in between.
struct Slow<'a>(&'a [u8], bool);

impl Read for Slow<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.1 = !self.1;
        if self.1 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let count = into.len().min(3);
        self.0.read(&mut into[..count])
    }
}

#[test]
fn what_follows_a_frame_is_left_on_its_connection() {
    let bytes = [encode(1, &[7; 300]), b"rest".to_vec()].concat();
    let (mut reader, mut slow) = (FrameReader::new(LIMIT), Slow(&bytes, false));
    let frame = loop {
        if let Some(frame) = reader.read::<Kind>(&mut slow).unwrap() {
            break frame;
        }
    };
    assert_eq!((frame.kind, frame.payload), (Kind::Challenge, vec![7; 300]));
    assert_eq!(slow.0, b"rest");
    let ended = reader.read::<Kind>(&b""[..]).unwrap_err();
    assert_eq!(ended.kind(), io::ErrorKind::UnexpectedEof);
    let malformed = reader.read::<Kind>(&b"rest"[..]).unwrap_err();
    assert_eq!(malformed.kind(), io::ErrorKind::InvalidData);
}
