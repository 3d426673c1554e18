//! The local API over a node in this process: what `docs/PROTOCOL.md` §Local appends and JOURNEYS promise to programs.

mod appends;
mod controls;
mod described;
mod events;
mod evidence;
mod files;
pub(crate) mod home;
mod import;
mod signed;
mod stated;
mod taking_in;
