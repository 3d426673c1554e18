//! The stable error codes, whose fault each is, and what a person reads about it.
//!
//! One row a code. `Display` and JSON use [`Code::name`]; it never changes once released. [`Code::fault`] is the
//! one source for everything that asks "who is to blame": gossip verdicts, peer scores, HTTP status and exit codes
//! are derived from it by the crates above. `docs/errors.md` is made from this table.

use std::{fmt, str::FromStr};

/// Whose fault a refusal is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The peer (or file) that handed the bytes over: an honest one would have refused them itself.
    Peer,
    /// The key that signed the blob. Whoever passed it on may be honest.
    Author,
    /// This machine or its operator.
    Local,
    /// Nobody's yet: something is missing, moved or newer than this program.
    None,
}

impl Fault {
    /// The word of the JSON interface.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Fault::Peer => "peer",
            Fault::Author => "author",
            Fault::Local => "local",
            Fault::None => "none",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

macro_rules! codes {
    ($($variant:ident $name:literal $fault:ident $title:literal $advice:literal;)*) => {
        /// A stable error, evidence or warning code.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code {
            $(
                #[doc = $title]
                $variant,
            )*
        }

        impl Code {
            /// Every code, in the order of the table.
            pub const ALL: &'static [Code] = &[$(Code::$variant),*];

            /// The stable name, `E_…`, `EV_…` (evidence) or `W_…` (warning).
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Code::$variant => $name),* }
            }

            /// Whose fault it is.
            #[must_use]
            pub fn fault(self) -> Fault {
                match self { $(Code::$variant => Fault::$fault),* }
            }

            /// One lower-case phrase that says what happened.
            #[must_use]
            pub fn title(self) -> &'static str {
                match self { $(Code::$variant => $title),* }
            }

            /// What it means and what to do next.
            #[must_use]
            pub fn advice(self) -> &'static str {
                match self { $(Code::$variant => $advice),* }
            }
        }
    };
}

codes! {
    // bytes
    TooBig "E_TOO_BIG" Peer "a blob, field or request is larger than its limit" "Every kind of blob has a size limit that all verifiers share. Split the content: words go into payloads (1 MiB), files into attachments.";
    CborTrailing "E_CBOR_TRAILING" Peer "bytes follow the end of the item" "A blob is exactly one CBOR item. The copy was damaged or padded on the way; fetch it again from another peer.";
    CborEof "E_CBOR_EOF" Peer "the bytes end in the middle of an item" "The copy is cut short. Fetch it again, or ask for the file again.";
    CborNoncanon "E_CBOR_NONCANON" Peer "the encoding is not the canonical one" "One content has one encoding: shortest heads, and optional fields that are absent, empty, zero or false left out. Re-encode with a canonical DAG-CBOR writer.";
    CborIndef "E_CBOR_INDEF" Peer "an item of indefinite length" "DAG-CBOR has definite lengths only.";
    CborKeytype "E_CBOR_KEYTYPE" Peer "a map key is not text" "DAG-CBOR map keys are text.";
    CborKeyorder "E_CBOR_KEYORDER" Peer "map keys are out of order" "Keys sort by length first, then bytewise.";
    CborDupkey "E_CBOR_DUPKEY" Peer "a map key stands twice" "Keys of a map are unique.";
    CborFloat "E_CBOR_FLOAT" Peer "a floating-point number" "Session blobs hold no floats; write a number that needs one as text.";
    CborSimple "E_CBOR_SIMPLE" Peer "a simple value other than true and false" "Only true and false (and null in Seed's bodies) are allowed.";
    CborTag "E_CBOR_TAG" Peer "a tag other than 42 over a byte string" "The only tag is 42, a link.";
    CborUtf8 "E_CBOR_UTF8" Peer "text is not valid UTF-8" "Text is UTF-8; lone surrogates are not.";
    CborDepth "E_CBOR_DEPTH" Peer "nesting is deeper than the limit" "16 levels in an entry or control blob, 64 in a payload.";
    CborLen "E_CBOR_LEN" Peer "a declared length is larger than the bytes that remain" "The copy is cut short, or its length was forged; nothing was allocated for it.";
    CborIntrange "E_CBOR_INTRANGE" Peer "an integer is out of range" "Integers lie within ±(2^53 − 1), times in 0 … 2^48 − 1 milliseconds.";
    CborSyntax "E_CBOR_SYNTAX" Peer "a reserved CBOR form" "The bytes are not CBOR.";
    // CIDs
    Cid "E_CID" Peer "not a CID" "Expected a CIDv1 such as bafyrei…; check that it was copied whole.";
    CidMismatch "E_CID_MISMATCH" Peer "the bytes do not hash to the CID they were given under" "Somebody changed the bytes, or the disk did. Nothing was stored. Fetch from another peer: the CID decides what is right.";
    CidVersion "E_CID_VERSION" Peer "a CID of a version other than 1" "Only CIDv1 is accepted.";
    CidVarint "E_CID_VARINT" Peer "a varint of the CID is not minimal" "Varints have one, shortest form.";
    CidTrailing "E_CID_TRAILING" Peer "bytes follow the CID" "A CID is consumed exactly.";
    CidPrefix "E_CID_PREFIX" Peer "a link without its 0x00 prefix" "A tag 42 holds 0x00 and the binary CID.";
    CidCodec "E_CID_CODEC" Peer "a CID whose codec is not allowed here" "Entries, payloads and grants are dag-cbor; files may also be raw or dag-pb.";
    CidHash "E_CID_HASH" Peer "a CID whose hash function is not allowed here" "Entries are sha2-256; foreign blobs may also be blake2b-256. Identity and weak hashes are refused.";
    CidDigestlen "E_CID_DIGESTLEN" Peer "a CID with a truncated digest" "Digests are 32 bytes.";
    // keys and signatures
    KeyCodec "E_KEY_CODEC" Peer "a key that is not Ed25519" "Principals are ed01 + 32 bytes, written z6Mk….";
    KeyPoint "E_KEY_POINT" Author "a key that is no point of the curve" "The signer is not a usable key.";
    KeyNoncanon "E_KEY_NONCANON" Author "a key in a non-canonical encoding" "The signer is not a usable key.";
    KeySmall "E_KEY_SMALL" Author "a key of small order" "Such a key signs for everything; it is never accepted.";
    KeyTorsion "E_KEY_TORSION" Author "a key with a torsion component" "Implementations disagree about such keys; they are never accepted.";
    Sig "E_SIG" Author "the signature does not verify" "The bytes are not what the signer signed. Fetch them from another peer; if all agree, the entry is forged.";
    SigLayout "E_SIG_LAYOUT" Author "the signature field is not where the encoding puts it" "The blob was assembled by a program that does not follow the signing rule.";
    // schema
    Type "E_TYPE" Author "a blob of another type than expected" "Check which kind of blob this command or route takes.";
    SchemaUnknown "E_SCHEMA_UNKNOWN" Author "a field that this type does not have" "Fields are closed; extensions go into `x`.";
    SchemaMissing "E_SCHEMA_MISSING" Author "a required field is missing" "The schema of the type lists its required fields.";
    SchemaType "E_SCHEMA_TYPE" Author "a field has the wrong kind or a value outside its list" "The schema of the type lists kinds and values; defaults are left out.";
    SchemaLen "E_SCHEMA_LEN" Author "a field has the wrong length" "The schema of the type gives the length.";
    SchemaText "E_SCHEMA_TEXT" Author "a field holds characters it may not hold" "Names hold no control or bidi characters; ids are printable ASCII.";
    SchemaNull "E_SCHEMA_NULL" Author "null where a field should be left out" "Absent fields are omitted, never null.";
    SchemaKey "E_SCHEMA_KEY" Author "a key that is not ASCII" "All keys are ASCII.";
    SchemaExclusive "E_SCHEMA_EXCLUSIVE" Author "fields that exclude each other" "One of the two has to go.";
    TooManyLinks "E_TOO_MANY_LINKS" Author "more links than an entry may hold" "256 links at most.";
    Version "E_VERSION" None "a newer version than this program knows" "It cannot be judged here; the bytes are kept. Upgrade throughline.";
    Seal "E_SEAL" Author "a seal whose numbers differ from the chain" "Count, participants and times of a seal are derived from the chain.";
    // chain
    Genesis "E_GENESIS" Author "a genesis with fields that only later entries have, or a wrong holder" "A genesis has no prev, seq, genesis, epoch or skip.";
    SessionMismatch "E_SESSION_MISMATCH" Author "an entry of another session" "An entry names its genesis and belongs to that session only.";
    PrevMissing "E_PREV_MISSING" Author "an entry without prev" "Every entry but the genesis names the one before it.";
    PrevType "E_PREV_TYPE" Author "prev is not an entry" "prev links the entry before; something else was linked.";
    Seq "E_SEQ" Author "seq is not one more than that of prev" "Entries are numbered without gaps.";
    Skip "E_SKIP" Author "the skip pointer is not the one the rule gives" "A false skip pointer is evidence against its signer.";
    Ancestor "E_ANCESTOR" Author "a link that should name an ancestor names something else" "response, answers, from and to link earlier entries of the same session.";
    TsOrder "E_TS_ORDER" Author "ts is lower than that of prev" "A writer uses the larger of its clock and prev's ts.";
    Future "W_FUTURE" None "ts is ahead of this machine's clock" "Set the clock of the machine that signed it, or of this one; the session goes on meanwhile.";
    Sealed "E_SEALED" Author "the session is sealed" "A seal is final. Continue in a new session.";
    Incomplete "E_INCOMPLETE" None "blobs that are needed to judge are missing" "Nothing is wrong with what is here. Fetch the rest: throughline fetch S.";
    Budget "E_BUDGET" Peer "more data than the limit for one transfer" "The peer served more than it announced, or a quota is full.";
    // authority
    CapMissing "E_CAP_MISSING" Author "the signer has no capability for this" "The owner grants it: throughline grant PEER --agent IRI.";
    CapIssuer "E_CAP_ISSUER" Author "the capability or entry belongs to another owner" "Only the session's owner grants.";
    CapAudience "E_CAP_AUDIENCE" Author "a capability that is bound to an audience" "Peer proofs are not grants.";
    CapRole "E_CAP_ROLE" Author "the capability's role does not allow this" "Servers write under agent-session-writer, contributors add messages, only the account hands over.";
    CapScope "E_CAP_SCOPE" Author "the capability does not cover this session or agent" "Paths are compared segment by segment; grant the agent's own path.";
    TombIssuer "E_TOMB_ISSUER" Author "a tombstone that the owner did not sign" "Only the owner revokes.";
    Revoked "E_REVOKED" Author "signed under a revoked capability, after the last anchor" "What the owner had anchored stays valid; this tail does not count. It is kept as evidence.";
    Fenced "E_FENCED" Author "signed in an epoch that has ended" "A handoff named another holder. The entry is kept as evidence: throughline status S.";
    EpochGap "E_EPOCH_GAP" Author "the epoch does not follow from the entry before" "Only a handoff or an owner's seal opens the next epoch.";
    EpochOld "E_EPOCH_OLD" None "an epoch that is not newer than the one held" "The session has moved on: throughline status S.";
    Equivocation "EV_EQUIVOCATION" Author "the holder signed two histories" "Neither is taken until the owner decides with a handoff.";
    OwnerEquivocation "EV_OWNER_EQUIVOCATION" Author "the owner opened one epoch twice" "The session is frozen until a handoff of a higher epoch.";
    Evidence "E_EVIDENCE" Peer "the file does not show what it claims" "Nothing follows from it, for or against anybody. Ask its maker for the session itself: throughline export S.";
    // refs, classes
    RefMismatch "E_REF_MISMATCH" Author "a Ref whose fields do not fit the session" "path, genesisBlob, generation and head must agree.";
    RefInconsistent "E_REF_INCONSISTENT" None "a Ref whose head is not on the chain that selection keeps" "Selection over everything held decides, not the order of arrival.";
    Topic "E_TOPIC" Peer "an announcement on another owner's topic" "Each owner has one topic.";
    Class "E_CLASS" Author "the session's class does not allow this" "internal and confidential sessions are not published.";
    ClassDowngrade "E_CLASS_DOWNGRADE" Author "a class made more open by a key that may not do so" "Only the account or a device opens a session up.";
    SecretSuspect "E_SECRET_SUSPECT" Local "something that looks like a secret would become public" "Rotate the secret; then redact it or allow the finding.";
    // files
    CarHeader "E_CAR_HEADER" Peer "not a CAR v1 file" "Expected a CARv1 header with one root.";
    CarVarint "E_CAR_VARINT" Peer "a section length of the CAR is not usable" "The file is damaged or no CAR.";
    CarTruncated "E_CAR_TRUNCATED" Peer "the CAR ends in the middle of a block" "The file was cut off; fetch or copy it again. What came before is intact.";
    CarDup "E_CAR_DUP" Peer "a block stands twice in the CAR" "No block stands twice.";
    CarOrder "E_CAR_ORDER" Peer "blocks of the CAR are out of order" "Genesis, control blobs, then entries by seq, each with its payload.";
    CarRoot "E_CAR_ROOT" Peer "the CAR does not have one root that can be an entry" "A session CAR has one root: the CID of the head.";
    ArchivePath "E_ARCHIVE_PATH" Peer "a path that leaves the archive" "Nothing was written.";
    ArchiveType "E_ARCHIVE_TYPE" Peer "an archive member that is no regular file" "Nothing was written.";
    ArchiveHeader "E_ARCHIVE_HEADER" Peer "an archive header that does not fit its content" "Nothing was written.";
    ArchiveLimit "E_ARCHIVE_LIMIT" Peer "an archive larger than its limit" "Nothing was written.";
    ArchiveDup "E_ARCHIVE_DUP" Peer "an archive with two members of one name" "Nothing was written.";
    Json "E_JSON" Local "not valid JSON" "The detail says at which line and column it breaks. An import keeps such a line raw and goes on.";
    InputNotFound "E_INPUT_NOT_FOUND" Local "an input is not here: a file of the command line, or a block that an entry names" "Check the path, or upload the file for the session first.";
    InputFormat "E_INPUT_FORMAT" Local "the input is of no known format" "Name the format, or check that this is the right file.";
    // storage
    SignGuard "E_SIGN_GUARD" Local "this node may not sign in this session until a handoff" "The sign guard has no row that the next entry could follow (a restored or cloned data directory). Move the session, to this node if you like: throughline move S --to self.";
    Locked "E_LOCKED" Local "another process holds the data directory" "Commands go through a running node by themselves; stop the named process or wait for it.";
    StoreCorrupt "E_STORE_CORRUPT" Local "stored bytes are damaged" "Run throughline fsck --repair: it fetches the damaged blobs again.";
    IndexCorrupt "E_INDEX_CORRUPT" Local "the index contradicts the entries" "Run throughline fsck.";
    StoreVersion "E_STORE_VERSION" Local "the data directory was written by another format version" "Use the throughline version that wrote it, or upgrade.";
    StoreIo "E_STORE_IO" Local "the disk refused a read or write" "Check free space and the disk. Nothing that was acknowledged is lost.";
    StoreReadOnly "E_STORE_READ_ONLY" Local "the store takes no writes" "A write failed earlier: fix the disk and restart. A full disk needs room only, no restart.";
    Quota "E_QUOTA" Local "a quota is full" "Raise the limit in the config, or let something go.";
    NotInitialised "E_NOT_INITIALISED" Local "there is no node here yet" "Run throughline init.";
    KeyfileMode "E_KEYFILE_MODE" Local "a key file that others may read" "Set its mode with chmod 600.";
    KeyfileType "E_KEYFILE_TYPE" Local "a key file that is a link or no regular file" "Replace it by a regular file.";
    KeyfileOwner "E_KEYFILE_OWNER" Local "a key file that belongs to another user" "Give it to the user that runs throughline.";
    KeyfileFormat "E_KEYFILE_FORMAT" Local "a key file that is damaged or of another format" "Restore it from your export.";
    KeyfileMissing "E_KEYFILE_MISSING" Local "a key file is not there" "Import it: throughline key import FILE, or throughline init.";
    Passphrase "E_PASSPHRASE" Local "the passphrase does not open the owner key" "Try again; nothing was changed.";
    // transport and API
    FrameLen "E_FRAME_LEN" Peer "a frame with a bad length prefix" "Lengths are minimal varints of at most 2 MiB + 64 KiB.";
    SyncUnsolicited "E_SYNC_UNSOLICITED" Peer "an answer that was not asked for" "The peer was charged; the transfer goes on with another one.";
    Unreachable "E_UNREACHABLE" None "no peer could be reached" "Nothing was changed. Check the addresses: throughline peer list.";
    Timeout "E_TIMEOUT" Peer "a peer sent nothing for too long" "Nothing that was verified is lost; run the command again to resume.";
    PeerVersion "E_PEER_VERSION" None "the peer speaks another protocol version" "Upgrade the older side.";
    PeerProof "E_PEER_PROOF" Peer "a request without a valid proof of who asks" "The peer was treated as a stranger.";
    ApiHost "E_API_HOST" Local "a Host header that is not allowed" "Use localhost or 127.0.0.1, or add the name to api.allowed_hosts.";
    ApiOrigin "E_API_ORIGIN" Local "a request from a web page of another origin" "The local API answers local programs only.";
    ApiFetchsite "E_API_FETCHSITE" Local "a cross-site request" "The local API answers local programs only.";
    ApiToken "E_API_TOKEN" Local "no valid token" "Send Authorization: Bearer … with the token of: throughline api token.";
    ApiScope "E_API_SCOPE" Local "the token's scope does not allow this" "Make a token with --scope write.";
    ApiCtype "E_API_CTYPE" Local "a body of a content type that this route does not take" "Send application/json, application/cbor or application/vnd.ipld.car as the route says.";
    ApiPath "E_API_PATH" Local "a path that is not a clean one" "Paths hold no dot segments, empty segments or escapes.";
    ApiRoute "E_API_ROUTE" Local "no such route" "See /v1/openapi.json.";
    ApiBody "E_API_BODY" Local "a body that is not what the route takes" "See /v1/openapi.json.";
    ApiTimeout "E_API_TIMEOUT" Local "a body that came too slowly" "Nothing was done. Have the body ready before the request; only uploads may take as long as they keep coming.";
    ApiQuery "E_API_QUERY" Local "a query parameter that this route does not take or cannot read" "See /v1/openapi.json.";
    ApiPeeruid "E_API_PEERUID" Local "a socket connection from another user" "Run as the user that owns the node.";
    // local acts
    HeadMoved "E_HEAD_MOVED" None "the head moved" "Sign again on the head in the answer.";
    NotHolder "E_NOT_HOLDER" Author "this key does not hold the session" "Another server holds it: throughline status S; move it: throughline move S --to PEER.";
    Frozen "E_FROZEN" None "the session is frozen for a handoff" "Wait for the move to end, or: throughline move --abort S.";
    Retired "E_RETIRED" Local "this server handed the session over" "Append at the holder: throughline status S.";
    Idempotency "E_IDEMPOTENCY" Local "the idempotency key was used for another request" "Use a new key for a new request.";
    DraftGone "E_DRAFT_GONE" Local "the draft was lost in a restart" "Post it again with firstEntry.";
    OwnerKey "E_OWNER_KEY" Local "this needs the owner key" "Run it where the owner key is, and unlock it with --passphrase-fd.";
    NotFoundYet "E_NOT_FOUND_YET" None "not found yet" "It may not exist, may be private, or its holders may be off. Add a peer that has it, or try later.";
    NoContext "E_NO_CONTEXT" None "the change cites no session" "There is nothing to walk back to.";
    PeerUnknown "E_PEER_UNKNOWN" Local "no such peer" "Use an alias or a full principal; throughline peer list shows them.";
    Ambiguous "E_AMBIGUOUS" Local "a short id or a name stands for several things" "Of a short id, use more characters or the full CID. A name stands for one peer: take another, or free it with throughline peer remove ALIAS.";
    Prompt "E_PROMPT" Local "an answer was needed and nobody could be asked" "Pass the flag that the message names.";
    Usage "E_USAGE" Local "the command line is not understood, or names what cannot be used" "See throughline help.";
    Config "E_CONFIG" Local "the configuration is not usable" "throughline config check names the line.";
    MoveState "E_MOVE_STATE" Local "the move is in a state that does not allow this" "throughline status S shows where it stands.";
    Refused "E_REFUSED" None "the other side refused" "The detail has its reason.";
    Internal "E_INTERNAL" Local "a bug in throughline" "Please report it with the log.";
    Interrupted "E_INTERRUPTED" None "interrupted" "What was finished is kept; run the command again to resume.";
}

impl Code {
    /// Codes whose names are kept for acts that this version does not have. Nothing answers with one of them.
    pub const RESERVED: &'static [Code] = &[
        Code::SecretSuspect,
        Code::ArchivePath,
        Code::ArchiveType,
        Code::ArchiveHeader,
        Code::ArchiveLimit,
        Code::ArchiveDup,
        Code::ApiPeeruid,
        Code::NoContext,
    ];

    /// Whether it is one of [`Code::RESERVED`].
    #[must_use]
    pub fn is_reserved(self) -> bool {
        Code::RESERVED.contains(&self)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The text is not the name of a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected an error code such as E_SIG, found something else")]
pub struct UnknownCode;

impl FromStr for Code {
    type Err = UnknownCode;

    fn from_str(text: &str) -> Result<Self, UnknownCode> {
        Code::ALL.iter().copied().find(|code| code.name().eq_ignore_ascii_case(text)).ok_or(UnknownCode)
    }
}

/// Why bytes, a blob or a set of blobs were refused: a stable code and what was expected and what came.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {detail}")]
pub struct Reject {
    /// The stable code.
    pub code: Code,
    /// Lower case: what was expected and what came. Holds no text of the refused blob but keys and short ids.
    pub detail: String,
}

impl Reject {
    /// A refusal with its detail.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Reject { code, detail: detail.into() }
    }

    /// Whose fault it is.
    #[must_use]
    pub fn fault(&self) -> Fault {
        self.code.fault()
    }

    /// The same refusal, with where it happened put in front.
    #[must_use]
    pub fn within(mut self, place: &str) -> Self {
        self.detail = format!("{place}: {}", self.detail);
        self
    }
}

impl From<Code> for Reject {
    fn from(code: Code) -> Self {
        Reject::new(code, code.title())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_parse_back() {
        let mut seen = std::collections::BTreeSet::new();
        for code in Code::ALL {
            assert!(seen.insert(code.name()), "{code} stands twice");
            assert_eq!(code.name().parse(), Ok(*code));
            assert!(["E_", "EV_", "W_"].iter().any(|prefix| code.name().starts_with(prefix)));
        }
    }

    #[test]
    fn titles_are_lower_case_phrases() {
        for code in Code::ALL {
            assert!(!code.title().ends_with('.'), "{code}");
            assert!(!code.advice().is_empty(), "{code}");
        }
    }
}
