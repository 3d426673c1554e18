//! What the tests of the suite share.

pub(crate) mod cli;
