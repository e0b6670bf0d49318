//! Calls of random routings.

use mscclpp_test_support::Random;

use crate::rounds::{any, run, without_the_host};

#[test]
fn random_routings_have_the_rows_and_the_bits_of_the_oracle() {
    let mut random = Random::new();
    for _ in 0..12 {
        let (model, options) = any(&mut random);
        run(&model, &options, 4, random.word());
    }
}

#[test]
fn rows_may_be_short_or_long_and_choices_many() {
    let mut random = Random::new();
    for (hidden, top_k, experts, capacity) in
        [(8, 1, 2, 3), (16384, 2, 4, 2), (32, 64, 70, 5), (12, 8, 256, 140), (7168, 8, 32, 3)]
    {
        let (mut model, options) = any(&mut random);
        (model.hidden, model.top_k, model.experts, model.capacity) = (hidden, top_k, experts, capacity);
        model.map = (0..experts).map(|expert| expert * model.ranks / experts).collect();
        run(&model, &options, 2, random.word());
    }
}

#[test]
fn calls_follow_each_other_without_the_host() {
    let mut random = Random::new();
    for i in 0..8 {
        let (model, options) = any(&mut random);
        without_the_host(&model, &options, 5, random.word(), i % 2 == 0);
    }
}
