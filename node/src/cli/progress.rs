//! How long work comes along, on stderr: a bar on a terminal, plain lines elsewhere, NDJSON on demand.
//!
//! A bar is drawn only after half a second, so quick work draws none. Lines come at the start, every ten seconds and
//! at the end.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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

/// When nothing has moved for so long, that is said instead of when it ends.
const STALLED_AFTER: Duration = Duration::from_secs(8);

/// What is known of the work. Where entries are counted, bytes are told beside them and have no total.
#[derive(Debug, Default)]
struct Counters {
    done_bytes: AtomicU64,
    total_bytes: AtomicU64,
    done_entries: AtomicU64,
    total_entries: AtomicU64,
    done_blocks: AtomicU64,
    total_blocks: AtomicU64,
    /// Whether entries are what is counted.
    in_entries: AtomicBool,
}

/// What work is counted in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Unit {
    #[default]
    Bytes,
    Entries,
}

/// Work that is under way; it ends when this is dropped.
pub(crate) struct Progress {
    counters: Arc<Counters>,
    watcher: Option<(mpsc::Sender<()>, JoinHandle<()>)>,
}

/// How far a transfer of entries is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entries {
    /// Entries that are done.
    pub(crate) done: u64,
    /// Entries in all; 0 while that is not known.
    pub(crate) total: u64,
    /// Bytes that came.
    pub(crate) bytes: u64,
    /// Blocks of files that came after the entries.
    pub(crate) blocks: u64,
    /// Blocks of files that were asked for.
    pub(crate) blocks_total: u64,
}

/// Counts what is done of one piece of work, from any thread.
#[derive(Clone)]
pub(crate) struct Counter(Arc<Counters>);

impl Counter {
    /// So many bytes more were done.
    pub(crate) fn add(&self, bytes: u64) {
        self.0.done_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// This much is done by now, of work that is counted in entries.
    pub(crate) fn entries(&self, now: Entries) {
        let set = |counter: &AtomicU64, value| counter.store(value, Ordering::Relaxed);
        set(&self.0.done_entries, now.done);
        set(&self.0.total_entries, now.total);
        set(&self.0.done_bytes, now.bytes);
        set(&self.0.done_blocks, now.blocks);
        set(&self.0.total_blocks, now.blocks_total);
        self.0.in_entries.store(true, Ordering::Relaxed);
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Moment {
    done_bytes: u64,
    total_bytes: u64,
    unit: Unit,
    entries: Entries,
    elapsed: Duration,
    /// How long nothing has moved.
    still: Duration,
}

/// Looks at counters again and again, and notices when they stand still.
struct Watch<'c> {
    counters: &'c Counters,
    since: Instant,
    last: Moment,
    moved: Instant,
}

impl<'c> Watch<'c> {
    fn new(counters: &'c Counters) -> Self {
        let since = Instant::now();
        Watch { counters, since, last: Moment::default(), moved: since }
    }

    fn look(&mut self) -> Moment {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = self.counters;
        let entries = Entries {
            done: of(&counters.done_entries),
            total: of(&counters.total_entries),
            bytes: of(&counters.done_bytes),
            blocks: of(&counters.done_blocks),
            blocks_total: of(&counters.total_blocks),
        };
        let done_bytes = of(&counters.done_bytes);
        if (entries, done_bytes) != (self.last.entries, self.last.done_bytes) {
            self.moved = Instant::now();
        }
        self.last = Moment {
            done_bytes,
            total_bytes: of(&counters.total_bytes),
            unit: if counters.in_entries.load(Ordering::Relaxed) { Unit::Entries } else { Unit::Bytes },
            entries,
            elapsed: self.since.elapsed(),
            still: self.moved.elapsed(),
        };
        self.last
    }
}

impl Moment {
    /// Done and total, in what the work is counted in; a total of 0 is not known.
    fn course(self) -> (u64, u64) {
        match self.unit {
            Unit::Bytes => (self.done_bytes, self.total_bytes),
            Unit::Entries => (self.entries.done, self.entries.total),
        }
    }

    /// When it ends at the rate so far; not before the rate means something, and not while nothing moves.
    fn eta_ms(self) -> Option<u64> {
        let (done, total) = self.course();
        let left = total.checked_sub(done)?;
        if self.elapsed < ETA_AFTER || self.still >= STALLED_AFTER || done == 0 || left == 0 {
            return None;
        }
        let ms = u128::from(left) * self.elapsed.as_millis() / u128::from(done);
        u64::try_from(ms).ok()
    }

    /// How much of how much, in words; empty before anything is known.
    fn amount(self) -> String {
        let (entries, came) = (self.entries, format::bytes(self.done_bytes));
        let mut words = match (self.unit, self.course()) {
            (Unit::Bytes, (0, 0)) => String::new(),
            (Unit::Bytes, (_, 0)) => came,
            (Unit::Bytes, (_, total)) => format!("{came} of {}", format::bytes(total)),
            (Unit::Entries, (done, 0)) => format!("{}, {came}", format::count(done, "entry", "entries")),
            (Unit::Entries, (done, total)) => {
                format!("{done} of {}, {came}", format::count(total, "entry", "entries"))
            }
        };
        if entries.blocks_total > 0 {
            words.push_str(&format!(", {} of {} blocks", entries.blocks, entries.blocks_total));
        }
        words
    }

    /// That nothing comes any more, once it has not for long enough. Work that counts nothing is never said to stand still.
    fn stalled(self) -> Option<String> {
        if self.unit == Unit::Bytes && self.done_bytes == 0 {
            return None;
        }
        let still = format::elapsed(format::millis(self.still));
        (self.still >= STALLED_AFTER).then(|| format!("stalled: nothing moved for {still}"))
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
    let amount = moment.amount();
    let amount = if amount.is_empty() { amount } else { format!(", {amount}") };
    match (course, moment.stalled()) {
        (Course::Begins, _) => format!("{phase}: begins"),
        (Course::Goes, Some(stalled)) => format!("{phase}: {took}{amount}, {stalled}"),
        (Course::Goes, None) => format!("{phase}: {took}{amount}"),
        (Course::Ends, _) => format!("{phase}: ended after {took}{amount}"),
    }
}

fn object(phase: &str, course: Course, moment: Moment) -> String {
    let (done, total) = moment.course();
    let mut object = json!({
        "kind": "progress", "phase": phase, "done": done, "total": (total > 0).then_some(total),
        "bytes": moment.done_bytes, "elapsedMs": format::millis(moment.elapsed), "etaMs": moment.eta_ms(),
        "ended": course == Course::Ends,
    });
    if moment.entries.blocks_total > 0 {
        object["blocks"] = moment.entries.blocks.into();
        object["blocksTotal"] = moment.entries.blocks_total.into();
    }
    if let (Course::Goes, Some(_)) = (course, moment.stalled()) {
        object["stalledMs"] = format::millis(moment.still).into();
    }
    object.to_string()
}

/// Writes a line at the start, one every `every`, and one at the end.
fn lines(
    phase: &str,
    counters: &Counters,
    stopped: &mpsc::Receiver<()>,
    every: Duration,
    write: fn(&str, Course, Moment) -> String,
) {
    let mut watch = Watch::new(counters);
    let mut say = |course| {
        let _ = writeln!(io::stderr().lock(), "{}", write(phase, course, watch.look()));
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
    bar.set_style(style("{spinner} {msg} {elapsed} {prefix}"));
    let mut watch = Watch::new(counters);
    while stopped.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
        let moment = watch.look();
        let (done, total) = moment.course();
        if total > 0 && bar.length() != Some(total) {
            bar.set_length(total);
            bar.set_style(style("{msg} [{bar:30}] {prefix}"));
        }
        bar.set_position(done);
        let end = moment.eta_ms().map(|ms| format!("{} left", format::elapsed(ms)));
        let end = moment.stalled().or(end).map_or_else(String::new, |end| format!(", {end}"));
        bar.set_prefix(format!("{}{end}", moment.amount()));
        bar.tick();
    }
    bar.finish_and_clear();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(done_bytes: u64, total_bytes: u64, seconds: u64) -> Moment {
        Moment { done_bytes, total_bytes, elapsed: Duration::from_secs(seconds), ..Moment::default() }
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

    #[test]
    fn entries_are_counted_with_their_bytes_beside_them() {
        let entries = Entries { done: 1_200, total: 5_800, bytes: 3 << 20, blocks: 0, blocks_total: 0 };
        let moment = Moment { done_bytes: 3 << 20, unit: Unit::Entries, entries, ..moment(0, 0, 12) };
        assert_eq!(sentence("fetch", Course::Goes, moment), "fetch: 12.0 s, 1200 of 5800 entries, 3.0 MiB");
        assert_eq!(moment.eta_ms(), Some(46_000));
        let value: serde_json::Value = serde_json::from_str(&object("fetch", Course::Goes, moment)).unwrap();
        assert_eq!(
            (&value["done"], &value["total"], &value["bytes"]),
            (&json!(1_200), &json!(5_800), &json!(3 << 20))
        );
    }

    #[test]
    fn a_stall_is_named_instead_of_an_end_that_moves_away() {
        let entries = Entries { done: 5, total: 10, bytes: 1024, blocks: 1, blocks_total: 4 };
        let still = Duration::from_secs(9);
        let moment = Moment { done_bytes: 1024, unit: Unit::Entries, entries, still, ..moment(0, 0, 30) };
        assert_eq!(moment.eta_ms(), None);
        assert_eq!(
            sentence("audit", Course::Goes, moment),
            "audit: 30.0 s, 5 of 10 entries, 1.0 KiB, 1 of 4 blocks, stalled: nothing moved for 9.0 s"
        );
    }

    #[test]
    fn work_that_counts_nothing_is_not_stalled() {
        let still = Duration::from_secs(20);
        let silent = Moment { still, ..moment(0, 0, 20) };
        assert_eq!(sentence("bench", Course::Goes, silent), "bench: 20.0 s");
    }

    #[test]
    fn what_moves_is_not_stalled() {
        let counters = Arc::new(Counters::default());
        let mut watch = Watch::new(&counters);
        watch.look();
        let before = watch.moved;
        Counter(Arc::clone(&counters)).entries(Entries { done: 1, ..Entries::default() });
        watch.look();
        assert!(watch.moved >= before);
        let moved = watch.moved;
        watch.look();
        assert_eq!(watch.moved, moved);
    }
}
