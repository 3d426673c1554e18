//! Where everything of a node lies on this machine. `docs/OPERATIONS.md` §Directories.
//!
//! Two layouts, one set of names below them. `--home DIR` (or `THROUGHLINE_HOME`) puts everything under one
//! directory, for tests and for several nodes on a machine; otherwise the XDG directories of the user are taken.
//! This module only names paths and makes directories; what a file holds is for others to say.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::DirBuilder;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use throughline_protocol::code::Code;

/// The name that our directories have below the XDG ones.
const NAME: &str = "throughline";
/// The mode of every directory that we make.
const DIR_MODE: u32 = 0o700;

/// The environment variables that settle directories and settings, taken once so that tests need no real ones.
#[derive(Clone, Debug, Default)]
pub struct Environment(BTreeMap<&'static str, OsString>);

impl Environment {
    /// Every variable that is read, and no other.
    const NAMES: [&'static str; 9] = [
        "THROUGHLINE_HOME",
        "THROUGHLINE_CONFIG",
        "THROUGHLINE_LOG",
        "HOME",
        "XDG_CONFIG_HOME",
        "XDG_DATA_HOME",
        "XDG_STATE_HOME",
        "XDG_CACHE_HOME",
        "XDG_RUNTIME_DIR",
    ];

    /// The variables of this process; an empty one counts as not set.
    #[must_use]
    pub fn of_process() -> Self {
        Environment::pick(|name| std::env::var_os(name))
    }

    /// The variables that `lookup` knows.
    #[must_use]
    pub fn pick(lookup: impl Fn(&str) -> Option<OsString>) -> Self {
        let set = Environment::NAMES.iter().filter_map(|name| Some((*name, lookup(name)?)));
        Environment(set.filter(|(_, value)| !value.is_empty()).collect())
    }

    /// The value of `name`, when it is set and not empty.
    #[must_use]
    pub fn var(&self, name: &str) -> Option<&OsStr> {
        self.0.get(name).map(OsString::as_os_str)
    }

    /// The directory that the XDG variable names; a relative one is ignored, as the specification asks.
    fn xdg(&self, name: &str) -> Option<PathBuf> {
        self.var(name).map(PathBuf::from).filter(|path| path.is_absolute())
    }
}

/// Why a directory could not be named, made or trusted.
#[derive(Debug, thiserror::Error)]
pub enum DirsError {
    /// Neither a home directory nor an XDG variable says where things belong.
    #[error("expected HOME, {0} or --home DIR to say where the files belong, got none of them")]
    Nowhere(&'static str),
    /// The operating system refused.
    #[error("expected to {act} {}, got: {source}", path.display())]
    Io {
        /// What was tried.
        act: &'static str,
        /// Which path.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// A private directory is a link or no directory.
    #[error("expected {} to be a directory, got a link or another kind of file", path.display())]
    Kind {
        /// Which path.
        path: PathBuf,
    },
    /// A private directory belongs to someone else.
    #[error("expected {} to belong to user {expected}, got user {got}", path.display())]
    Owner {
        /// Which path.
        path: PathBuf,
        /// The user id of this process.
        expected: u32,
        /// The user id of the directory.
        got: u32,
    },
    /// A private directory is open to others.
    #[error("expected mode 0700, got {mode:04o}: chmod 700 {}", shell_word(path))]
    Mode {
        /// Which path.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
}

impl DirsError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            DirsError::Nowhere(_) => Code::Config,
            DirsError::Io { .. } => Code::StoreIo,
            DirsError::Kind { .. } => Code::KeyfileType,
            DirsError::Owner { .. } => Code::KeyfileOwner,
            DirsError::Mode { .. } => Code::KeyfileMode,
        }
    }
}

/// The directories of one node. Paths only: nothing exists because a value of this type does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dirs {
    config_file: PathBuf,
    /// The variable that named the config file, so that one that is missing is a mistake.
    config_named_by: Option<&'static str>,
    data: PathBuf,
    run: PathBuf,
    log: PathBuf,
    cache: PathBuf,
}

impl Dirs {
    /// Settles the directories: `home` (the flag), else `THROUGHLINE_HOME`, else XDG.
    ///
    /// `THROUGHLINE_CONFIG` names another config file, unless the flag is given: a flag goes before the environment.
    ///
    /// # Errors
    /// [`DirsError::Nowhere`] when no variable helps; [`DirsError::Io`] when a relative `home` cannot be resolved.
    pub fn locate(home: Option<&Path>, env: &Environment) -> Result<Self, DirsError> {
        if let Some(home) = home {
            return Dirs::below(home);
        }
        let mut dirs = match env.var("THROUGHLINE_HOME") {
            Some(home) => Dirs::below(Path::new(home))?,
            None => Dirs::xdg(env)?,
        };
        if let Some(file) = env.var("THROUGHLINE_CONFIG") {
            dirs.config_file = absolute(Path::new(file))?;
            dirs.config_named_by = Some("THROUGHLINE_CONFIG");
        }
        Ok(dirs)
    }

    /// Everything below one directory.
    fn below(home: &Path) -> Result<Self, DirsError> {
        let home = absolute(home)?;
        Ok(Dirs {
            config_file: home.join("config.toml"),
            config_named_by: None,
            data: home.join("data"),
            run: home.join("run"),
            log: home.join("state").join("log"),
            cache: home.join("cache"),
        })
    }

    /// The XDG layout. Without `XDG_RUNTIME_DIR` the run directory lies in the data directory.
    fn xdg(env: &Environment) -> Result<Self, DirsError> {
        let base = |name: &'static str, below_home: &str| {
            let home = || env.xdg("HOME").map(|home| home.join(below_home));
            env.xdg(name).or_else(home).map(|base| base.join(NAME)).ok_or(DirsError::Nowhere(name))
        };
        let data = base("XDG_DATA_HOME", ".local/share")?;
        let run = env.xdg("XDG_RUNTIME_DIR").map_or_else(|| data.join("run"), |base| base.join(NAME));
        Ok(Dirs {
            config_file: base("XDG_CONFIG_HOME", ".config")?.join("config.toml"),
            config_named_by: None,
            run,
            log: base("XDG_STATE_HOME", ".local/state")?.join("log"),
            cache: base("XDG_CACHE_HOME", ".cache")?,
            data,
        })
    }

    /// Makes every directory that is missing, mode 0700. Existing ones are left as they are.
    ///
    /// # Errors
    /// [`DirsError::Io`] when one cannot be made; `Kind`, `Owner` or `Mode` when the keys or the run directory
    /// (which holds the socket and the token) is not private to this user.
    pub fn create(&self) -> Result<(), DirsError> {
        let config = self.config_file.parent().map(Path::to_path_buf);
        let ours = [
            self.data.clone(),
            self.keys(),
            self.payloads(),
            self.evidence(),
            self.staging(),
            self.run.clone(),
            self.log.clone(),
            self.cache.clone(),
        ];
        for path in ours.iter().chain(config.iter()) {
            make(path)?;
        }
        open_private(&self.keys())?;
        open_private(&self.run)?;
        Ok(())
    }

    /// `config.toml`.
    #[must_use]
    pub fn config_file(&self) -> &Path {
        &self.config_file
    }

    /// The variable that named the config file; none when it lies where it lies by default.
    #[must_use]
    pub fn config_named_by(&self) -> Option<&'static str> {
        self.config_named_by
    }

    /// The data directory: one process at a time holds its lock.
    #[must_use]
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// The three key files.
    #[must_use]
    pub fn keys(&self) -> PathBuf {
        self.data.join("keys")
    }

    /// The database.
    #[must_use]
    pub fn store_file(&self) -> PathBuf {
        self.data.join("store.redb")
    }

    /// Payload files, by CID.
    #[must_use]
    pub fn payloads(&self) -> PathBuf {
        self.data.join("payloads")
    }

    /// Forks and cut tails, which are kept.
    #[must_use]
    pub fn evidence(&self) -> PathBuf {
        self.data.join("evidence")
    }

    /// What was fetched and is not adopted yet; it has a quota and expires.
    #[must_use]
    pub fn staging(&self) -> PathBuf {
        self.data.join("staging")
    }

    /// The lock of the data directory.
    #[must_use]
    pub fn lock_file(&self) -> PathBuf {
        self.data.join("LOCK")
    }

    /// Where the API of the running node answers, for whoever finds the data directory only.
    #[must_use]
    pub fn socket_note(&self) -> PathBuf {
        self.data.join("SOCKET")
    }

    /// What exists only while a node runs.
    #[must_use]
    pub fn run(&self) -> &Path {
        &self.run
    }

    /// The socket of the local API, unless the config names another.
    #[must_use]
    pub fn api_socket(&self) -> PathBuf {
        self.run.join("api.sock")
    }

    /// The token of the local API over TCP.
    #[must_use]
    pub fn api_token(&self) -> PathBuf {
        self.run.join("token")
    }

    /// The process id of the running node.
    #[must_use]
    pub fn pid_file(&self) -> PathBuf {
        self.run.join("node.pid")
    }

    /// Log files.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// What may be deleted at any time.
    #[must_use]
    pub fn cache(&self) -> &Path {
        &self.cache
    }
}

/// Opens a directory that must be private: not a link, of this user, mode 0700 or stricter. The checks are made on
/// the opened directory, so nobody can swap it in between.
pub(crate) fn open_private(path: &Path) -> Result<OwnedFd, DirsError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let io = |source: Errno| DirsError::Io { act: "open", path: path.to_owned(), source: source.into() };
    let dir = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| match errno {
        Errno::LOOP | Errno::NOTDIR => DirsError::Kind { path: path.to_owned() },
        errno => io(errno),
    })?;
    let stat = rustix::fs::fstat(&dir).map_err(io)?;
    let expected = rustix::process::geteuid().as_raw();
    if stat.st_uid != expected {
        return Err(DirsError::Owner { path: path.to_owned(), expected, got: stat.st_uid });
    }
    let mode = Mode::from_raw_mode(stat.st_mode).bits();
    if mode & 0o077 != 0 {
        return Err(DirsError::Mode { path: path.to_owned(), mode });
    }
    Ok(dir)
}

/// A path as it can be pasted into a shell.
pub(crate) fn shell_word(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_alphanumeric() || "/._-+@%:,=".contains(c);
    if text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

/// Makes `path` and its missing parents, all mode 0700 (as XDG asks for its base directories).
fn make(path: &Path) -> Result<(), DirsError> {
    DirBuilder::new().recursive(true).mode(DIR_MODE).create(path).map_err(|source| DirsError::Io {
        act: "make",
        path: path.to_owned(),
        source,
    })
}

fn absolute(path: &Path) -> Result<PathBuf, DirsError> {
    std::path::absolute(path).map_err(|source| DirsError::Io {
        act: "resolve",
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn env(vars: &[(&str, &str)]) -> Environment {
        Environment::pick(|name| {
            vars.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn a_home_holds_everything() {
        let vars = env(&[("THROUGHLINE_HOME", "/other"), ("THROUGHLINE_CONFIG", "/etc/t.toml")]);
        let dirs = Dirs::locate(Some(Path::new("/n/a")), &vars).unwrap();
        assert_eq!(dirs.config_file(), Path::new("/n/a/config.toml"));
        assert_eq!(dirs.keys(), Path::new("/n/a/data/keys"));
        assert_eq!(dirs.api_socket(), Path::new("/n/a/run/api.sock"));
        assert_eq!(dirs.log(), Path::new("/n/a/state/log"));
        assert_eq!(dirs.cache(), Path::new("/n/a/cache"));
    }

    #[test]
    fn the_environment_names_home_and_config() {
        let vars =
            env(&[("THROUGHLINE_HOME", "/n/b"), ("THROUGHLINE_CONFIG", "/etc/t.toml"), ("HOME", "/h")]);
        let dirs = Dirs::locate(None, &vars).unwrap();
        assert_eq!(dirs.store_file(), Path::new("/n/b/data/store.redb"));
        assert_eq!(dirs.config_file(), Path::new("/etc/t.toml"));
    }

    #[test]
    fn xdg_falls_back_to_home_and_to_the_data_directory() {
        let vars = env(&[("HOME", "/h"), ("XDG_CACHE_HOME", "relative"), ("XDG_STATE_HOME", "/s")]);
        let dirs = Dirs::locate(None, &vars).unwrap();
        assert_eq!(dirs.data(), Path::new("/h/.local/share/throughline"));
        assert_eq!(dirs.run(), Path::new("/h/.local/share/throughline/run"));
        assert_eq!(dirs.config_file(), Path::new("/h/.config/throughline/config.toml"));
        assert_eq!(dirs.cache(), Path::new("/h/.cache/throughline"));
        assert_eq!(dirs.log(), Path::new("/s/throughline/log"));
        let vars = env(&[("HOME", "/h"), ("XDG_RUNTIME_DIR", "/run/user/7")]);
        assert_eq!(
            Dirs::locate(None, &vars).unwrap().pid_file(),
            Path::new("/run/user/7/throughline/node.pid")
        );
    }

    #[test]
    fn no_variable_at_all_is_an_error() {
        let error = Dirs::locate(None, &env(&[("HOME", "")])).unwrap_err();
        assert_eq!(error.code(), Code::Config);
    }

    #[test]
    fn created_directories_are_private_and_a_second_time_changes_nothing() {
        let place = tempfile::tempdir().unwrap();
        let dirs = Dirs::locate(Some(&place.path().join("n")), &Environment::default()).unwrap();
        dirs.create().unwrap();
        dirs.create().unwrap();
        for path in [dirs.data(), dirs.run(), dirs.log(), dirs.cache(), &dirs.keys(), &dirs.staging()] {
            assert_eq!(
                fs::metadata(path).unwrap().permissions().mode() & 0o7777,
                0o700,
                "{}",
                path.display()
            );
        }
    }

    #[test]
    fn an_open_run_directory_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let dirs = Dirs::locate(Some(place.path()), &Environment::default()).unwrap();
        dirs.create().unwrap();
        fs::set_permissions(dirs.run(), fs::Permissions::from_mode(0o755)).unwrap();
        let error = dirs.create().unwrap_err();
        assert_eq!(error.code(), Code::KeyfileMode);
        assert!(error.to_string().ends_with(&format!("chmod 700 {}", dirs.run().display())), "{error}");
    }

    #[test]
    fn odd_paths_are_quoted() {
        assert_eq!(shell_word(Path::new("/a/b c")), "'/a/b c'");
        assert_eq!(shell_word(Path::new("/a/it's")), r"'/a/it'\''s'");
    }
}
