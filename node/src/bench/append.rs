//! Durable appends of concurrent writers: signed, verified, and answered after their commit.
//!
//! [`Writers`] is one node in a temporary home and a session a writer. The baseline here is the least that a durable
//! log can cost on this disk: the same bytes in one file, `fdatasync` before any answer, group commit.
//! `tests/benches/append.rs` runs the same writers against SQLite and redb, which this program does not link for that.

use std::fs::File;
use std::io::Write as _;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use throughline_protocol::code::Code;
use throughline_protocol::control::Role;
use throughline_protocol::id::{EntryCid, Seq, SessionId};
use throughline_store::PayloadState;

use super::home::{self, Home, Owner, on_disk};
use super::report::{Report, Samples};
use super::verify::rate;
use super::{Plan, Subject, words};
use crate::api::error::{Answer, Problem};
use crate::core::Node;

/// Writers at a time.
pub const WRITERS: usize = 8;
/// Entries that each writer appends in a round.
const ENTRIES: u64 = 250;
/// Text of a message, in bytes.
const MESSAGE_BYTES: usize = 400;

/// A node and a session for each writer.
pub struct Writers {
    node: Node,
    sessions: Vec<(SessionId, EntryCid)>,
    written: u64,
    // After the node: it must let the directory go first.
    _home: Home,
}

/// One round of appends.
#[derive(Clone, Debug)]
pub struct Round {
    /// How long all writers together took.
    pub elapsed: Duration,
    /// What each writer appended: entry and payload, one after the other.
    pub rows: Vec<Vec<Vec<u8>>>,
}

impl Writers {
    /// A new node, and a session with one entry for each of `writers`.
    ///
    /// # Errors
    /// When the temporary home cannot be made.
    pub fn new(writers: usize) -> Answer<Self> {
        let owner = Owner::new()?;
        let home = Home::new(&owner)?;
        let node = home.open()?;
        node.take_controls(vec![owner.grant(home.principal(), Role::Writer)?])?;
        let sessions = (0..writers)
            .map(|writer| home::begin(&node, words::message(writer as u64, MESSAGE_BYTES)))
            .collect::<Answer<_>>()?;
        Ok(Writers { node, sessions, written: 0, _home: home })
    }

    /// Lets every writer append `entries` entries one by one, all at a time, and waits for the last.
    ///
    /// # Errors
    /// When an append is refused.
    pub fn append(&mut self, entries: u64) -> Answer<Round> {
        let (node, first) = (&self.node, self.written);
        let began = Instant::now();
        let heads: Vec<Answer<EntryCid>> = std::thread::scope(|scope| {
            let write = |&(session, head): &(SessionId, EntryCid)| {
                scope.spawn(move || {
                    (first..first + entries).try_fold(head, |base, number| {
                        home::append(node, session, base, vec![words::message(number, MESSAGE_BYTES)])
                    })
                })
            };
            let running: Vec<_> = self.sessions.iter().map(write).collect();
            let ended = |_| Err(Problem::new(Code::Internal, "a writer of the bench ended early"));
            running.into_iter().map(|thread| thread.join().unwrap_or_else(ended)).collect()
        });
        let elapsed = began.elapsed();
        for (session, head) in self.sessions.iter_mut().zip(heads) {
            session.1 = head?;
        }
        self.written += entries;
        let rows =
            self.sessions.iter().map(|(session, _)| self.rows(*session, entries)).collect::<Answer<_>>()?;
        Ok(Round { elapsed, rows })
    }

    /// The bytes of a session's last entries with their payloads.
    fn rows(&self, session: SessionId, entries: u64) -> Answer<Vec<Vec<u8>>> {
        let reader = self.node.reader()?;
        let tip = reader.session(session)?.map_or(Seq::ZERO, |row| row.tip.seq);
        let first = Seq::new((tip.get() + 1).saturating_sub(entries))?;
        reader
            .entries(session, first, tip)?
            .map(|stored| {
                let stored = stored?;
                let mut row = stored.bytes;
                if let Some(cid) = stored.payload
                    && let PayloadState::Present(payload) = reader.payload(cid)?
                {
                    row.extend(payload);
                }
                Ok(row)
            })
            .collect()
    }
}

/// Measures.
pub(super) fn run(plan: Plan) -> Answer<Report> {
    let entries = plan.count.unwrap_or(ENTRIES).max(1);
    let mut writers = Writers::new(WRITERS)?;
    let mut alone = Writers::new(1)?;
    let mut report = Report::of(Subject::Append);
    report.fact("writers", WRITERS);
    report.fact("entriesPerWriter", entries);
    let mut times = [(); 3].map(|()| Samples::new());
    let mut row_bytes = 0;
    for _ in 0..plan.rounds {
        let round = writers.append(entries)?;
        let count: usize = round.rows.iter().map(Vec::len).sum();
        row_bytes = round.rows.iter().flatten().map(Vec::len).sum::<usize>() / count.max(1);
        times[0].push(rate(count, round.elapsed));
        times[1].push(rate(count, log(&round.rows)?));
        let round = alone.append(entries)?;
        times[2].push(rate(round.rows[0].len(), round.elapsed));
    }
    report.fact("rowBytesMean", row_bytes);
    let [node, log, alone] = times;
    report.ratio("8 writers over a bare log with fdatasync", "stated", node.over(&log));
    report.ratio("8 writers over 1 writer", "stated", node.over(&alone));
    report.figure("durable appends, 8 writers, signed and verified", "entries/s", node);
    report.figure("bare log, 8 writers, group commit, fdatasync", "rows/s", log);
    report.figure("durable appends, 1 writer, signed and verified", "entries/s", alone);
    Ok(report)
}

/// A row on its way into the log, and where its writer waits.
struct Append<'a> {
    row: &'a [u8],
    done: SyncSender<()>,
}

/// Writes the same rows from as many writers into one file; each waits until its row is on the disk.
fn log(rows: &[Vec<Vec<u8>>]) -> Answer<Duration> {
    let mut file = tempfile::tempfile().map_err(|error| on_disk(&error))?;
    let (queue, waiting) = sync_channel(1_024);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let disk = scope.spawn(move || commit(&mut file, &waiting));
        for rows in rows {
            let queue = queue.clone();
            scope.spawn(move || {
                let (done, answer) = sync_channel(1);
                for row in rows {
                    // Either end is gone only when the disk refused, which its thread tells.
                    if queue.send(Append { row, done: done.clone() }).is_err() || answer.recv().is_err() {
                        return;
                    }
                }
            });
        }
        drop(queue);
        disk.join()
            .map_or_else(|_| Err(Code::Internal.into()), |written| written.map_err(|error| on_disk(&error)))
    })?;
    Ok(began.elapsed())
}

fn commit(file: &mut File, waiting: &Receiver<Append<'_>>) -> std::io::Result<()> {
    while let Ok(first) = waiting.recv() {
        let mut batch = vec![first];
        batch.extend(waiting.try_iter());
        let bytes: Vec<u8> = batch.iter().flat_map(|append| append.row).copied().collect();
        file.write_all(&bytes)?;
        file.sync_data()?;
        for append in batch {
            // A writer that is gone needs no answer.
            let _ = append.done.send(());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_writer_s_rows_come_back() {
        let mut writers = Writers::new(3).unwrap();
        writers.append(2).unwrap();
        let round = writers.append(4).unwrap();
        assert_eq!(round.rows.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4, 4]);
        assert!(round.rows.iter().flatten().all(|row| row.len() > 2 * MESSAGE_BYTES));
        log(&round.rows).unwrap();
    }
}
