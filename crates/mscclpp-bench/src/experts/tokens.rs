//! The tokens of all ranks: their rows, their choices, and what a dispatch makes of them.

use half::bf16;

use super::{AskedLayout, Options, Shape};
use crate::prelude::*;

pub(super) struct Tokens {
    pub(super) shape: Shape,
    pub(super) rank: usize,
    /// The tokens of a rank.
    pub(super) count: usize,
    pub(super) as_bf16: bool,
    /// The choices of all ranks' tokens.
    pub(super) choices: Vec<Vec<i32>>,
}

/// A row that tokens may have.
pub(super) struct Kind {
    pub(super) given: Vec<u8>,
    /// The tensors of the row that come: numbers, and scales if they are quantised.
    pub(super) came: Vec<Vec<u8>>,
}

/// The number of different rows. The numbers of a row are a largest one, which is 1 to 13, divided by 1, 2, 4 and 8 in turns,
/// with four places to begin.
const KINDS: usize = 13 * 4;

impl Tokens {
    /// The kind of a token's row, which is another one each time.
    pub(super) fn kind(rank: usize, token: usize, time: usize) -> usize {
        (7 * rank + token + time) % KINDS
    }

    /// All kinds of rows.
    pub(super) fn kinds(&self) -> Vec<Kind> {
        (0..KINDS).map(|n| self.kind_of(n)).collect()
    }

    fn kind_of(&self, n: usize) -> Kind {
        let (hidden, halvings) = (self.shape.hidden, |i: usize| (i + n) % 4);
        let number = |halvings: usize| (1 + n % 13) as f32 / (1 << halvings) as f32;
        let given: Vec<u8> =
            (0..hidden).flat_map(|i| bf16::from_f32(number(halvings(i))).to_le_bytes()).collect();
        if self.as_bf16 {
            return Kind { came: vec![given.clone()], given };
        }
        let (mut numbers, mut scales) = (Vec::new(), Vec::new());
        for begin in (0..hidden).step_by(128) {
            let places = begin..hidden.min(begin + 128);
            let fewest = places.clone().map(halvings).min().unwrap_or(0);
            // The largest number has the bits of 448, and half of a number has an exponent less.
            numbers.extend(places.map(|i| 0x7e - 8 * (halvings(i) - fewest) as u8));
            scales.extend((number(fewest) / 448.0).to_le_bytes());
        }
        Kind { given, came: vec![numbers, scales] }
    }

    /// The rows of this rank's tokens at a time.
    pub(super) fn rows(&self, time: usize) -> Vec<u8> {
        let kinds = self.kinds();
        let row = |token| &kinds[Self::kind(self.rank, token, time)].given[..];
        (0..self.count).map(row).collect::<Vec<_>>().concat()
    }

    /// The rows that come to this rank in a layout, in groups of neighbours: the first one's place, and the rank and token.
    pub(super) fn groups(&self, layout: AskedLayout) -> Vec<(usize, Vec<[usize; 2]>)> {
        let Shape { ranks, top_k, experts, .. } = self.shape;
        let own = |expert: i32| self.rank_of(expert) == Some(self.rank);
        // The tokens of some ranks with a choice for which `is_it` is true.
        let with = |ranks: std::ops::Range<usize>, is_it: &dyn Fn(i32) -> bool| -> Vec<[usize; 2]> {
            let of = |rank: usize| {
                let tokens = self.choices[rank].chunks(top_k).enumerate();
                tokens.filter(|(_, all)| all.iter().any(|it| is_it(*it))).map(move |(token, _)| [rank, token])
            };
            ranks.flat_map(of).collect()
        };
        let groups: Vec<_> = match layout {
            AskedLayout::Rank => (0..ranks).map(|rank| with(rank..rank + 1, &own)).collect(),
            AskedLayout::Token => vec![with(0..ranks, &own)],
            AskedLayout::Expert | AskedLayout::Flat => {
                let experts = (0..experts as i32).filter(|expert| own(*expert));
                experts.map(|expert| with(0..ranks, &|it| it == expert)).collect()
            }
        };
        let mut end = 0;
        let placed = groups.into_iter().enumerate().map(|(n, group)| {
            let begin = match layout {
                AskedLayout::Rank => n * self.count,
                AskedLayout::Expert => n * ranks * self.count,
                AskedLayout::Token | AskedLayout::Flat => end,
            };
            end = (begin + group.len()).next_multiple_of(128);
            (begin, group)
        });
        placed.collect()
    }

    /// The rank that has an expert; none for a choice that is none.
    pub(super) fn rank_of(&self, expert: i32) -> Option<usize> {
        Some(usize::try_from(expert).ok()? * self.shape.ranks / self.shape.experts)
    }

    /// The bytes that the rank that sends most sends to others, in a dispatch and in a combine.
    pub(super) fn bytes(&self, pair: &Pair, exact: bool) -> Result<[u64; 2]> {
        let hidden = self.shape.hidden as u64;
        let (mut rows, mut choices) = ([0; 2], 0);
        for (source, of) in self.choices.iter().enumerate() {
            for token in of.chunks(self.shape.top_k) {
                for to in (0..self.shape.ranks).filter(|to| *to != source) {
                    let here =
                        token.iter().filter(|expert| self.rank_of(**expert) == Some(to)).count() as u64;
                    rows[0] += u64::from(here > 0 && source == self.rank);
                    rows[1] += u64::from(here > 0 && to == self.rank);
                    choices += if to == self.rank { here } else { 0 };
                }
            }
        }
        let row = if self.as_bf16 { 2 * hidden } else { hidden + 4 * hidden.div_ceil(128) };
        let back = if exact { choices } else { rows[1] };
        let all = pair.ranks.say(&[rows[0] * row, back * 2 * hidden])?;
        Ok([0, 1].map(|i| all.iter().map(|bytes| bytes[i]).max().unwrap_or(0).max(1)))
    }
}

/// The choices of a rank's tokens: different experts for each token, and -1 behind them if there are fewer experts than choices.
pub(super) fn choices(options: &Options, shape: Shape, tokens: usize, seed: u64) -> Vec<i32> {
    let mut random = fastrand::Rng::with_seed(seed);
    let token = |_| {
        let mut chosen: Vec<i32> = Vec::new();
        if options.skewed && random.u32(..4) < 1 {
            chosen.push(0);
        }
        while chosen.len() < shape.top_k.min(shape.experts) {
            let expert = random.usize(..shape.experts) as i32;
            if !chosen.contains(&expert) {
                chosen.push(expert);
            }
        }
        chosen.resize(shape.top_k, -1);
        chosen
    };
    (0..tokens).flat_map(token).collect()
}
