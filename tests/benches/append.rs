//! Durable appends of a node against databases that store the same bytes as plain rows, in one run.
//!
//! `cargo bench -p throughline-tests --bench append [-- --rounds R --entries N]` prints one JSON object. In each round 8
//! writers append to 8 sessions of a node, every entry signed, verified and answered after its commit; then the same bytes
//! go, again from 8 writers, into
//!
//! - SQLite, WAL, `synchronous=FULL`, a single-row insert each: over one connection that the writers share, and over a
//!   connection for each writer;
//! - redb with group commit: what the store is built on, without anything that a session needs.
//!
//! Without `--bench`, as `cargo test --benches` runs it, it only shows that it works.

use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use redb::{Database, ReadableDatabase as _, ReadableTableMetadata as _, TableDefinition};
use rusqlite::Connection;
use serde_json::{Value, json};
use throughline_node::bench::Samples;
use throughline_node::bench::append::{WRITERS, Writers};

/// What each writer writes.
type Rows = Vec<Vec<Vec<u8>>>;

const INSERT: &str = "INSERT INTO rows (writer, number, bytes) VALUES (?1, ?2, ?3)";
const TABLE: TableDefinition<'static, (u64, u64), &[u8]> = TableDefinition::new("rows");

fn main() -> Result<()> {
    let plan = Plan::of_process()?;
    let mut writers = Writers::new(WRITERS).map_err(|problem| anyhow!("{problem}"))?;
    let mut rates = [(); 4].map(|()| Samples::new());
    for round in 0..plan.rounds {
        let appended = writers.append(plan.entries).map_err(|problem| anyhow!("{problem}"))?;
        let dir = tempfile::tempdir()?;
        let rows = &appended.rows;
        // What was measured last has the warmest disk: the order turns with the rounds.
        let mut times = [Some(appended.elapsed), None, None, None];
        for turn in 0..3 {
            let which = 1 + (turn + round) % 3;
            times[which] = Some(match which {
                1 => sqlite_shared(&dir.path().join("shared.sqlite"), rows)?,
                2 => sqlite_each(&dir.path().join("each.sqlite"), rows)?,
                _ => redb_grouped(&dir.path().join("rows.redb"), rows)?,
            });
        }
        let count = u32::try_from(rows.iter().map(Vec::len).sum::<usize>())?;
        for (samples, time) in rates.iter_mut().zip(times) {
            samples.push(f64::from(count) / time.context("a baseline was not measured")?.as_secs_f64());
        }
    }
    println!("{}", report(&plan, &rates));
    Ok(())
}

fn report(plan: &Plan, [node, shared, each, grouped]: &[Samples; 4]) -> Value {
    json!({
        "v": 1, "kind": "bench", "bench": "append-databases",
        "writers": WRITERS, "entriesPerWriter": plan.entries, "rounds": plan.rounds,
        "figures": [
            told("durable appends, 8 writers, signed and verified", node),
            told("SQLite WAL FULL, single-row inserts, one shared connection", shared),
            told("SQLite WAL FULL, single-row inserts, a connection each", each),
            told("redb, group commit, the same bytes", grouped),
        ],
        "ratios": [
            told("appends over SQLite, one shared connection", &node.over(shared)),
            told("appends over SQLite, a connection each", &node.over(each)),
            told("appends over bare redb with group commit", &node.over(grouped)),
        ],
    })
}

fn told(name: &str, samples: &Samples) -> Value {
    let (min, max) = samples.spread();
    json!({"name": name, "median": samples.median(), "min": min, "max": max})
}

struct Plan {
    rounds: usize,
    entries: u64,
}

impl Plan {
    fn of_process() -> Result<Self> {
        let words: Vec<String> = std::env::args().skip(1).collect();
        let value = |name: &str| words.iter().skip_while(|word| *word != name).nth(1);
        if !words.iter().any(|word| word == "--bench") {
            return Ok(Plan { rounds: 1, entries: 2 });
        }
        Ok(Plan {
            rounds: value("--rounds").map_or(Ok(5), |text| text.parse()).context("--rounds R")?,
            entries: value("--entries").map_or(Ok(250), |text| text.parse()).context("--entries N")?,
        })
    }
}

fn open_sqlite(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(Duration::from_secs(60))?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.execute(
        "CREATE TABLE IF NOT EXISTS rows (writer INTEGER, number INTEGER, bytes BLOB, PRIMARY KEY (writer, number))",
        [],
    )?;
    Ok(connection)
}

fn sqlite_shared(path: &Path, rows: &Rows) -> Result<Duration> {
    let connection = Mutex::new(open_sqlite(path)?);
    let elapsed = all_writers(rows, |writer, rows| {
        for (number, row) in rows.iter().enumerate() {
            let connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
            connection.prepare_cached(INSERT)?.execute((
                i64::try_from(writer)?,
                i64::try_from(number)?,
                row,
            ))?;
        }
        Ok(())
    })?;
    expect_all(rows, sqlite_count(path)?)?;
    Ok(elapsed)
}

fn sqlite_each(path: &Path, rows: &Rows) -> Result<Duration> {
    drop(open_sqlite(path)?);
    let elapsed = all_writers(rows, |writer, rows| {
        let connection = open_sqlite(path)?;
        let mut insert = connection.prepare(INSERT)?;
        for (number, row) in rows.iter().enumerate() {
            insert.execute((i64::try_from(writer)?, i64::try_from(number)?, row))?;
        }
        Ok(())
    })?;
    expect_all(rows, sqlite_count(path)?)?;
    Ok(elapsed)
}

fn sqlite_count(path: &Path) -> Result<u64> {
    let count: i64 = open_sqlite(path)?.query_row("SELECT count(*) FROM rows", [], |row| row.get(0))?;
    Ok(u64::try_from(count)?)
}

/// One thread commits whatever is queued, and answers after the commit: as the store's writer does.
fn redb_grouped(path: &Path, rows: &Rows) -> Result<Duration> {
    let database = Database::create(path)?;
    let (queue, waiting) = sync_channel::<(u64, u64, &[u8], std::sync::mpsc::SyncSender<()>)>(1_024);
    let elapsed = std::thread::scope(|scope| -> Result<Duration> {
        let committing = scope.spawn(|| -> Result<()> {
            let waiting = waiting;
            while let Ok(first) = waiting.recv() {
                let batch: Vec<_> = std::iter::once(first).chain(waiting.try_iter().take(255)).collect();
                let mut txn = database.begin_write()?;
                txn.set_quick_repair(true);
                {
                    let mut table = txn.open_table(TABLE)?;
                    for (writer, number, row, _) in &batch {
                        table.insert((*writer, *number), *row)?;
                    }
                }
                txn.commit()?;
                for (.., done) in batch {
                    done.send(())?;
                }
            }
            Ok(())
        });
        let elapsed = all_writers(rows, |writer, rows| {
            let (done, answer) = sync_channel(1);
            for (number, row) in rows.iter().enumerate() {
                let waiting = (writer, u64::try_from(number)?, row.as_slice(), done.clone());
                queue.send(waiting).map_err(|_| anyhow!("the committing thread is gone"))?;
                answer.recv()?;
            }
            Ok(())
        });
        drop(queue);
        committing.join().map_err(|_| anyhow!("the committing thread ended early"))??;
        elapsed
    })?;
    let held = database.begin_read()?.open_table(TABLE)?.len()?;
    expect_all(rows, held)?;
    Ok(elapsed)
}

/// Runs `write` for every writer at a time.
fn all_writers<'r>(
    rows: &'r Rows,
    write: impl Fn(u64, &'r [Vec<u8>]) -> Result<()> + Sync,
) -> Result<Duration> {
    let began = Instant::now();
    std::thread::scope(|scope| {
        let write = &write;
        let running: Vec<_> =
            rows.iter().zip(0..).map(|(rows, writer)| scope.spawn(move || write(writer, rows))).collect();
        running
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| anyhow!("a writer ended early"))?)
    })?;
    Ok(began.elapsed())
}

fn expect_all(rows: &Rows, held: u64) -> Result<()> {
    let expected = u64::try_from(rows.iter().map(Vec::len).sum::<usize>())?;
    anyhow::ensure!(held == expected, "expected {expected} rows, got {held}");
    Ok(())
}
