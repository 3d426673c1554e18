//! Identifiers: principals, CIDs, session ids and the small numbers of the chain. `docs/PROTOCOL.md` §Identifiers.
//!
//! Every identifier is its own type with private fields; each is built by parsing. `Display` is the full canonical
//! text, `short()` is for reading and logs. Only CIDs of the allowed forms exist as values: version 1, codec
//! dag-cbor, raw or dag-pb, hash sha2-256 or blake2b-256, a digest of 32 bytes. A weaker one cannot be represented.

use std::{fmt, str::FromStr};

use blake2::Blake2b;
use blake2::digest::consts::U32;
use data_encoding::BASE32_NOPAD;
use sha2::{Digest, Sha256};

use crate::code::{Code, Reject};
use crate::limits;

/// Multicodec prefix of an Ed25519 public key, as a varint.
const ED25519_PREFIX: [u8; 2] = [0xed, 0x01];
/// Length of a principal in bytes: prefix and key.
pub const PRINCIPAL_BYTES: usize = 34;

/// An account, device, server or peer key: `ed01` and 32 key bytes. Text is multibase base58btc, `z6Mk…`.
///
/// A value says only that the form is right; whether the key is usable is for [`crate::sign::VerifyingKeys`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Principal([u8; 32]);

impl Principal {
    /// The principal of a raw Ed25519 public key.
    #[must_use]
    pub fn from_key(key: [u8; 32]) -> Self {
        Principal(key)
    }

    /// Reads the 34 bytes of the wire form.
    ///
    /// # Errors
    /// `E_KEY_CODEC` for another prefix, `E_SCHEMA_LEN` for another length.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Reject> {
        let Some(key) = bytes.strip_prefix(&ED25519_PREFIX) else {
            return Err(Reject::new(Code::KeyCodec, "expected a key that begins with ed01"));
        };
        let key: [u8; 32] = key.try_into().map_err(|_| {
            Reject::new(
                Code::SchemaLen,
                format!("expected {PRINCIPAL_BYTES} bytes of key, got {}", bytes.len()),
            )
        })?;
        Ok(Principal(key))
    }

    /// The 34 bytes of the wire form.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; PRINCIPAL_BYTES] {
        let mut out = [0; PRINCIPAL_BYTES];
        out[..2].copy_from_slice(&ED25519_PREFIX);
        out[2..].copy_from_slice(&self.0);
        out
    }

    /// The raw Ed25519 public key.
    #[must_use]
    pub fn key(&self) -> &[u8; 32] {
        &self.0
    }

    /// First and last characters, for reading only: never for deciding.
    #[must_use]
    pub fn short(&self) -> String {
        let text = self.to_string();
        format!("{}…{}", &text[..10], &text[text.len() - 4..])
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "z{}", bs58::encode(self.to_bytes()).into_string())
    }
}

impl fmt::Debug for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.short())
    }
}

impl FromStr for Principal {
    type Err = Reject;

    fn from_str(text: &str) -> Result<Self, Reject> {
        let bad = || Reject::new(Code::KeyCodec, "expected a principal such as z6Mk…");
        let body = text.strip_prefix('z').filter(|body| body.len() <= 64).ok_or_else(bad)?;
        let bytes = bs58::decode(body).into_vec().map_err(|_| bad())?;
        Principal::from_bytes(&bytes)
    }
}

/// What a CID's bytes are encoded as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Codec {
    /// dag-cbor, 0x71.
    DagCbor,
    /// raw bytes, 0x55.
    Raw,
    /// dag-pb, 0x70.
    DagPb,
}

/// How a CID's digest was made. Always 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HashKind {
    /// sha2-256, 0x12: all that we write.
    Sha256,
    /// blake2b-256, 0xb220: what a Seed daemon gives to blobs it names itself.
    Blake2b256,
}

/// A CIDv1 of one of the allowed forms.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cid {
    codec: Codec,
    hash: HashKind,
    digest: [u8; 32],
}

impl Cid {
    /// The CID of `bytes` under sha2-256.
    #[must_use]
    pub fn sha256(codec: Codec, bytes: &[u8]) -> Self {
        Cid { codec, hash: HashKind::Sha256, digest: Sha256::digest(bytes).into() }
    }

    /// The CID of `bytes` under blake2b-256.
    #[must_use]
    pub fn blake2b(codec: Codec, bytes: &[u8]) -> Self {
        Cid { codec, hash: HashKind::Blake2b256, digest: Blake2b::<U32>::digest(bytes).into() }
    }

    /// A CID from its parts.
    #[must_use]
    pub fn from_parts(codec: Codec, hash: HashKind, digest: [u8; 32]) -> Self {
        Cid { codec, hash, digest }
    }

    /// What the bytes are encoded as.
    #[must_use]
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// Whether it can name a file or a part of one (R-FI-4): raw or dag-pb, under sha2-256. Whatever calls a link of another form a
    /// file, it is none: entries, payloads, config and control blobs are dag-cbor, so no word makes one of them a file.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.hash == HashKind::Sha256 && matches!(self.codec, Codec::Raw | Codec::DagPb)
    }

    /// How the digest was made.
    #[must_use]
    pub fn hash_kind(&self) -> HashKind {
        self.hash
    }

    /// The 32 digest bytes.
    #[must_use]
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// Whether `bytes` hash to this CID.
    #[must_use]
    pub fn matches(&self, bytes: &[u8]) -> bool {
        let digest: [u8; 32] = match self.hash {
            HashKind::Sha256 => Sha256::digest(bytes).into(),
            HashKind::Blake2b256 => Blake2b::<U32>::digest(bytes).into(),
        };
        digest == self.digest
    }

    /// The binary form: version, codec, hash and length as varints, then the digest.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(38);
        out.push(1);
        out.push(match self.codec {
            Codec::DagCbor => 0x71,
            Codec::Raw => 0x55,
            Codec::DagPb => 0x70,
        });
        match self.hash {
            HashKind::Sha256 => out.push(0x12),
            HashKind::Blake2b256 => out.extend([0xa0, 0xe4, 0x02]),
        }
        out.push(32);
        out.extend(self.digest);
        out
    }

    /// Reads the binary form, which must be consumed exactly.
    ///
    /// # Errors
    /// One of the `E_CID…` codes; see [`crate::code`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Reject> {
        let (cid, rest) = Cid::read(bytes)?;
        if rest.is_empty() {
            Ok(cid)
        } else {
            Err(Reject::new(Code::CidTrailing, format!("{} bytes follow the CID", rest.len())))
        }
    }

    /// Reads a CID at the start of `bytes`; also returns what follows it.
    ///
    /// # Errors
    /// One of the `E_CID…` codes.
    pub fn read(bytes: &[u8]) -> Result<(Self, &[u8]), Reject> {
        if bytes.first() == Some(&0x12) && bytes.get(1) == Some(&0x20) {
            return Err(Reject::new(Code::CidVersion, "expected a CIDv1, got a CIDv0"));
        }
        let (version, rest) = read_varint(bytes)?;
        if version != 1 {
            return Err(Reject::new(Code::CidVersion, format!("expected CID version 1, got {version}")));
        }
        // Each part is judged as it is reached, so what stands behind a wrong one never decides the code.
        let (codec, rest) = read_varint(rest)?;
        let codec = match codec {
            0x71 => Codec::DagCbor,
            0x55 => Codec::Raw,
            0x70 => Codec::DagPb,
            other => {
                return Err(Reject::new(
                    Code::CidCodec,
                    format!("expected dag-cbor, raw or dag-pb, got codec {other:#x}"),
                ));
            }
        };
        let (hash, rest) = read_varint(rest)?;
        let hash = match hash {
            0x12 => HashKind::Sha256,
            0xb220 => HashKind::Blake2b256,
            other => {
                return Err(Reject::new(
                    Code::CidHash,
                    format!("expected sha2-256 or blake2b-256, got hash {other:#x}"),
                ));
            }
        };
        let (length, rest) = read_varint(rest)?;
        if length != 32 {
            return Err(Reject::new(
                Code::CidDigestlen,
                format!("expected a digest of 32 bytes, got {length}"),
            ));
        }
        let Some((digest, rest)) = rest.split_first_chunk::<32>() else {
            return Err(Reject::new(Code::Cid, "the digest is shorter than its length"));
        };
        Ok((Cid { codec, hash, digest: *digest }, rest))
    }

    /// Eight characters that tell CIDs apart for a reader: those after the common prefix.
    #[must_use]
    pub fn short(&self) -> String {
        let text = self.to_string();
        let prefix = if self.hash == HashKind::Sha256 { 7 } else { 11 };
        text[prefix..prefix + 8].to_owned()
    }
}

/// CIDs sort by their binary form, which is how files and frames list them.
impl Ord for Cid {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        fn rank(cid: &Cid) -> (u8, u16) {
            let codec = match cid.codec {
                Codec::Raw => 0x55,
                Codec::DagPb => 0x70,
                Codec::DagCbor => 0x71,
            };
            (codec, if cid.hash == HashKind::Sha256 { 0x12 } else { 0xa0 })
        }
        rank(self).cmp(&rank(other)).then_with(|| self.digest.cmp(&other.digest))
    }
}

impl PartialOrd for Cid {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Cid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b{}", BASE32_NOPAD.encode(&self.to_bytes()).to_ascii_lowercase())
    }
}

impl fmt::Debug for Cid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.short())
    }
}

impl FromStr for Cid {
    type Err = Reject;

    fn from_str(text: &str) -> Result<Self, Reject> {
        let bad = || Reject::new(Code::Cid, "expected a CIDv1 in base32 such as bafyrei…");
        if text.starts_with("Qm") && text.len() == 46 {
            return Err(Reject::new(Code::CidVersion, "expected a CIDv1, got a CIDv0"));
        }
        let body = text.strip_prefix('b').filter(|body| body.len() <= 80).ok_or_else(bad)?;
        if body.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return Err(bad());
        }
        let bytes = BASE32_NOPAD.decode(body.to_ascii_uppercase().as_bytes()).map_err(|_| bad())?;
        Cid::from_bytes(&bytes)
    }
}

fn read_varint(bytes: &[u8]) -> Result<(u64, &[u8]), Reject> {
    let mut value = 0_u64;
    for (index, &byte) in bytes.iter().enumerate().take(9) {
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            if byte == 0 && index > 0 {
                return Err(Reject::new(Code::CidVarint, "a varint is longer than it needs to be"));
            }
            return Ok((value, &bytes[index + 1..]));
        }
    }
    if bytes.len() < 9 {
        return Err(Reject::new(Code::Cid, "the CID ends inside a varint"));
    }
    Err(Reject::new(Code::CidVarint, "a varint is longer than nine bytes"))
}

/// The CID of a signed entry or a payload block: dag-cbor under sha2-256 and nothing else.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryCid([u8; 32]);

impl EntryCid {
    /// The CID of an entry's bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        EntryCid(Sha256::digest(bytes).into())
    }

    /// From the sha2-256 digest.
    #[must_use]
    pub fn from_digest(digest: [u8; 32]) -> Self {
        EntryCid(digest)
    }

    /// The sha2-256 digest.
    #[must_use]
    pub fn digest(&self) -> &[u8; 32] {
        &self.0
    }

    /// As a general CID.
    #[must_use]
    pub fn cid(&self) -> Cid {
        Cid::from_parts(Codec::DagCbor, HashKind::Sha256, self.0)
    }

    /// The eight characters after `bafyrei`, for reading only.
    #[must_use]
    pub fn short(&self) -> String {
        self.cid().short()
    }
}

impl TryFrom<Cid> for EntryCid {
    type Error = Reject;

    fn try_from(cid: Cid) -> Result<Self, Reject> {
        if cid.codec != Codec::DagCbor {
            return Err(Reject::new(Code::CidCodec, "expected a dag-cbor CID"));
        }
        if cid.hash != HashKind::Sha256 {
            return Err(Reject::new(Code::CidHash, "expected a sha2-256 CID"));
        }
        Ok(EntryCid(cid.digest))
    }
}

impl fmt::Display for EntryCid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cid().fmt(f)
    }
}

impl fmt::Debug for EntryCid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.short())
    }
}

impl FromStr for EntryCid {
    type Err = Reject;

    fn from_str(text: &str) -> Result<Self, Reject> {
        EntryCid::try_from(text.parse::<Cid>()?)
    }
}

/// A session: the CID of its genesis.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(EntryCid);

impl SessionId {
    /// The session that begins with this genesis.
    #[must_use]
    pub fn of_genesis(genesis: EntryCid) -> Self {
        SessionId(genesis)
    }

    /// The CID of the genesis.
    #[must_use]
    pub fn genesis(&self) -> EntryCid {
        self.0
    }

    /// The eight characters after `bafyrei`, for reading and local lookup only.
    #[must_use]
    pub fn short(&self) -> String {
        self.0.short()
    }

    /// The path under which Refs and one-session capabilities name this session: `/session-<cid>`.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/session-{}", self.0)
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.short())
    }
}

impl FromStr for SessionId {
    type Err = Reject;

    fn from_str(text: &str) -> Result<Self, Reject> {
        text.parse().map(SessionId)
    }
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $max:expr, $unit:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u64);

        impl $name {
            #[doc = concat!("Checks that ", $unit, " is in range.")]
            ///
            /// # Errors
            /// `E_CBOR_INTRANGE` beyond the range.
            pub fn new(value: u64) -> Result<Self, Reject> {
                if value <= $max {
                    Ok($name(value))
                } else {
                    Err(Reject::new(
                        Code::CborIntrange,
                        format!(concat!("expected ", $unit, " of at most {}, got {}"), $max, value),
                    ))
                }
            }

            /// As a plain number.
            #[must_use]
            pub fn get(self) -> u64 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// Position in a session: 0 is the genesis.
    Seq, limits::INTEGER_MAX, "a seq"
}
number! {
    /// How many times the session was handed over (or sealed by its owner) before this entry.
    Epoch, limits::INTEGER_MAX, "an epoch"
}
number! {
    /// Unix time in milliseconds, below 2^48.
    UnixMillis, limits::TS_MS_MAX, "a time in milliseconds"
}

impl Seq {
    /// The genesis.
    pub const ZERO: Seq = Seq(0);

    /// The next position. Saturates at the largest one, which no chain reaches.
    #[must_use]
    pub fn next(self) -> Seq {
        Seq((self.0 + 1).min(limits::INTEGER_MAX))
    }
}

impl Epoch {
    /// The epoch of the genesis.
    pub const ZERO: Epoch = Epoch(0);

    /// The epoch that the next handoff opens. Saturates like [`Seq::next`].
    #[must_use]
    pub fn next(self) -> Epoch {
        Epoch((self.0 + 1).min(limits::INTEGER_MAX))
    }
}

/// A path under an account, or the scope of a capability: `/seg` once or more, compared as bytes and by segment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScopePath(String);

impl ScopePath {
    /// Checks a path: at most 256 bytes; a segment is 1 to 128 of `A–Z a–z 0–9 . _ ~ -` and not `.` or `..`.
    ///
    /// # Errors
    /// `E_CAP_SCOPE`.
    pub fn parse(text: &str) -> Result<Self, Reject> {
        let bad = |what: &str| Reject::new(Code::CapScope, format!("expected a path such as /scout: {what}"));
        if text.len() > 256 {
            return Err(bad("longer than 256 bytes"));
        }
        let Some(rest) = text.strip_prefix('/') else {
            return Err(bad("it does not begin with a slash"));
        };
        for segment in rest.split('/') {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'~' | b'-');
            if segment.is_empty() || segment.len() > 128 {
                return Err(bad("a segment is empty or longer than 128 bytes"));
            }
            if matches!(segment, "." | "..") || !segment.bytes().all(plain) {
                return Err(bad("a segment holds what it may not"));
            }
        }
        Ok(ScopePath(text.to_owned()))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether `other` is this path or lies below it, segment by segment.
    #[must_use]
    pub fn covers(&self, other: &ScopePath) -> bool {
        other.0.strip_prefix(&self.0).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// An agent: `hm://<account principal>[/<path>]`. Its account is the owner of its sessions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AgentIri {
    account: Principal,
    path: Option<ScopePath>,
}

impl AgentIri {
    /// The agent at `path` of `account`.
    #[must_use]
    pub fn new(account: Principal, path: Option<ScopePath>) -> Self {
        AgentIri { account, path }
    }

    /// The account.
    #[must_use]
    pub fn account(&self) -> Principal {
        self.account
    }

    /// The path under the account.
    #[must_use]
    pub fn path(&self) -> Option<&ScopePath> {
        self.path.as_ref()
    }
}

impl fmt::Display for AgentIri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hm://{}{}", self.account, self.path.as_ref().map_or("", ScopePath::as_str))
    }
}

impl FromStr for AgentIri {
    type Err = Reject;

    fn from_str(text: &str) -> Result<Self, Reject> {
        let bad = || Reject::new(Code::CapScope, "expected an agent such as hm://z6Mk…/scout");
        if text.len() > 512 {
            return Err(bad());
        }
        let rest = text.strip_prefix("hm://").ok_or_else(bad)?;
        let (account, path) = match rest.find('/') {
            Some(at) => (&rest[..at], Some(ScopePath::parse(&rest[at..])?)),
            None => (rest, None),
        };
        Ok(AgentIri { account: account.parse().map_err(|_| bad())?, path })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cid_text_and_bytes_round_trip() {
        for cid in [
            Cid::sha256(Codec::DagCbor, b"a"),
            Cid::blake2b(Codec::Raw, b"a"),
            Cid::sha256(Codec::DagPb, b""),
        ] {
            assert_eq!(cid.to_string().parse::<Cid>().unwrap(), cid);
            assert_eq!(Cid::from_bytes(&cid.to_bytes()).unwrap(), cid);
            assert!(!cid.matches(b"b"));
        }
        assert!(Cid::sha256(Codec::DagCbor, b"a").to_string().starts_with("bafyrei"));
    }

    #[test]
    fn the_first_wrong_part_of_a_cid_decides() {
        for (bytes, code) in [
            // A codec that is not taken, then a hash cut short, then a length longer than it needs to be.
            (&[0x01, 0x01][..], Code::CidCodec),
            (&[0x01, 0x51, 0x12, 0xa0, 0x00], Code::CidCodec),
            (&[0x01, 0x55, 0x11, 0xa0, 0x00], Code::CidHash),
            (&[0x01, 0x55, 0x12, 0xa0, 0x00], Code::CidVarint),
            (&[0x01, 0x55, 0x12, 0x1f], Code::CidDigestlen),
            (&[0x01, 0x55, 0x12, 0x20], Code::Cid),
        ] {
            assert_eq!(Cid::from_bytes(bytes).unwrap_err().code, code, "{bytes:02x?}");
        }
    }

    #[test]
    fn cids_sort_like_their_bytes() {
        let mut cids: Vec<Cid> = (0_u8..20)
            .flat_map(|n| {
                [Codec::Raw, Codec::DagCbor, Codec::DagPb]
                    .into_iter()
                    .flat_map(move |codec| [Cid::sha256(codec, &[n]), Cid::blake2b(codec, &[n])])
            })
            .collect();
        cids.sort();
        assert!(cids.windows(2).all(|pair| pair[0].to_bytes() < pair[1].to_bytes()));
    }

    #[test]
    fn scopes_compare_by_segment() {
        let scope = |text| ScopePath::parse(text).unwrap();
        assert!(scope("/a/b").covers(&scope("/a/b")));
        assert!(scope("/a/b").covers(&scope("/a/b/c")));
        assert!(!scope("/a/b").covers(&scope("/a/bc")));
        assert!(!scope("/a/b").covers(&scope("/a")));
        for bad in ["", "/", "/a/", "/a//b", "/a/../c", "/a/.", "/%2e", "/é", "a"] {
            assert_eq!(ScopePath::parse(bad).unwrap_err().code, Code::CapScope, "{bad:?}");
        }
    }

    #[test]
    fn agents_parse_and_print() {
        let account = Principal::from_key([7; 32]);
        let text = format!("hm://{account}/scout");
        assert_eq!(text.parse::<AgentIri>().unwrap().to_string(), text);
        for bad in [format!("hm://{account}/"), format!("hm://{account}?v=1"), format!("{account}")] {
            assert_eq!(bad.parse::<AgentIri>().unwrap_err().code, Code::CapScope, "{bad}");
        }
    }
}
