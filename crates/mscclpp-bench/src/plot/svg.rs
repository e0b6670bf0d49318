//! A figure as one self-contained SVG, which follows the reader's light or dark theme.

use std::fmt::Write;

use super::{
    axis::{Axis, readable_seconds},
    figure::{Figure, Point, Series},
};
use crate::report::SizeOf;

const WIDTH: f64 = 900.0;
const LEFT: f64 = 90.0;
const RIGHT: f64 = 30.0;
const TOP: f64 = 20.0;
const PANE: f64 = 260.0;
/// Below a pane, for the sizes and their title.
const BELOW: f64 = 56.0;
const LINE: f64 = 18.0;
const MARK: f64 = 4.0;

/// Of the lines, each readable on the background of its theme; told apart by their marks as well.
const LIGHT: [&str; 8] =
    ["#0062b1", "#c04a00", "#00734f", "#a0348c", "#7a6300", "#c2185b", "#4b5bd1", "#4d4d4d"];
const DARK: [&str; 8] =
    ["#56b4e9", "#ff9a57", "#3ddc97", "#e28ad6", "#e6c229", "#ff7aa8", "#a5aeff", "#c8c8c8"];

pub(super) fn draw(figure: &Figure) -> String {
    let points = || figure.series.iter().flat_map(|series| &series.points);
    let sizes = || points().map(|point| point.size);
    let x = Axis::of_sizes(sizes().min().unwrap_or(1), sizes().max().unwrap_or(1), figure.size_of);
    let shortest = points().map(|point| point.seconds.min).fold(f64::INFINITY, f64::min);
    let longest = points().map(|point| point.seconds.max).fold(0.0, f64::max);
    let mut panes = vec![Pane {
        title: "time",
        axis: Axis::of_seconds(shortest, longest),
        value: |point| Some(point.seconds.median),
        range: |point| Some((point.seconds.min, point.seconds.max)),
    }];
    if points().any(|point| point.bandwidth.is_some()) {
        panes.push(Pane {
            title: "algorithm bandwidth, GB/s",
            axis: Axis::from_zero(points().filter_map(|point| point.bandwidth).fold(0.0, f64::max)),
            value: |point| point.bandwidth,
            range: |_| None,
        });
    }

    let mut body = String::new();
    let mut y = TOP;
    for pane in &panes {
        pane.draw(&mut body, figure, &x, y);
        y += PANE + BELOW;
    }
    for (n, series) in figure.series.iter().enumerate() {
        let (middle, class) = (y - 4.0, class(n));
        line(&mut body, &format!("line {class}"), [LEFT, middle], [LEFT + 36.0, middle]);
        mark(&mut body, n, [LEFT + 18.0, middle], "");
        text(&mut body, "start", [LEFT + 46.0, y], &series.name);
        y += LINE;
    }
    y += LINE / 2.0;
    for caption in &figure.captions {
        text(&mut body, "start small", [LEFT, y], caption);
        y += LINE;
    }

    let titles: Vec<_> = panes.iter().map(|pane| pane.title).collect();
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {y}\" width=\"{WIDTH}\" height=\"{y}\" role=\"img\">\n\
         <title>{} over {}</title>\n<style>\n{}</style>\n\
         <rect class=\"ground\" width=\"100%\" height=\"100%\"/>\n{body}</svg>\n",
        titles.join(" and "),
        size_title(figure.size_of),
        style(),
    )
}

/// One diagram over the sizes.
struct Pane {
    title: &'static str,
    axis: Axis,
    value: fn(&Point) -> Option<f64>,
    range: fn(&Point) -> Option<(f64, f64)>,
}

impl Pane {
    /// With its upper edge at `top`.
    fn draw(&self, out: &mut String, figure: &Figure, sizes: &Axis, top: f64) {
        let (right, bottom) = (WIDTH - RIGHT, top + PANE);
        let x = |size: f64| LEFT + (right - LEFT) * sizes.at(size);
        let y = |value: f64| bottom - PANE * self.axis.at(value);
        for tick in &sizes.ticks {
            let x = x(tick.value);
            line(out, "grid", [x, top], [x, bottom]);
            text(out, "middle", [x, bottom + 18.0], &tick.label);
        }
        for tick in &self.axis.ticks {
            let y = y(tick.value);
            line(out, "grid", [LEFT, y], [right, y]);
            text(out, "end", [LEFT - 8.0, y + 4.0], &tick.label);
        }
        line(out, "axis", [LEFT, bottom], [right, bottom]);
        line(out, "axis", [LEFT, top], [LEFT, bottom]);
        text(out, "middle", [f64::midpoint(LEFT, right), bottom + 38.0], size_title(figure.size_of));
        let middle = f64::midpoint(top, bottom);
        let _ = writeln!(
            out,
            "<text class=\"middle\" transform=\"translate(18 {middle:.1}) rotate(-90)\">{}</text>",
            self.title
        );
        for (n, series) in figure.series.iter().enumerate() {
            let points = || series.points.iter().filter_map(|point| Some((point, (self.value)(point)?)));
            let path: Vec<_> = points()
                .map(|(point, value)| format!("{:.1},{:.1}", x(point.size as f64), y(value)))
                .collect();
            let _ = writeln!(out, "<polyline class=\"line {}\" points=\"{}\"/>", class(n), path.join(" "));
            for (point, value) in points() {
                let at = x(point.size as f64);
                if let Some((min, max)) = (self.range)(point) {
                    line(out, &format!("range {}", class(n)), [at, y(min)], [at, y(max)]);
                }
                mark(out, n, [at, y(value)], &tooltip(figure.size_of, series, point));
            }
        }
    }
}

fn size_title(size_of: SizeOf) -> &'static str {
    match size_of {
        SizeOf::Bytes => "size, bytes",
        SizeOf::Rounds => "rounds",
        SizeOf::Ranks => "ranks",
        SizeOf::Threads => "threads",
        SizeOf::Milliseconds => "milliseconds",
    }
}

fn tooltip(size_of: SizeOf, series: &Series, point: &Point) -> String {
    let seconds = point.seconds;
    let mut text = format!(
        "{}, {}: {} ({} to {})",
        series.name,
        size_of.show(point.size),
        readable_seconds(seconds.median),
        readable_seconds(seconds.min),
        readable_seconds(seconds.max),
    );
    if let Some(bandwidth) = point.bandwidth {
        let _ = write!(text, ", {bandwidth:.2} GB/s");
    }
    text
}

/// Colour and dashes of series `n`.
fn class(n: usize) -> String {
    format!("c{} d{}", n % LIGHT.len(), n / LIGHT.len() % 3)
}

fn line(out: &mut String, class: &str, [x1, y1]: [f64; 2], [x2, y2]: [f64; 2]) {
    let _ = writeln!(
        out,
        "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
    );
}

fn text(out: &mut String, class: &str, [x, y]: [f64; 2], text: &str) {
    let _ = writeln!(out, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escape(text));
}

/// The mark of series `n`: four shapes in turn.
fn mark(out: &mut String, n: usize, [x, y]: [f64; 2], tooltip: &str) {
    let (size, class) = (MARK, class(n));
    let corners = match n % 4 {
        0 => {
            let title = title(tooltip);
            let _ = writeln!(
                out,
                "<circle class=\"mark {class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{size}\">{title}</circle>"
            );
            return;
        }
        1 => vec![[-size, -size], [size, -size], [size, size], [-size, size]],
        2 => vec![[0.0, -1.3 * size], [1.2 * size, size], [-1.2 * size, size]],
        _ => vec![[0.0, -1.4 * size], [1.4 * size, 0.0], [0.0, 1.4 * size], [-1.4 * size, 0.0]],
    };
    let corners: Vec<_> = corners.iter().map(|[dx, dy]| format!("{:.1},{:.1}", x + dx, y + dy)).collect();
    let _ = writeln!(
        out,
        "<polygon class=\"mark {class}\" points=\"{}\">{}</polygon>",
        corners.join(" "),
        title(tooltip)
    );
}

fn title(tooltip: &str) -> String {
    if tooltip.is_empty() { String::new() } else { format!("<title>{}</title>", escape(tooltip)) }
}

/// Names come from file names and files: whatever is in them stays text. Control characters have no place in XML.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Plain rules without variables, which not all programs that show SVG know. The last ones that apply win.
fn style() -> String {
    let mut css = String::from(
        "text { font: 12px system-ui, sans-serif } .small { font-size: 11px }\n\
         .start { text-anchor: start } .middle { text-anchor: middle } .end { text-anchor: end }\n\
         .line { fill: none; stroke-width: 1.8 }\n\
         .line.d1 { stroke-dasharray: 7 4 } .line.d2 { stroke-dasharray: 2 3 }\n",
    );
    css.push_str(&theme("#ffffff", "#202124", "#dcdfe4", LIGHT));
    let _ = writeln!(
        css,
        "@media (prefers-color-scheme: dark) {{\n{}}}",
        theme("#17191d", "#e6e8eb", "#383c44", DARK)
    );
    css
}

fn theme(ground: &str, ink: &str, grid: &str, lines: [&str; 8]) -> String {
    let mut css = format!(
        ".ground {{ fill: {ground} }} .grid {{ stroke: {grid} }} .axis {{ stroke: {ink} }} text {{ fill: {ink} }}\n"
    );
    for (n, colour) in lines.iter().enumerate() {
        let _ =
            writeln!(css, ".line.c{n}, .range.c{n} {{ stroke: {colour} }} .mark.c{n} {{ fill: {colour} }}");
    }
    css
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::figure::tests::{file, row};

    fn picture(rows: Vec<crate::report::Row>) -> String {
        draw(&Figure::of(&[file("a<b>&.json", rows)]).expect("good rows"))
    }

    /// Every tag is closed in its order; quotes and ampersands were escaped.
    fn assert_well_formed(svg: &str) {
        let mut open = Vec::new();
        for tag in svg.split('<').skip(1) {
            let (tag, content) = tag.split_once('>').expect("a tag ends");
            assert!(!content.contains('>') || open.last() == Some(&"style"), "{content}");
            let name = tag.trim_matches('/').split([' ', '\n']).next().unwrap_or_default();
            if tag.starts_with('/') {
                assert_eq!(open.pop(), Some(name), "{tag}");
            } else if !tag.ends_with('/') {
                open.push(name);
            }
            assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        }
        assert!(open.is_empty(), "{open:?}");
        assert!(
            svg.split('&')
                .skip(1)
                .all(|rest| ["amp;", "lt;", "gt;", "quot;"].iter().any(|entity| rest.starts_with(entity)))
        );
    }

    #[test]
    fn a_point_for_each_row_in_each_pane_and_a_legend() {
        let rows = vec![row("half", 1 << 10, 5.0), row("half", 1 << 20, 7.5), row("full", 1 << 10, 6.0)];
        let svg = picture(rows);
        assert_well_formed(&svg);
        // Circles are the marks of the first series: two rows in two panes, and the legend.
        assert_eq!(svg.matches("<circle").count(), 5);
        assert_eq!(svg.matches("<polygon").count(), 3);
        assert_eq!(svg.matches("<polyline").count(), 4);
        for text in [
            ">memory-put half</text>",
            ">memory-put full</text>",
            ">1 MiB</text>",
            ">10 us</text>",
            ">size, bytes</text>",
            ">algorithm bandwidth, GB/s</text>",
            "memory-put half, 1 MiB: 7.5 us (6.75 us to 8.25 us), 139.81 GB/s",
            "prefers-color-scheme: dark",
            "a&lt;b&gt;&amp;.json: cpu, no devices",
        ] {
            assert!(svg.contains(text), "{text} is not in {svg}");
        }
    }

    #[test]
    fn without_bandwidths_there_is_one_pane() {
        let svg = picture(vec![crate::report::Row { bandwidth: None, ..row("a", 64, 1.0) }]);
        assert_well_formed(&svg);
        assert!(!svg.contains("GB/s"), "{svg}");
        assert_eq!(svg.matches("<polyline").count(), 1);
    }

    #[test]
    fn many_series_and_hostile_names_stay_inside() {
        let rows = (0..30)
            .map(|n| row(&format!("</text><script>\u{1}\"&{n}"), 1 << n, 1.0 + f64::from(n)))
            .collect();
        let svg = picture(rows);
        assert_well_formed(&svg);
        assert!(!svg.contains("<script") && !svg.contains('\u{1}'));
        for attribute in ["cx=\"", "cy=\"", "x1=\"", "y2=\""] {
            for value in svg.split(attribute).skip(1) {
                let value: f64 =
                    value.split('"').next().and_then(|text| text.parse().ok()).expect("a number");
                assert!((0.0..=1500.0).contains(&value), "{value}");
            }
        }
    }
}
