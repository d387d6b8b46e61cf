//! Plots as SVG: lines over logarithmic axes, nothing else. The same data gives the same text.

use std::fmt::Write as _;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 72.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 48.0;
/// Colours that are told apart by most eyes, and on paper.
const COLOURS: [&str; 4] = ["#c1272d", "#eecc16", "#0000a7", "#008176"];
const DASHES: [&str; 4] = ["none", "8 3", "2 3", "none"];

/// A line: its name and its points, in the order of x. A point that is computed and not simulated
/// is hollow.
pub struct Line {
    pub name: String,
    pub points: Vec<(f64, f64, bool)>,
}

pub struct Plot<'a> {
    pub title: &'a str,
    pub x: &'a str,
    pub y: &'a str,
    pub lines: &'a [Line],
}

impl Plot<'_> {
    /// The plot as an SVG document.
    pub fn svg(&self) -> String {
        let all = || self.lines.iter().flat_map(|line| &line.points);
        let (x0, x1) = decades(all().map(|p| p.0));
        let (y0, y1) = decades(all().map(|p| p.1));
        let px = |x: f64| LEFT + (x.log10() - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT);
        let py = |y: f64| HEIGHT - BOTTOM - (y.log10() - y0) / (y1 - y0) * (HEIGHT - TOP - BOTTOM);
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
             <text x=\"{LEFT}\" y=\"20\" font-size=\"14\">{}</text>\n",
            escaped(self.title)
        );
        for (from, to, horizontal) in [(x0, x1, false), (y0, y1, true)] {
            let mut exponent = from;
            while exponent <= to {
                let value = 10_f64.powf(exponent);
                let (a, b, at, anchor) = if horizontal {
                    let y = py(value);
                    ((LEFT, y), (WIDTH - RIGHT, y), (LEFT - 6.0, y + 4.0), "end")
                } else {
                    let x = px(value);
                    let text = (x, HEIGHT - BOTTOM + 16.0);
                    ((x, TOP), (x, HEIGHT - BOTTOM), text, "middle")
                };
                let _ = write!(
                    out,
                    "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"#ddd\"/>\n\
                     <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>\n",
                    a.0,
                    a.1,
                    b.0,
                    b.1,
                    at.0,
                    at.1,
                    short(value)
                );
                exponent += 1.0;
            }
        }
        let _ = write!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n\
             <text x=\"16\" y=\"{:.1}\" text-anchor=\"middle\" transform=\"rotate(-90 16 {:.1})\">{}</text>\n",
            (LEFT + WIDTH - RIGHT) / 2.0,
            HEIGHT - 12.0,
            escaped(self.x),
            HEIGHT / 2.0,
            HEIGHT / 2.0,
            escaped(self.y)
        );
        for (index, line) in self.lines.iter().enumerate() {
            let (colour, dash) = (COLOURS[index % 4], DASHES[index % 4]);
            let path: Vec<String> = line
                .points
                .iter()
                .map(|(x, y, _)| format!("{:.1},{:.1}", px(*x), py(*y)))
                .collect();
            let _ = writeln!(
                out,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"{dash}\"/>",
                path.join(" ")
            );
            for (x, y, simulated) in &line.points {
                let fill = if *simulated { colour } else { "white" };
                let _ = writeln!(
                    out,
                    "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\" fill=\"{fill}\" stroke=\"{colour}\"/>",
                    px(*x),
                    py(*y)
                );
            }
            let y = TOP + 14.0 + 16.0 * index as f64;
            let _ = write!(
                out,
                "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"{dash}\"/>\n\
                 <text x=\"{:.1}\" y=\"{y:.1}\">{}</text>\n",
                LEFT + 10.0,
                y - 4.0,
                LEFT + 40.0,
                y - 4.0,
                LEFT + 46.0,
                escaped(&line.name)
            );
        }
        out + "</svg>\n"
    }
}

/// The exponents that hold all values.
fn decades(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
    for value in values {
        low = low.min(value.log10().floor());
        high = high.max(value.log10().ceil());
    }
    if low < high {
        (low, high)
    } else {
        (low, low + 1.0)
    }
}

/// `0.1`, `10`, `100 k`, `1 M`.
fn short(value: f64) -> String {
    let (scaled, unit) = match value {
        v if v >= 0.999e9 => (v / 1e9, " G"),
        v if v >= 0.999e6 => (v / 1e6, " M"),
        v if v >= 0.999e3 => (v / 1e3, " k"),
        v => (v, ""),
    };
    if scaled >= 0.999 {
        format!("{scaled:.0}{unit}")
    } else {
        format!("{scaled:.3}").trim_end_matches('0').to_owned()
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_data_gives_the_same_picture() {
        let line = |name: &str| Line {
            name: name.to_owned(),
            points: vec![(50.0, 3.0, true), (5000.0, 12_500_000.0, false)],
        };
        let lines = [line("a < b"), line("c")];
        let plot = Plot {
            title: "t",
            x: "nodes",
            y: "sessions",
            lines: &lines,
        };
        let text = plot.svg();
        assert_eq!(text, plot.svg());
        assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"));
        assert!(text.contains("a &lt; b") && text.contains("10 M"), "{text}");
        assert_eq!(text.matches("<polyline").count(), 2);
        assert_eq!(
            text.matches("fill=\"white\" stroke").count(),
            2,
            "computed points are hollow"
        );
        for (value, shown) in [(0.01, "0.01"), (1.0, "1"), (1e5, "100 k"), (1e9, "1 G")] {
            assert_eq!(short(value), shown);
        }
    }
}
