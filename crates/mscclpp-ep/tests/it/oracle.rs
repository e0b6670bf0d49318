//! An oracle of dispatch and combine, in the plainest way: one rank after the other, with all ranks' tokens at hand.

use mscclpp_ep::{Layout, NumberType, Quantisation};
use mscclpp_test_support::f8::nearest;

use crate::support::{narrow, widen};

/// The set-up of all ranks.
#[derive(Debug, Clone)]
pub(crate) struct Model {
    pub(crate) ranks: usize,
    pub(crate) experts: usize,
    pub(crate) top_k: usize,
    pub(crate) hidden: usize,
    pub(crate) capacity: usize,
    pub(crate) number_type: NumberType,
    pub(crate) quantisation: Option<Quantisation>,
    /// The rank of each expert.
    pub(crate) map: Vec<usize>,
}

/// The tokens of a rank.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tokens {
    pub(crate) count: usize,
    pub(crate) ids: Vec<i64>,
    pub(crate) weights: Vec<f32>,
    /// The tensors, with all rows of each side by side.
    pub(crate) parts: Vec<Vec<u8>>,
    pub(crate) biases: Vec<Vec<u8>>,
}

/// A row as it comes to a rank.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    pub(crate) source: usize,
    /// Its number among those of the source.
    pub(crate) number: usize,
    pub(crate) token: usize,
    /// The local expert of each choice, or -1.
    pub(crate) local: Vec<i32>,
    pub(crate) weights: Vec<f32>,
    /// The tensors as they travel.
    pub(crate) parts: Vec<Vec<u8>>,
}

impl Model {
    pub(crate) fn local(&self, expert: usize) -> usize {
        self.map[..expert].iter().filter(|rank| **rank == self.map[expert]).count()
    }

    pub(crate) fn n_local(&self, rank: usize) -> usize {
        self.map.iter().filter(|of| **of == rank).count()
    }

    /// The experts of a token's choices.
    pub(crate) fn choices<'a>(&self, tokens: &'a Tokens, token: usize) -> &'a [i64] {
        &tokens.ids[token * self.top_k..][..self.top_k]
    }

    pub(crate) fn result_bytes(&self) -> usize {
        self.hidden * self.number_type.size() as usize
    }

    /// The rows that come to a rank, by source, then by token.
    pub(crate) fn rows(&self, all: &[Tokens], rank: usize) -> Vec<Row> {
        let mut rows = Vec::new();
        for (source, tokens) in all.iter().enumerate() {
            let mut number = 0;
            for token in 0..tokens.count {
                let is_here = |id: i64| id >= 0 && self.map[id as usize] == rank;
                let choices = self.choices(tokens, token);
                if !choices.iter().any(|id| is_here(*id)) {
                    continue;
                }
                let local =
                    choices.iter().map(|id| if is_here(*id) { self.local(*id as usize) as i32 } else { -1 });
                let weights = tokens.weights[token * self.top_k..][..self.top_k].to_vec();
                let parts = self.travelling(tokens, token);
                rows.push(Row { source, number, token, local: local.collect(), weights, parts });
                number += 1;
            }
        }
        rows
    }

    /// The tensors of a token as they travel.
    fn travelling(&self, tokens: &Tokens, token: usize) -> Vec<Vec<u8>> {
        let row = |part: &Vec<u8>| {
            let bytes = part.len() / tokens.count;
            part[token * bytes..][..bytes].to_vec()
        };
        let mut parts: Vec<Vec<u8>> = tokens.parts.iter().map(row).collect();
        if let Some(quantisation) = self.quantisation {
            let (numbers, scales) = quantised(&widen(self.number_type, &parts[0]), quantisation);
            parts[0] = numbers;
            parts.insert(1, scales);
        }
        parts
    }

    /// For each row that comes to a rank and each of its choices there, the number of the row in the layout; and how many rows
    /// each expert has.
    pub(crate) fn places(
        &self,
        rows: &[Row],
        rank: usize,
        layout: Layout,
    ) -> (Vec<Vec<Option<usize>>>, Vec<usize>) {
        let mut per_expert = vec![0; self.n_local(rank)];
        let numbers: Vec<Vec<Option<usize>>> = rows
            .iter()
            .map(|row| {
                let numbers: Vec<_> = row
                    .local
                    .iter()
                    .map(|local| (*local >= 0).then(|| per_expert[*local as usize]))
                    .collect();
                let mut chosen = row.local.clone();
                chosen.sort_unstable();
                chosen.dedup();
                chosen.iter().filter(|local| **local >= 0).for_each(|local| per_expert[*local as usize] += 1);
                numbers
            })
            .collect();
        let most = self.ranks * self.capacity;
        let begin = |local: usize, alignment: usize| -> usize {
            per_expert[..local].iter().map(|rows| rows.next_multiple_of(alignment)).sum()
        };
        let places = rows.iter().zip(&numbers).enumerate().map(|(i, (row, numbers))| {
            let place = |(local, number): (&i32, &Option<usize>)| {
                number.map(|number| match layout {
                    Layout::Rank => row.source * self.capacity + row.number,
                    Layout::Token => i,
                    Layout::Flat { alignment } => begin(*local as usize, alignment as usize) + number,
                    _ => *local as usize * most + number,
                })
            };
            row.local.iter().zip(numbers).map(place).collect()
        });
        (places.collect(), per_expert)
    }

    /// The row that expert `expert` makes of a token: any numbers, which depend on nothing else.
    pub(crate) fn made(&self, source: usize, token: usize, expert: usize) -> Vec<u8> {
        let mut random = fastrand_like((source as u64) << 40 | (token as u64) << 16 | expert as u64);
        (0..self.hidden).flat_map(|_| narrow(self.number_type, random())).collect()
    }

    /// The row that a rank makes of a token, in layouts with one row for all its choices.
    pub(crate) fn made_by_rank(&self, source: usize, token: usize, rank: usize) -> Vec<u8> {
        self.made(source, token, self.experts + rank)
    }

    /// The weights that a rank gives for a row of a token, in layouts with one row for all its choices.
    pub(crate) fn row_weights(&self, source: usize, token: usize, rank: usize) -> Vec<f32> {
        let mut random = fastrand_like((rank as u64) << 48 | (source as u64) << 40 | token as u64);
        (0..self.top_k).map(|_| random()).collect()
    }

    /// The sums of the weights that the ranks give for each token of a rank.
    pub(crate) fn weights_back(&self, tokens: &Tokens, source: usize) -> Vec<f32> {
        let weights = (0..tokens.count).flat_map(|token| {
            let mut sums = vec![0f32; self.top_k];
            for rank in 0..self.ranks {
                if self.choices(tokens, token).iter().any(|id| *id >= 0 && self.map[*id as usize] == rank) {
                    let given = self.row_weights(source, token, rank);
                    sums.iter_mut().zip(given).for_each(|(sum, weight)| *sum += weight);
                }
            }
            sums
        });
        weights.collect()
    }

    /// The sums of a rank's tokens. `one_row`: whether each rank's layout has one row for all choices of a token.
    pub(crate) fn sums(&self, tokens: &Tokens, source: usize, one_row: &[bool], exact: bool) -> Vec<u8> {
        let mut sums = Vec::new();
        for token in 0..tokens.count {
            let choices = self.choices(tokens, token);
            let weights = &tokens.weights[token * self.top_k..][..self.top_k];
            let mut sum = vec![0f32; self.hidden];
            let add = |sum: &mut Vec<f32>, weight: f32, row: &[u8]| {
                for (sum, number) in sum.iter_mut().zip(widen(self.number_type, row)) {
                    *sum = weight.mul_add(number, *sum);
                }
            };
            let narrowed = |sum: &[f32]| -> Vec<u8> {
                sum.iter().flat_map(|number| narrow(self.number_type, *number)).collect()
            };
            if exact {
                for (id, weight) in choices.iter().zip(weights).filter(|(id, _)| **id >= 0) {
                    add(&mut sum, *weight, &self.made(source, token, *id as usize));
                }
            } else {
                for (rank, one_row) in one_row.iter().enumerate() {
                    let here = |id: &i64| *id >= 0 && self.map[*id as usize] == rank;
                    if !choices.iter().any(here) {
                        continue;
                    }
                    let part = if *one_row {
                        self.made_by_rank(source, token, rank)
                    } else {
                        let mut part = vec![0f32; self.hidden];
                        for (id, weight) in choices.iter().zip(weights).filter(|(id, _)| here(id)) {
                            add(&mut part, *weight, &self.made(source, token, *id as usize));
                        }
                        narrowed(&part)
                    };
                    add(&mut sum, 1.0, &part);
                }
            }
            for bias in &tokens.biases {
                add(&mut sum, 1.0, &bias[token * self.result_bytes()..][..self.result_bytes()]);
            }
            sums.extend(narrowed(&sum));
        }
        sums
    }
}

/// Numbers between -2 and 2 that follow from a seed.
fn fastrand_like(seed: u64) -> impl FnMut() -> f32 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 22) as f32 - 2.0
    }
}

/// Numbers as e4m3, and the scales of each 128.
fn quantised(row: &[f32], quantisation: Quantisation) -> (Vec<u8>, Vec<u8>) {
    let (mut numbers, mut scales) = (Vec::new(), Vec::new());
    for group in row.chunks(128) {
        let most = group.iter().fold(1e-4f32, |most, number| most.max(number.abs()));
        let (mut scale, mut factor) = (most / 448.0, 448.0 / most);
        if quantisation == Quantisation::E4m3Ue8m0 {
            scale = scale.log2().ceil().exp2();
            factor = 1.0 / scale;
            scales.push((scale.log2() as i32).saturating_add(127) as u8);
        } else {
            scales.extend_from_slice(&scale.to_le_bytes());
        }
        numbers.extend(group.iter().map(|number| nearest(number * factor, 3)));
    }
    scales.resize(scales.len().next_multiple_of(4), 0);
    (numbers, scales)
}
