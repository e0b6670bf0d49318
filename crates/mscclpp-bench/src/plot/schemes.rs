//! The colours of a picture, on a light background and on a dark one.

use std::fmt::Write;

use plotters::style::RGBColor;

/// The colours of the lines, each readable on white.
pub(super) const LINES: [RGBColor; 8] = [
    RGBColor(0x00, 0x62, 0xb1),
    RGBColor(0xc0, 0x4a, 0x00),
    RGBColor(0x00, 0x73, 0x4f),
    RGBColor(0xa0, 0x34, 0x8c),
    RGBColor(0x7a, 0x63, 0x00),
    RGBColor(0xc2, 0x18, 0x5b),
    RGBColor(0x4b, 0x5b, 0xd1),
    RGBColor(0x4d, 0x4d, 0x4d),
];

/// The colours of the lines on a dark background.
const DARK_LINES: [&str; 8] =
    ["#6db3f2", "#f2955c", "#4fc79b", "#e08bd0", "#cdb64a", "#f57fae", "#9aa6ff", "#b8b8b8"];
/// The background, and the colour of the text, the axes and the mesh, each with its replacement on a dark background.
const DARK: [(RGBColor, &str); 2] =
    [(RGBColor(0xff, 0xff, 0xff), "#14181d"), (RGBColor(0x00, 0x00, 0x00), "#dfe5ea")];

/// Adds the dark scheme to a picture: colours are attributes, over which rules of a style sheet take precedence.
pub(super) fn with_dark_scheme(picture: &str) -> String {
    let lines = LINES.into_iter().zip(DARK_LINES);
    let mut rules = String::new();
    for (RGBColor(red, green, blue), dark) in DARK.into_iter().chain(lines) {
        let light = format!("#{red:02X}{green:02X}{blue:02X}");
        // Writing to a string does not fail.
        let _ = write!(rules, "[fill=\"{light}\"]{{fill:{dark}}}[stroke=\"{light}\"]{{stroke:{dark}}}");
    }
    // The style sheet follows the tag that opens the picture, with which the backend's text begins.
    let (opening, rest) = picture.split_once('>').unwrap_or((picture, ""));
    format!("{opening}>\n<style>@media (prefers-color-scheme:dark){{{rules}}}</style>{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_colour_has_a_dark_one() {
        let picture = with_dark_scheme("<svg width=\"1\">\n<rect fill=\"#FFFFFF\"/>\n</svg>");
        assert!(
            picture.starts_with("<svg width=\"1\">\n<style>@media (prefers-color-scheme:dark){"),
            "{picture}"
        );
        assert!(picture.ends_with("</style>\n<rect fill=\"#FFFFFF\"/>\n</svg>"), "{picture}");
        assert!(picture.contains("[fill=\"#FFFFFF\"]{fill:#14181d}"), "{picture}");
        assert!(picture.contains("[stroke=\"#0062B1\"]{stroke:#6db3f2}"), "{picture}");
        assert_eq!(picture.matches("]{fill:").count(), 10);
    }
}
