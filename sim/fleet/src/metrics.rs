//! The receiver's metrics. Pure.

use std::collections::BTreeMap;

/// A page of metrics.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page(Vec<Sample>);

#[derive(Clone, Debug, PartialEq)]
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

/// Cumulative counts by upper bound.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram(Vec<(f64, f64)>);

impl Page {
    /// Parses the text format.
    pub fn parse(text: &str) -> Self {
        Self(text.lines().filter(|line| !line.starts_with('#')).filter_map(sample).collect())
    }

    /// Sum of matching series.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.with(name, labels).map(|sample| sample.value).sum()
    }

    fn with<'a>(&'a self, name: &'a str, labels: &'a [(&str, &str)]) -> impl Iterator<Item = &'a Sample> {
        let fits = |sample: &&Sample| {
            labels.iter().all(|(key, value)| sample.labels.get(*key).is_some_and(|v| v == value))
        };
        self.0.iter().filter(move |sample| sample.name == name).filter(fits)
    }

    /// Sums by label value.
    pub fn by(&self, name: &str, label: &str) -> BTreeMap<String, f64> {
        let mut sums = BTreeMap::new();
        for sample in self.with(name, &[]) {
            let value = sample.labels.get(label).cloned().unwrap_or_default();
            *sums.entry(value).or_default() += sample.value;
        }
        sums
    }

    /// Sum of all series.
    pub fn histogram(&self, name: &str) -> Histogram {
        let mut buckets: Vec<(f64, f64)> = Vec::new();
        for sample in self.with(&format!("{name}_bucket"), &[]) {
            let Some(bound) = sample.labels.get("le").and_then(|le| le.replace("+Inf", "inf").parse().ok())
            else {
                continue;
            };
            match buckets.iter_mut().find(|(have, _): &&mut (f64, f64)| have.total_cmp(&bound).is_eq()) {
                Some((_, count)) => *count += sample.value,
                None => buckets.push((bound, sample.value)),
            }
        }
        buckets.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        Histogram(buckets)
    }
}

impl Histogram {
    /// Counts since an earlier reading; all after a restart.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let fits = before.0.len() == self.0.len() && before.count() <= self.count();
        let earlier =
            |index: usize| if fits { before.0.get(index).map_or(0.0, |(_, count)| *count) } else { 0.0 };
        Self(self.0.iter().enumerate().map(|(i, (bound, count))| (*bound, count - earlier(i))).collect())
    }

    /// Sum of two histograms.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        if self.0.is_empty() {
            return other.clone();
        }
        let more = |index: usize| other.0.get(index).map_or(0.0, |(_, count)| *count);
        Self(self.0.iter().enumerate().map(|(i, (bound, count))| (*bound, count + more(i))).collect())
    }

    /// Number of observations.
    pub fn count(&self) -> f64 {
        self.0.last().map_or(0.0, |(_, count)| *count)
    }

    /// Interpolated quantile, up to the last bound.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let wanted = self.count() * share;
        let index = self.0.iter().position(|(_, count)| *count >= wanted && *count > 0.0)?;
        let (bound, count) = *self.0.get(index)?;
        let (low, below) = index.checked_sub(1).and_then(|i| self.0.get(i)).copied().unwrap_or_default();
        if bound.is_infinite() {
            return Some(low);
        }
        let part = if count > below { (wanted - below) / (count - below) } else { 1.0 };
        Some(low + (bound - low) * part.clamp(0.0, 1.0))
    }
}

fn sample(line: &str) -> Option<Sample> {
    let (head, value) = line.rsplit_once(' ')?;
    let value = value.parse().ok()?;
    let Some((name, rest)) = head.split_once('{') else {
        return Some(Sample { name: head.to_owned(), labels: BTreeMap::new(), value });
    };
    let mut labels = BTreeMap::new();
    for pair in rest.strip_suffix('}')?.split("\",") {
        let (key, value) = pair.split_once("=\"")?;
        labels.insert(key.to_owned(), value.trim_end_matches('"').to_owned());
    }
    Some(Sample { name: name.to_owned(), labels, value })
}

/// Percentile of sorted numbers.
pub fn percentile(sorted: &[f32], share: f64) -> Option<f32> {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count of changes is far below 2^52"
    )]
    let index = ((sorted.len() as f64 * share).ceil() as usize).saturating_sub(1);
    sorted.get(index).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# HELP x y
reconciles_total{class=\"a\",outcome=\"done\"} 3
reconciles_total{class=\"b\",outcome=\"failed\"} 2
plain 1.5
queued_seconds_bucket{class=\"a\",le=\"0.1\"} 5
queued_seconds_bucket{class=\"a\",le=\"1\"} 9
queued_seconds_bucket{class=\"a\",le=\"+Inf\"} 10
queued_seconds_bucket{class=\"b\",le=\"0.1\"} 5
queued_seconds_bucket{class=\"b\",le=\"1\"} 5
queued_seconds_bucket{class=\"b\",le=\"+Inf\"} 5
";

    #[test]
    #[allow(clippy::float_cmp, reason = "small whole numbers")]
    fn metrics_are_summed_and_grouped() {
        let page = Page::parse(PAGE);
        assert_eq!(page.sum("reconciles_total", &[]), 5.0);
        assert_eq!(page.sum("reconciles_total", &[("outcome", "failed")]), 2.0);
        assert_eq!(page.sum("plain", &[]), 1.5);
        assert_eq!(page.by("reconciles_total", "outcome")["done"], 3.0);
    }

    #[test]
    #[allow(clippy::float_cmp, reason = "small whole numbers")]
    fn quantiles_cover_all_series() {
        let all = Page::parse(PAGE).histogram("queued_seconds");
        assert_eq!(all.count(), 15.0);
        assert!(all.quantile(0.5).unwrap() < 0.1);
        assert_eq!(all.quantile(1.0), Some(1.0), "above the last bound");
        assert_eq!(all.since(&all).quantile(0.5), None);
        assert_eq!(all.since(&Histogram::default()).count(), 15.0);
        assert_eq!(all.plus(&all).count(), 30.0);
    }

    #[test]
    fn percentiles_of_measured_values() {
        assert_eq!(percentile(&[1.0, 2.0, 3.0, 4.0], 0.5), Some(2.0));
        assert_eq!(percentile(&[1.0, 2.0, 3.0, 4.0], 0.99), Some(4.0));
        assert_eq!(percentile(&[], 0.5), None);
    }
}
