//! What a command has at hand: flags, directories, configuration, both streams, and the way to the API.

use std::cell::OnceCell;
use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use throughline_protocol::code::Code;

use super::args::{Global, OwnerArgs};
use super::engine::Engine;
use super::escape;
use super::link::Api;
use super::output::{Loudness, Output};
use super::progress::{Progress, ProgressMode};
use super::refusal;
use crate::api::error::{Answer, Problem};
use crate::config::{Config, Overrides};
use crate::dirs::{Dirs, Environment};
use crate::keys::PassphraseSource;
use crate::runtime::NetworkNeed;

/// One run of one command.
pub(crate) struct Context {
    global: Global,
    env: Environment,
    dirs: Dirs,
    out: Output,
    config: OnceCell<Config>,
    engine: OnceCell<Engine>,
}

impl Context {
    /// Settles where things are; reads and opens nothing.
    ///
    /// # Errors
    /// `E_CONFIG` when nothing says where the files belong.
    pub(crate) fn new(global: Global, out: Output) -> Answer<Self> {
        let env = Environment::of_process();
        let dirs = Dirs::locate(global.home.as_deref(), &env).map_err(refusal::dirs)?;
        Ok(Context { global, env, dirs, out, config: OnceCell::new(), engine: OnceCell::new() })
    }

    /// The same run with everything in another directory, and nothing read of this one.
    ///
    /// # Errors
    /// As [`Context::new`].
    pub(crate) fn at_home(&self, home: &Path) -> Answer<Self> {
        let global = Global { home: Some(home.to_path_buf()), api: None, ..self.global.clone() };
        Context::new(global, self.out)
    }

    /// The directories.
    #[must_use]
    pub(crate) fn dirs(&self) -> &Dirs {
        &self.dirs
    }

    /// Both streams.
    #[must_use]
    pub(crate) fn out(&self) -> Output {
        self.out
    }

    /// How long a peer may send nothing.
    #[must_use]
    pub(crate) fn timeout(&self) -> Duration {
        self.global.timeout
    }

    /// How often `-v` was given.
    #[must_use]
    pub(crate) fn verbosity(&self) -> u8 {
        self.global.verbose
    }

    /// What the environment says about the configuration.
    #[must_use]
    pub(crate) fn overrides(&self) -> Overrides {
        Overrides::from_environment(&self.env)
    }

    /// The configuration, read once.
    ///
    /// # Errors
    /// `E_CONFIG`.
    pub(crate) fn config(&self) -> Answer<&Config> {
        if self.config.get().is_none() {
            let config = Config::load(&self.dirs, &self.overrides()).map_err(refusal::config)?;
            let _ = self.config.set(config);
        }
        self.config.get().ok_or_else(|| Problem::from(Code::Internal))
    }

    /// The runtime, started once.
    pub(super) fn engine(&self) -> Answer<&Engine> {
        if self.engine.get().is_none() {
            let _ = self.engine.set(Engine::start()?);
        }
        self.engine.get().ok_or_else(|| Problem::from(Code::Internal))
    }

    /// The API, for a command that needs no peer.
    ///
    /// # Errors
    /// As [`Api::find`].
    pub(crate) fn api(&self) -> Answer<Api<'_>> {
        Api::find(self, NetworkNeed::Off)
    }

    /// The API, for a command that talks to peers.
    ///
    /// # Errors
    /// As [`Api::find`].
    pub(crate) fn api_with_network(&self) -> Answer<Api<'_>> {
        Api::find(self, NetworkNeed::On)
    }

    /// What `--api` names.
    #[must_use]
    pub(crate) fn api_url(&self) -> Option<&str> {
        self.global.api.as_deref()
    }

    /// Where the API token is: `THROUGHLINE_TOKEN_FILE`, else the run directory.
    #[must_use]
    pub(crate) fn token_file(&self) -> PathBuf {
        let named = std::env::var_os("THROUGHLINE_TOKEN_FILE").filter(|value| !value.is_empty());
        named.map_or_else(|| self.dirs.api_token(), PathBuf::from)
    }

    /// Whether there is a node here.
    #[must_use]
    pub(crate) fn is_initialised(&self) -> bool {
        self.dirs.keys().join("node.key").symlink_metadata().is_ok()
    }

    /// Refuses to go on where there is no node.
    ///
    /// # Errors
    /// `E_NOT_INITIALISED`.
    pub(crate) fn expect_initialised(&self) -> Answer<()> {
        if self.is_initialised() {
            return Ok(());
        }
        let detail = format!("expected the keys of a node in {}, got none", self.dirs.keys().display());
        Err(Problem::new(Code::NotInitialised, detail).hint("throughline init"))
    }

    /// Where the owner key's passphrase comes from.
    #[must_use]
    pub(crate) fn passphrase_source(&self, args: OwnerArgs) -> PassphraseSource {
        match args.passphrase_fd {
            Some(fd) => PassphraseSource::Descriptor(fd),
            None if self.global.no_input => PassphraseSource::Nowhere,
            None => PassphraseSource::Terminal,
        }
    }

    /// Whether somebody is there to be asked.
    #[must_use]
    pub(crate) fn can_ask(&self) -> bool {
        !self.global.no_input && io::stdin().is_terminal() && io::stderr().is_terminal()
    }

    /// Whether the command has to do without answers: `--yes` was given, or nobody is there.
    #[must_use]
    pub(crate) fn is_unattended(&self) -> bool {
        self.global.yes || !self.can_ask()
    }

    /// Asks before an act that is not taken back; the default is No. `--yes` answers it.
    ///
    /// # Errors
    /// `E_PROMPT` when nobody can be asked.
    pub(crate) fn confirm(&self, question: &str) -> Answer<bool> {
        if self.global.yes {
            return Ok(true);
        }
        if !self.can_ask() {
            let detail = format!("\"{question}\" needs an answer and there is nobody to ask: pass --yes");
            return Err(Problem::new(Code::Prompt, detail).hint("pass --yes"));
        }
        let answer = || {
            let _ = write!(io::stderr().lock(), "? {} [y/N] ", escape::line(question));
            let mut line = String::new();
            io::stdin().lock().read_line(&mut line).map(|_| line)
        };
        let line = match self.engine.get() {
            Some(engine) => engine.ask(answer),
            None => answer(),
        };
        let line =
            line.map_err(|error| Problem::new(Code::Prompt, format!("expected an answer, got: {error}")))?;
        Ok(matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
    }

    /// Asks a question whose terminal handling is another's; Ctrl-C works meanwhile.
    pub(crate) fn while_asking<T>(&self, question: impl FnOnce() -> T) -> T {
        match self.engine.get() {
            Some(engine) => engine.ask(question),
            None => question(),
        }
    }

    /// Shows how `phase` comes along, until the answer is dropped.
    #[must_use]
    pub(crate) fn progress(&self, phase: impl Into<String>) -> Progress {
        let mode = match self.out.loudness() {
            Loudness::Quiet => ProgressMode::None,
            Loudness::Normal | Loudness::Verbose => self.global.progress,
        };
        Progress::start(phase, mode)
    }

    /// The same for a command that tells its phases in lines of its own: without a terminal nothing more is written.
    #[must_use]
    pub(crate) fn spinner(&self, phase: impl Into<String>) -> Progress {
        if self.global.progress == ProgressMode::Json || io::stderr().is_terminal() {
            self.progress(phase)
        } else {
            Progress::start(phase, ProgressMode::None)
        }
    }
}
