//! Floats of 8 bits: e4m3 has 3 bits of fraction, and e5m2 has 2.

use std::sync::LazyLock;

/// Returns the value of the float `bits`, which has `fraction` bits of fraction: 2 or 3.
#[must_use]
pub fn value(bits: u8, fraction: u32) -> f64 {
    let (sign, magnitude) = (if bits & 0x80 == 0 { 1.0 } else { -1.0 }, u32::from(bits & 0x7f));
    let (exponent, rest) = (magnitude >> fraction, magnitude & ((1 << fraction) - 1));
    let bias = if fraction == 3 { 7 } else { 15 };
    let unit = 2f64.powi(-(fraction as i32));
    match (fraction, exponent) {
        (3, _) if magnitude == 0x7f => f64::NAN,
        (2, 31) => {
            if rest == 0 {
                sign * f64::INFINITY
            } else {
                f64::NAN
            }
        }
        (_, 0) => sign * f64::from(rest) * unit * 2f64.powi(1 - bias),
        _ => sign * (1.0 + f64::from(rest) * unit) * 2f64.powi(exponent as i32 - bias),
    }
}

/// The nearest of all finite numbers of 8 bits with so many bits of fraction, or of two that are as near, the even one.
#[must_use]
pub fn nearest(value: f32, fraction: u32) -> u8 {
    if value.is_nan() {
        return 0x7f;
    }
    let (sign, magnitude) = (if value.is_sign_negative() { 0x80 } else { 0 }, f64::from(value).abs());
    let finite = finite(fraction);
    let distance = |at: usize| ((finite[at] - magnitude).abs(), at & 1);
    let at = match finite.partition_point(|number| *number < magnitude) {
        0 => 0,
        above if above == finite.len() => above - 1,
        above if distance(above - 1) < distance(above) => above - 1,
        above => above,
    };
    sign | at as u8
}

/// Returns the finite floats from 0 on, in ascending order. The index of each is its bits.
fn finite(fraction: u32) -> &'static [f64] {
    static OF: LazyLock<[Vec<f64>; 2]> = LazyLock::new(|| {
        [2, 3].map(|fraction| {
            (0..0x80).map(|bits| value(bits, fraction)).filter(|number| number.is_finite()).collect()
        })
    });
    &OF[fraction as usize - 2]
}
