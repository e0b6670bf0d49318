//! Draws a figure as SVG: time over size, and bandwidth below it if there is any.

use std::ops::Range;

use plotters::{
    coord::{Shift, ranged1d::ValueFormatter},
    prelude::*,
};

use super::{figure::Figure, schemes};
use crate::{
    Result,
    report::SizeOf,
    table::{readable_bytes, wrapped},
};

const PANE: u32 = 330;
const LINE: u32 = 18;
const MARGIN: u32 = 12;
/// The width of the labels and the title at the left of a pane.
const LEFT: u32 = 78;
const FONT: (&str, u32) = ("sans-serif", 15);
const MOST_TICKS: usize = 10;
/// The width of a tick with its label on the axis of sizes.
const TICK: u32 = 80;
/// The approximate width of a letter.
const LETTER: u32 = 8;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws a picture that is `width` pixels wide.
pub(super) fn draw(figure: &Figure, width: u32) -> Result<String> {
    let bandwidths = points(figure).any(|point| point.bandwidth.is_some());
    let panes = if bandwidths { 2 } else { 1 };
    let letters = ((width - LEFT / 2) / LETTER) as usize;
    let captions: Vec<_> =
        figure.captions.iter().flat_map(|caption| wrapped(&printable(caption), letters)).collect();
    let lines = (figure.series.len() + captions.len()) as u32;
    let mut picture = String::new();
    {
        let size = (width, panes * PANE + lines * LINE + 2 * MARGIN);
        let root = SVGBackend::with_string(&mut picture, size).into_drawing_area();
        root.fill(&WHITE)?;
        let (above, legend) = root.split_vertically(panes * PANE);
        let areas = above.split_evenly((panes as usize, 1));
        draw_times(&areas[0], figure, width)?;
        if let Some(area) = areas.get(1) {
            draw_bandwidths(area, figure, width)?;
        }
        draw_legend(&legend, figure, &captions)?;
        root.present()?;
    }
    Ok(schemes::with_dark_scheme(&picture))
}

/// Draws the medians, each with a bar from the shortest to the longest time.
fn draw_times(area: &Area<'_>, figure: &Figure, width: u32) -> Result<()> {
    let shortest = points(figure).map(|point| point.seconds.min).fold(f64::INFINITY, f64::min);
    let longest = points(figure).map(|point| point.seconds.max).fold(0.0, f64::max);
    let (range, ticks) = one_two_five(shortest, longest);
    let axis = range.log_scale().with_key_points(ticks);
    let (sizes, size_ticks) = sizes(figure, most_size_ticks(width));
    let mut chart = chart(area).build_cartesian_2d(sizes.log_scale().with_key_points(size_ticks), axis)?;
    mesh(&mut chart, figure.size_of, "time", &readable_seconds)?;
    for (n, series) in figure.series.iter().enumerate() {
        let medians = || series.points.iter().map(|point| (point.size as f64, point.seconds.median));
        chart.draw_series(LineSeries::new(medians(), line(n)))?;
        chart.draw_series(series.points.iter().map(|point| {
            let times = point.seconds;
            ErrorBar::new_vertical(point.size as f64, times.min, times.median, times.max, line(n), 6)
        }))?;
    }
    Ok(())
}

fn draw_bandwidths(area: &Area<'_>, figure: &Figure, width: u32) -> Result<()> {
    let highest = points(figure).filter_map(|point| point.bandwidth).fold(0.0, f64::max);
    let range = 0.0..if highest > 0.0 { highest * 1.05 } else { 1.0 };
    let (sizes, size_ticks) = sizes(figure, most_size_ticks(width));
    let mut chart = chart(area).build_cartesian_2d(sizes.log_scale().with_key_points(size_ticks), range)?;
    mesh(&mut chart, figure.size_of, "algorithm bandwidth, GB/s", &|value| {
        // Rounding removes the last digits of a sum of binary fractions.
        format!("{}", (value * 1e6).round() / 1e6)
    })?;
    for (n, series) in figure.series.iter().enumerate() {
        let values = series.points.iter().filter_map(|point| Some((point.size as f64, point.bandwidth?)));
        chart.draw_series(LineSeries::new(values, line(n)).point_size(3))?;
    }
    Ok(())
}

/// Draws the legend below the panes: a line for each series, and a caption for each file.
fn draw_legend(area: &Area<'_>, figure: &Figure, captions: &[String]) -> Result<()> {
    let middle = |n: usize| (MARGIN / 2 + LINE * n as u32 + LINE / 2) as i32;
    let left = LEFT as i32;
    for (n, series) in figure.series.iter().enumerate() {
        let y = middle(n);
        area.draw(&PathElement::new([(left, y), (left + 36, y)], line(n)))?;
        area.draw(&Text::new(printable(&series.name), (left + 46, y - 6), FONT))?;
    }
    for (n, caption) in captions.iter().enumerate() {
        area.draw(&Text::new(caption.clone(), (LEFT as i32 / 4, middle(figure.series.len() + n) - 6), FONT))?;
    }
    Ok(())
}

fn points(figure: &Figure) -> impl Iterator<Item = &super::figure::Point> {
    figure.series.iter().flat_map(|series| &series.points)
}

fn chart<'a, 'b>(area: &'a Area<'b>) -> ChartBuilder<'a, 'b, SVGBackend<'b>> {
    let mut chart = ChartBuilder::on(area);
    chart.margin(MARGIN).x_label_area_size(42).y_label_area_size(LEFT - MARGIN);
    chart
}

fn mesh<X, Y>(
    chart: &mut ChartContext<'_, SVGBackend<'_>, Cartesian2d<X, Y>>,
    size_of: SizeOf,
    title: &str,
    label: &dyn Fn(f64) -> String,
) -> Result<()>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let size_label = |size: &f64| match size_of {
        SizeOf::Bytes => readable_bytes(*size as u64),
        SizeOf::Rounds | SizeOf::Ranks | SizeOf::Threads | SizeOf::Milliseconds => format!("{size}"),
    };
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc(match size_of {
            SizeOf::Bytes => "size, bytes",
            other => other.name(),
        })
        .y_desc(title)
        .x_label_formatter(&size_label)
        .y_label_formatter(&|value| label(*value))
        .label_style(FONT)
        .axis_desc_style(FONT)
        .draw()?;
    Ok(())
}

/// The style of a series' line. Series beyond the eighth are paler and thicker.
fn line(n: usize) -> ShapeStyle {
    let round = (n / schemes::LINES.len()) as u32;
    schemes::LINES[n % schemes::LINES.len()].mix(1.0 / f64::from(1 + round)).stroke_width(2 + round)
}

fn most_size_ticks(width: u32) -> usize {
    ((width.saturating_sub(LEFT) / TICK) as usize).clamp(3, MOST_TICKS)
}

/// The powers of 2 around all sizes, and those of them that have a tick.
fn sizes(figure: &Figure, most_ticks: usize) -> (Range<f64>, Vec<f64>) {
    let sizes = || points(figure).map(|point| point.size.max(1));
    let mut low = sizes().min().unwrap_or(1).ilog2();
    let max = sizes().max().unwrap_or(1);
    let mut high = max.ilog2() + u32::from(!max.is_power_of_two());
    if low == high {
        (low, high) = (low.saturating_sub(1), high + 1);
    }
    let power = |exponent: u32| f64::from(exponent).exp2();
    let step = ((high - low) as usize).div_ceil(most_ticks - 1);
    (power(low)..power(high), (low..=high).step_by(step).map(power).collect())
}

/// The outermost values of 1, 2, 5, 10, ... around `min` and `max`, which are positive and finite, and those that have a tick.
fn one_two_five(min: f64, max: f64) -> (Range<f64>, Vec<f64>) {
    // Step 0 is 1, step 1 is 2, step 3 is 10.
    let value = |step: i32| [1.0, 2.0, 5.0][step.rem_euclid(3) as usize] * 10f64.powi(step.div_euclid(3));
    let decade = |of: f64| 3 * of.log10().floor() as i32;
    let low = (decade(min) - 1..).take_while(|step| value(*step) <= min).last().unwrap_or(decade(min));
    let high = (low + 1..).find(|step| value(*step) >= max).unwrap_or(low + 1);
    let decades_alone = (high - low) as usize >= MOST_TICKS;
    let ticks = (low..=high).filter(|step| !decades_alone || step % 3 == 0).map(value).collect();
    (value(low)..value(high), ticks)
}

/// A time in the unit that gives 1 to 999.
fn readable_seconds(seconds: f64) -> String {
    // The limits are between the powers of 10, so that 0.001 s, which has no exact double, is 1 ms.
    let (factor, unit) = match seconds {
        s if s < 0.95e-6 => (1e9, "ns"),
        s if s < 0.95e-3 => (1e6, "us"),
        s if s < 0.95 => (1e3, "ms"),
        _ => (1.0, "s"),
    };
    format!("{} {unit}", (seconds * factor * 1000.0).round() / 1000.0)
}

/// Replaces control characters: names come from files and their names, and XML cannot have these. The backend escapes others.
fn printable(text: &str) -> String {
    text.replace(|c: char| c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}'), "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        plot::figure::tests::{file, row},
        report::Row,
    };

    fn picture(rows: Vec<Row>) -> String {
        draw(&Figure::of(&[file("a<b>&.json", rows)]).expect("good rows"), 900).expect("a picture")
    }

    /// The texts of an SVG in their order. Fails if a tag is not closed, or not in its order, or if something is not escaped.
    fn texts(svg: &str) -> Vec<String> {
        let (mut open, mut texts) = (Vec::new(), Vec::new());
        for tag in svg.split('<').skip(1) {
            let (tag, content) = tag.split_once('>').expect("a tag ends");
            assert!(!content.contains('>'), "{content}");
            let name = tag.trim_matches('/').split([' ', '\n']).next().unwrap_or_default();
            if tag.starts_with('/') {
                assert_eq!(open.pop(), Some(name), "{tag}");
            } else if !tag.ends_with('/') {
                open.push(name);
            }
            if name == "text" && !tag.starts_with('/') {
                texts.push(content.trim().to_owned());
            }
            assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        }
        assert!(open.is_empty(), "{open:?}");
        let entities = ["amp;", "lt;", "gt;", "quot;", "apos;"];
        assert!(svg.split('&').skip(1).all(|rest| entities.iter().any(|entity| rest.starts_with(entity))));
        texts
    }

    #[test]
    fn a_line_for_each_series_in_each_pane_a_bar_for_each_time_and_a_legend() {
        let rows = vec![row("half", 1 << 10, 5.0), row("half", 1 << 20, 7.5), row("full", 1 << 10, 6.0)];
        let svg = picture(rows);
        let texts = texts(&svg);
        for text in [
            "memory-put half",
            "memory-put full",
            "1 KiB",
            "1 MiB",
            "5 us",
            "10 us",
            "time",
            "size, bytes",
            "algorithm bandwidth, GB/s",
        ] {
            assert!(texts.iter().any(|found| found == text), "{text} is not in {texts:?}");
        }
        assert!(
            texts.iter().any(|text| text.starts_with("a&lt;b&gt;&amp;.json: cpu, no devices")),
            "{texts:?}"
        );
        // There is a dot for each time and each bandwidth.
        assert_eq!(svg.matches("<circle").count(), 6, "{svg}");
    }

    #[test]
    fn a_narrow_picture_has_fewer_ticks_and_breaks_its_captions() {
        let figure = Figure::of(&[file("a.json", vec![row("a", 1, 1.0), row("a", 1 << 30, 2.0)])]);
        let figure = figure.expect("good rows");
        let [narrow, wide] = [360, 900].map(|width| draw(&figure, width).expect("a picture"));
        let count = |svg: &str, part: &str| texts(svg).iter().filter(|text| text.contains(part)).count();
        assert!(count(&narrow, "iB") < count(&wide, "iB"), "{narrow}");
        assert_eq!(count(&wide, "a.json: cpu, no devices, CudaIpc"), 1, "{wide}");
        assert!(narrow.starts_with("<svg width=\"360\""), "{narrow}");
    }

    #[test]
    fn without_bandwidths_there_is_one_pane() {
        let svg = picture(vec![Row { bandwidth: None, ..row("a", 64, 1.0) }]);
        assert!(!texts(&svg).iter().any(|text| text.contains("GB/s")), "{svg}");
        assert_eq!(svg.matches("<circle").count(), 1, "{svg}");
    }

    #[test]
    fn a_larger_time_is_drawn_above_a_smaller_one_at_its_size() {
        let svg = picture(vec![
            Row { bandwidth: None, ..row("a", 64, 4.0) },
            Row { bandwidth: None, ..row("a", 4096, 1.0) },
        ]);
        let at = |name: &str| -> Vec<f64> {
            let values =
                svg.split("<circle").skip(1).map(|circle| circle.split(&format!("{name}=\"")).nth(1));
            values
                .map(|rest| rest.and_then(|rest| rest.split('"').next()?.parse().ok()).expect("a number"))
                .collect()
        };
        let (x, y) = (at("cx"), at("cy"));
        assert!(x[0] < x[1] && y[0] < y[1], "{x:?} {y:?}");
    }

    #[test]
    fn many_series_and_hostile_names_stay_inside() {
        let rows = (0..30)
            .map(|n| row(&format!("</text><script>\u{1}\"&{n}"), 1 << n, 1.0 + f64::from(n)))
            .collect();
        let svg = picture(rows);
        assert!(texts(&svg).iter().any(|text| text.contains("&lt;script&gt;\u{fffd}&quot;&amp;29")), "{svg}");
        assert!(!svg.contains("<script") && !svg.contains('\u{1}'));
        for attribute in [" cx=\"", " cy=\"", " x=\"", " y=\""] {
            for value in svg.split(attribute).skip(1) {
                let value: f64 =
                    value.split('"').next().and_then(|text| text.parse().ok()).expect("a number");
                assert!((0.0..=1500.0).contains(&value), "{value}");
            }
        }
    }

    #[test]
    fn times_have_ticks_at_ones_twos_and_fives_or_at_decades() {
        let labels =
            |min, max| one_two_five(min, max).1.into_iter().map(readable_seconds).collect::<Vec<_>>();
        assert_eq!(labels(5.1e-6, 5.2e-6), ["5 us", "10 us"]);
        assert_eq!(
            labels(4.6e-6, 389e-6),
            ["2 us", "5 us", "10 us", "20 us", "50 us", "100 us", "200 us", "500 us"]
        );
        assert_eq!(labels(0.5e-6, 0.0101), ["1 us", "10 us", "100 us", "1 ms", "10 ms"]);
        assert_eq!(labels(1e-3, 1e-3), ["1 ms", "2 ms"]);
    }

    #[test]
    fn every_value_is_on_its_axis() {
        for (min, max) in [(1, 1), (3, 5), (1000, 1001), (1024, 128 << 20), (1, u64::MAX >> 1), (1, 64 << 30)]
        {
            let figure = Figure::of(&[file("x.json", vec![row("a", min, 1.0), row("a", max, 1.0)])]);
            let (range, ticks) = sizes(&figure.expect("good rows"), MOST_TICKS);
            assert!(range.start <= min as f64 && max as f64 <= range.end, "{range:?}");
            assert!((2..=MOST_TICKS).contains(&ticks.len()), "{ticks:?}");
            let (min, max) = (min as f64 * 1e-9, max as f64 * 1e-9);
            let (range, ticks) = one_two_five(min, max);
            assert!(range.start <= min && max <= range.end, "{range:?}");
            assert!((2..=2 * MOST_TICKS).contains(&ticks.len()), "{ticks:?}");
        }
    }
}
