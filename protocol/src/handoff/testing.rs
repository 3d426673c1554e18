//! Signed handoffs and receipts for the tests of the machines.

use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex};

use super::{MoveId, Opening, Point, Receipt};
use crate::build::sign;
use crate::control::Ref;
use crate::entry::{Body, Entry, Handoff, Place};
use crate::id::{EntryCid, Epoch, Principal, Seq, SessionId, UnixMillis};
use crate::sign::{SigningKey, VerifyingKeys};
use crate::testing::key;

pub(super) fn session() -> SessionId {
    SessionId::of_genesis(EntryCid::of(b"genesis"))
}

pub(super) fn epoch(number: u64) -> Epoch {
    Epoch::new(number).unwrap()
}

pub(super) fn move_id(number: u8) -> MoveId {
    MoveId::from_bytes([number; 16])
}

/// An entry that `who` might have written at `seq` in `epoch`.
pub(super) fn point(who: &str, epoch: u64, seq: u64) -> Point {
    Point { cid: EntryCid::of(format!("{who} {epoch} {seq}").as_bytes()), seq: Seq::new(seq).unwrap() }
}

/// Deriving a key is slow, and the model asks for principals at every step.
pub(super) fn principal(name: &'static str) -> Principal {
    static MADE: LazyLock<Mutex<BTreeMap<&'static str, Principal>>> = LazyLock::new(Mutex::default);
    *MADE.lock().unwrap().entry(name).or_insert_with(|| key(name).principal())
}

/// The owner's handoff to `holder` that stands on `prev`.
pub(super) fn opening(prev: Point, number: u64, holder: Option<Principal>) -> Opening {
    let owner = key("account");
    let entry = Entry {
        ts: UnixMillis::new(1_000).unwrap(),
        signer: owner.principal(),
        authority: None,
        place: Some(Place {
            genesis: session().genesis(),
            prev: prev.cid,
            seq: prev.seq.next(),
            epoch: epoch(number),
            skip: None,
        }),
        body: Body::Handoff(Handoff { holder, ..Handoff::default() }),
        payload: None,
        ext: None,
    };
    Opening::of(&sign(entry, &owner).unwrap(), owner.principal()).unwrap()
}

/// The Ref of a server at `opening`.
pub(super) fn receipt(server: &str, opening: &Opening) -> Receipt {
    let server: SigningKey = key(server);
    let value = Ref {
        ts: UnixMillis::new(2_000).unwrap(),
        signer: server.principal(),
        space: None,
        capability: None,
        path: Some(session().path()),
        heads: vec![opening.point().cid.cid()],
        genesis_blob: Some(session().genesis().cid()),
        generation: opening.epoch().get() + 1,
        private: false,
        redirect: None,
    };
    let signed = sign(value, &server).unwrap();
    let again = crate::block::Signed::<Ref>::check(signed.bytes().to_vec(), &mut VerifyingKeys::default());
    Receipt::of(&again.unwrap()).unwrap()
}

/// xorshift64*: small, good enough, and the seed replays the run.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(super) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() >> 33).unwrap() % end
    }

    pub(super) fn percent(&mut self, share: usize) -> bool {
        self.below(100) < share
    }
}
