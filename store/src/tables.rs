//! Every table of the database, in one place. `docs/ARCHITECTURE.md` §Store.
//!
//! A name carries the version of its row layout: a new layout is a new name and a migration. Entries are keyed by
//! (session number, seq), because random keys cost 1.8 times the bytes; what is only ever asked for by hash is keyed by
//! the sha2-256 digest.

use std::sync::OnceLock;

use redb::{Key, ReadOnlyTable, TableDefinition, Value, WriteTransaction};

use crate::checked::Checked;
use crate::error::StoreError;
use crate::memtable::Changed;

/// A sha2-256 digest as a key.
pub(crate) type Digest32 = &'static [u8; 32];
/// Bytes as a part of a key, or as they are.
pub(crate) type Bytes = &'static [u8];
/// An encoded row, see [`crate::rows`].
pub(crate) type Row = Checked;

/// One table: its types, its name, and its place among the others.
pub(crate) trait Spec: Copy {
    /// What rows are found by.
    type K: Key + 'static;
    /// What rows are.
    type V: Value + 'static;
    /// For the database.
    const DEFINITION: TableDefinition<'static, Self::K, Self::V>;
    /// Its name in the database.
    const NAME: &'static str;

    /// Its changed rows.
    fn changed(memtable: &Memtable) -> &Changed<Self::K>;

    /// Its changed rows, to change more.
    fn changed_mut(memtable: &mut Memtable) -> &mut Changed<Self::K>;

    /// Its place among the tables that a snapshot has open.
    fn read_slot(open: &OpenToRead) -> &OnceLock<ReadOnlyTable<Self::K, Self::V>>;
}

/// Something to be done with a table that is found by its name.
pub(crate) trait Visit {
    /// What comes of it.
    type Output;

    /// Does it.
    fn table<S: Spec>(self, table: S) -> Self::Output;
}

/// Defines the tables, and what concerns all of them.
macro_rules! tables {
    ($($(#[$doc:meta])* $name:ident ($field:ident): $key:ty => $value:ty = $text:literal;)*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug)]
            #[allow(non_camel_case_types, clippy::upper_case_acronyms, reason = "tables are named as constants are")]
            pub(crate) struct $name;

            impl Spec for $name {
                type K = $key;
                type V = $value;
                const DEFINITION: TableDefinition<'static, $key, $value> = TableDefinition::new($text);
                const NAME: &'static str = $text;

                fn changed(memtable: &Memtable) -> &Changed<$key> {
                    &memtable.$field
                }

                fn changed_mut(memtable: &mut Memtable) -> &mut Changed<$key> {
                    &mut memtable.$field
                }

                fn read_slot(open: &OpenToRead) -> &OnceLock<ReadOnlyTable<$key, $value>> {
                    &open.$field
                }
            }
        )*

        /// The rows of all tables that changed since the last checkpoint; see [`crate::memtable`].
        #[derive(Clone, Default)]
        pub(crate) struct Memtable {
            $($field: Changed<$key>,)*
        }

        impl Memtable {
            /// Whether nothing changed.
            pub(crate) fn is_empty(&self) -> bool {
                true $(&& self.$field.is_empty())*
            }

            /// Writes everything that changed to the database.
            ///
            /// # Errors
            /// When the disk refuses.
            pub(crate) fn apply(&self, txn: &WriteTransaction) -> Result<(), StoreError> {
                $(self.$field.apply(txn, $name)?;)*
                Ok(())
            }
        }

        /// The tables that a snapshot has open.
        #[derive(Default)]
        pub(crate) struct OpenToRead {
            $($field: OnceLock<ReadOnlyTable<$key, $value>>,)*
        }

        /// Every table, opened once when the database is made, so that readers find all of them.
        pub(crate) fn create_all(txn: &WriteTransaction) -> Result<(), redb::TableError> {
            $(txn.open_table($name::DEFINITION)?;)*
            Ok(())
        }

        /// Shows `visit` the table of a name, if there is one.
        pub(crate) fn named<T: Visit>(name: &[u8], visit: T) -> Option<T::Output> {
            $(if name == $text.as_bytes() {
                return Some(visit.table($name));
            })*
            None
        }
    };
}

tables! {
    /// Counters and numbers of the store itself.
    META (meta): &'static str => u64 = "meta_v1";
    /// Identity of the database file, so that a copy is told from the original.
    IDENTITY (identity): &'static str => Row = "identity_v2";
    /// Session number → [`crate::rows::SessionRow`].
    SESSIONS (sessions): u64 => Row = "sessions_v2";
    /// Genesis digest → session number.
    SESSION_IDS (session_ids): Digest32 => u64 = "session_ids_v1";
    /// Session number → the verifier's state after the tip.
    CHAIN_STATES (chain_states): u64 => Row = "chain_states_v2";
    /// (session number, seq) → [`crate::rows::EntryRow`]: the main chain.
    ENTRIES (entries): (u64, u64) => Row = "entries_v2";
    /// Entry digest → (session number, seq, 0 main | 1 side).
    INDEX (index): Digest32 => (u64, u64, u8) = "index_v1";
    /// (session number, entry digest) → [`crate::rows::SideRow`]: held, but not on the main chain.
    SIDE (side): (u64, Digest32) => Row = "side_v2";
    /// (genesis digest, accusation) → [`crate::evidence::KeptEvidence`]; the session need not be held.
    EVIDENCE (evidence): (Digest32, Bytes) => Row = "evidence_v1";
    /// Digest → [`crate::rows::BlockRow`] of every payload and file that is held, and the bytes of a payload of at most 16 KiB.
    BLOCKS (blocks): Digest32 => Row = "blocks_v3";
    /// (digest, session number, seq) of the entries that link a block, whether it is held or not.
    BLOCK_REFS (block_refs): (Digest32, u64, u64) => () = "block_refs_v2";
    /// (session number, seq, digest): the same links from the other side, but for payloads: entries name those themselves.
    LINKS_OF_SESSION (links_of_session): (u64, u64, Digest32) => () = "links_of_session_v2";
    /// (digest, genesis digest) → 0, or until when in Unix milliseconds: the sessions that brought a block, but for the one in its row; see
    /// [`crate::brought`]. The session need not be held.
    BROUGHT (brought): (Digest32, Digest32) => u64 = "brought_v1";
    /// (expiry in Unix milliseconds, digest): leases of blocks that nothing links yet.
    LEASES (leases): (u64, Digest32) => () = "leases_v1";
    /// Digest → when: payloads that a redaction dropped, refused from then on.
    REFUSED (refused): Digest32 => u64 = "refused_v1";
    /// Digests of files whose row is gone and whose bytes are still to be unlinked.
    CONDEMNED (condemned): Digest32 => () = "condemned_v1";
    /// sha2-256 of the bytes → [`crate::rows::ControlRow`].
    CONTROLS (controls): Digest32 => Row = "controls_v2";
    /// blake2b-256 digest of the bytes → their sha2-256: a Seed daemon names the same blob so.
    CONTROL_ALIASES (control_aliases): Digest32 => Digest32 = "control_aliases_v1";
    /// (owner key, hash) of capabilities and tombstones.
    CONTROLS_OF_OWNER (controls_of_owner): (Digest32, Digest32) => () = "controls_of_owner_v1";
    /// (owner key, delegate key) of everybody who was ever granted something, revoked or not.
    DELEGATES (delegates): (Digest32, Digest32) => () = "delegates_v1";
    /// (genesis digest, hash) of Refs; the session need not be held.
    REFS_OF_SESSION (refs_of_session): (Digest32, Digest32) => () = "refs_of_session_v1";
    /// Owner key → (count, digest) over its capabilities and tombstones.
    OWNERS (owners): Digest32 => (u64, Digest32) = "owners_v1";
    /// (owner key, hash of a tombstone or genesis digest) → 0 the tombstone was not applied yet | 1, 2 the session could not be judged;
    /// see [`crate::to_judge`].
    TO_JUDGE (to_judge): (Digest32, Digest32) => u64 = "to_judge_v1";
    /// Genesis digest → [`crate::rows::GuardRow`]; stays when the session is forgotten. A backup leaves this table out.
    GUARD (guard): Digest32 => Row = "guard_v3";
    /// (scope, key) → [`crate::rows::IdempotencyRow`].
    IDEMPOTENCY (idempotency): (Digest32, &'static str) => Row = "idempotency_v2";
    /// (expiry in Unix milliseconds, scope, key) of those that expire.
    IDEMPOTENCY_EXPIRY (idempotency_expiry): (u64, Digest32, &'static str) => () = "idempotency_expiry_v1";
    /// (scope, digest) → bytes that are not adopted yet.
    STAGED (staged): (Digest32, Digest32) => Row = "staged_v2";
    /// Scope → (bytes, expiry in Unix milliseconds).
    STAGING_SCOPES (staging_scopes): Digest32 => (u64, u64) = "staging_scopes_v1";
    /// Genesis digest → [`crate::rows::Pin`].
    PINS (pins): Digest32 => Row = "pins_v2";
    /// (kind, id) → bytes of a job's journal, opaque here.
    JOBS (jobs): (&'static str, Bytes) => Row = "jobs_v2";
    /// (space, key) → bytes: peers, aliases and other small facts of the node, opaque here.
    FACTS (facts): (&'static str, Bytes) => Row = "facts_v2";
    /// Event id → [`crate::events::Event`].
    EVENTS (events): u64 => Row = "events_v2";
}

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
    /// Bytes of entries on main chains.
    pub(crate) const ENTRY_BYTES: &str = "entry_bytes";
    /// Bytes of payloads and files.
    pub(crate) const BLOCK_BYTES: &str = "block_bytes";
    /// Bytes of side entries.
    pub(crate) const SIDE_BYTES: &str = "side_bytes";
    /// Bytes of files of evidence.
    pub(crate) const EVIDENCE_BYTES: &str = "evidence_bytes";
    /// Bytes of staged blocks.
    pub(crate) const STAGING_BYTES: &str = "staging_bytes";
    /// Number of the newest batch that is in the database; see [`crate::journal`].
    pub(crate) const BATCH: &str = "batch";
    /// All of them.
    pub(crate) const ALL: [&str; 11] = [
        SCHEMA,
        NEXT_SESSION,
        NEXT_EVENT,
        OPENS,
        GUARD_TRUSTED,
        ENTRY_BYTES,
        BLOCK_BYTES,
        SIDE_BYTES,
        EVIDENCE_BYTES,
        STAGING_BYTES,
        BATCH,
    ];
}
