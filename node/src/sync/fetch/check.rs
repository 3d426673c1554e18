//! Signatures of many entries, on all cores, in order.

use std::num::NonZeroUsize;
use std::thread;

use throughline_protocol::code::Reject;
use throughline_protocol::sign::VerifyingKeys;
use throughline_protocol::sync::range::Passed;
use throughline_protocol::verify::Prechecked;

/// Fewer entries than this are checked on the thread that has them.
const SHARED_MIN: usize = 64;
/// Threads used at most.
const THREADS_MAX: usize = 16;

/// What came of a run of entries: those before the first failure, and that failure.
pub(super) struct Checked {
    pub(super) entries: Vec<Prechecked>,
    pub(super) failed: Option<Reject>,
}

/// Checks signatures and payloads. Every entry before the first one that fails is good; none after it is returned.
pub(super) fn check_all(passed: Vec<Passed>) -> Checked {
    let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get).min(THREADS_MAX);
    if passed.len() < SHARED_MIN || threads == 1 {
        return check_run(passed);
    }
    let size = passed.len().div_ceil(threads);
    let mut runs = Vec::with_capacity(threads);
    let mut rest = passed;
    while rest.len() > size {
        let tail = rest.split_off(size);
        runs.push(std::mem::replace(&mut rest, tail));
    }
    runs.push(rest);
    let checked: Vec<Option<Checked>> = thread::scope(|scope| {
        let running: Vec<_> = runs.into_iter().map(|run| scope.spawn(|| check_run(run))).collect();
        running.into_iter().map(|thread| thread.join().ok()).collect()
    });
    join(checked)
}

fn join(runs: Vec<Option<Checked>>) -> Checked {
    let mut all = Checked { entries: Vec::new(), failed: None };
    for run in runs {
        let Some(run) = run else {
            all.failed = Some(Reject::new(
                throughline_protocol::code::Code::Internal,
                "a thread that checks signatures ended early",
            ));
            break;
        };
        all.entries.extend(run.entries);
        all.failed = run.failed;
        if all.failed.is_some() {
            break;
        }
    }
    all
}

fn check_run(passed: Vec<Passed>) -> Checked {
    let mut keys = VerifyingKeys::default();
    let mut entries = Vec::with_capacity(passed.len());
    for Passed { entry, payload } in passed {
        let seq = entry.value().seq();
        let checked = entry.verify(&mut keys).and_then(|signed| Prechecked::of(signed, payload));
        match checked {
            Ok(checked) => entries.push(checked),
            Err(reject) => {
                return Checked { entries, failed: Some(reject.within(&format!("seq {seq}"))) };
            }
        }
    }
    Checked { entries, failed: None }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use throughline_protocol::block::Decoded;
    use throughline_protocol::code::Code;
    use throughline_protocol::testing::SessionBuilder;

    use super::*;

    fn passed(count: usize, broken: &[usize]) -> Vec<Passed> {
        let mut builder = SessionBuilder::new("checked in order");
        let server = builder.server1.clone();
        for number in 0..count {
            builder.user(&server, &format!("message {number}"));
        }
        let entries = builder.entries().iter().skip(1).enumerate();
        entries
            .map(|(at, built)| {
                let mut bytes = built.entry.bytes().to_vec();
                if broken.contains(&at) {
                    let offset = Decoded::<throughline_protocol::entry::Entry>::decode(bytes.clone())
                        .unwrap()
                        .signature()
                        .offset;
                    bytes[offset] ^= 1;
                }
                let entry = Decoded::decode(Arc::<[u8]>::from(bytes)).unwrap();
                Passed { entry, payload: built.payload.clone() }
            })
            .collect()
    }

    #[test]
    fn order_is_kept_and_the_first_failure_ends_it() {
        for broken in [vec![], vec![0], vec![130], vec![40, 199], vec![199]] {
            let entries = passed(200, &broken);
            let expected: Vec<_> = entries.iter().map(|passed| passed.entry.cid()).collect();
            let checked = check_all(entries);
            let good = broken.first().copied().unwrap_or(200);
            let cids: Vec<_> = checked.entries.iter().map(|entry| entry.signed().cid()).collect();
            assert_eq!(cids, expected[..good], "{broken:?}");
            assert_eq!(checked.failed.map(|reject| reject.code), (good < 200).then_some(Code::Sig));
        }
    }
}
