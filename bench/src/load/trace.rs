//! Request traces in the column layouts of the public ones, so that a user can bring one: a time of arrival,
//! the tokens of the prompt and the tokens of the answer.
//!
//! Known by their headers: Azure's (`TIMESTAMP,ContextTokens,GeneratedTokens`, a date and time) and BurstGPT's
//! (`Timestamp,Model,Request tokens,Response tokens,…`, seconds). Other columns are ignored. Neither layout
//! quotes fields. Rows whose answer is empty are failures of the traced service; they are counted, not sent. Rows that
//! are not in the order of their times are put into it, since services log a request when it ends; how many were is said.

use anyhow::{Context, Result, bail, ensure};

/// One row.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Row {
    pub at_s: f64,
    pub prompt_tokens: u32,
    pub answer_tokens: u32,
}

/// A trace in the order of its arrivals.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Trace {
    pub rows: Vec<Row>,
    /// Rows without an answer.
    pub skipped: usize,
    /// Lines, from 1, whose time is before that of a row above them: they were put in their place.
    pub earlier: Vec<usize>,
}

impl Trace {
    /// Reads CSV text.
    ///
    /// # Errors
    /// When the header is of neither layout, or a row does not fit it; the line is named.
    pub fn parse(text: &str) -> Result<Self> {
        let mut lines = text
            .lines()
            .enumerate()
            .filter(|(_, l)| !l.trim().is_empty());
        let (_, header) = lines.next().context("the trace is empty")?;
        let columns = Columns::find(header)?;
        let mut trace = Self::default();
        let mut latest_s = f64::NEG_INFINITY;
        for (i, line) in lines {
            let row = columns
                .read(line)
                .with_context(|| format!("line {}: {line:?}", i + 1))?;
            if row.answer_tokens == 0 {
                trace.skipped += 1;
            } else {
                trace.rows.push(row);
            }
            if row.at_s < latest_s {
                trace.earlier.push(i + 1);
            }
            latest_s = latest_s.max(row.at_s);
        }
        ensure!(!trace.rows.is_empty(), "the trace has no usable row");
        trace.rows.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
        Ok(trace)
    }

    /// What was done with it that its file does not show.
    pub fn remarks(&self) -> Vec<String> {
        let skipped = (self.skipped > 0).then(|| {
            let n = self.skipped;
            format!("rows without an answer, which are not sent: {n}")
        });
        let earlier = self.earlier.first().map(|first| {
            let n = self.earlier.len();
            format!("rows that are earlier than one above them, put in their place: {n}, the first on line {first}")
        });
        skipped.into_iter().chain(earlier).collect()
    }

    /// Requests per second from the first row to the last.
    pub fn rate(&self) -> f64 {
        let (Some(first), Some(last)) = (self.rows.first(), self.rows.last()) else {
            return 0.0;
        };
        (self.rows.len() - 1) as f64 / (last.at_s - first.at_s)
    }
}

/// Where the three columns are.
struct Columns {
    at: usize,
    prompt: usize,
    answer: usize,
}

impl Columns {
    fn find(header: &str) -> Result<Self> {
        let names: Vec<String> = header
            .trim_start_matches('\u{feff}')
            .split(',')
            .map(|n| n.trim().to_ascii_lowercase().replace([' ', '_'], ""))
            .collect();
        let position = |wanted: &[&str]| names.iter().position(|n| wanted.contains(&n.as_str()));
        match (
            position(&["timestamp"]),
            position(&["contexttokens", "requesttokens"]),
            position(&["generatedtokens", "responsetokens"]),
        ) {
            (Some(at), Some(prompt), Some(answer)) => Ok(Self { at, prompt, answer }),
            _ => bail!(
                "neither TIMESTAMP,ContextTokens,GeneratedTokens nor Timestamp,…,Request tokens,Response tokens: \
                 {header:?}"
            ),
        }
    }

    fn read(&self, line: &str) -> Result<Row> {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let field = |i: usize| fields.get(i).copied().context("a column is missing");
        Ok(Row {
            at_s: seconds(field(self.at)?)?,
            prompt_tokens: field(self.prompt)?
                .parse()
                .context("tokens of the prompt")?,
            answer_tokens: field(self.answer)?
                .parse()
                .context("tokens of the answer")?,
        })
    }
}

/// A number of seconds, or a date and time whose offset from UTC, if any, is left out: only differences count.
fn seconds(text: &str) -> Result<f64> {
    if let Ok(number) = text.parse::<f64>() {
        ensure!(number.is_finite(), "no time: {text:?}");
        return Ok(number);
    }
    let (date, clock) = text
        .split_once([' ', 'T'])
        .with_context(|| format!("no time: {text:?}"))?;
    let clock = clock.split(['+', 'Z', '-']).next().unwrap_or(clock);
    let numbers = |text: &str, by: char| -> Result<Vec<f64>> {
        text.split(by)
            .map(|n| n.parse().with_context(|| format!("no time: {text:?}")))
            .collect()
    };
    let (date, clock) = (numbers(date, '-')?, numbers(clock, ':')?);
    match (date.as_slice(), clock.as_slice()) {
        ([year, month, day], [h, m, s]) => {
            Ok(days(*year, *month, *day) * 86_400.0 + h * 3600.0 + m * 60.0 + s)
        }
        _ => bail!("no time: {text:?}"),
    }
}

/// Days from a fixed day, in the Gregorian calendar with the year beginning in March.
fn days(year: f64, month: f64, day: f64) -> f64 {
    let year = if month <= 2.0 { year - 1.0 } else { year };
    let month = (month + 9.0) % 12.0;
    let leaps = (year / 4.0).floor() - (year / 100.0).floor() + (year / 400.0).floor();
    year * 365.0 + leaps + ((month * 153.0 + 2.0) / 5.0).floor() + day
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_azure_layout_is_read() {
        let text = "TIMESTAMP,ContextTokens,GeneratedTokens\n\
                    2023-11-16 18:17:03.9799600,4808,10\n\
                    2023-11-16 18:17:04.0319600,110,27\n";
        let trace = Trace::parse(text).unwrap();
        assert_eq!(trace.rows.len(), 2);
        assert_eq!(trace.remarks(), [""; 0]);
        assert_eq!(
            (trace.rows[0].prompt_tokens, trace.rows[1].answer_tokens),
            (4808, 27)
        );
        assert!((trace.rows[1].at_s - trace.rows[0].at_s - 0.052).abs() < 1e-4);
        assert!((trace.rate() - 1.0 / 0.052).abs() < 0.1);
    }

    #[test]
    fn the_burstgpt_layout_is_read_and_failures_are_counted() {
        let text = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n\
                    45,ChatGPT,391,18,409,Conversation log\n\
                    5,ChatGPT,472,18,490,Conversation log\n\
                    118,GPT-4,1087,0,1087,API log\n";
        let trace = Trace::parse(text).unwrap();
        assert_eq!(trace.skipped, 1);
        // In the order of arrival, whatever the order of the file, and not in silence.
        assert_eq!(trace.earlier, [3]);
        let [skipped, earlier] = &trace.remarks()[..] else {
            panic!("{:?}", trace.remarks());
        };
        assert!(skipped.ends_with(": 1") && earlier.ends_with(": 1, the first on line 3"));
        assert_eq!(
            trace.rows[0],
            Row {
                at_s: 5.0,
                prompt_tokens: 472,
                answer_tokens: 18
            }
        );
    }

    #[test]
    fn times_may_have_an_offset_and_cross_a_month() {
        let day = 86_400.0;
        let at = |t: &str| seconds(t).unwrap();
        assert_eq!(
            at("2024-03-01 00:00:00+00:00") - at("2024-02-28 00:00:00+00:00"),
            2.0 * day
        );
        assert_eq!(at("2024-01-01T00:00:00Z") - at("2023-12-31T00:00:00Z"), day);
        assert_eq!(
            at("2024-05-10 01:01:01.5") - at("2024-05-10 00:00:00"),
            3661.5
        );
    }

    #[test]
    fn what_is_no_trace_is_refused_with_its_line() {
        assert!(Trace::parse("").is_err());
        assert!(Trace::parse("a,b,c\n1,2,3\n").is_err());
        let error =
            Trace::parse("TIMESTAMP,ContextTokens,GeneratedTokens\n1,2,3\n1,x,3\n").unwrap_err();
        assert!(format!("{error:#}").contains("line 3"), "{error:#}");
    }
}
