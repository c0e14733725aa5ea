//! Plots as SVG, drawn by hand: lines, bars and columns, in one file for light and dark.

use std::fmt::Write;

use crate::figure::{grouped, shown};
use crate::results::Series;

const WIDTH: f64 = 720.0;
/// Room for the title, and for what the numbers upwards mean.
const TOP: f64 = 64.0;

/// A reader in dark mode gets light on dark; the ground is drawn, so that the page's own colour
/// does not matter.
const STYLE: &str = "
text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;font-size:12px;fill:#1f2328}
.title{font-size:16px;font-weight:600}.quiet{fill:#59636e}.ground{fill:#fff}
.grid{stroke:#d8dee4}.axis{stroke:#59636e}.bound{stroke:#1f2328;stroke-width:2}
.l0,.l1{fill:none;stroke-width:2.5;stroke-linejoin:round}.l0{stroke:#2563a8}.l1{stroke:#bc5a14}
.w0,.w1{stroke-width:1.5}.w0{stroke:#2563a8}.w1{stroke:#bc5a14}
.f0{fill:#2563a8}.f1{fill:#bc5a14}.miss{fill:#c1342d}
@media(prefers-color-scheme:dark){
text{fill:#e6edf3}.quiet{fill:#9198a1}.ground{fill:#0d1117}
.grid{stroke:#2b323b}.axis{stroke:#9198a1}.bound{stroke:#e6edf3}
.l0{stroke:#6cb0ff}.l1{stroke:#f0a05a}.w0{stroke:#6cb0ff}.w1{stroke:#f0a05a}
.f0{fill:#6cb0ff}.f1{fill:#f0a05a}.miss{fill:#ff7b72}
}
";

/// From a number to a place between 0 and 1.
#[derive(Clone, Copy)]
pub(crate) enum Scale {
    Linear {
        most: f64,
    },
    /// In powers of ten.
    Log {
        least: f64,
        most: f64,
    },
}

impl Scale {
    /// From nothing to a round number above all of these.
    pub(crate) fn above(values: impl Iterator<Item = f64>) -> Self {
        let largest = values.fold(0.0, f64::max);
        let step = round_step(largest);
        Scale::Linear { most: step * (largest / step).ceil().max(1.0) }
    }

    /// From the power of ten below all of these to the largest.
    pub(crate) fn up_to(values: impl Iterator<Item = f64> + Clone) -> Self {
        let least = values.clone().fold(f64::INFINITY, f64::min).max(1e-9).log10().floor();
        let least = 10_f64.powf(least);
        Scale::Log { least, most: values.fold(10.0 * least, f64::max) }
    }

    fn place(self, value: f64) -> f64 {
        let place = match self {
            Scale::Linear { most } => value / most,
            Scale::Log { least, most } => {
                (value.max(least) / least).log10() / (most / least).log10()
            }
        };
        place.clamp(0.0, 1.0)
    }

    fn ticks(self) -> Vec<f64> {
        match self {
            Scale::Linear { most } => {
                let step = round_step(most);
                (0..=20)
                    .map(|n| f64::from(n) * step)
                    .take_while(|tick| *tick <= most * 1.001)
                    .collect()
            }
            Scale::Log { least, most } => {
                let powers = ((most / least).log10() + 1e-9).floor() as i32;
                (0..=powers).map(|power| least * 10_f64.powi(power)).collect()
            }
        }
    }
}

/// 1, 2 or 5 times a power of ten, about five of them in `most`.
fn round_step(most: f64) -> f64 {
    let rough = (most / 5.0).max(1e-9);
    let power = 10_f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * power >= rough * 0.999);
    factor.unwrap_or(10.0) * power
}

/// How something grows: lines over powers of ten.
pub(crate) struct Lines<'a> {
    pub(crate) title: &'a str,
    pub(crate) upwards: &'a str,
    pub(crate) across: &'a str,
    pub(crate) scale: Scale,
    pub(crate) series: &'a [&'a Series],
}

impl Lines<'_> {
    pub(crate) fn draw(&self) -> String {
        let mut svg = Svg::new(self.title, 360.0);
        let frame = Frame { left: 64.0, right: WIDTH - 24.0, top: TOP, bottom: 306.0 };
        let xs = self.series.iter().flat_map(|series| &series.points).map(|point| point.x);
        let across = Scale::up_to(xs);
        // The numbers of the first and the last point need room, too.
        let x = |value: f64| {
            frame.left + 30.0 + (frame.right - frame.left - 64.0) * across.place(value)
        };
        frame.upwards(&mut svg, self.upwards, self.scale);
        for tick in across.ticks() {
            svg.line("axis", [x(tick), frame.bottom], [x(tick), frame.bottom + 5.0]);
            svg.text("quiet", "middle", x(tick), frame.bottom + 20.0, &grouped(tick));
        }
        frame.across(&mut svg, self.across);
        for (number, series) in self.series.iter().enumerate() {
            let y = |value: f64| frame.y(self.scale.place(value));
            let places: Vec<[f64; 2]> =
                series.points.iter().map(|point| [x(point.x), y(point.y)]).collect();
            svg.path(&format!("l{number}"), &places);
            for (at, point) in series.points.iter().enumerate() {
                let [low, high] = point.range.unwrap_or([point.y; 2]);
                svg.line(&format!("w{number}"), [x(point.x), y(low)], [x(point.x), y(high)]);
                svg.circle(&format!("f{number}"), x(point.x), y(point.y));
                // Lines that are close would hide each other's numbers.
                if self.series.len() == 1 || at + 1 == series.points.len() {
                    let number = format!("{:.1}", point.y);
                    svg.text("", "middle", x(point.x), y(high) - 10.0, &number);
                }
            }
        }
        svg.legend(self.series);
        svg.end()
    }
}

/// Shares in percent, side by side: a group of columns for each x.
pub(crate) struct Columns<'a> {
    pub(crate) title: &'a str,
    pub(crate) upwards: &'a str,
    pub(crate) across: &'a str,
    pub(crate) series: &'a [&'a Series],
}

impl Columns<'_> {
    pub(crate) fn draw(&self) -> String {
        let mut svg = Svg::new(self.title, 360.0);
        let frame = Frame { left: 64.0, right: WIDTH - 20.0, top: TOP + 14.0, bottom: 306.0 };
        let scale = Scale::Linear { most: 100.0 };
        frame.upwards(&mut svg, self.upwards, scale);
        let groups = self.series.iter().map(|series| series.points.len()).max().unwrap_or(1);
        let group = (frame.right - frame.left) / groups as f64;
        let width = (group * 0.8 / self.series.len() as f64).min(40.0);
        let begin = (group - width * self.series.len() as f64) / 2.0;
        for (number, series) in self.series.iter().enumerate() {
            for (at, point) in series.points.iter().enumerate() {
                let x = frame.left + group * at as f64 + begin + width * number as f64;
                let y = frame.y(scale.place(point.y));
                svg.rect(&format!("f{number}"), [x, y], [width - 2.0, frame.bottom - y]);
                svg.text("quiet", "middle", x + width / 2.0, y - 5.0, &shown_share(point.y));
                if number == 0 {
                    let middle = frame.left + group * (at as f64 + 0.5);
                    svg.text("quiet", "middle", middle, frame.bottom + 20.0, &grouped(point.x));
                }
            }
        }
        frame.across(&mut svg, self.across);
        svg.legend(self.series);
        svg.end()
    }
}

/// One bar, from left to right.
pub(crate) struct Bar {
    /// What comes before the label, in a column of its own.
    pub(crate) id: String,
    pub(crate) label: String,
    pub(crate) value: f64,
    /// What is told at the end of the row.
    pub(crate) text: String,
    pub(crate) is_reached: bool,
    /// What it has to reach.
    pub(crate) bound: f64,
}

/// Bars below each other, each with a line where its bound is.
pub(crate) struct Bars<'a> {
    pub(crate) title: &'a str,
    pub(crate) across: &'a str,
    pub(crate) scale: Scale,
    /// Where bars begin.
    pub(crate) from: f64,
    /// Room for the labels.
    pub(crate) left: f64,
    pub(crate) bars: &'a [Bar],
}

impl Bars<'_> {
    pub(crate) fn draw(&self) -> String {
        const ROW: f64 = 22.0;
        let bottom = TOP + ROW * self.bars.len() as f64 + 6.0;
        let mut svg = Svg::new(self.title, bottom + 36.0);
        let frame = Frame { left: self.left, right: WIDTH - 134.0, top: TOP, bottom };
        let x = |value: f64| frame.x(self.scale.place(value));
        svg.text("quiet", "start", 24.0, 50.0, self.across);
        for tick in self.scale.ticks() {
            svg.line("grid", [x(tick), TOP], [x(tick), bottom]);
            svg.text("quiet", "middle", x(tick), bottom + 18.0, &shown(tick));
        }
        for (number, bar) in (0..).zip(self.bars) {
            let y = TOP + 3.0 + ROW * f64::from(number);
            svg.text("quiet", "start", 24.0, y + 15.0, &bar.id);
            let label = if bar.id.is_empty() { 24.0 } else { 54.0 };
            svg.text("", "start", label, y + 15.0, &bar.label);
            let [begin, end] = [self.from.min(bar.value), self.from.max(bar.value)].map(x);
            let class = if bar.is_reached { "f0" } else { "miss" };
            svg.rect(class, [begin, y + 5.0], [(end - begin).max(1.5), 12.0]);
            svg.line("bound", [x(bar.bound), y + 1.0], [x(bar.bound), y + 21.0]);
            svg.text("", "start", frame.right + 16.0, y + 15.0, &bar.text);
        }
        svg.line("axis", [x(self.from), TOP], [x(self.from), bottom]);
        svg.end()
    }
}

fn shown_share(share: f64) -> String {
    if share < 9.95 { format!("{share:.1}") } else { format!("{share:.0}") }
}

/// Where the numbers are.
struct Frame {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl Frame {
    fn x(&self, place: f64) -> f64 {
        self.left + (self.right - self.left) * place
    }

    fn y(&self, place: f64) -> f64 {
        self.bottom - (self.bottom - self.top) * place
    }

    fn upwards(&self, svg: &mut Svg, what: &str, scale: Scale) {
        svg.text("quiet", "start", 24.0, 50.0, what);
        for tick in scale.ticks() {
            let y = self.y(scale.place(tick));
            svg.line("grid", [self.left, y], [self.right, y]);
            svg.text("quiet", "end", self.left - 8.0, y + 4.0, &shown(tick));
        }
        svg.line("axis", [self.left, self.bottom], [self.right, self.bottom]);
    }

    fn across(&self, svg: &mut Svg, what: &str) {
        let middle = f64::midpoint(self.left, self.right);
        svg.text("", "middle", middle, self.bottom + 42.0, what);
    }
}

/// The text of a drawing.
struct Svg(String);

impl Svg {
    fn new(title: &str, height: f64) -> Self {
        let title = escaped(title);
        let mut svg = Svg(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
             role=\"img\" aria-label=\"{title}\">\n<title>{title}</title>\n<style>{STYLE}</style>\n"
        ));
        svg.add(format_args!(
            "<rect class=\"ground\" width=\"{WIDTH}\" height=\"{height}\" rx=\"8\"/>"
        ));
        svg.add(format_args!("<text class=\"title\" x=\"24\" y=\"30\">{title}</text>"));
        svg
    }

    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "{element}");
    }

    fn text(&mut self, class: &str, anchor: &str, x: f64, y: f64, text: &str) {
        let text = escaped(text);
        self.add(format_args!(
            "<text class=\"{class}\" text-anchor=\"{anchor}\" x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>"
        ));
    }

    fn line(&mut self, class: &str, [x1, y1]: [f64; 2], [x2, y2]: [f64; 2]) {
        self.add(format_args!(
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
        ));
    }

    fn rect(&mut self, class: &str, [x, y]: [f64; 2], [width, height]: [f64; 2]) {
        self.add(format_args!(
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"2\"/>"
        ));
    }

    fn circle(&mut self, class: &str, x: f64, y: f64) {
        self.add(format_args!("<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"/>"));
    }

    fn path(&mut self, class: &str, places: &[[f64; 2]]) {
        let points: Vec<String> = places.iter().map(|[x, y]| format!("{x:.1},{y:.1}")).collect();
        self.add(format_args!("<polyline class=\"{class}\" points=\"{}\"/>", points.join(" ")));
    }

    /// Which colour is which, if there are several.
    fn legend(&mut self, series: &[&Series]) {
        if series.len() < 2 {
            return;
        }
        let mut left = WIDTH - 20.0;
        for (number, series) in series.iter().enumerate().rev() {
            // The width of the letters is unknown here; this much is enough.
            left -= 7.0 * series.name.chars().count() as f64 + 32.0;
            self.rect(&format!("f{number}"), [left, 40.0], [12.0, 12.0]);
            self.text("", "start", left + 18.0, 50.0, &series.name);
        }
    }

    fn end(mut self) -> String {
        self.0.push_str("</svg>\n");
        self.0
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_begin_and_end_at_round_numbers() {
        for (values, ticks) in [
            (&[0.3, 11.2][..], &[0.0, 5.0, 10.0, 15.0][..]),
            (&[98.0], &[0.0, 20.0, 40.0, 60.0, 80.0, 100.0]),
        ] {
            assert_eq!(Scale::above(values.iter().copied()).ticks(), ticks);
        }
        let scale = Scale::up_to([0.5, 24.0].into_iter());
        assert_eq!(scale.ticks().len(), 3);
        assert_eq!([scale.place(0.1), scale.place(24.0), scale.place(1e9)], [0.0, 1.0, 1.0]);
    }

    #[test]
    fn text_cannot_end_a_tag() {
        let bars = [Bar {
            label: "</svg><script>\"&".into(),
            value: 1.0,
            text: "<b>".into(),
            is_reached: true,
            bound: 1.0,
            id: "<id>".into(),
        }];
        let scale = Scale::Linear { most: 1.0 };
        let plot = Bars { title: "<&\">", across: "<", scale, from: 0.0, left: 50.0, bars: &bars };
        let svg = plot.draw();
        assert!(!svg.contains("<script") && !svg.contains("<b>") && !svg.contains("<id>"), "{svg}");
        assert_eq!(svg.matches("</svg>").count(), 1);
    }
}
