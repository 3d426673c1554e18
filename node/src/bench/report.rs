//! Samples of several rounds, and how they are told: median and spread, never a single best run.

use serde_json::{Value, json};

use super::Subject;

/// One number a round, in the order of the rounds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// No rounds yet.
    #[must_use]
    pub fn new() -> Self {
        Samples::default()
    }

    /// Adds a round.
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// Each round's number divided by the same round's number of `base`.
    #[must_use]
    pub fn over(&self, base: &Samples) -> Samples {
        Samples(self.0.iter().zip(&base.0).map(|(value, base)| value / base).collect())
    }

    /// Each round's number as `change` makes it.
    #[must_use]
    pub fn map(&self, change: impl Fn(f64) -> f64) -> Samples {
        Samples(self.0.iter().copied().map(change).collect())
    }

    /// The middle one; the mean of both for an even number of rounds, NaN for none.
    #[must_use]
    pub fn median(&self) -> f64 {
        let sorted = self.sorted();
        match (sorted.len(), sorted.len() / 2) {
            (0, _) => f64::NAN,
            (len, middle) if len % 2 == 1 => sorted[middle],
            (_, middle) => f64::midpoint(sorted[middle - 1], sorted[middle]),
        }
    }

    /// The lowest and the highest; NaN for none.
    #[must_use]
    pub fn spread(&self) -> (f64, f64) {
        let sorted = self.sorted();
        (sorted.first().copied().unwrap_or(f64::NAN), sorted.last().copied().unwrap_or(f64::NAN))
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }

    fn to_json(&self) -> Value {
        let (min, max) = self.spread();
        json!({"median": rounded(self.median()), "min": rounded(min), "max": rounded(max), "rounds": self.0.len()})
    }

    fn shown(&self) -> String {
        let (min, max) = self.spread();
        format!("{}  ({} … {})", short(self.median()), short(min), short(max))
    }
}

/// A quantity that was measured.
#[derive(Clone, Debug)]
pub struct Figure {
    /// What it is of.
    pub name: String,
    /// Its unit, such as `entries/s`.
    pub unit: &'static str,
    /// The rounds.
    pub samples: Samples,
}

/// A quantity divided by its baseline of the same round.
#[derive(Clone, Debug)]
pub struct Ratio {
    /// What is compared, and with what.
    pub name: String,
    /// What the project asks for, such as `≥ 0.85`.
    pub wanted: &'static str,
    /// The rounds.
    pub samples: Samples,
}

/// What a bench found out.
#[derive(Clone, Debug)]
pub struct Report {
    subject: Subject,
    facts: Vec<(&'static str, Value)>,
    figures: Vec<Figure>,
    ratios: Vec<Ratio>,
}

impl Report {
    /// An empty one.
    #[must_use]
    pub(super) fn of(subject: Subject) -> Self {
        Report { subject, facts: Vec::new(), figures: Vec::new(), ratios: Vec::new() }
    }

    /// Adds what was measured with, such as the number of entries.
    pub(super) fn fact(&mut self, name: &'static str, value: impl Into<Value>) {
        self.facts.push((name, value.into()));
    }

    /// Adds a quantity.
    pub(super) fn figure(&mut self, name: impl Into<String>, unit: &'static str, samples: Samples) {
        self.figures.push(Figure { name: name.into(), unit, samples });
    }

    /// Adds a comparison.
    pub(super) fn ratio(&mut self, name: impl Into<String>, wanted: &'static str, samples: Samples) {
        self.ratios.push(Ratio { name: name.into(), wanted, samples });
    }

    /// Adds the machine and how busy it was.
    pub(super) fn ran_on(&mut self, load_before: Option<f64>, load_after: Option<f64>) {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
        self.fact("cores", cores);
        self.fact("load", json!([load_before, load_after]));
        self.fact("build", if cfg!(debug_assertions) { "debug" } else { "release" });
    }

    /// The quantities.
    #[must_use]
    pub fn figures(&self) -> &[Figure] {
        &self.figures
    }

    /// The comparisons.
    #[must_use]
    pub fn ratios(&self) -> &[Ratio] {
        &self.ratios
    }

    /// The object that `--json` prints.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut object = json!({"v": 1, "kind": "bench", "bench": self.subject.word()});
        for (name, value) in &self.facts {
            object[*name] = value.clone();
        }
        let figure = |figure: &Figure| {
            let mut row = figure.samples.to_json();
            row["name"] = figure.name.as_str().into();
            row["unit"] = figure.unit.into();
            row
        };
        let ratio = |ratio: &Ratio| {
            let mut row = ratio.samples.to_json();
            row["name"] = ratio.name.as_str().into();
            row["wanted"] = ratio.wanted.into();
            row
        };
        object["figures"] = self.figures.iter().map(figure).collect();
        object["ratios"] = self.ratios.iter().map(ratio).collect();
        object
    }

    /// The lines for a reader.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let facts: Vec<String> = self.facts.iter().map(|(name, value)| format!("{name} {value}")).collect();
        let mut lines = vec![format!("bench {}: {}", self.subject.word(), facts.join(", "))];
        lines.extend(
            self.figures
                .iter()
                .map(|figure| format!("{:<52} {} {}", figure.name, figure.samples.shown(), figure.unit)),
        );
        lines.extend(
            self.ratios.iter().map(|ratio| {
                format!("{:<52} {}   wanted {}", ratio.name, ratio.samples.shown(), ratio.wanted)
            }),
        );
        lines
    }
}

/// Four digits are more than a run repeats.
fn rounded(value: f64) -> f64 {
    if value.abs() >= 1_000.0 || value == 0.0 || !value.is_finite() {
        return value.round();
    }
    let scale = 10_f64.powf(3.0 - value.abs().log10().floor());
    (value * scale).round() / scale
}

fn short(value: f64) -> String {
    rounded(value).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(values: &[f64]) -> Samples {
        Samples(values.to_vec())
    }

    #[test]
    fn the_median_is_the_middle_round() {
        assert_eq!(samples(&[3.0, 1.0, 9.0]).median(), 3.0);
        assert_eq!(samples(&[4.0, 1.0, 2.0, 9.0]).median(), 3.0);
        assert!(Samples::new().median().is_nan());
        assert_eq!(samples(&[3.0, 1.0, 9.0]).spread(), (1.0, 9.0));
    }

    #[test]
    fn a_ratio_compares_the_same_round() {
        let ratio = samples(&[10.0, 40.0, 90.0]).over(&samples(&[10.0, 20.0, 30.0]));
        assert_eq!(ratio, samples(&[1.0, 2.0, 3.0]));
    }

    #[test]
    fn numbers_are_told_with_four_digits() {
        assert_eq!(short(0.912_345), "0.9123");
        assert_eq!(short(12_345.678), "12346");
        assert_eq!(short(0.000_123_456), "0.0001235");
        assert_eq!(short(0.0), "0");
    }

    #[test]
    fn a_report_without_rounds_is_still_an_object() {
        let mut report = Report::of(Subject::Verify);
        report.figure("nothing", "entries/s", Samples::new());
        assert_eq!(report.to_json()["figures"][0]["median"], Value::Null);
    }
}
