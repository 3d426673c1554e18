//! The configuration: read once, checked whole, then only looked at. `docs/OPERATIONS.md` §Configuration.
//!
//! A value comes from a flag, else the environment, else `config.toml`, else a default that the role decides. Every
//! key is optional, an unknown one is refused. Nothing here opens a socket or makes a file.

mod checked;
mod error;
mod file;
mod key;
mod layers;
#[cfg(test)]
mod tests;
mod value;

pub use checked::{
    ApiConfig, DefaultClass, LimitsConfig, LogConfig, LogFormat, NodeConfig, OwnerConfig, Role,
    SessionsConfig, UnknownRole,
};
pub use error::ConfigError;
pub use key::Key;
pub use value::{Source, Value};

use file::Layer;
use layers::Layers;

use crate::dirs::{Dirs, Environment};

/// What goes before the config file: flags of the command and environment variables.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    environment: Layer,
    flags: Layer,
}

impl Overrides {
    /// What the environment says: `THROUGHLINE_LOG` sets `log.level`.
    #[must_use]
    pub fn from_environment(env: &Environment) -> Self {
        const VARIABLE: &str = "THROUGHLINE_LOG";
        let level = env.var(VARIABLE).map(|value| Value::text(value.to_string_lossy()));
        let setting = level.map(|value| (Key::LogLevel, (value, Source::Environment { variable: VARIABLE })));
        Overrides { environment: setting.into_iter().collect(), flags: Layer::new() }
    }

    /// Adds what a flag of the command says about `key`.
    #[must_use]
    pub fn with_flag(mut self, key: Key, value: Value) -> Self {
        self.flags.insert(key, (value, Source::Flag));
        self
    }
}

/// One line of `config show`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Section and key.
    pub key: &'static str,
    /// The value as it was written; as TOML by `Display`.
    pub value: Value,
    /// Where it came from.
    pub source: Source,
}

/// The checked configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// `[node]`
    pub node: NodeConfig,
    /// `[api]`
    pub api: ApiConfig,
    /// `[owner]`
    pub owner: OwnerConfig,
    /// `[sessions]`
    pub sessions: SessionsConfig,
    /// `[limits]`
    pub limits: LimitsConfig,
    /// `[log]`
    pub log: LogConfig,
    layers: Layers,
}

impl Config {
    /// Reads the config file, if there is one, lays the overrides on it and checks everything. This is also all
    /// that `config check` does.
    ///
    /// # Errors
    /// [`ConfigError`], with the line of the first thing that is wrong; [`ConfigError::Missing`] when the user named a file and
    /// there is none.
    pub fn load(dirs: &Dirs, overrides: &Overrides) -> Result<Self, ConfigError> {
        match (file::read(dirs.config_file())?, dirs.config_named_by()) {
            (None, Some(variable)) => {
                Err(ConfigError::Missing { path: dirs.config_file().to_owned(), variable })
            }
            (file, _) => Config::settle(dirs, file.unwrap_or_default(), overrides),
        }
    }

    /// As [`Config::load`], before the file is made: one that is named and missing says nothing yet.
    ///
    /// # Errors
    /// As [`Config::load`], but [`ConfigError::Missing`].
    pub fn before_init(dirs: &Dirs, overrides: &Overrides) -> Result<Self, ConfigError> {
        Config::settle(dirs, file::read(dirs.config_file())?.unwrap_or_default(), overrides)
    }

    /// As [`Config::load`], with `text` in place of what the file holds. Touches no file.
    ///
    /// # Errors
    /// As [`Config::load`], but [`ConfigError::Io`], [`ConfigError::Missing`] and [`ConfigError::TooBig`].
    pub fn of_text(dirs: &Dirs, text: &str, overrides: &Overrides) -> Result<Self, ConfigError> {
        Config::settle(dirs, file::parse(text, dirs.config_file())?, overrides)
    }

    fn settle(dirs: &Dirs, file: Layer, overrides: &Overrides) -> Result<Self, ConfigError> {
        let (layers, role) = Layers::settle(dirs.config_file().to_owned(), file, overrides)?;
        Ok(Config {
            node: checked::node(&layers, role)?,
            api: checked::api(&layers, dirs)?,
            owner: checked::owner(&layers)?,
            sessions: checked::sessions(&layers)?,
            limits: checked::limits(&layers)?,
            log: checked::log(&layers)?,
            layers,
        })
    }

    /// Every key with its value and where that came from.
    #[must_use]
    pub fn show(&self) -> Vec<Setting> {
        let setting = |key: Key| {
            let (value, source) = self.layers.setting(key);
            Setting { key: key.name(), value, source }
        };
        Key::ALL.into_iter().map(setting).collect()
    }
}

/// The default file of a role: every key with its meaning and its default. Only the role is set; the others are
/// commented out, so that a later version's better default is not held back by an old file.
#[must_use]
pub fn default_toml(role: Role) -> String {
    let mut text =
        String::from("# Throughline. Every key is optional; what is commented out shows the default.\n");
    let mut section = "";
    for key in Key::ALL {
        if key.section() != section {
            section = key.section();
            text.push_str(&format!("\n[{section}]\n"));
        }
        let off = if key == Key::NodeRole { "" } else { "#" };
        text.push_str(&format!("# {}\n{off}{} = {}\n", key.meaning(), key.leaf(), key.default(role)));
    }
    text
}
