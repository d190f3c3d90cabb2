//! A bar is a limit that a figure must keep. The tables of bars are in the programs that measure.

use std::fmt;

/// A limit on one figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Limit {
    /// The figure may not be below this.
    AtLeast(f64),
    /// The figure may not be above this.
    AtMost(f64),
}

impl Limit {
    /// Whether `figure` keeps the limit. A figure that is not a number keeps none.
    pub fn keeps(self, figure: f64) -> bool {
        match self {
            Self::AtLeast(limit) => figure >= limit,
            Self::AtMost(limit) => figure <= limit,
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(limit) => write!(f, "at least {limit}"),
            Self::AtMost(limit) => write!(f, "at most {limit}"),
        }
    }
}

/// What came of holding a figure to its limit.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// Kept.
    Met,
    /// Broken.
    Missed,
    /// The figure is there, but cannot be trusted, for this reason.
    Void(String),
    /// This run did not measure it.
    NotMeasured,
}

/// One line of a verdict: what was measured, how it came out, and both numbers.
#[derive(Debug, Clone)]
pub struct Judged {
    /// What was measured, in words.
    pub what: String,
    /// The limit.
    pub limit: Limit,
    /// The unit of both numbers.
    pub unit: &'static str,
    /// The measured figure.
    pub figure: Option<f64>,
    /// How it came out.
    pub verdict: Verdict,
}

impl Judged {
    /// Holds `figure` to `limit`.
    pub fn new(what: String, limit: Limit, unit: &'static str, figure: Option<f64>) -> Self {
        let verdict = match figure {
            None => Verdict::NotMeasured,
            Some(figure) if limit.keeps(figure) => Verdict::Met,
            Some(_) => Verdict::Missed,
        };
        Self { what, limit, unit, figure, verdict }
    }

    /// The same figure, marked as one that cannot be trusted.
    #[must_use]
    pub fn void(mut self, reason: String) -> Self {
        if self.verdict != Verdict::NotMeasured {
            self.verdict = Verdict::Void(reason);
        }
        self
    }

    /// Whether a check must fail on this: a missed bar, or a figure that shows nothing.
    pub fn fails(&self) -> bool {
        matches!(self.verdict, Verdict::Missed | Verdict::Void(_))
    }
}

impl fmt::Display for Judged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, limit, unit, figure, verdict } = self;
        let figure = figure.map_or_else(|| "nothing".to_owned(), plain);
        let word = match verdict {
            Verdict::Met => "met",
            Verdict::Missed => "MISSED",
            Verdict::Void(_) => "VOID",
            Verdict::NotMeasured => "not measured",
        };
        write!(f, "{word:>12}  {what}: {limit} {unit}, measured {figure}")?;
        match verdict {
            Verdict::Void(reason) => write!(f, " ({reason})"),
            _ => Ok(()),
        }
    }
}

/// A figure to six decimal places, without the zeros at the end.
pub fn plain(figure: f64) -> String {
    let digits = format!("{figure:.6}");
    digits.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Prints every verdict; true when none fails.
pub fn print(judged: &[Judged]) -> bool {
    for line in judged {
        println!("{line}");
    }
    !judged.iter().any(Judged::fails)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missed_bar_names_both_numbers() {
        let line = Judged::new("noop_64 over x".to_owned(), Limit::AtLeast(12.0), "x", Some(9.5));
        assert!(line.fails());
        assert_eq!(line.to_string().trim(), "MISSED  noop_64 over x: at least 12 x, measured 9.5");
    }

    #[test]
    fn what_was_not_measured_fails_nothing() {
        let line = Judged::new("x".to_owned(), Limit::AtMost(1.0), "x", None);
        assert!(!line.fails());
        assert!(!line.void("noise".to_owned()).fails());
    }

    #[test]
    fn a_figure_that_is_not_a_number_keeps_no_limit() {
        assert!(!Limit::AtLeast(1.0).keeps(f64::NAN));
        assert!(!Limit::AtMost(1.0).keeps(f64::NAN));
    }
}
