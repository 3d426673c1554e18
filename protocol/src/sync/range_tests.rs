//! An honest server's answer passes; each kind of lie is refused at the frame that tells it.

use proptest::prelude::*;

use super::*;
use crate::build::sign;
use crate::control::{Keep, Role, Tombstone};
use crate::sign::SigningKey;
use crate::skip::SkipPath;
use crate::testing::{self, SessionBuilder};

/// A chain of `length` entries after the genesis, and another one that leaves it after `fork`.
struct Chains {
    main: SessionBuilder,
    other: SessionBuilder,
}

fn chains(length: usize, fork: usize) -> Chains {
    let mut main = SessionBuilder::new("range");
    let mut other = None;
    for at in 0..length {
        if at == fork {
            other = Some(main.clone().branch("other"));
        }
        grow(&mut main, at);
    }
    let mut other = other.unwrap_or_else(|| main.clone().branch("other"));
    (fork..length).for_each(|at| grow(&mut other, at));
    Chains { main, other }
}

fn grow(chain: &mut SessionBuilder, at: usize) {
    let device = chain.device.clone();
    chain.user(&device, &format!("message {at}"));
}

fn bytes(chain: &SessionBuilder, seq: usize) -> Arc<[u8]> {
    Arc::clone(chain.entries()[seq].entry.bytes())
}

fn payload(chain: &SessionBuilder, seq: usize) -> Option<Arc<[u8]>> {
    chain.entries()[seq].payload.clone()
}

fn point(chain: &SessionBuilder, seq: usize) -> Point {
    let entry = &chain.entries()[seq].entry;
    Point { cid: entry.cid(), seq: entry.value().seq() }
}

/// The locator of a node that holds `chain` up to `tip`.
fn locator(chain: &SessionBuilder, tip: usize) -> Vec<EntryCid> {
    let mut path = SkipPath::genesis(chain.entries()[0].entry.cid());
    chain.entries()[1..=tip].iter().for_each(|built| path.push(built.entry.cid()));
    path.iter().map(|(_, cid)| cid).collect()
}

fn request(chain: &SessionBuilder, want: usize, have: Vec<EntryCid>) -> RangeRequest {
    RangeRequest { session: chain.session(), want: point(chain, want), have, payloads: Payloads::With }
}

fn check(request: RangeRequest) -> RangeCheck {
    RangeCheck::new(request, RangeLimits::default()).unwrap()
}

/// What an honest server sends: it finds the highest CID of the locator on its own chain.
fn honest_base(chain: &SessionBuilder, want: usize, have: &[EntryCid]) -> usize {
    (0..=want).rev().find(|seq| have.contains(&point(chain, *seq).cid)).unwrap_or(0)
}

fn honest_path(chain: &SessionBuilder, want: usize, base: usize) -> Vec<Arc<[u8]>> {
    let (want, base) = (point(chain, want).seq, point(chain, base).seq);
    path_seqs(want, base).map(|seq| bytes(chain, usize::try_from(seq.get()).unwrap())).collect()
}

fn decoded(chain: &SessionBuilder, seq: usize) -> Decoded<Entry> {
    Decoded::decode(bytes(chain, seq)).unwrap()
}

/// The place of an entry that came with its payload.
fn place(chain: &SessionBuilder, seq: usize) -> Place {
    Place::of(&decoded(chain, seq), payload(chain, seq).as_deref())
}

fn feed(
    check: &mut RangeCheck,
    chain: &SessionBuilder,
    seqs: impl IntoIterator<Item = usize>,
) -> Result<(), Violation> {
    seqs.into_iter().try_for_each(|seq| check.place(&place(chain, seq)))
}

/// A check that has taken the honest path from `want` to what a holder of `tip` has.
fn begun(chains: &Chains, want: usize, tip: usize) -> RangeCheck {
    let mut check = check(request(&chains.main, want, locator(&chains.main, tip)));
    check.path(&honest_path(&chains.main, want, tip)).unwrap();
    check
}

fn refused(result: Result<(), Violation>, code: Code, charged: Charged) {
    let violation = result.unwrap_err();
    assert_eq!((violation.reject.code, violation.charged), (code, charged), "{violation}");
}

fn unsolicited_by_sender(result: Result<(), Violation>) {
    refused(result, Code::SyncUnsolicited, Charged::Sender);
}

#[test]
fn an_honest_answer_passes() {
    let chains = chains(40, 40);
    let mut check = begun(&chains, 40, 9);
    assert_eq!(check.base(), Some(point(&chains.main, 9)));
    assert_eq!(check.remaining(), Some(31));
    let controls: Vec<_> = chains.main.controls().iter().map(|blob| Arc::clone(blob.bytes())).collect();
    check.control(&controls).unwrap();
    let fixed: Vec<u64> =
        path_seqs(point(&chains.main, 40).seq, point(&chains.main, 9).seq).map(Seq::get).collect();
    assert_eq!(fixed, [40, 39, 38, 31, 30, 15, 14, 13, 10, 9]);
    feed(&mut check, &chains.main, 10..=40).unwrap();
    assert!(!check.is_done());
    check.end().unwrap();
    assert!(check.is_done());
    unsolicited_by_sender(check.end());
}

#[test]
fn nothing_held_begins_with_the_genesis() {
    let chains = chains(5, 5);
    let mut check = check(request(&chains.main, 5, Vec::new()));
    check.path(&honest_path(&chains.main, 5, 0)).unwrap();
    assert_eq!((check.base(), check.remaining()), (None, Some(6)));
    feed(&mut check, &chains.main, 0..=5).unwrap();
    check.end().unwrap();
}

#[test]
fn a_head_that_is_held_needs_no_entries() {
    let chains = chains(7, 7);
    let mut check = begun(&chains, 7, 7);
    assert_eq!(check.remaining(), Some(0));
    unsolicited_by_sender(feed(&mut check.clone(), &chains.main, [7]));
    check.end().unwrap();
}

#[test]
fn a_path_may_come_in_several_frames() {
    let chains = chains(40, 40);
    let mut check = check(request(&chains.main, 40, locator(&chains.main, 3)));
    for entry in honest_path(&chains.main, 40, 3) {
        check.path(&[entry]).unwrap();
    }
    unsolicited_by_sender(check.path(&[bytes(&chains.main, 2)]));
}

#[test]
fn the_other_branch_of_a_fork_is_fetched_from_the_highest_common_entry_of_the_locator() {
    let chains = chains(40, 20);
    let have = locator(&chains.other, 30);
    let base = honest_base(&chains.main, 40, &have);
    let mut check = check(request(&chains.main, 40, have));
    check.path(&honest_path(&chains.main, 40, base)).unwrap();
    feed(&mut check, &chains.main, base + 1..=40).unwrap();
    check.end().unwrap();
}

#[test]
fn a_wrong_path_is_refused() {
    let chains = chains(40, 20);
    let fresh = || check(request(&chains.main, 40, locator(&chains.main, 3)));
    // Another head, a gap, another branch, a path that walks where it should skip, one that goes on below the base.
    unsolicited_by_sender(fresh().path(&[bytes(&chains.main, 39)]));
    unsolicited_by_sender(fresh().path(&[bytes(&chains.main, 40), bytes(&chains.main, 31)]));
    unsolicited_by_sender(fresh().path(&[bytes(&chains.main, 40), bytes(&chains.other, 39)]));
    let walked: Vec<_> = (3..=40).rev().map(|seq| bytes(&chains.main, seq)).collect();
    unsolicited_by_sender(fresh().path(&walked));
    let mut longer = honest_path(&chains.main, 40, 3);
    longer.push(bytes(&chains.main, 2));
    unsolicited_by_sender(fresh().path(&longer));
    unsolicited_by_sender(fresh().path(&[]));
}

#[test]
fn a_path_that_ends_early_lets_nothing_through() {
    let chains = chains(40, 40);
    let path = honest_path(&chains.main, 40, 3);
    let mut check = check(request(&chains.main, 40, locator(&chains.main, 3)));
    check.path(&path[..path.len() - 1]).unwrap();
    assert_eq!(check.remaining(), None);
    unsolicited_by_sender(feed(&mut check.clone(), &chains.main, [4]));
    unsolicited_by_sender(check.clone().end());
    unsolicited_by_sender(check.control(&[bytes(&chains.main, 0)]));
}

#[test]
fn a_path_is_bounded() {
    let chains = chains(80, 80);
    // Held: a locator that is not on this chain, so that the path would go on to the genesis.
    let mut request = request(&chains.main, 80, vec![EntryCid::of(b"elsewhere")]);
    request.payloads = Payloads::Without;
    let walked: Vec<_> = (0..=80).rev().map(|seq| bytes(&chains.main, seq)).collect();
    let violation = check(request).path(&walked).unwrap_err();
    assert!(violation.reject.detail.contains("more than 64"), "{violation}");
}

#[test]
fn whoever_told_a_head_answers_for_what_was_told() {
    let chains = chains(5, 5);
    let mut asked = request(&chains.main, 5, Vec::new());
    asked.want.seq = point(&chains.main, 4).seq;
    refused(check(asked).path(&[bytes(&chains.main, 5)]), Code::Seq, Charged::Teller);
    let mut asked = request(&chains.main, 5, Vec::new());
    asked.session = SessionBuilder::new("elsewhere").session();
    refused(check(asked).path(&[bytes(&chains.main, 5)]), Code::SessionMismatch, Charged::Teller);
    let noise: Arc<[u8]> = Arc::from(&b"\xff"[..]);
    let mut asked = request(&chains.main, 5, Vec::new());
    asked.want.cid = EntryCid::of(&noise);
    refused(check(asked).path(&[noise]), Code::CborSyntax, Charged::Teller);
}

#[test]
fn entries_come_in_order_each_once_and_none_beyond() {
    let chains = chains(40, 20);
    unsolicited_by_sender(feed(&mut begun(&chains, 40, 3), &chains.main, [5]));
    unsolicited_by_sender(feed(&mut begun(&chains, 40, 3), &chains.main, [4, 6]));
    unsolicited_by_sender(feed(&mut begun(&chains, 40, 3), &chains.main, [4, 4]));
    unsolicited_by_sender(feed(&mut begun(&chains, 40, 3), &chains.main, [4, 5, 4]));
    unsolicited_by_sender(feed(&mut begun(&chains, 20, 3), &chains.main, 4..=21));
    unsolicited_by_sender(begun(&chains, 40, 3).end());
    let mut check = begun(&chains, 40, 3);
    feed(&mut check, &chains.main, 4..=39).unwrap();
    unsolicited_by_sender(check.end());
}

#[test]
fn another_branch_is_refused_at_its_first_checkpoint_at_the_latest() {
    let chains = chains(40, 20);
    let mut check = begun(&chains, 40, 3);
    feed(&mut check, &chains.main, 4..=20).unwrap();
    let result = (21..=40).try_for_each(|seq| feed(&mut check, &chains.other, [seq]));
    unsolicited_by_sender(result);
    assert!(check.last.unwrap().seq.get() < 30, "the checkpoint at 30 stops it");
}

#[test]
fn an_entry_of_another_branch_is_refused_at_once_between_checkpoints() {
    let chains = chains(40, 20);
    let mut check = begun(&chains, 40, 3);
    feed(&mut check, &chains.main, 4..=22).unwrap();
    let violation = feed(&mut check, &chains.other, [23]).unwrap_err();
    assert!(violation.reject.detail.contains("another branch"), "{violation}");
}

#[test]
fn a_path_of_another_session_is_refused() {
    let chains = chains(5, 5);
    let mut elsewhere = SessionBuilder::new("elsewhere");
    (0..5).for_each(|at| grow(&mut elsewhere, at));
    let mut check = check(request(&chains.main, 5, Vec::new()));
    check.path(&[bytes(&chains.main, 5), bytes(&chains.main, 4)]).unwrap();
    unsolicited_by_sender(check.path(&[bytes(&elsewhere, 3)]));
}

#[test]
fn entries_that_the_request_named_are_not_sent_again() {
    let chains = chains(40, 40);
    let mut check = check(request(&chains.main, 40, locator(&chains.main, 15)));
    // The server claims that only the genesis is common. The hops down to it pass over the tip at 15.
    let path: Vec<_> = honest_path(&chains.main, 40, 0);
    check.path(&path).unwrap();
    unsolicited_by_sender(feed(&mut check, &chains.main, 1..=40));
}

#[test]
fn a_refused_answer_stays_refused() {
    let chains = chains(10, 10);
    let mut check = begun(&chains, 10, 3);
    let first = feed(&mut check, &chains.main, [6]).unwrap_err();
    assert_eq!(feed(&mut check, &chains.main, [4]).unwrap_err(), first);
    assert_eq!(check.end().unwrap_err(), first);
    assert_eq!(check.remaining(), None);
}

#[test]
fn payloads_come_only_when_asked() {
    let chains = chains(5, 5);
    // An absent one is no lie: it may have been redacted there.
    begun(&chains, 5, 3).place(&Place::of(&decoded(&chains.main, 4), None)).unwrap();
    let mut asked = request(&chains.main, 5, locator(&chains.main, 3));
    asked.payloads = Payloads::Without;
    let mut without = check(asked);
    without.path(&honest_path(&chains.main, 5, 3)).unwrap();
    unsolicited_by_sender(feed(&mut without, &chains.main, [4]));
}

/// What a tombstone that keeps as much as it may has at least.
const TOMBSTONE_BYTES_MIN: usize = 6_000;

fn tombstone(account: &SigningKey, number: usize) -> Arc<[u8]> {
    let cid = |label: String| EntryCid::of(label.as_bytes());
    let mut keep: Vec<Keep> = (0..limits::TOMBSTONE_KEEP_MAX)
        .map(|at| Keep {
            genesis: cid(format!("genesis {at}")),
            head: cid(format!("head {at}")),
            seq: Seq::ZERO,
        })
        .collect();
    keep.sort_by_key(|keep| keep.genesis.cid().to_bytes());
    let tombstone = Tombstone {
        ts: testing::ts(0),
        signer: account.principal(),
        capability: cid(format!("capability {number}")).cid(),
        keep,
        reason: None,
        ext: None,
    };
    let bytes = Arc::clone(sign(Control::Tombstone(tombstone), account).unwrap().bytes());
    assert!(bytes.len() >= TOMBSTONE_BYTES_MIN);
    bytes
}

#[test]
fn control_blobs_are_bounded_unique_the_owners_and_come_before_the_entries() {
    let chains = chains(5, 5);
    let (account, other) = (testing::key("account"), testing::key("another owner"));
    let grant = |number: usize, issuer| {
        let delegate = testing::key(&format!("delegate {number}")).principal();
        Arc::clone(testing::capability(issuer, delegate, Role::Reader, None).bytes())
    };
    let blob = |number: usize| grant(number, &account);
    let many: Vec<_> = (0..=limits::CONTROL_BLOBS_MAX).map(blob).collect();
    let mut full = begun(&chains, 5, 3);
    full.control(&many[1..]).unwrap();
    unsolicited_by_sender(full.control(&many[..1]));
    unsolicited_by_sender(begun(&chains, 5, 3).control(&[blob(1), blob(1)]));
    unsolicited_by_sender(begun(&chains, 5, 3).control(&[grant(1, &other)]));
    let big: Arc<[u8]> = Arc::from(vec![0_u8; limits::CONTROL_BYTES_MAX + 1]);
    refused(begun(&chains, 5, 3).control(&[big]), Code::TooBig, Charged::Sender);
    // Each of a size that is allowed, together too many bytes.
    let count = limits::CONTROL_TOTAL_BYTES_MAX / TOMBSTONE_BYTES_MIN + 1;
    let large: Vec<_> = (0..count).map(|number| tombstone(&account, number)).collect();
    refused(begun(&chains, 5, 3).control(&large), Code::TooBig, Charged::Sender);
    let mut late = begun(&chains, 5, 3);
    feed(&mut late, &chains.main, [4]).unwrap();
    unsolicited_by_sender(late.control(&[blob(1)]));
}

#[test]
fn quotas_stop_a_transfer_and_charge_nobody() {
    let chains = chains(40, 40);
    let path = honest_path(&chains.main, 40, 3);
    let asked = || request(&chains.main, 40, locator(&chains.main, 3));
    let few = RangeLimits { entries_max: 37, ..RangeLimits::default() };
    refused(RangeCheck::new(asked(), few).unwrap().path(&path), Code::Budget, Charged::Nobody);
    let enough = RangeLimits { entries_max: 38, ..RangeLimits::default() };
    RangeCheck::new(asked(), enough).unwrap().path(&path).unwrap();
    let small = RangeLimits { bytes_max: 10_000, ..RangeLimits::default() };
    let mut check = RangeCheck::new(asked(), small).unwrap();
    check.path(&path).unwrap();
    refused(feed(&mut check, &chains.main, 4..=40), Code::Budget, Charged::Nobody);
}

#[test]
fn a_locator_is_bounded() {
    let chains = chains(1, 1);
    let asked = request(&chains.main, 1, vec![EntryCid::of(b"x"); limits::LOCATOR_MAX + 1]);
    assert_eq!(RangeCheck::new(asked, RangeLimits::default()).unwrap_err().code, Code::TooBig);
}

#[test]
fn the_longest_paths_fit_a_frame() {
    let seq = |seq| Seq::new(seq).unwrap();
    for want in (0..1_000_000_u64).step_by(7_919) {
        for base in [0, want / 3, want / 2, want.saturating_sub(1), want] {
            let path: Vec<_> = path_seqs(seq(want), seq(base)).collect();
            assert!(path.len() <= limits::LOCATOR_MAX, "{want} to {base}: {}", path.len());
            assert_eq!(path.last(), Some(&seq(base)));
        }
    }
}

/// One frame of an answer, as a hostile server may send it.
#[derive(Clone, Debug)]
enum Frame {
    Path(Vec<usize>),
    Control(Vec<u8>),
    Item(usize, bool),
    Other(usize),
    End,
}

fn frames() -> impl Strategy<Value = Vec<Frame>> {
    let frame = prop_oneof![
        2 => prop::collection::vec(0..30_usize, 0..6).prop_map(Frame::Path),
        1 => prop::collection::vec(any::<u8>(), 0..4).prop_map(Frame::Control),
        6 => (0..30_usize, any::<bool>()).prop_map(|(seq, with)| Frame::Item(seq, with)),
        1 => (0..30_usize).prop_map(Frame::Other),
        1 => Just(Frame::End),
    ];
    prop::collection::vec(frame, 0..24)
}

fn fixture() -> &'static Chains {
    static CHAINS: std::sync::OnceLock<Chains> = std::sync::OnceLock::new();
    CHAINS.get_or_init(|| chains(29, 12))
}

/// Feeds one frame; gives what was passed on.
fn feed_frame(check: &mut RangeCheck, frame: &Frame) -> Result<Option<Decoded<Entry>>, Violation> {
    let chains = fixture();
    match frame {
        Frame::Path(seqs) => {
            let entries: Vec<_> = seqs.iter().map(|seq| bytes(&chains.main, *seq)).collect();
            check.path(&entries).map(|()| None)
        }
        Frame::Control(blobs) => {
            let blobs: Vec<Arc<[u8]>> = blobs.iter().map(|byte| Arc::from(vec![*byte])).collect();
            check.control(&blobs).map(|()| None)
        }
        Frame::Item(seq, with) => {
            let (entry, payload) = (decoded(&chains.main, *seq), payload(&chains.main, *seq));
            check.place(&Place::of(&entry, payload.as_deref().filter(|_| *with))).map(|()| Some(entry))
        }
        Frame::Other(seq) => {
            let entry = decoded(&chains.other, *seq);
            check.place(&Place::of(&entry, None)).map(|()| Some(entry))
        }
        Frame::End => check.end().map(|()| None),
    }
}

proptest! {
    #[test]
    fn an_honest_answer_from_any_base_passes(want in 0..30_usize, tip in 0..30_usize, fork in any::<bool>()) {
        let chains = fixture();
        let held = if fork { &chains.other } else { &chains.main };
        let have = locator(held, tip);
        let base = honest_base(&chains.main, want, &have);
        let mut check = check(request(&chains.main, want, have));
        check.path(&honest_path(&chains.main, want, base)).unwrap();
        // A tip below which `want` lies shows as held entries only if they stand above the base.
        feed(&mut check, &chains.main, base + 1..=want).unwrap();
        check.end().unwrap();
        prop_assert_eq!(check.last, Some(point(&chains.main, want)));
    }

    #[test]
    fn whatever_comes_only_the_chain_passes(
        begin in prop::option::weighted(0.7, 0..29_usize),
        want in 0..30_usize,
        frames in frames(),
    ) {
        let chains = fixture();
        let have = begin.map(|tip| locator(&chains.main, tip)).unwrap_or_default();
        let mut check = check(request(&chains.main, want, have.clone()));
        // Most runs begin with the honest path: what follows it is what has to be told apart.
        let base = honest_base(&chains.main, want, &have);
        if begin.is_some() {
            check.path(&honest_path(&chains.main, want, base)).unwrap();
        }
        let mut last: Option<EntryCid> = check.base().map(|base| base.cid);
        for frame in frames {
            let refused_before = matches!(check.stage, Stage::Refused(_));
            let result = feed_frame(&mut check, &frame);
            prop_assert!(!(refused_before && result.is_ok()));
            if let Ok(Some(passed)) = &result {
                prop_assert_eq!(passed.value().prev(), last);
                last = Some(passed.cid());
            } else if check.base().is_some() && last.is_none() {
                last = check.base().map(|base| base.cid);
            }
            if check.is_done() {
                prop_assert_eq!(check.last, Some(point(&chains.main, want)));
            }
        }
    }
}
