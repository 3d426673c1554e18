//! Errors of the layers below, as refusals with their codes.

use throughline_protocol::code::Code;
use throughline_store::{AdoptError, OpenError, StoreError};

use crate::api::error::Problem;
use crate::config::ConfigError;
use crate::dirs::DirsError;
use crate::keys::{KeyError, PassphraseError};

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Refused(reject) => reject.into(),
            StoreError::Corrupt { .. }
            | StoreError::Index { .. }
            | StoreError::ReadOnly { .. }
            | StoreError::Closed
            | StoreError::Io { .. }
            | StoreError::Database(_)
            | StoreError::Quota { .. }
            | StoreError::NotFound { .. }
            | StoreError::Moved { .. }
            | StoreError::Idempotency => Problem::new(error.code(), error.to_string()),
        }
    }
}

impl From<AdoptError> for Problem {
    fn from(error: AdoptError) -> Self {
        match error {
            AdoptError::Store(error) => error.into(),
            AdoptError::HeadMoved { tip } => {
                let problem = Problem::new(Code::HeadMoved, "another entry was appended meanwhile");
                match tip {
                    Some(tip) => problem.with("head", super::shape::mark(&tip)),
                    None => problem,
                }
            }
            AdoptError::ControlsMoved
            | AdoptError::Frozen { .. }
            | AdoptError::Retired { .. }
            | AdoptError::Fenced { .. }
            | AdoptError::SignGuard(_)
            | AdoptError::Idempotency => Problem::new(error.code(), error.to_string()),
        }
    }
}

impl From<OpenError> for Problem {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Store(error) => error.into(),
            OpenError::Locked { .. } | OpenError::Version { .. } => {
                Problem::new(error.code(), error.to_string())
            }
        }
    }
}

macro_rules! coded {
    ($($error:ty),*) => {
        $(impl From<$error> for Problem {
            fn from(error: $error) -> Self {
                Problem::new(error.code(), error.to_string())
            }
        })*
    };
}

coded!(ConfigError, DirsError, KeyError, PassphraseError);
