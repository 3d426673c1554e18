//! How long work comes along, on stderr: a bar on a terminal, plain lines elsewhere, NDJSON on demand.
//!
//! A bar is drawn only after half a second, so quick work draws none. Lines come at the start, every ten seconds and
//! at the end.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::format;

/// Before that nothing is drawn.
const BAR_DELAY: Duration = Duration::from_millis(500);
/// Between two looks at the counters.
const TICK: Duration = Duration::from_millis(100);
/// Between two plain lines.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// Between two objects.
const OBJECT_EVERY: Duration = Duration::from_secs(1);
/// From here on the rate is known well enough to say when it ends.
const ETA_AFTER: Duration = Duration::from_secs(2);

/// How progress is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProgressMode {
    /// A bar on a terminal, else plain lines
    Auto,
    /// Lines
    Plain,
    /// One JSON object a line
    Json,
    /// Nothing
    None,
}

/// What is known of the work.
#[derive(Debug, Default)]
struct Counters {
    done_bytes: AtomicU64,
    total_bytes: AtomicU64,
}

/// Work that is under way; it ends when this is dropped.
pub(crate) struct Progress {
    counters: Arc<Counters>,
    watcher: Option<(mpsc::Sender<()>, JoinHandle<()>)>,
}

/// Counts the bytes of one piece of work, from any thread.
#[derive(Clone)]
pub(crate) struct Counter(Arc<Counters>);

impl Counter {
    /// So many bytes more were done.
    pub(crate) fn add(&self, bytes: u64) {
        self.0.done_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Progress {
    pub(super) fn start(phase: impl Into<String>, mode: ProgressMode) -> Self {
        let phase = phase.into();
        let counters = Arc::new(Counters::default());
        let mode = match mode {
            ProgressMode::Auto if io::stderr().is_terminal() => ProgressMode::Auto,
            ProgressMode::Auto | ProgressMode::Plain => ProgressMode::Plain,
            other @ (ProgressMode::Json | ProgressMode::None) => other,
        };
        if mode == ProgressMode::None {
            return Progress { counters, watcher: None };
        }
        let (stop, stopped) = mpsc::channel();
        let seen = Arc::clone(&counters);
        let watch = move || match mode {
            ProgressMode::Auto => draw(&phase, &seen, &stopped),
            ProgressMode::Json => lines(&phase, &seen, &stopped, OBJECT_EVERY, object),
            ProgressMode::Plain | ProgressMode::None => lines(&phase, &seen, &stopped, LINE_EVERY, sentence),
        };
        // Without a thread there is no progress to see, and that is all.
        let watcher = std::thread::Builder::new().name("progress".into()).spawn(watch).ok();
        Progress { counters, watcher: watcher.map(|thread| (stop, thread)) }
    }

    /// How much there is in all.
    pub(crate) fn total(&self, bytes: u64) {
        self.counters.total_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Where to count.
    #[must_use]
    pub(crate) fn counter(&self) -> Counter {
        Counter(Arc::clone(&self.counters))
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.watcher.take() {
            drop(stop);
            let _ = thread.join();
        }
    }
}

/// What the counters say at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Moment {
    done_bytes: u64,
    total_bytes: u64,
    elapsed: Duration,
}

impl Moment {
    fn of(counters: &Counters, since: Instant) -> Self {
        Moment {
            done_bytes: counters.done_bytes.load(Ordering::Relaxed),
            total_bytes: counters.total_bytes.load(Ordering::Relaxed),
            elapsed: since.elapsed(),
        }
    }

    /// When it ends at the rate so far; not before the rate means something.
    fn eta_ms(self) -> Option<u64> {
        let left = self.total_bytes.checked_sub(self.done_bytes)?;
        if self.elapsed < ETA_AFTER || self.done_bytes == 0 || left == 0 {
            return None;
        }
        let ms = u128::from(left) * self.elapsed.as_millis() / u128::from(self.done_bytes);
        u64::try_from(ms).ok()
    }
}

/// Where in its course a line stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Course {
    Begins,
    Goes,
    Ends,
}

fn sentence(phase: &str, course: Course, moment: Moment) -> String {
    let took = format::elapsed(format::millis(moment.elapsed));
    let amount = match (moment.done_bytes, moment.total_bytes) {
        (0, 0) => String::new(),
        (done, 0) => format!(", {}", format::bytes(done)),
        (done, total) => format!(", {} of {}", format::bytes(done), format::bytes(total)),
    };
    match course {
        Course::Begins => format!("{phase}: begins"),
        Course::Goes => format!("{phase}: {took}{amount}"),
        Course::Ends => format!("{phase}: ended after {took}{amount}"),
    }
}

fn object(phase: &str, course: Course, moment: Moment) -> String {
    let total = (moment.total_bytes > 0).then_some(moment.total_bytes);
    json!({
        "kind": "progress", "phase": phase, "done": moment.done_bytes, "total": total, "bytes": moment.done_bytes,
        "elapsedMs": format::millis(moment.elapsed), "etaMs": moment.eta_ms(), "ended": course == Course::Ends,
    })
    .to_string()
}

/// Writes a line at the start, one every `every`, and one at the end.
fn lines(
    phase: &str,
    counters: &Counters,
    stopped: &mpsc::Receiver<()>,
    every: Duration,
    write: fn(&str, Course, Moment) -> String,
) {
    let since = Instant::now();
    let say = |course| {
        let _ = writeln!(io::stderr().lock(), "{}", write(phase, course, Moment::of(counters, since)));
    };
    say(Course::Begins);
    while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
        say(Course::Goes);
    }
    say(Course::Ends);
}

/// Draws a bar, or a spinner while the total is unknown, and takes it away at the end.
fn draw(phase: &str, counters: &Counters, stopped: &mpsc::Receiver<()>) {
    if stopped.recv_timeout(BAR_DELAY) != Err(RecvTimeoutError::Timeout) {
        return;
    }
    let style =
        |template| ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::no_length().with_message(phase.to_owned());
    bar.set_style(style("{spinner} {msg} {elapsed} {bytes}"));
    while stopped.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
        let total = counters.total_bytes.load(Ordering::Relaxed);
        if total > 0 && bar.length() != Some(total) {
            bar.set_length(total);
            bar.set_style(style("{msg} [{bar:30}] {bytes}/{total_bytes} {eta}"));
        }
        bar.set_position(counters.done_bytes.load(Ordering::Relaxed));
        bar.tick();
    }
    bar.finish_and_clear();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(done_bytes: u64, total_bytes: u64, seconds: u64) -> Moment {
        Moment { done_bytes, total_bytes, elapsed: Duration::from_secs(seconds) }
    }

    #[test]
    fn the_end_is_told_only_when_the_rate_is_known() {
        assert_eq!(moment(50, 100, 1).eta_ms(), None);
        assert_eq!(moment(0, 100, 9).eta_ms(), None);
        assert_eq!(moment(50, 0, 9).eta_ms(), None);
        assert_eq!(moment(25, 100, 10).eta_ms(), Some(30_000));
        assert_eq!(moment(u64::MAX - 1, u64::MAX, 10).eta_ms(), Some(0));
    }

    #[test]
    fn lines_say_how_much_of_how_much() {
        assert_eq!(sentence("import", Course::Begins, moment(0, 0, 0)), "import: begins");
        assert_eq!(
            sentence("import", Course::Goes, moment(1024, 2048, 10)),
            "import: 10.0 s, 1.0 KiB of 2.0 KiB"
        );
        let value: serde_json::Value =
            serde_json::from_str(&object("fetch", Course::Ends, moment(5, 0, 3))).unwrap();
        assert_eq!(
            (&value["phase"], &value["ended"], &value["total"]),
            (&json!("fetch"), &json!(true), &json!(null))
        );
    }
}
