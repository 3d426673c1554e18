//! The journal of a move: the driver's durable state, and what was last shown of it. One job of kind `move`, in one row.

use serde_json::Value as Json;
use throughline_protocol::code::{Code, Reject};
use throughline_protocol::codec::{self, Map, Value, encode_map, uint};
use throughline_protocol::handoff::MoveId;
use throughline_protocol::id::UnixMillis;
use throughline_store::{Expect, NamedRow, PutJob, Reader};

use crate::api::error::Answer;
use crate::core::{Node, now};

/// Kind of the jobs that keep moves.
const MOVE_JOB: &str = "move";
/// Levels of nesting of a journal's row.
const DEPTH_MAX: usize = 2;

/// One move as it is kept.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Journal {
    pub(super) move_id: MoveId,
    pub(super) began: UnixMillis,
    /// For [`throughline_protocol::handoff::Driver::from_bytes`].
    pub(super) driver: Vec<u8>,
    /// What the move was waiting with, if it was: that is told again after a restart.
    pub(super) waits: Option<Code>,
    /// The `move` object as it was last kept. It is shown again, and nothing is decided by it.
    pub(super) shown: Json,
}

impl Journal {
    /// Keeps it, durably.
    pub(super) fn keep(&self, node: &Node) -> Answer<()> {
        put(node, self.move_id, Some(self.to_bytes()))
    }

    fn to_bytes(&self) -> Vec<u8> {
        let map = Map::new()
            .with("v", 1_i64)
            .with("began", uint(self.began.get()))
            .with("driver", self.driver.clone())
            .with_some("waits", self.waits.map(Code::name))
            .with("shown", self.shown.to_string().into_bytes());
        encode_map(&map)
    }

    fn read(row: &NamedRow) -> Result<Self, Reject> {
        let damaged = |what: &str| Reject::new(Code::StoreCorrupt, format!("a move's journal: {what}"));
        let id =
            <[u8; 16]>::try_from(row.key.as_slice()).map_err(|_| damaged("expected an id of 16 bytes"))?;
        let (value, _) = codec::decode(&row.value, DEPTH_MAX).map_err(|_| damaged("expected DAG-CBOR"))?;
        let map = value.as_map().ok_or_else(|| damaged("expected a map"))?;
        let bytes =
            |key: &str| map.get(key).and_then(Value::as_bytes).ok_or_else(|| damaged("a field is missing"));
        let began = map.get("began").and_then(Value::as_uint).ok_or_else(|| damaged("a field is missing"))?;
        let code = |value: &Value| value.as_text().and_then(|name| name.parse().ok());
        let waits = map
            .get("waits")
            .map(|value| code(value).ok_or_else(|| damaged("expected the name of a code")))
            .transpose()?;
        Ok(Journal {
            move_id: MoveId::from_bytes(id),
            began: UnixMillis::new(began)?,
            driver: bytes("driver")?.to_vec(),
            waits,
            shown: serde_json::from_slice(bytes("shown")?).map_err(|_| damaged("expected JSON"))?,
        })
    }
}

/// All journals that read back, oldest move first. Damage is told, and left where it is.
pub(super) fn all(reader: &Reader) -> Answer<Vec<Journal>> {
    let mut journals = Vec::new();
    for row in reader.jobs(MOVE_JOB)? {
        let read = row.map_err(|damaged| damaged.to_string());
        match read.and_then(|row| Journal::read(&row).map_err(|reject| reject.to_string())) {
            Ok(journal) => journals.push(journal),
            Err(problem) => tracing::error!("a move is passed over, its journal does not read: {problem}"),
        }
    }
    journals.sort_by_key(|journal| (journal.began, journal.move_id));
    Ok(journals)
}

/// Forgets the journal of a move.
pub(super) fn forget(node: &Node, move_id: MoveId) -> Answer<()> {
    put(node, move_id, None)
}

fn put(node: &Node, move_id: MoveId, journal: Option<Vec<u8>>) -> Answer<()> {
    let (kind, id) = (MOVE_JOB.to_owned(), move_id.to_bytes().to_vec());
    Ok(node.store().run(PutJob { kind, id, expect: Expect::Anything, journal, at: now() })?)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::core::damaged::{damage, open};

    /// What is logged, to be read again.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_node_with_a_damaged_journal_of_a_move_starts_and_says_so() {
        let home = tempfile::tempdir().unwrap();
        let node = open(home.path());
        let journal = |id: u8| Journal {
            move_id: MoveId::from_bytes([id; 16]),
            began: UnixMillis::new(1_767_225_600_000).unwrap(),
            driver: vec![id; 40],
            waits: None,
            shown: serde_json::json!({"state": "done"}),
        };
        journal(7).keep(&node).unwrap();
        journal(8).keep(&node).unwrap();
        damage(node, &[7; 40]);

        let (node, log) = (open(home.path()), Log::default());
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(subscriber, || crate::moves::attach(&node)).unwrap();
        let said = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        assert!(said.contains("a move is passed over") && said.contains(&"07".repeat(16)), "{said}");
        assert_eq!(all(&node.reader().unwrap()).unwrap(), [journal(8)]);
        let found = node.store().fsck().unwrap();
        assert!(found.problems.iter().any(|problem| problem.what.contains("a move row")), "{found:?}");
        node.stop();
    }

    #[test]
    fn a_row_reads_back_and_damage_is_told() {
        let journal = Journal {
            move_id: MoveId::from_bytes([7; 16]),
            began: UnixMillis::new(1_767_225_600_000).unwrap(),
            driver: vec![1, 2, 3],
            waits: Some(Code::StoreIo),
            shown: serde_json::json!({"state": "running", "through": 3}),
        };
        let row = NamedRow { key: vec![7; 16], value: journal.to_bytes() };
        assert_eq!(Journal::read(&row).unwrap(), journal);
        for cut in 0..row.value.len() {
            let damaged = NamedRow { key: row.key.clone(), value: row.value[..cut].to_vec() };
            assert_eq!(Journal::read(&damaged).unwrap_err().code, Code::StoreCorrupt, "cut at {cut}");
        }
        assert_eq!(
            Journal::read(&NamedRow { key: vec![7; 15], ..row }).unwrap_err().code,
            Code::StoreCorrupt
        );
    }
}
