//! The checked configuration: every value parsed once, nothing left to be found out while the node runs.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use throughline_protocol::id::Principal;

use super::ConfigError;
use super::key::Key;
use super::layers::Layers;
use super::value::{duration, size_bytes};
use crate::dirs::Dirs;

/// What kind of machine this is. It only changes defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A person's machine that comes and goes.
    Laptop,
    /// A person's machine that stays.
    Desktop,
    /// A machine with a fixed address: port 4747, no mDNS, no HTTP.
    Server,
}

impl Role {
    /// The word in the file.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Role::Laptop => "laptop",
            Role::Desktop => "desktop",
            Role::Server => "server",
        }
    }
}

impl FromStr for Role {
    type Err = UnknownRole;

    fn from_str(text: &str) -> Result<Self, UnknownRole> {
        [Role::Laptop, Role::Desktop, Role::Server]
            .into_iter()
            .find(|role| role.word() == text)
            .ok_or(UnknownRole)
    }
}

/// The text names no role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected laptop, desktop or server")]
pub struct UnknownRole;

/// `[node]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeConfig {
    /// What kind of machine this is.
    pub role: Role,
    /// Where peers connect.
    pub listen: Vec<Multiaddr>,
    /// Addresses told to peers; empty: what peers see.
    pub announce_addresses: Vec<Multiaddr>,
    /// Peers to dial at the start; each ends in `/p2p/…`.
    pub bootstrap: Vec<Multiaddr>,
    /// Whether peers are looked for on the local network.
    pub mdns: bool,
}

/// `[api]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiConfig {
    /// The unix socket.
    pub socket: PathBuf,
    /// The loopback address for HTTP; `None` when off. Port 0 takes a free one.
    pub http: Option<SocketAddr>,
    /// Host names that a request may be addressed to, without a port.
    pub allowed_hosts: Vec<String>,
}

/// `[owner]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerConfig {
    /// Whose agents' sessions this node serves.
    pub principal: Option<Principal>,
}

/// What class a new session has. Public is not among them: it is reached by publishing only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultClass {
    /// Shared among the owner's machines and readers.
    Internal,
    /// As internal, with stricter handling.
    Confidential,
}

/// `[sessions]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionsConfig {
    /// What class a new session has.
    pub default_class: DefaultClass,
    /// Whether every session that this node holds is kept.
    pub pin_own: bool,
}

/// `[limits]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitsConfig {
    /// Above it nothing new is fetched, in bytes.
    pub store_bytes_max: u64,
    /// For what is fetched and not verified yet, in bytes.
    pub staging_bytes_max: u64,
    /// Connections that peers opened.
    pub connections_in_max: u32,
    /// Connections that this node opened.
    pub connections_out_max: u32,
    /// How long a peer of a transfer may send nothing.
    pub idle_timeout: Duration,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// `[log]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// A level, or directives such as `info,throughline_node::sync=debug`, that `EnvFilter` takes.
    pub filter: String,
    /// How lines look.
    pub format: LogFormat,
}

pub(super) fn node(layers: &Layers, role: Role) -> Result<NodeConfig, ConfigError> {
    let addresses = |key| layers.each(key, "a list of multiaddresses", |text| text.parse::<Multiaddr>().ok());
    Ok(NodeConfig {
        role,
        listen: addresses(Key::NodeListen)?,
        announce_addresses: addresses(Key::NodeAnnounceAddresses)?,
        bootstrap: layers.each(
            Key::NodeBootstrap,
            "a list of multiaddresses that end in /p2p/…",
            |text| {
                let address: Multiaddr = text.parse().ok()?;
                matches!(address.iter().last(), Some(Protocol::P2p(_))).then_some(address)
            },
        )?,
        mdns: layers.flag(Key::NodeMdns)?,
    })
}

pub(super) fn api(layers: &Layers, dirs: &Dirs) -> Result<ApiConfig, ConfigError> {
    let http =
        layers.text(Key::ApiHttp, "a loopback address and port such as 127.0.0.1:7420, or off", |text| {
            match text {
                "off" => Some(None),
                address => Some(Some(
                    address.parse::<SocketAddr>().ok().filter(|address| address.ip().is_loopback())?,
                )),
            }
        })?;
    Ok(ApiConfig {
        socket: layers.text(Key::ApiSocket, "auto or an absolute path", |text| match text {
            "auto" => Some(dirs.api_socket()),
            path => Some(PathBuf::from(path)).filter(|path| path.is_absolute()),
        })?,
        http,
        allowed_hosts: layers.each(
            Key::ApiAllowedHosts,
            "a list of host names in lower case and without a port",
            |text| is_host(text).then(|| text.to_owned()),
        )?,
    })
}

pub(super) fn owner(layers: &Layers) -> Result<OwnerConfig, ConfigError> {
    let principal =
        layers.text(Key::OwnerPrincipal, "a principal such as z6Mk…, or empty", |text| match text {
            "" => Some(None),
            principal => principal.parse().ok().map(Some),
        })?;
    Ok(OwnerConfig { principal })
}

pub(super) fn sessions(layers: &Layers) -> Result<SessionsConfig, ConfigError> {
    let expected = "internal or confidential (public is reached by `throughline publish` only)";
    Ok(SessionsConfig {
        default_class: layers.text(Key::SessionsDefaultClass, expected, |text| match text {
            "internal" => Some(DefaultClass::Internal),
            "confidential" => Some(DefaultClass::Confidential),
            _ => None,
        })?,
        pin_own: layers.flag(Key::SessionsPinOwn)?,
    })
}

pub(super) fn limits(layers: &Layers) -> Result<LimitsConfig, ConfigError> {
    let size = "a size such as 50 GiB (B, KiB, MiB, GiB, TiB)";
    Ok(LimitsConfig {
        store_bytes_max: layers.text(Key::LimitsStoreMax, size, size_bytes)?,
        staging_bytes_max: layers.text(Key::LimitsStagingMax, size, size_bytes)?,
        connections_in_max: layers.count(Key::LimitsConnectionsIn)?,
        connections_out_max: layers.count(Key::LimitsConnectionsOut)?,
        idle_timeout: layers.text(
            Key::LimitsIdleTimeout,
            "a duration such as 30s (ms, s, m, h, d)",
            duration,
        )?,
    })
}

pub(super) fn log(layers: &Layers) -> Result<LogConfig, ConfigError> {
    let expected = "error, warn, info, debug, trace, off, or directives such as info,throughline_node=debug";
    Ok(LogConfig {
        filter: layers.text(Key::LogLevel, expected, |text| is_filter(text).then(|| text.to_owned()))?,
        format: layers.text(Key::LogFormat, "text or json", |text| match text {
            "text" => Some(LogFormat::Text),
            "json" => Some(LogFormat::Json),
            _ => None,
        })?,
    })
}

pub(super) fn role(layers: &Layers) -> Result<Role, ConfigError> {
    layers.text(Key::NodeRole, "laptop, desktop or server", |text| text.parse().ok())
}

/// A name, an IPv4 address or a bracketed IPv6 address.
fn is_host(text: &str) -> bool {
    let bracketed = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    match bracketed {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
            !text.is_empty() && text.len() <= 253 && text.chars().all(allowed)
        }
    }
}

/// A bare word must be a level: `EnvFilter` would take a misspelt one as the name of a module.
fn is_filter(text: &str) -> bool {
    const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];
    let directive = |part: &str| match part.rsplit_once('=') {
        None => LEVELS.contains(&part),
        Some((_, level)) => LEVELS.contains(&level),
    };
    text.split(',').all(directive) && tracing_subscriber::EnvFilter::try_new(text).is_ok()
}
