//! The acts of strangers in the simulated world.

use std::time::Duration;

use crate::stranger::Manner;
use crate::world::{Event, World};
use mscclpp_bootstrap::job::ConnectionId;
use mscclpp_net::frame;

impl World {
    /// Wakes a stranger, which connects or says another byte.
    pub(super) fn stranger_wakes(&mut self, node: usize) {
        let now = self.now;
        let Some(stranger) = &mut self.nodes[node].stranger else { return };
        if let Some((address, _)) = stranger.target.filter(|(_, at)| *at <= now && stranger.last_id == 0) {
            let id = stranger.takes_in();
            return self.dial(node, id, address);
        }
        let Manner::Trickles(bytes) = &stranger.manner else { return };
        let mut next = Vec::new();
        for (&id, said) in &mut stranger.said {
            if let Some(&byte) = bytes.get(*said) {
                *said += 1;
                next.push((id, byte));
            }
        }
        if !next.is_empty() {
            self.schedule(now + Duration::from_millis(100), Event::Wake(node));
        }
        for (id, byte) in next {
            self.stranger_says(node, id, vec![byte]);
        }
    }

    pub(super) fn stranger_connected(&mut self, node: usize, id: ConnectionId) {
        let Some(stranger) = &mut self.nodes[node].stranger else { return };
        stranger.said.insert(id, 0);
        match &stranger.manner {
            Manner::Speaks(bytes) => {
                let bytes = bytes.clone();
                self.stranger_says(node, id, bytes);
            }
            Manner::Trickles(_) => self.schedule(self.now, Event::Wake(node)),
            Manner::Answers(bytes) => {
                // The challenge goes first, because a rank that connects speaks second.
                let bytes = bytes[..frame::HEADER + 32].to_vec();
                self.stranger_says(node, id, bytes);
            }
            Manner::Silent | Manner::Joins(_) => {}
        }
    }

    pub(super) fn stranger_reads(&mut self, node: usize, id: ConnectionId, bytes: &[u8]) {
        let Some(stranger) = &mut self.nodes[node].stranger else { return };
        stranger.heard.entry(id).or_default().extend_from_slice(bytes);
        match &mut stranger.manner {
            Manner::Joins(rank) => match rank.on_bytes(bytes) {
                Ok(answer) if !answer.is_empty() => self.stranger_says(node, id, answer),
                Err(answer) if answer.contains("Accepted") => {
                    stranger.violations.push("a stranger was let in".to_owned());
                }
                _ => {}
            },
            Manner::Answers(bytes) => {
                let bytes = bytes[frame::HEADER + 32..].to_vec();
                self.stranger_says(node, id, bytes);
            }
            Manner::Silent | Manner::Speaks(_) | Manner::Trickles(_) => {}
        }
    }

    fn stranger_says(&mut self, node: usize, id: ConnectionId, bytes: Vec<u8>) {
        if let Some(&(wire, side)) = self.nodes[node].wires.get(&id) {
            self.send(wire, side, bytes);
        }
    }
}
