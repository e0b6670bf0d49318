//! The tree along which collectives and notices of failure travel: rank 0 is its root, rank r has the children 2r + 1
//! and 2r + 2. Its depth is the logarithm of the number of ranks, and no rank has more than three neighbours.

pub fn parent(rank: usize) -> Option<usize> {
    rank.checked_sub(1).map(|above| above / 2)
}

pub fn children(rank: usize, n: usize) -> impl Iterator<Item = usize> {
    (2 * rank + 1..=2 * rank + 2).filter(move |&child| child < n)
}

/// Returns the ancestors of a rank, nearest first.
pub fn ancestors(rank: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(parent(rank), |&above| parent(above))
}

/// Returns all ranks below a rank among `n`, nearest first.
pub fn below(rank: usize, n: usize) -> impl Iterator<Item = usize> {
    let mut level = vec![rank];
    std::iter::from_fn(move || {
        level = level.iter().flat_map(|&above| children(above, n)).collect();
        (!level.is_empty()).then(|| level.clone())
    })
    .flatten()
}

/// Returns the child of `rank` in whose subtree `descendant` is, if it is in one.
pub fn child_towards(rank: usize, descendant: usize) -> Option<usize> {
    std::iter::once(descendant).chain(ancestors(descendant)).find(|&r| parent(r) == Some(rank))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_and_children_agree() {
        for n in 1..200 {
            let mut seen = vec![0];
            for rank in 0..n {
                for child in children(rank, n) {
                    assert_eq!(parent(child), Some(rank));
                    seen.push(child);
                }
            }
            seen.sort_unstable();
            assert_eq!(seen, (0..n).collect::<Vec<_>>(), "every rank is somebody's child once, but the root");
        }
    }

    #[test]
    fn ancestors_end_at_the_root() {
        assert_eq!(ancestors(0).count(), 0);
        for rank in 1..200 {
            assert_eq!(ancestors(rank).last(), Some(0));
        }
    }

    #[test]
    fn who_is_below_is_who_has_it_for_an_ancestor() {
        for n in 1..40 {
            for rank in 0..n {
                let mut found: Vec<_> = below(rank, n).collect();
                found.sort_unstable();
                let due: Vec<_> = (0..n).filter(|&r| ancestors(r).any(|above| above == rank)).collect();
                assert_eq!(found, due);
            }
        }
    }

    #[test]
    fn the_way_down_is_the_way_up() {
        assert_eq!(child_towards(0, 0), None);
        assert_eq!(child_towards(0, 6), Some(2));
        assert_eq!(child_towards(2, 6), Some(6));
        assert_eq!(child_towards(1, 6), None);
    }
}
