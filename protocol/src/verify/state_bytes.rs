//! The bytes of a [`ChainState`]: canonical CBOR that a store keeps beside the session.

use super::state::ChainState;
use super::trail::{CutTail, Head, Reach, Trail};
use crate::code::{Code, Reject};
use crate::codec::{self, Map, Value, encode_map, uint};
use crate::entry::Class;
use crate::fork::{AnchoredBy, Cut, Ending, Mark, Position, SessionFacts};
use crate::id::{EntryCid, Epoch, Seq, SessionId};
use crate::limits;
use crate::schema::{self, Fields};
use crate::skip::SkipPath;

/// Nesting of the record: map, list, hop.
const DEPTH_MAX: usize = 6;
/// A skip path is shorter: at most 2·log2(2^53) hops.
const HOPS_MAX: usize = 128;

const REQUIRED: &[&str] = &[
    "session", "owner", "agent", "firstTs", "ts", "epoch", "class", "ending", "hops", "signers", "head",
    "reach", "under",
];
const OPTIONAL: &[&str] = &["holder", "anchored", "anchor", "cut", "headBefore"];

impl ChainState {
    /// The state as canonical CBOR.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let hops: Vec<Value<'_>> =
            self.path.iter().map(|(seq, cid)| Value::List(vec![uint(seq), cid.into()])).collect();
        let signers: Vec<Value<'_>> = self.participants.iter().map(|signer| (*signer).into()).collect();
        let (reach, cut, before) = match &self.trail.reach {
            Reach::Whole => ("whole", None, None),
            Reach::Unknown => ("unknown", None, None),
            Reach::Cut(tail) => ("cut", Some(&tail.cut), tail.head_before),
        };
        let map = Map::new()
            .with("session", self.session.id)
            .with("owner", self.session.owner)
            .with("agent", self.session.agent.to_string())
            .with("firstTs", self.session.first_ts)
            .with("ts", self.position.ts)
            .with("epoch", self.position.epoch)
            .with_some("holder", self.position.holder)
            .with("class", self.position.class.word())
            .with("ending", ending_word(self.position.ending))
            .with("hops", hops)
            .with("signers", signers)
            .with("head", head_map(&self.trail.head))
            .with_some("anchored", self.trail.anchored.map(anchor_map))
            .with_some("anchor", self.trail.anchor.as_ref().map(mark_map))
            .with("reach", reach)
            .with_some("cut", cut.map(cut_map))
            .with_some("headBefore", before.as_ref().map(head_map))
            .with("under", self.trail.judged_under.to_vec());
        encode_map(&map)
    }

    /// Reads a state that [`ChainState::to_bytes`] wrote. It is trusted as far as the place it was kept in is.
    ///
    /// # Errors
    /// `E_INDEX_CORRUPT` for bytes that no state has.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Reject> {
        read(bytes)
            .map_err(|reject| Reject::new(Code::IndexCorrupt, format!("chain state: {}", reject.detail)))
    }
}

fn read(bytes: &[u8]) -> Result<ChainState, Reject> {
    let (Value::Map(map), _) = codec::decode(bytes, DEPTH_MAX)? else {
        return Err(Reject::new(Code::SchemaType, "expected a map"));
    };
    let fields = Fields::closed(&map, "state", REQUIRED, OPTIONAL)?;
    let hops = fields.need("hops", schema::list(HOPS_MAX, hop))?;
    let path =
        SkipPath::from_hops(hops).ok_or_else(|| Reject::new(Code::SchemaType, "hops are not a skip path"))?;
    let signers_max = limits::SEAL_PARTICIPANTS_MAX + 1;
    let signers = fields.need("signers", schema::list(signers_max, schema::principal))?;
    if !signers.is_sorted_by(|before, after| before < after) {
        return Err(Reject::new(Code::SchemaType, "signers are not ascending"));
    }
    let (seq, cid) = path.tip();
    Ok(ChainState {
        session: SessionFacts {
            id: SessionId::of_genesis(fields.need("session", schema::entry)?),
            owner: fields.need("owner", schema::principal)?,
            agent: fields.need("agent", schema::iri)?,
            first_ts: fields.need("firstTs", schema::millis)?,
        },
        position: Position {
            cid,
            seq: Seq::new(seq)?,
            ts: fields.need("ts", schema::millis)?,
            epoch: fields.need("epoch", schema::epoch)?,
            holder: fields.lax("holder", schema::principal)?,
            class: fields.need("class", schema::word(CLASSES))?,
            ending: fields.need("ending", schema::word(ENDINGS))?,
        },
        path,
        participants: signers.into_iter().collect(),
        trail: read_trail(&fields)?,
    })
}

fn read_trail(fields: &Fields<'_, '_>) -> Result<Trail, Reject> {
    let cut = fields.lax("cut", schema::map(read_cut))?;
    let head_before = fields.lax("headBefore", schema::map(read_head))?;
    let reach = match (fields.need("reach", schema::text)?.as_str(), cut, head_before) {
        ("whole", None, None) => Reach::Whole,
        ("unknown", None, None) => Reach::Unknown,
        ("cut", Some(cut), head_before) => Reach::Cut(Box::new(CutTail { cut, head_before })),
        _ => return Err(Reject::new(Code::SchemaType, "an unknown reach")),
    };
    Ok(Trail {
        head: fields.need("head", schema::map(read_head))?,
        anchored: fields.lax("anchored", schema::map(read_anchor))?,
        anchor: fields.lax("anchor", schema::map(read_mark_map))?,
        reach,
        judged_under: fields.need("under", schema::fixed::<32>)?,
    })
}

const CLASSES: &[(&str, Class)] =
    &[("public", Class::Public), ("internal", Class::Internal), ("confidential", Class::Confidential)];
const ENDINGS: &[(&str, Ending)] = &[("open", Ending::Open), ("sealed", Ending::Sealed)];
const ANCHORS: &[(&str, AnchoredBy)] = &[
    ("owner-ref", AnchoredBy::OwnerRef),
    ("keep", AnchoredBy::Keep),
    ("owner-entry", AnchoredBy::OwnerEntry),
    ("device-ref", AnchoredBy::DeviceRef),
    ("device-entry", AnchoredBy::DeviceEntry),
];

fn ending_word(ending: Ending) -> &'static str {
    match ending {
        Ending::Open => "open",
        Ending::Sealed => "sealed",
    }
}

fn mark_map(mark: &Mark) -> Map<'static> {
    Map::new().with("seq", mark.seq).with("epoch", mark.epoch).with("cid", mark.cid)
}

fn anchor_map((mark, by): (Mark, AnchoredBy)) -> Map<'static> {
    mark_map(&mark).with("by", by.word())
}

fn head_map(head: &Head) -> Map<'static> {
    mark_map(&head.mark)
        .with("ending", ending_word(head.ending))
        .with_some("anchored", head.anchored.map(anchor_map))
}

fn cut_map(cut: &Cut) -> Map<'static> {
    mark_map(&cut.from)
        .with("signer", cut.signer)
        .with("tombstone", cut.tombstone.to_vec())
        .with_some("anchor", cut.last_anchor.as_ref().map(mark_map))
}

fn hop(value: &Value<'_>) -> Result<(u64, EntryCid), Reject> {
    match value.as_list() {
        Some([seq, cid]) => Ok((schema::uint(seq)?, schema::entry(cid)?)),
        _ => Err(Reject::new(Code::SchemaType, "expected a seq and a link")),
    }
}

fn read_mark(fields: &Fields<'_, '_>) -> Result<Mark, Reject> {
    Ok(Mark {
        seq: Seq::new(fields.need("seq", schema::uint)?)?,
        epoch: Epoch::new(fields.need("epoch", schema::uint)?)?,
        cid: fields.need("cid", schema::entry)?,
    })
}

fn read_mark_map(map: &Map<'_>) -> Result<Mark, Reject> {
    read_mark(&Fields::closed(map, "mark", &["seq", "epoch", "cid"], &[])?)
}

fn read_anchor(map: &Map<'_>) -> Result<(Mark, AnchoredBy), Reject> {
    let fields = Fields::closed(map, "anchor", &["seq", "epoch", "cid", "by"], &[])?;
    Ok((read_mark(&fields)?, fields.need("by", schema::word(ANCHORS))?))
}

fn read_head(map: &Map<'_>) -> Result<Head, Reject> {
    let fields = Fields::closed(map, "head", &["seq", "epoch", "cid", "ending"], &["anchored"])?;
    Ok(Head {
        mark: read_mark(&fields)?,
        ending: fields.need("ending", schema::word(ENDINGS))?,
        anchored: fields.lax("anchored", schema::map(read_anchor))?,
    })
}

fn read_cut(map: &Map<'_>) -> Result<Cut, Reject> {
    let fields = Fields::closed(map, "cut", &["seq", "epoch", "cid", "signer", "tombstone"], &["anchor"])?;
    Ok(Cut {
        from: read_mark(&fields)?,
        signer: fields.need("signer", schema::principal)?,
        tombstone: fields.need("tombstone", schema::fixed::<32>)?,
        last_anchor: fields.lax("anchor", schema::map(read_mark_map))?,
    })
}
