//! One figure: what was measured, and what it has to reach.

/// One row of the table.
pub(crate) struct Figure {
    pub(crate) id: &'static str,
    pub(crate) what: &'static str,
    pub(crate) reach: Reach,
    /// The median, where there were several rounds.
    pub(crate) measured: f64,
    /// The smallest and the largest of all rounds.
    pub(crate) range: Option<[f64; 2]>,
    /// How the figure came about.
    pub(crate) detail: String,
}

/// What counts as reached.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reach {
    AtMost(f64),
    AtLeast(f64),
}

impl Reach {
    pub(crate) fn is_reached(self, measured: f64) -> bool {
        match self {
            Reach::AtMost(most) => measured <= most,
            Reach::AtLeast(least) => measured >= least,
        }
    }

    /// How much of what is allowed was used: 1 is just reached, more is missed, in either
    /// direction.
    pub(crate) fn used(self, measured: f64) -> f64 {
        let (part, whole) = match self {
            Reach::AtMost(most) => (measured, most),
            Reach::AtLeast(least) => (least, measured),
        };
        match (part == 0.0, whole == 0.0) {
            (true, _) => 0.0,
            (false, true) => f64::INFINITY,
            _ => part / whole,
        }
    }
}

impl std::fmt::Display for Reach {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Reach::AtMost(most) => write!(f, "≤ {}", shown(*most)),
            Reach::AtLeast(least) => write!(f, "≥ {}", shown(*least)),
        }
    }
}

/// What several rounds measured.
pub(crate) struct Rounds(Vec<f64>);

impl Rounds {
    /// There must be one at least.
    pub(crate) fn new(mut values: Vec<f64>) -> crate::Result<Self> {
        values.sort_by(f64::total_cmp);
        if values.is_empty() { Err("nothing was measured".into()) } else { Ok(Rounds(values)) }
    }

    /// Each round of one next to the same round of the other, so that what slows a round down slows
    /// both.
    pub(crate) fn ratios(ours: &[f64], others: &[f64]) -> crate::Result<Self> {
        Rounds::new(ours.iter().zip(others).map(|(ours, other)| ours / other).collect())
    }

    pub(crate) fn median(&self) -> f64 {
        let middle = self.0.len() / 2;
        match self.0.len() % 2 {
            0 => f64::midpoint(self.0[middle - 1], self.0[middle]),
            _ => self.0[middle],
        }
    }

    pub(crate) fn range(&self) -> [f64; 2] {
        [self.0[0], self.0[self.0.len() - 1]]
    }

    pub(crate) fn figure(
        &self,
        id: &'static str,
        what: &'static str,
        reach: Reach,
        detail: String,
    ) -> Figure {
        let (measured, range) = (self.median(), Some(self.range()));
        Figure { id, what, reach, measured, range, detail }
    }
}

/// A number with as many digits as tell something.
pub(crate) fn shown(number: f64) -> String {
    match number.abs() {
        0.0 => "0".into(),
        size if size < 0.1 => format!("{number:.3}"),
        size if size < 100.0 => trimmed(format!("{number:.2}")),
        _ => grouped(number),
    }
}

fn trimmed(text: String) -> String {
    text.strip_suffix(".00").map(str::to_owned).unwrap_or(text)
}

/// With a comma before every three digits: 10,000.
pub(crate) fn grouped(number: f64) -> String {
    let digits = format!("{:.0}", number.abs());
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    if number < 0.0 { format!("-{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_reached_at_its_bound_and_missed_beyond() {
        assert!(Reach::AtMost(1.4).is_reached(1.4) && !Reach::AtMost(1.4).is_reached(1.41));
        assert!(Reach::AtLeast(18.0).is_reached(18.0) && !Reach::AtLeast(18.0).is_reached(17.9));
        assert!(!Reach::AtMost(1.0).is_reached(f64::NAN), "what is no number is not reached");
    }

    #[test]
    fn what_is_used_of_a_bound_is_more_than_one_exactly_when_it_is_missed() {
        for (reach, measured, used) in [
            (Reach::AtMost(8.0), 4.0, 0.5),
            (Reach::AtLeast(2.0), 4.0, 0.5),
            (Reach::AtLeast(2.0), 1.0, 2.0),
            (Reach::AtMost(0.0), 0.0, 0.0),
            (Reach::AtMost(0.0), 1.0, f64::INFINITY),
        ] {
            assert_eq!(reach.used(measured), used);
        }
    }

    #[test]
    fn the_median_is_in_the_middle() {
        let median = |values: &[f64]| Rounds::new(values.to_vec()).map(|rounds| rounds.median());
        assert_eq!(median(&[3.0, 1.0, 2.0]).ok(), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]).ok(), Some(2.5));
        assert!(median(&[]).is_err());
    }

    #[test]
    fn numbers_are_short() {
        for (number, text) in [
            (0.0, "0"),
            (0.0071, "0.007"),
            (1.384, "1.38"),
            (18.0, "18"),
            (123.4, "123"),
            (4963.2, "4,963"),
            (10_000_000.0, "10,000,000"),
        ] {
            assert_eq!(shown(number), text);
        }
    }
}
