//! Server-sent events, one at a time.

use std::io::{BufRead as _, BufReader};
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::LIMIT;
use crate::http::Body;

/// One event.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Event {
    /// What to give as `Last-Event-ID` to go on after it.
    pub id: String,
    /// Its kind.
    pub kind: String,
    /// What it says.
    pub data: Value,
}

/// A stream of events. Dropping it cuts the connection.
pub struct Events {
    lines: BufReader<Body>,
}

impl Events {
    pub(crate) fn new(body: Body) -> Self {
        Events { lines: BufReader::new(body) }
    }

    /// The next event of one of these kinds; others are passed over.
    ///
    /// # Errors
    /// When the stream ends or none comes within [`LIMIT`]; says which event was the last.
    pub fn next_of(&mut self, kinds: &[&str]) -> Result<Event> {
        self.find(&format!("an event of {kinds:?}"), |event| kinds.contains(&event.kind.as_str()))
    }

    /// The next event that `wanted` accepts; `what` says in words what is waited for.
    ///
    /// # Errors
    /// As [`Events::next_of`].
    pub fn find(&mut self, what: &str, wanted: impl Fn(&Event) -> bool) -> Result<Event> {
        let began = Instant::now();
        let mut last = None;
        loop {
            let event =
                self.next(began).with_context(|| format!("waiting for {what}; the last event: {last:?}"))?;
            if wanted(&event) {
                return Ok(event);
            }
            last = Some(event);
        }
    }

    fn next(&mut self, began: Instant) -> Result<Event> {
        let mut event = Event::default();
        let mut data = String::new();
        loop {
            ensure!(began.elapsed() < LIMIT, "not within {LIMIT:?}");
            let mut line = String::new();
            if self.lines.read_line(&mut line).context("reading events")? == 0 {
                bail!("the stream of events ended");
            }
            let line = line.trim_end_matches(['\r', '\n']);
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "" if line.is_empty() && !data.is_empty() => {
                    event.data = serde_json::from_str(&data).with_context(|| format!("not JSON: {data}"))?;
                    return Ok(event);
                }
                "id" => event.id = value.to_owned(),
                "event" => event.kind = value.to_owned(),
                "data" => data.push_str(value),
                // Comments keep the connection open; other fields are not ours.
                _ => {}
            }
        }
    }
}
