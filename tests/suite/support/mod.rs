//! What the tests of the suite share.

pub(crate) mod cli;
pub(crate) mod schema;
pub(crate) mod tests;
