//! A node for a dry run where there is none yet: with keys of its own, in a directory that is gone when it is dropped.
//!
//! The dry run is then the very act that it stands for, up to the point where something would be kept. What these keys sign never
//! leaves the process; ids that follow from them are no ids of anything, so no answer may tell them.

use serde_json::Value;
use tempfile::TempDir;
use throughline_protocol::code::Code;

use super::commands::init::{self, InitArgs, OwnerChoice};
use super::context::Context;
use super::link::Api;
use crate::api::error::{Answer, Problem};

/// The node.
pub(crate) struct Throwaway {
    ctx: Context,
    _home: TempDir,
}

impl Throwaway {
    /// Makes it: an owner and a machine that it granted everything.
    ///
    /// # Errors
    /// As `init`; `E_STORE_IO` when there is no room for it.
    pub(crate) fn new(ctx: &Context) -> Answer<Self> {
        let home = tempfile::Builder::new().prefix("throughline-dry-run-").tempdir().map_err(|error| {
            Problem::new(Code::StoreIo, format!("expected a directory for the dry run, got: {error}"))
        })?;
        let ctx = ctx.at_home(home.path())?;
        let args = InitArgs {
            role: None,
            owner: Some(OwnerChoice::New),
            passphrase_fd: None,
            // The key protects nothing and goes with the directory.
            no_passphrase: true,
        };
        // Nobody serves from it, so the path may be of any length.
        init::make(&ctx, &args)?;
        Ok(Throwaway { ctx, _home: home })
    }

    /// Its API.
    ///
    /// # Errors
    /// As [`Context::api`].
    pub(crate) fn api(&self) -> Answer<Api<'_>> {
        self.ctx.api()
    }
}

/// Takes out of the answer to an import what follows from keys: another import has other ids.
pub(crate) fn forget_ids(answer: &mut Value) {
    answer["signedBy"] = Value::Null;
    for source in answer["sources"].as_array_mut().into_iter().flatten() {
        for key in ["session", "head", "parent"] {
            source[key] = Value::Null;
        }
        for session in source["subSessions"].as_array_mut().into_iter().flatten() {
            *session = Value::Null;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_follows_from_keys_is_not_told() {
        let mut answer = json!({"signedBy": "z", "sources": [
            {"session": "b1", "head": {"cid": "b2", "seq": 4}, "parent": {"session": "b1"}, "subSessions": ["b3"], "lines": 9}]});
        forget_ids(&mut answer);
        let source =
            json!({"session": null, "head": null, "parent": null, "subSessions": [null], "lines": 9});
        assert_eq!(answer, json!({"signedBy": null, "sources": [source]}));
    }
}
