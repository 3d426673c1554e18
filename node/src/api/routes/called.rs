//! What keys are called on this node, for those who read events: the same words as on the command line. It judges nobody.

use throughline_protocol::id::Principal;
use throughline_store::Reader;

use crate::api::error::Answer;
use crate::core::{Node, shape};

/// What keys are called here.
pub(super) struct Called {
    own: Principal,
    owner: Option<Principal>,
    aliases: shape::Aliases,
}

impl Called {
    /// The names of a node's address book.
    pub(super) fn by(node: &Node, reader: &Reader) -> Answer<Self> {
        Ok(Called { own: node.principal(), owner: node.owner(), aliases: shape::aliases(reader)? })
    }

    /// `self`, `owner` or the alias of a peer; none for a key without a name.
    pub(super) fn name(&self, key: Principal) -> Option<&str> {
        match key {
            key if key == self.own => Some("self"),
            key if Some(key) == self.owner => Some("owner"),
            key => self.aliases.get(&key).map(String::as_str),
        }
    }
}
