//! What the durable states of the machines have in common as records: canonical DAG-CBOR, read strictly.
//!
//! A record is written by this program alone; one that does not read back is damage (`E_STORE_CORRUPT`).

use crate::code::{Code, Reject};
use crate::codec::{self, Map, Value};
use crate::id::{EntryCid, Seq};
use crate::limits;
use crate::schema::{self, Fields};

use super::{MoveId, Opening, Point, Receipt};

/// Reads a record with `read`; whatever is wrong with it is damage.
pub(super) fn read<T>(
    bytes: &[u8],
    what: &'static str,
    read: impl FnOnce(&Map<'_>) -> Result<T, Reject>,
) -> Result<T, Reject> {
    let parse = || {
        let (value, _) = codec::decode(bytes, limits::ENTRY_DEPTH_MAX)?;
        let Value::Map(map) = value else {
            return Err(Reject::new(Code::SchemaType, "expected a map"));
        };
        read(&map)
    };
    parse().map_err(|reject| Reject::new(Code::StoreCorrupt, format!("{what} record: {reject}")))
}

pub(super) fn point_map(point: Point) -> Map<'static> {
    Map::new().with("cid", point.cid).with("seq", point.seq)
}

pub(super) fn point(value: &Value<'_>) -> Result<Point, Reject> {
    schema::map(|map: &Map<'_>| {
        let fields = Fields::closed(map, "point", &["cid", "seq"], &[])?;
        Ok(Point {
            cid: fields.need("cid", schema::entry)?,
            seq: Seq::new(fields.need("seq", schema::uint)?)?,
        })
    })(value)
}

pub(super) fn move_id(value: &Value<'_>) -> Result<MoveId, Reject> {
    schema::fixed::<16>(value).map(MoveId)
}

pub(super) fn moves(moves: &[MoveId]) -> Value<'static> {
    Value::List(moves.iter().map(|id| Value::from(id.0.to_vec())).collect())
}

pub(super) fn opening(value: &Value<'_>) -> Result<Opening, Reject> {
    Opening::stored(&schema::bytes(value)?)
}

pub(super) fn receipt(value: &Value<'_>) -> Result<Receipt, Reject> {
    Receipt::stored(&schema::bytes(value)?)
}

pub(super) fn code(value: &Value<'_>) -> Result<Code, Reject> {
    let text = schema::text(value)?;
    text.parse().map_err(|_| Reject::new(Code::SchemaType, "expected an error code"))
}

pub(super) fn entry(value: &Value<'_>) -> Result<EntryCid, Reject> {
    schema::entry(value)
}

/// Puts an aborted move at the end of a bounded list; the oldest goes first.
pub(super) fn remember(moves: &mut Vec<MoveId>, id: MoveId, max: usize) {
    if moves.contains(&id) {
        return;
    }
    if moves.len() >= max.max(1) {
        moves.remove(0);
    }
    moves.push(id);
}
