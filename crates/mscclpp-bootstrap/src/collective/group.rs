//! The barrier of a group of ranks, along a tree of their own.

use super::call;
use super::call::{CLOSED, DATA};
use super::exchange::{Envelope, Exchange, TreePosition, broken};
use crate::digest::digest;
use crate::protocol::tree;
use crate::{Error, Result};
use mscclpp_net::wire::{Reader, Wire};

/// The ranks of a group, in ascending order.
pub struct Group {
    members: Vec<usize>,
}

impl Group {
    /// Makes a group. `members` must be sorted.
    pub fn new(members: Vec<usize>) -> Self {
        Self { members }
    }

    /// Makes the exchange of one of the members.
    pub fn exchange(self, rank: usize) -> Exchange<Self> {
        let n = self.members.len();
        let at = self.members.binary_search(&rank).unwrap_or(0);
        let children: Vec<usize> = tree::children(at, n).map(|child| self.members[child]).collect();
        let parent = tree::parent(at).map(|parent| self.members[parent]);
        Exchange::new(
            self,
            TreePosition { parent, senders: children.clone(), sends: true, children },
            Vec::new(),
        )
    }

    /// Returns the tag of the group's messages, a digest of its members: groups that share members must not take each
    /// other's messages.
    pub fn tag(&self) -> u64 {
        let members: Vec<u8> = self.members.iter().flat_map(|&rank| (rank as u64).to_le_bytes()).collect();
        u64::from_le_bytes(digest(&[&members]))
    }

    pub fn members(&self) -> &[usize] {
        &self.members
    }
}

impl Envelope for Group {
    fn seal(&self, part: &Result<Vec<u8>>) -> Result<Vec<u8>> {
        let message = match part {
            Ok(_) => (DATA, 0),
            Err(error) => (CLOSED, call::departed(error)?),
        };
        Ok(message.to_bytes())
    }

    fn open(&self, peer: usize, message: Vec<u8>) -> Result<Vec<u8>> {
        match Reader::new(&message).take() {
            Ok((DATA, _)) => Ok(Vec::new()),
            Ok((_, rank)) => {
                let rank = if self.members.contains(&rank) { rank } else { peer };
                Err(Error::PeerClosed { rank })
            }
            Err(error) => Err(broken(peer, error)),
        }
    }
}
