//! Disks for tests, behind the feature `testing`; no release has them.
//!
//! - [`ModelDisk`] is in memory. It keeps apart what was written and what was synced: [`ModelDisk::after_crash`] is what a
//!   power cut could leave of it. It writes down every call, so that [`Replay`] can cut the power before each one of a run
//!   without running it again. It can fail, write short or be full at any call.
//! - [`KillDisk`] is the operating system's, and kills the process in the middle of its n-th call.

mod crash;
mod kill;
mod model;

pub use crash::{Dice, Replay};
pub use kill::KillDisk;
pub use model::{Fault, ModelDisk};
