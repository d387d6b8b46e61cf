//! Metric families and their two text forms: OpenMetrics 1.0 and the older Prometheus text format
//! 0.0.4. Pure.
//!
//! The two differ in names (OpenMetrics puts `_total` and `_info` on samples only), in a last line,
//! and in types.

use std::fmt::Write;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MetricFamily {
    /// Name without `_total`, `_info`, `_sum`, `_count`.
    name: &'static str,
    kind: MetricKind,
    help: &'static str,
    /// Name in Calico and other programs, for `/metrics/upstream`.
    upstream: Option<&'static str>,
    samples: Vec<Sample>,
}

/// Types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetricKind {
    /// Goes up and down.
    Gauge,
    /// Only grows, but for restarts.
    Counter,
    /// Labels alone; the value is 1.
    Info,
    /// Number and sum of observations.
    Summary,
}

/// Labels in order of their writing.
pub(crate) type MetricLabels = Vec<(&'static str, String)>;

#[derive(Clone, Debug, PartialEq)]
struct Sample {
    labels: MetricLabels,
    value: Value,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Value {
    One(f64),
    Observed { count: f64, sum: f64 },
}

impl MetricFamily {
    /// A family without samples; one that stays so is not written.
    pub(crate) const fn new(name: &'static str, kind: MetricKind, help: &'static str) -> Self {
        Self {
            name,
            kind,
            help,
            upstream: None,
            samples: Vec::new(),
        }
    }

    /// With the name that operators know it by.
    pub(crate) const fn upstream(mut self, name: &'static str) -> Self {
        self.upstream = Some(name);
        self
    }

    /// With a sample without labels.
    pub(crate) fn value(self, value: f64) -> Self {
        self.sample(MetricLabels::new(), value)
    }

    /// With one more sample.
    pub(crate) fn sample(mut self, labels: MetricLabels, value: f64) -> Self {
        let value = Value::One(value);
        self.samples.push(Sample { labels, value });
        self
    }

    pub(crate) fn samples(self, samples: impl IntoIterator<Item = (MetricLabels, f64)>) -> Self {
        samples
            .into_iter()
            .fold(self, |family, (labels, value)| family.sample(labels, value))
    }

    /// With a summary.
    pub(crate) fn observed(mut self, count: f64, sum: f64) -> Self {
        let value = Value::Observed { count, sum };
        let labels = MetricLabels::new();
        self.samples.push(Sample { labels, value });
        self
    }
}

/// The two forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SampleFormat {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus text format 0.0.4.
    Text,
}

impl SampleFormat {
    /// Format requested by an `Accept` header: OpenMetrics when it is named and not refused.
    pub(crate) fn wanted(accept: &str) -> Self {
        let named = accept.split(',').any(|range| {
            let mut parts = range.split(';').map(str::trim);
            let refused = |part: &str| {
                let weight = part.strip_prefix("q=").map(str::parse::<f32>);
                weight.is_some_and(|weight| weight == Ok(0.0))
            };
            parts.next() == Some("application/openmetrics-text") && !parts.any(refused)
        });
        if named { Self::OpenMetrics } else { Self::Text }
    }

    /// Its media type.
    pub(crate) const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// The families that have another name elsewhere, under it.
pub(crate) fn upstream(families: &[MetricFamily]) -> Vec<MetricFamily> {
    let named = families.iter().filter_map(|family| {
        let mut family = family.clone();
        family.name = family.upstream?;
        Some(family)
    });
    named.collect()
}

/// The text of families in a form.
pub(crate) fn render(families: &[MetricFamily], form: SampleFormat) -> String {
    let mut text = String::new();
    for family in families.iter().filter(|f| !f.samples.is_empty()) {
        header(&mut text, family, form);
        for sample in &family.samples {
            write_sample(&mut text, family, sample);
        }
    }
    if form == SampleFormat::OpenMetrics {
        text.push_str("# EOF\n");
    }
    text
}

fn header(text: &mut String, family: &MetricFamily, form: SampleFormat) {
    let (suffix, kind) = match (form, family.kind) {
        (_, MetricKind::Gauge) => ("", "gauge"),
        (_, MetricKind::Summary) => ("", "summary"),
        (SampleFormat::OpenMetrics, MetricKind::Counter) => ("", "counter"),
        (SampleFormat::OpenMetrics, MetricKind::Info) => ("", "info"),
        (SampleFormat::Text, MetricKind::Counter) => ("_total", "counter"),
        (SampleFormat::Text, MetricKind::Info) => ("_info", "gauge"),
    };
    let MetricFamily { name, help, .. } = family;
    // Writing to a String cannot fail.
    let _ = writeln!(text, "# HELP {name}{suffix} {help}");
    let _ = writeln!(text, "# TYPE {name}{suffix} {kind}");
}

fn write_sample(text: &mut String, family: &MetricFamily, sample: &Sample) {
    let mut line = |suffix: &str, value: f64| {
        text.push_str(family.name);
        text.push_str(suffix);
        write_labels(text, &sample.labels);
        let _ = writeln!(text, " {value}");
    };
    match (family.kind, sample.value) {
        (_, Value::Observed { count, sum }) => {
            line("_count", count);
            line("_sum", sum);
        }
        (MetricKind::Counter, Value::One(value)) => line("_total", value),
        (MetricKind::Info, Value::One(value)) => line("_info", value),
        (MetricKind::Gauge | MetricKind::Summary, Value::One(value)) => line("", value),
    }
}

fn write_labels(text: &mut String, labels: &MetricLabels) {
    if labels.is_empty() {
        return;
    }
    let mut separator = '{';
    for (name, value) in labels {
        text.push(separator);
        separator = ',';
        text.push_str(name);
        text.push_str("=\"");
        for character in value.chars() {
            match character {
                '\\' => text.push_str("\\\\"),
                '"' => text.push_str("\\\""),
                '\n' => text.push_str("\\n"),
                other => text.push(other),
            }
        }
        text.push('"');
    }
    text.push('}');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn families() -> Vec<MetricFamily> {
        vec![
            MetricFamily::new("a_build", MetricKind::Info, "Build.")
                .sample(vec![("version", "1\"2\\3\n4".to_owned())], 1.0),
            MetricFamily::new("a_passes", MetricKind::Counter, "Passes.")
                .upstream("felix_passes")
                .value(12.0),
            MetricFamily::new("a_time_seconds", MetricKind::Summary, "Time.").observed(2.0, 0.25),
            MetricFamily::new("a_nothing", MetricKind::Gauge, "Never written."),
            MetricFamily::new("a_level", MetricKind::Gauge, "Level.").samples([
                (vec![("x", "1".to_owned()), ("y", String::new())], -1.5),
                (vec![("x", "2".to_owned())], 1e6),
            ]),
        ]
    }

    #[test]
    fn openmetrics_puts_suffixes_on_samples_only() {
        assert_eq!(
            render(&families(), SampleFormat::OpenMetrics),
            "# HELP a_build Build.\n# TYPE a_build info\na_build_info{version=\"1\\\"2\\\\3\\n4\"} 1\n\
             # HELP a_passes Passes.\n# TYPE a_passes counter\na_passes_total 12\n\
             # HELP a_time_seconds Time.\n# TYPE a_time_seconds summary\n\
             a_time_seconds_count 2\na_time_seconds_sum 0.25\n\
             # HELP a_level Level.\n# TYPE a_level gauge\na_level{x=\"1\",y=\"\"} -1.5\na_level{x=\"2\"} 1000000\n\
             # EOF\n"
        );
    }

    #[test]
    fn the_older_form_names_types_by_their_samples() {
        let text = render(&families(), SampleFormat::Text);
        assert!(text.contains("# TYPE a_passes_total counter\na_passes_total 12\n"));
        assert!(text.contains("# TYPE a_build_info gauge\na_build_info{"));
        assert!(!text.contains("EOF"));
        let names = upstream(&families());
        let text = render(&names, SampleFormat::Text);
        assert_eq!(
            text,
            "# HELP felix_passes_total Passes.\n# TYPE felix_passes_total counter\nfelix_passes_total 12\n"
        );
    }

    #[test]
    fn the_form_is_the_one_that_is_accepted() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(SampleFormat::wanted(prometheus), SampleFormat::OpenMetrics);
        for accept in ["", "*/*", "text/plain", "application/openmetrics-text;q=0"] {
            assert_eq!(SampleFormat::wanted(accept), SampleFormat::Text, "{accept}");
        }
    }
}
