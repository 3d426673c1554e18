//! Flag before environment before config file before default, and each value with where it came from.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::checked::{Role, role};
use super::file::{Layer, place};
use super::key::Key;
use super::value::{Source, Value};
use super::{ConfigError, Overrides};

/// The value of every key and where it came from.
#[derive(Clone, Debug)]
pub(super) struct Layers {
    values: BTreeMap<Key, (Value, Source)>,
    config_file: PathBuf,
}

impl Layers {
    /// Lays the layers over each other. The role is settled first, since it decides the defaults.
    pub(super) fn settle(
        config_file: PathBuf,
        file: Layer,
        overrides: &Overrides,
    ) -> Result<(Self, Role), ConfigError> {
        let mut set = file;
        set.extend(overrides.environment.clone());
        set.extend(overrides.flags.clone());
        let defaults =
            |role| Key::ALL.into_iter().map(move |key| (key, (key.default(role), Source::Default)));
        let mut layers = Layers { values: defaults(Role::Laptop).collect(), config_file };
        layers.values.extend(set.clone());
        let role = role(&layers)?;
        layers.values.extend(defaults(role));
        layers.values.extend(set);
        Ok((layers, role))
    }

    /// Value and source of `key`.
    pub(super) fn setting(&self, key: Key) -> (Value, Source) {
        self.values.get(&key).cloned().unwrap_or_else(|| (key.default(Role::Laptop), Source::Default))
    }

    /// A text that `read` understands.
    pub(super) fn text<T>(
        &self,
        key: Key,
        expected: &str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<T, ConfigError> {
        let (value, source) = self.setting(key);
        let read = if let Value::Text(text) = &value { read(text) } else { None };
        read.ok_or_else(|| self.refuse(key, source, expected, value.to_string()))
    }

    /// A list of texts that `read` understands.
    pub(super) fn each<T>(
        &self,
        key: Key,
        expected: &str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<Vec<T>, ConfigError> {
        let (value, source) = self.setting(key);
        let Value::List(items) = &value else {
            return Err(self.refuse(key, source, expected, value.to_string()));
        };
        let one =
            |item: &String| read(item).ok_or_else(|| self.refuse(key, source, expected, format!("{item:?}")));
        items.iter().map(one).collect()
    }

    /// `true` or `false`.
    pub(super) fn flag(&self, key: Key) -> Result<bool, ConfigError> {
        let (value, source) = self.setting(key);
        match value {
            Value::Flag(flag) => Ok(flag),
            other @ (Value::Text(_) | Value::List(_) | Value::Number(_)) => {
                Err(self.refuse(key, source, "true or false", other.to_string()))
            }
        }
    }

    /// A number of things, at least one.
    pub(super) fn count(&self, key: Key) -> Result<u32, ConfigError> {
        let (value, source) = self.setting(key);
        let count = if let Value::Number(number) = value { u32::try_from(number).ok() } else { None };
        count.filter(|count| *count > 0).ok_or_else(|| {
            self.refuse(key, source, &format!("a whole number from 1 to {}", u32::MAX), value.to_string())
        })
    }

    fn refuse(&self, key: Key, source: Source, expected: &str, got: String) -> ConfigError {
        let place = match source {
            Source::Config { line } => place(&self.config_file, line),
            Source::Environment { variable } => variable.to_owned(),
            Source::Flag => "command line".to_owned(),
            Source::Default => "default".to_owned(),
        };
        ConfigError::Value { place, key: key.name(), expected: expected.to_owned(), got }
    }
}
