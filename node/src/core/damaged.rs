//! For tests: a node whose disk flipped a bit of something that it keeps.

use std::path::Path;

use throughline_protocol::code::Code;
use throughline_protocol::sign::SigningKey;
use throughline_store::{OpenOptions, Store};

use super::{Node, now};
use crate::config::{Config, Key, Overrides, Value as Setting};
use crate::dirs::{Dirs, Environment};
use crate::keys::NodeKeys;

/// Opens the node of a directory; makes it when there is none.
pub(crate) fn open(home: &Path) -> Node {
    let dirs = Dirs::locate(Some(home), &Environment::pick(|_| None)).unwrap();
    dirs.create().unwrap();
    NodeKeys::load_or_create(&dirs).unwrap();
    let owner = SigningKey::from_seed(&[7; 32]).principal().to_string();
    let overrides = Overrides::default().with_flag(Key::OwnerPrincipal, Setting::text(owner));
    let config = Config::load(&dirs, &overrides).unwrap();
    Node::open(dirs, config, "test").unwrap()
}

/// Ends a node and flips a bit wherever its database has these bytes.
pub(crate) fn damage(node: Node, bytes: &[u8]) {
    let dir = node.dirs().data().to_owned();
    node.stop();
    drop(node);
    damage_at(&dir, bytes);
}

/// Waits until a data directory is free and flips a bit wherever its database has these bytes.
pub(crate) fn damage_at(dir: &Path, bytes: &[u8]) {
    // Opened and closed, so that nothing is left to be written.
    let closed: Store = loop {
        match Store::open(dir, OpenOptions::new(now(), "test")) {
            Ok(store) => break store,
            Err(error) if error.code() == Code::Locked => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    };
    drop(closed);
    let path = dir.join("store.redb");
    let mut database = std::fs::read(&path).unwrap();
    let found = |database: &[u8]| database.windows(bytes.len()).position(|window| window == bytes);
    assert!(found(&database).is_some());
    while let Some(at) = found(&database) {
        database[at] ^= 1;
    }
    std::fs::write(&path, database).unwrap();
}
