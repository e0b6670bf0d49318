//! Simulated processes that are no ranks: they connect to ranks, or listen where a rank looks for another.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use crate::dice::Dice;
use mscclpp_bootstrap::fuzzing::{RawRank, kinds, stale_hello};
use mscclpp_bootstrap::job::ConnectionId;
use mscclpp_bootstrap::protocol::frame::Kind;
use mscclpp_bootstrap::protocol::hello::PROTOCOL_VERSION;
use mscclpp_net::frame;
use mscclpp_net::handshake::Kind::{Challenge, Full, Hello, Refuse};

/// The behaviour of a stranger.
pub(super) enum Manner {
    /// Says nothing.
    Silent,
    /// Says something, at once.
    Speaks(Vec<u8>),
    /// Says the bytes one by one, slowly.
    Trickles(Vec<u8>),
    /// Says this when it hears something.
    Answers(Vec<u8>),
    /// Wants to join, with a key of its own.
    Joins(Box<RawRank>),
}

/// The number of behaviours of strangers that connect to a rank.
const DIALLING: usize = 6;

/// A process that is no rank.
pub(super) struct Stranger {
    pub(super) manner: Manner,
    /// The address that the stranger connects to, and when.
    pub(super) target: Option<(SocketAddr, Duration)>,
    pub(super) last_id: ConnectionId,
    /// The bytes that it has received on each connection.
    pub(super) heard: BTreeMap<ConnectionId, Vec<u8>>,
    /// The number of bytes that it has sent on each connection.
    pub(super) said: BTreeMap<ConnectionId, usize>,
    pub(super) violations: Vec<String>,
}

impl Stranger {
    fn new(manner: Manner, target: Option<(SocketAddr, Duration)>) -> Self {
        let (heard, said) = (BTreeMap::new(), BTreeMap::new());
        Self { manner, target, last_id: 0, heard, said, violations: Vec::new() }
    }

    /// Makes a stranger that connects to a rank.
    pub(super) fn visitor(dice: &mut Dice, target: SocketAddr, at: Duration, n: usize, keyed: bool) -> Self {
        let (n, rank) = (n as u32, dice.below(n) as u32);
        let manner = match dice.below(DIALLING) {
            0 => Manner::Silent,
            1 => Manner::Speaks(dice.bytes(200)),
            2 => Manner::Trickles(frame::encode(Hello as u8, &[7; 90])),
            3 => Manner::Speaks(stale_hello(PROTOCOL_VERSION, n, rank, keyed)),
            4 => Manner::Joins(Box::new(RawRank::of_secret("a guess", n, rank))),
            _ => Manner::Speaks(frame::encode(Kind::Goodbye as u8, &[0; 8])),
        };
        Self::new(manner, Some((target, at)))
    }

    /// Makes a stranger that listens where a rank looks for another.
    pub(super) fn host(dice: &mut Dice) -> Self {
        let challenge = frame::encode(Challenge as u8, &[3; 32]);
        Self::new(
            match dice.below(4) {
                0 => Manner::Silent,
                1 => Manner::Speaks(dice.bytes(64)),
                // The stranger takes the proof, and says nothing more.
                2 => Manner::Speaks(challenge),
                _ => Manner::Answers([challenge, frame::encode(Refuse as u8, &[1])].concat()),
            },
            None,
        )
    }

    pub(super) fn visits_at(&self) -> Option<Duration> {
        self.target.map(|(_, at)| at)
    }

    /// Accepts a connection.
    pub(super) fn takes_in(&mut self) -> ConnectionId {
        self.last_id += 1;
        self.last_id
    }

    /// Returns a violation if a stranger that connected was told more than that it does not belong there.
    pub(super) fn judge(&self) -> Option<String> {
        let mut kinds = self.heard.values().filter(|_| self.target.is_some()).flat_map(|bytes| kinds(bytes));
        let allowed = [Challenge, Refuse, Full].map(|kind| kind as u8);
        let told = kinds.find(|kind| !allowed.contains(kind))?;
        Some(format!("a stranger was told a frame of kind {told}"))
    }
}
