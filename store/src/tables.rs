//! Every table of the database, in one place. `docs/ARCHITECTURE.md` §Store.
//!
//! A name carries the version of its row layout: a new layout is a new name and a migration. Entries are keyed by
//! (session number, seq), because random keys cost 1.8 times the bytes; what is only ever asked for by hash is keyed by
//! the sha2-256 digest.

use redb::TableDefinition;

/// A sha2-256 digest as a key.
pub(crate) type Digest32 = &'static [u8; 32];
/// An encoded row, see [`crate::rows`].
pub(crate) type Row = &'static [u8];

/// Counters and numbers of the store itself.
pub(crate) const META: TableDefinition<'static, &'static str, u64> = TableDefinition::new("meta_v1");
/// Identity of the database file, so that a copy is told from the original.
pub(crate) const IDENTITY: TableDefinition<'static, &'static str, Row> = TableDefinition::new("identity_v1");

/// Session number → [`crate::rows::SessionRow`].
pub(crate) const SESSIONS: TableDefinition<'static, u64, Row> = TableDefinition::new("sessions_v1");
/// Genesis digest → session number.
pub(crate) const SESSION_IDS: TableDefinition<'static, Digest32, u64> =
    TableDefinition::new("session_ids_v1");
/// Session number → the verifier's state after the tip.
pub(crate) const CHAIN_STATES: TableDefinition<'static, u64, Row> = TableDefinition::new("chain_states_v1");
/// (session number, seq) → [`crate::rows::EntryRow`]: the main chain.
pub(crate) const ENTRIES: TableDefinition<'static, (u64, u64), Row> = TableDefinition::new("entries_v1");
/// Entry digest → (session number, seq, 0 main | 1 side).
pub(crate) const INDEX: TableDefinition<'static, Digest32, (u64, u64, u8)> = TableDefinition::new("index_v1");
/// (session number, entry digest) → [`crate::rows::SideRow`]: held, but not on the main chain.
pub(crate) const SIDE: TableDefinition<'static, (u64, Digest32), Row> = TableDefinition::new("side_v1");

/// Digest → [`crate::rows::BlockRow`] of every payload and file that is held, and the bytes of a payload of at most 16 KiB.
pub(crate) const BLOCKS: TableDefinition<'static, Digest32, Row> = TableDefinition::new("blocks_v2");
/// (digest, session number, seq) of the entries that link a block, whether it is held or not.
pub(crate) const BLOCK_REFS: TableDefinition<'static, (Digest32, u64, u64), ()> =
    TableDefinition::new("block_refs_v2");
/// (session number, seq, digest): the same links from the other side, but for payloads: entries name those themselves.
pub(crate) const LINKS_OF_SESSION: TableDefinition<'static, (u64, u64, Digest32), ()> =
    TableDefinition::new("links_of_session_v2");
/// (expiry in Unix milliseconds, digest): leases of blocks that nothing links yet.
pub(crate) const LEASES: TableDefinition<'static, (u64, Digest32), ()> = TableDefinition::new("leases_v1");
/// Digest → when: payloads that a redaction dropped, refused from then on.
pub(crate) const REFUSED: TableDefinition<'static, Digest32, u64> = TableDefinition::new("refused_v1");
/// Digests of files whose row is gone and whose bytes are still to be unlinked.
pub(crate) const CONDEMNED: TableDefinition<'static, Digest32, ()> = TableDefinition::new("condemned_v1");

/// sha2-256 of the bytes → [`crate::rows::ControlRow`].
pub(crate) const CONTROLS: TableDefinition<'static, Digest32, Row> = TableDefinition::new("controls_v1");
/// blake2b-256 digest of the bytes → their sha2-256: a Seed daemon names the same blob so.
pub(crate) const CONTROL_ALIASES: TableDefinition<'static, Digest32, Digest32> =
    TableDefinition::new("control_aliases_v1");
/// (owner key, hash) of capabilities and tombstones.
pub(crate) const CONTROLS_OF_OWNER: TableDefinition<'static, (Digest32, Digest32), ()> =
    TableDefinition::new("controls_of_owner_v1");
/// (genesis digest, hash) of Refs; the session need not be held.
pub(crate) const REFS_OF_SESSION: TableDefinition<'static, (Digest32, Digest32), ()> =
    TableDefinition::new("refs_of_session_v1");
/// Owner key → (count, digest) over its capabilities and tombstones.
pub(crate) const OWNERS: TableDefinition<'static, Digest32, (u64, Digest32)> =
    TableDefinition::new("owners_v1");

/// Genesis digest → [`crate::rows::GuardRow`]; stays when the session is forgotten. A backup leaves this table out.
pub(crate) const GUARD: TableDefinition<'static, Digest32, Row> = TableDefinition::new("guard_v2");
/// (scope, key) → [`crate::rows::IdempotencyRow`].
pub(crate) const IDEMPOTENCY: TableDefinition<'static, (Digest32, &'static str), Row> =
    TableDefinition::new("idempotency_v1");
/// (expiry in Unix milliseconds, scope, key) of those that expire.
pub(crate) const IDEMPOTENCY_EXPIRY: TableDefinition<'static, (u64, Digest32, &'static str), ()> =
    TableDefinition::new("idempotency_expiry_v1");

/// (scope, digest) → bytes that are not adopted yet.
pub(crate) const STAGED: TableDefinition<'static, (Digest32, Digest32), Row> =
    TableDefinition::new("staged_v1");
/// Scope → (bytes, expiry in Unix milliseconds).
pub(crate) const STAGING_SCOPES: TableDefinition<'static, Digest32, (u64, u64)> =
    TableDefinition::new("staging_scopes_v1");

/// Genesis digest → [`crate::rows::Pin`].
pub(crate) const PINS: TableDefinition<'static, Digest32, Row> = TableDefinition::new("pins_v1");
/// (kind, id) → bytes of a job's journal, opaque here.
pub(crate) const JOBS: TableDefinition<'static, (&'static str, Row), Row> = TableDefinition::new("jobs_v1");
/// (space, key) → bytes: peers, aliases and other small facts of the node, opaque here.
pub(crate) const FACTS: TableDefinition<'static, (&'static str, Row), Row> = TableDefinition::new("facts_v1");
/// Event id → [`crate::events::Event`].
pub(crate) const EVENTS: TableDefinition<'static, u64, Row> = TableDefinition::new("events_v1");

/// Keys of [`META`].
pub(crate) mod meta {
    /// Layout of the database.
    pub(crate) const SCHEMA: &str = "schema";
    /// Number of the next session.
    pub(crate) const NEXT_SESSION: &str = "next_session";
    /// Id of the next event; 1 is the first.
    pub(crate) const NEXT_EVENT: &str = "next_event";
    /// How often the data directory was opened.
    pub(crate) const OPENS: &str = "opens";
    /// 1 while every signature of the node's key since it was made is known to have gone through this database.
    pub(crate) const GUARD_TRUSTED: &str = "guard_trusted";
    /// When the guard was last emptied because the directory is a copy, in Unix milliseconds; 0 is never.
    pub(crate) const GUARD_RESET_MS: &str = "guard_reset_ms";
    /// Bytes of entries on main chains.
    pub(crate) const ENTRY_BYTES: &str = "entry_bytes";
    /// Bytes of payloads and files.
    pub(crate) const BLOCK_BYTES: &str = "block_bytes";
    /// Bytes of side entries.
    pub(crate) const SIDE_BYTES: &str = "side_bytes";
    /// Bytes of staged blocks.
    pub(crate) const STAGING_BYTES: &str = "staging_bytes";
    /// Number of the newest batch that is in the database; see [`crate::journal`].
    pub(crate) const BATCH: &str = "batch";
}

/// Calls a macro with the names of all tables.
macro_rules! with_all {
    ($macro:ident) => {
        $macro!(
            META,
            IDENTITY,
            SESSIONS,
            SESSION_IDS,
            CHAIN_STATES,
            ENTRIES,
            INDEX,
            SIDE,
            BLOCKS,
            BLOCK_REFS,
            LINKS_OF_SESSION,
            LEASES,
            REFUSED,
            CONDEMNED,
            CONTROLS,
            CONTROL_ALIASES,
            CONTROLS_OF_OWNER,
            REFS_OF_SESSION,
            OWNERS,
            GUARD,
            IDEMPOTENCY,
            IDEMPOTENCY_EXPIRY,
            STAGED,
            STAGING_SCOPES,
            PINS,
            JOBS,
            FACTS,
            EVENTS
        )
    };
}
pub(crate) use with_all;

/// Every table, opened once when the database is made, so that readers find all of them.
pub(crate) fn create_all(txn: &redb::WriteTransaction) -> Result<(), redb::TableError> {
    macro_rules! open {
        ($($table:ident),*) => { $(txn.open_table($table)?;)* };
    }
    with_all!(open);
    Ok(())
}
