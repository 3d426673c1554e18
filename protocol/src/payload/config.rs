//! The config block: system prompt, tool schemas and sampling settings of responses, shared within one session.

use crate::code::{Code, Reject};
use crate::codec::{self, Map, Value, encode_map};
use crate::id::EntryCid;

use crate::schema::{self, Fields};

use super::Salt;

/// What a response was made with. Named by `config` of a response; never shared between two sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigBlock {
    /// 32 random bytes.
    pub salt: Salt,
    /// The tool schemas, normally JSON.
    pub tools: Option<String>,
    /// The system prompt.
    pub system: Option<String>,
    /// The sampling settings, normally JSON.
    pub sampling: Option<String>,
}

impl ConfigBlock {
    /// Reads the block that a response names.
    ///
    /// # Errors
    /// `E_TOO_BIG` above 1 MiB, `E_CID_MISMATCH` for bytes that hash to something else; else what the codec and the
    /// schema refuse.
    pub fn check(named: EntryCid, bytes: &[u8]) -> Result<Self, Reject> {
        super::check_size(bytes)?;
        if EntryCid::of(bytes) != named {
            let what = format!("bytes given for config {} hash to something else", named.short());
            return Err(Reject::new(Code::CidMismatch, what));
        }
        ConfigBlock::read(bytes)
    }

    fn read(bytes: &[u8]) -> Result<Self, Reject> {
        super::check_size(bytes)?;
        let (value, _) = codec::decode_payload(bytes)?;
        let Value::Map(map) = &value else {
            return Err(Reject::new(Code::SchemaType, "expected a config block to be a map"));
        };
        let fields = Fields::closed(map, "config", &["salt"], &["tools", "system", "sampling"])?;
        Ok(ConfigBlock {
            salt: fields.need("salt", schema::fixed::<32>)?,
            tools: fields.maybe("tools", schema::text)?,
            system: fields.maybe("system", schema::text)?,
            sampling: fields.maybe("sampling", schema::text)?,
        })
    }

    /// The canonical bytes and their CID.
    ///
    /// # Errors
    /// `E_TOO_BIG` above 1 MiB, `E_CBOR_NONCANON` for an empty text.
    pub fn build(&self) -> Result<(Vec<u8>, EntryCid), Reject> {
        let map = Map::new()
            .with("salt", &self.salt[..])
            .with_some("tools", self.tools.as_deref())
            .with_some("system", self.system.as_deref())
            .with_some("sampling", self.sampling.as_deref());
        let bytes = encode_map(&map);
        ConfigBlock::read(&bytes)?;
        let cid = EntryCid::of(&bytes);
        Ok((bytes, cid))
    }
}
