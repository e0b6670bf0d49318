//! Few cases in which all pairs come about.

use mscclpp_test_support::Random;

/// Choices for parameters of which the i-th has `sizes[i]` values: so many that every two values of every two parameters
/// are together in one of them.
pub(crate) fn rows(sizes: &[usize], random: &mut Random) -> Vec<Vec<usize>> {
    let n = sizes.len();
    // missing[i][j][a * sizes[j] + b], for i < j.
    let mut missing: Vec<Vec<Vec<bool>>> =
        (0..n).map(|i| (0..n).map(|j| vec![i < j; sizes[i] * sizes[j]]).collect()).collect();
    let mut rows = Vec::new();
    while let Some((i, j, pair)) = first(&missing) {
        let mut row = vec![None; n];
        (row[i], row[j]) = (Some(pair / sizes[j]), Some(pair % sizes[j]));
        let start = random.below(n);
        for k in (0..n).map(|k| (start + k) % n) {
            if row[k].is_some() {
                continue;
            }
            // The value with the most pairs that are missing; of several any.
            let gain = |value: usize| {
                let pairs = (0..n).filter_map(|other| Some((other, row[other]?)));
                pairs
                    .filter(|(other, theirs)| {
                        missing[k.min(*other)][k.max(*other)][at(sizes, k, value, *other, *theirs)]
                    })
                    .count()
            };
            let turn = random.below(sizes[k]);
            row[k] = (0..sizes[k]).map(|v| (v + turn) % sizes[k]).max_by_key(|value| gain(*value));
        }
        let row: Vec<usize> = row.into_iter().flatten().collect();
        for i in 0..n {
            for j in i + 1..n {
                missing[i][j][row[i] * sizes[j] + row[j]] = false;
            }
        }
        rows.push(row);
    }
    rows
}

/// The place of a pair in its list.
fn at(sizes: &[usize], a: usize, a_value: usize, b: usize, b_value: usize) -> usize {
    if a < b { a_value * sizes[b] + b_value } else { b_value * sizes[a] + a_value }
}

fn first(missing: &[Vec<Vec<bool>>]) -> Option<(usize, usize, usize)> {
    let pairs = (0..missing.len()).flat_map(|i| (i + 1..missing.len()).map(move |j| (i, j)));
    pairs.filter_map(|(i, j)| Some((i, j, missing[i][j].iter().position(|missing| *missing)?))).next()
}
