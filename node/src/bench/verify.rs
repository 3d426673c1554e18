//! Full verification against bare `verify_strict` of the same messages, and its memory as the chain grows.
//!
//! Full is what an entry from a peer goes through: decode, canonical form, schema, sha-256, key, signature, links,
//! authority, epoch. Bare is the library's `verify_strict` over the same signed bytes with the keys parsed before.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::hint::black_box;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use throughline_protocol::block::Decoded;
use throughline_protocol::code::Code;
use throughline_protocol::entry;
use throughline_protocol::fork::Controls;
use throughline_protocol::sign::{BareKey, SIGNATURE_BYTES, VerifyingKeys};
use throughline_protocol::verify::{Collect, Prechecked, Pushed, Verifier};

use super::chain::{CHUNK, Chain, Record};
use super::machine::Peak;
use super::report::{Report, Samples};
use super::{Length, Plan, Subject};
use crate::api::error::{Answer, Problem};

/// Entries that the rate is measured with.
const ENTRIES: u64 = 10_000;
/// Lengths at which memory is watched.
const LENGTHS: [u64; 2] = [10_000, 100_000];
/// The length that is watched in a long run too.
const LENGTH_LONG: u64 = 1_000_000;

/// Measures.
pub(super) fn run(plan: Plan) -> Answer<Report> {
    let entries = plan.count.unwrap_or(ENTRIES).max(1);
    let lengths: Vec<u64> = match plan.length {
        Length::Usual => LENGTHS.to_vec(),
        Length::Long => LENGTHS.into_iter().chain([LENGTH_LONG]).collect(),
    };
    let longest = lengths.iter().copied().fold(entries, u64::max);
    let chain = Chain::write(longest, entries)?;
    let mut report = Report::of(Subject::Verify);
    report.fact("entries", entries);
    memory(&chain, &lengths, &mut report)?;
    rates(&chain, entries, plan.rounds, &mut report)?;
    Ok(report)
}

fn memory(chain: &Chain, lengths: &[u64], report: &mut Report) -> Answer<()> {
    let mut first = None;
    for &length in lengths {
        let mut peak = Peak::default();
        let source = chain.stream(length)?.inspect(|_| peak.sample());
        verify(source, chain.controls(), 2)?;
        let Some(bytes) = peak.0 else { continue };
        let mib = mib(bytes);
        let mut samples = Samples::new();
        samples.push(mib);
        report.figure(format!("peak memory, streaming {length} entries"), "MiB", samples);
        let mut growth = Samples::new();
        growth.push(mib / *first.get_or_insert(mib));
        if length != lengths[0] {
            report.ratio(format!("memory, {length} entries over {}", lengths[0]), "1 (flat)", growth);
        }
    }
    Ok(())
}

fn rates(chain: &Chain, entries: u64, rounds: u32, report: &mut Report) -> Answer<()> {
    let with_payloads = chain.records(entries)?;
    let records: Vec<Record> =
        with_payloads.iter().map(|record| Record { entry: record.entry.clone(), payload: None }).collect();
    let bare = Bare::of(&records)?;
    let bytes: usize = records.iter().map(|record| record.entry.len()).sum();
    report.fact("entryBytesMean", bytes / records.len().max(1));
    let mut times = [(); 4].map(|()| Samples::new());
    for _ in 0..rounds {
        let round = [
            bare.verify()?,
            full(&records, chain.controls(), 1)?,
            full(&records, chain.controls(), 2)?,
            full(&with_payloads, chain.controls(), 1)?,
        ];
        for (samples, time) in times.iter_mut().zip(round) {
            samples.push(rate(records.len(), time));
        }
    }
    let [bare, one, two, payloads] = times;
    report.ratio("full on one core over bare verify_strict", "≥ 0.85", one.over(&bare));
    report.ratio("full on two threads over full on one", "≥ 1.8", two.over(&one));
    report.ratio("full with payloads on one core over bare", "stated", payloads.over(&bare));
    report.figure("bare verify_strict, one core", "entries/s", bare);
    report.figure("full verification, one core", "entries/s", one);
    report.figure("full verification, two threads", "entries/s", two);
    report.figure("full verification with payloads, one core", "entries/s", payloads);
    Ok(())
}

fn full(records: &[Record], controls: &Controls, threads: usize) -> Answer<Duration> {
    let began = Instant::now();
    verify(records.chunks(CHUNK).map(|chunk| Ok(chunk.to_vec())), controls, threads)?;
    Ok(began.elapsed())
}

/// Verifies all that `source` gives with this many threads: each takes a chunk, checks what needs no order, and puts it
/// in its place in the chain.
fn verify(
    source: impl Iterator<Item = Answer<Vec<Record>>> + Send,
    controls: &Controls,
    threads: usize,
) -> Answer<()> {
    let source = Mutex::new(source.enumerate());
    let order = Mutex::new(Ordered {
        verifier: Verifier::begin(controls.clone()).collecting(Collect::Nothing),
        next: 0,
        waiting: BTreeMap::new(),
    });
    let work = || -> Answer<()> {
        let mut keys = VerifyingKeys::default();
        loop {
            let taken = source.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((number, chunk)) = taken else { return Ok(()) };
            let checked: Result<Vec<Prechecked>, _> = chunk?
                .into_iter()
                .map(|record| Prechecked::check(record.entry, record.payload, &mut keys))
                .collect();
            order.lock().unwrap_or_else(PoisonError::into_inner).link(number, checked?)?;
        }
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        running.into_iter().try_for_each(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| Err(Problem::new(Code::Internal, "a thread of the bench ended early")))
        })
    })
}

/// The chain, and chunks that came before their turn; there are never more of them than a thread's head start.
struct Ordered {
    verifier: Verifier,
    next: usize,
    waiting: BTreeMap<usize, Vec<Prechecked>>,
}

impl Ordered {
    fn link(&mut self, number: usize, checked: Vec<Prechecked>) -> Answer<()> {
        self.waiting.insert(number, checked);
        while let Some(chunk) = self.waiting.remove(&self.next) {
            self.next += 1;
            for entry in chunk {
                let Pushed::Linked(..) = self.verifier.link(entry)? else {
                    return Err(Problem::new(Code::Internal, "an entry of the bench's chain was not linked"));
                };
            }
        }
        Ok(())
    }
}

/// Messages with their signatures, ready for the library.
pub(super) struct Bare {
    keys: Vec<BareKey>,
    messages: Vec<(usize, Vec<u8>, [u8; SIGNATURE_BYTES])>,
}

impl Bare {
    /// Those of these entries.
    pub(super) fn of(records: &[Record]) -> Answer<Self> {
        let mut bare = Bare { keys: Vec::new(), messages: Vec::with_capacity(records.len()) };
        let mut known = BTreeMap::new();
        for record in records {
            let decoded = Decoded::<entry::Entry>::decode(record.entry.clone())?;
            let signer = decoded.value().signer;
            let at = match known.entry(signer) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(new) => {
                    bare.keys.push(BareKey::new(&signer).ok_or(Code::KeyPoint)?);
                    *new.insert(bare.keys.len() - 1)
                }
            };
            let field = decoded.signature();
            let mut message = record.entry.to_vec();
            message[field.offset..field.offset + SIGNATURE_BYTES].fill(0);
            bare.messages.push((at, message, field.signature));
        }
        Ok(bare)
    }

    /// Verifies each with the library alone, on one core.
    pub(super) fn verify(&self) -> Answer<Duration> {
        self.verify_on(1)
    }

    /// The same, shared out among this many threads.
    pub(super) fn verify_on(&self, threads: usize) -> Answer<Duration> {
        let share = self.messages.len().div_ceil(threads.max(1)).max(1);
        let is_good = |part: &[(usize, Vec<u8>, [u8; SIGNATURE_BYTES])]| {
            part.iter()
                .all(|(key, message, signature)| self.keys[*key].verify_strict(black_box(message), signature))
        };
        let began = Instant::now();
        let all = std::thread::scope(|scope| {
            let parts = self.messages.chunks(share);
            let running: Vec<_> = parts.map(|part| scope.spawn(move || is_good(part))).collect();
            running.into_iter().all(|thread| thread.join().unwrap_or(false))
        });
        let elapsed = began.elapsed();
        if all { Ok(elapsed) } else { Err(Code::Sig.into()) }
    }
}

/// How many a second.
pub(super) fn rate(count: usize, time: Duration) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX)) / time.as_secs_f64()
}

/// Bytes as MiB.
pub(super) fn mib(bytes: u64) -> f64 {
    f64::from(u32::try_from(bytes / 1_024).unwrap_or(u32::MAX)) / 1_024.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_linked_in_order_whatever_thread_was_first() {
        let chain = Chain::write(1_000, 0).unwrap();
        let records = chain.records(1_000).unwrap();
        for threads in [1, 2, 5] {
            full(&records, chain.controls(), threads).unwrap();
        }
        Bare::of(&records).unwrap().verify().unwrap();
        Bare::of(&records).unwrap().verify_on(3).unwrap();
    }

    #[test]
    fn a_damaged_entry_ends_the_bench() {
        let chain = Chain::write(600, 0).unwrap();
        let mut records = chain.records(600).unwrap();
        let mut bytes = records[400].entry.to_vec();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        records[400].entry = bytes.into();
        assert!(full(&records, chain.controls(), 2).is_err());
    }
}
