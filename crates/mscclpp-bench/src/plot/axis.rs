//! Where values stand on an axis, and what is written beside it.

use crate::{report::SizeOf, table::readable_bytes};

/// From `low` to `high`, which are ticks.
#[derive(Debug)]
pub(super) struct Axis {
    low: f64,
    high: f64,
    logarithmic: bool,
    pub(super) ticks: Vec<Tick>,
}

#[derive(Debug, PartialEq)]
pub(super) struct Tick {
    pub(super) value: f64,
    pub(super) label: String,
}

const MOST_SIZES: i32 = 9;
const MOST_STEPS: f64 = 6.0;

impl Axis {
    /// Logarithmic, over powers of 2, of which not each need have a tick.
    pub(super) fn of_sizes(min: u64, max: u64, size_of: SizeOf) -> Self {
        let mut low = min.max(1).ilog2() as i32;
        let mut high = max.max(1).ilog2() as i32 + i32::from(!max.is_power_of_two());
        if low == high {
            (low, high) = ((low - 1).max(0), high + 1);
        }
        let step = (high - low + MOST_SIZES - 1) / MOST_SIZES;
        // So that the last tick is at the end.
        high += (step - (high - low) % step) % step;
        let tick = |exponent: i32| {
            let value = f64::from(exponent).exp2();
            let label = match size_of {
                SizeOf::Bytes => readable_bytes(value as u64),
                SizeOf::Rounds | SizeOf::Ranks | SizeOf::Threads | SizeOf::Milliseconds => {
                    format!("{value}")
                }
            };
            Tick { value, label }
        };
        let ticks = (low..=high).step_by(step.unsigned_abs() as usize).map(tick).collect();
        Self { low: f64::from(low).exp2(), high: f64::from(high).exp2(), logarithmic: true, ticks }
    }

    /// Logarithmic; `min` and `max` are positive and finite.
    pub(super) fn of_seconds(min: f64, max: f64) -> Self {
        // The steps 1, 2, 5, 10, ... by number: step 0 is a second.
        let value = |step: i32| [1.0, 2.0, 5.0][step.rem_euclid(3) as usize] * 10f64.powi(step.div_euclid(3));
        let near = |seconds: f64| 3 * seconds.log10().floor() as i32;
        let mut low = near(min) + 3;
        while value(low) > min {
            low -= 1;
        }
        let mut high = near(max).max(low + 1);
        while value(high) < max {
            high += 1;
        }
        let decades_alone = high - low > 9;
        let ticks = (low..=high)
            .filter(|step| !decades_alone || step % 3 == 0)
            .map(|step| Tick { value: value(step), label: readable_seconds(value(step)) })
            .collect();
        Self { low: value(low), high: value(high), logarithmic: true, ticks }
    }

    /// Linear, from 0; `max` is not negative and finite.
    pub(super) fn from_zero(max: f64) -> Self {
        let max = if max > 0.0 { max } else { 1.0 };
        let decade = 10f64.powf((max / MOST_STEPS).log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .map(|factor| factor * decade)
            .into_iter()
            .find(|step| step * MOST_STEPS >= max);
        let step = step.unwrap_or(max);
        let steps = (max / step).ceil();
        let decimals = (-step.log10().floor()).max(0.0) as usize;
        let ticks = (0..=steps as u32)
            .map(|n| f64::from(n) * step)
            .map(|value| Tick { value, label: format!("{value:.decimals$}") })
            .collect();
        Self { low: 0.0, high: steps * step, logarithmic: false, ticks }
    }

    /// Where `value` stands: 0 at the low end, 1 at the high one.
    pub(super) fn at(&self, value: f64) -> f64 {
        if self.logarithmic {
            (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        }
    }
}

/// For people, in the unit that gives 1 to 999.
pub(super) fn readable_seconds(seconds: f64) -> String {
    // Between the powers of 10, so that 0.001 s, which has no exact double, is 1 ms.
    let (factor, unit) = match seconds {
        s if s < 0.95e-6 => (1e9, "ns"),
        s if s < 0.95e-3 => (1e6, "us"),
        s if s < 0.95 => (1e3, "ms"),
        _ => (1.0, "s"),
    };
    let value = seconds * factor;
    let rounded = (value * 1000.0).round() / 1000.0;
    format!("{rounded} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|tick| &tick.label[..]).collect()
    }

    #[test]
    fn sizes_have_powers_of_two() {
        assert_eq!(labels(&Axis::of_sizes(1024, 8192, SizeOf::Bytes)), ["1 KiB", "2 KiB", "4 KiB", "8 KiB"]);
        assert_eq!(labels(&Axis::of_sizes(64, 1000, SizeOf::Ranks)), ["64", "128", "256", "512", "1024"]);
        assert_eq!(labels(&Axis::of_sizes(1, 1, SizeOf::Ranks)), ["1", "2"]);
        assert_eq!(labels(&Axis::of_sizes(8, 8, SizeOf::Bytes)), ["4 B", "8 B", "16 B"]);
        assert_eq!(labels(&Axis::of_sizes(1 << 10, 128 << 20, SizeOf::Bytes)).len(), 10);
    }

    #[test]
    fn times_have_ones_twos_and_fives_or_decades() {
        assert_eq!(labels(&Axis::of_seconds(5.1e-6, 5.2e-6)), ["5 us", "10 us"]);
        assert_eq!(
            labels(&Axis::of_seconds(4.6e-6, 389e-6)),
            ["2 us", "5 us", "10 us", "20 us", "50 us", "100 us", "200 us", "500 us"]
        );
        assert_eq!(labels(&Axis::of_seconds(0.5e-6, 0.0101)), ["1 us", "10 us", "100 us", "1 ms", "10 ms"]);
        assert_eq!(labels(&Axis::of_seconds(1e-3, 1e-3)), ["1 ms", "2 ms"]);
    }

    #[test]
    fn bandwidths_start_at_zero() {
        assert_eq!(labels(&Axis::from_zero(345.0)), ["0", "100", "200", "300", "400"]);
        assert_eq!(labels(&Axis::from_zero(0.34)), ["0.0", "0.1", "0.2", "0.3", "0.4"]);
        assert_eq!(labels(&Axis::from_zero(0.0)).first(), Some(&"0.0"));
    }

    #[test]
    fn every_value_is_on_its_axis() {
        for (min, max) in [(1, 1), (3, 5), (1000, 1001), (1024, 128 << 20), (1, u64::MAX >> 1), (1, 64 << 30)]
        {
            let axis = Axis::of_sizes(min, max, SizeOf::Bytes);
            assert!(axis.at(min as f64) >= 0.0 && axis.at(max as f64) <= 1.0, "{axis:?}");
            assert!((2..=10).contains(&axis.ticks.len()), "{axis:?}");
            let (min, max) = (min as f64 * 1e-9, max as f64 * 1e-9);
            let axis = Axis::of_seconds(min, max);
            assert!(axis.at(min) >= 0.0 && axis.at(max) <= 1.0, "{axis:?}");
            assert!(axis.ticks.len() >= 2, "{axis:?}");
            let axis = Axis::from_zero(max);
            assert!(axis.at(0.0) == 0.0 && axis.at(max) <= 1.0 + 1e-12, "{axis:?}");
            assert!((2..=8).contains(&axis.ticks.len()), "{axis:?}");
        }
    }
}
