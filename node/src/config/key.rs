//! The keys that exist: name, meaning and default of each, in the order of the default file.

use super::checked::Role;
use super::value::Value;

/// A key of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// `node.role`
    NodeRole,
    /// `node.listen`
    NodeListen,
    /// `node.announce_addresses`
    NodeAnnounceAddresses,
    /// `node.bootstrap`
    NodeBootstrap,
    /// `node.mdns`
    NodeMdns,
    /// `api.socket`
    ApiSocket,
    /// `api.http`
    ApiHttp,
    /// `api.allowed_hosts`
    ApiAllowedHosts,
    /// `owner.principal`
    OwnerPrincipal,
    /// `sessions.default_class`
    SessionsDefaultClass,
    /// `sessions.pin_own`
    SessionsPinOwn,
    /// `limits.store_max`
    LimitsStoreMax,
    /// `limits.staging_max`
    LimitsStagingMax,
    /// `limits.connections_in`
    LimitsConnectionsIn,
    /// `limits.connections_out`
    LimitsConnectionsOut,
    /// `limits.idle_timeout`
    LimitsIdleTimeout,
    /// `log.level`
    LogLevel,
    /// `log.format`
    LogFormat,
}

impl Key {
    /// Every key, section by section.
    pub const ALL: [Key; 18] = [
        Key::NodeRole,
        Key::NodeListen,
        Key::NodeAnnounceAddresses,
        Key::NodeBootstrap,
        Key::NodeMdns,
        Key::ApiSocket,
        Key::ApiHttp,
        Key::ApiAllowedHosts,
        Key::OwnerPrincipal,
        Key::SessionsDefaultClass,
        Key::SessionsPinOwn,
        Key::LimitsStoreMax,
        Key::LimitsStagingMax,
        Key::LimitsConnectionsIn,
        Key::LimitsConnectionsOut,
        Key::LimitsIdleTimeout,
        Key::LogLevel,
        Key::LogFormat,
    ];

    /// Section and key, with a dot between.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Key::NodeRole => "node.role",
            Key::NodeListen => "node.listen",
            Key::NodeAnnounceAddresses => "node.announce_addresses",
            Key::NodeBootstrap => "node.bootstrap",
            Key::NodeMdns => "node.mdns",
            Key::ApiSocket => "api.socket",
            Key::ApiHttp => "api.http",
            Key::ApiAllowedHosts => "api.allowed_hosts",
            Key::OwnerPrincipal => "owner.principal",
            Key::SessionsDefaultClass => "sessions.default_class",
            Key::SessionsPinOwn => "sessions.pin_own",
            Key::LimitsStoreMax => "limits.store_max",
            Key::LimitsStagingMax => "limits.staging_max",
            Key::LimitsConnectionsIn => "limits.connections_in",
            Key::LimitsConnectionsOut => "limits.connections_out",
            Key::LimitsIdleTimeout => "limits.idle_timeout",
            Key::LogLevel => "log.level",
            Key::LogFormat => "log.format",
        }
    }

    /// The key of this full name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Key> {
        Key::ALL.into_iter().find(|key| key.name() == name)
    }

    /// The section.
    #[must_use]
    pub fn section(self) -> &'static str {
        self.name().split_once('.').map_or("", |(section, _)| section)
    }

    /// The name within the section.
    #[must_use]
    pub fn leaf(self) -> &'static str {
        self.name().split_once('.').map_or("", |(_, leaf)| leaf)
    }

    /// One line about what it does and takes.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        match self {
            Key::NodeRole => "laptop | desktop | server: only changes the defaults below",
            Key::NodeListen => "where peers connect; port 0 takes a free one",
            Key::NodeAnnounceAddresses => "addresses told to peers; empty: what peers see",
            Key::NodeBootstrap => {
                "peers to dial at the start, as addresses that end in /p2p/…; empty: peers that were added"
            }
            Key::NodeMdns => "find peers on the local network",
            Key::ApiSocket => "\"auto\": api.sock in the run directory; else an absolute path",
            Key::ApiHttp => "a loopback address and port for the viewer and programs, or \"off\"",
            Key::ApiAllowedHosts => "host names that a request may be addressed to, exactly",
            Key::OwnerPrincipal => "whose agents' sessions this node serves; empty: nobody's yet",
            Key::SessionsDefaultClass => {
                "internal | confidential; public is reached by `throughline publish` only"
            }
            Key::SessionsPinOwn => "keep every session that this node holds",
            Key::LimitsStoreMax => "above it nothing new is fetched; own appends always go through",
            Key::LimitsStagingMax => "for what is fetched and not verified yet",
            Key::LimitsConnectionsIn => "connections that peers opened",
            Key::LimitsConnectionsOut => "connections that this node opened",
            Key::LimitsIdleTimeout => "a transfer ends when its peer sends nothing for so long",
            Key::LogLevel => "error | warn | info | debug | trace | off; THROUGHLINE_LOG goes before it",
            Key::LogFormat => "text | json",
        }
    }

    /// The value when nobody sets one.
    #[must_use]
    pub fn default(self, role: Role) -> Value {
        let server = role == Role::Server;
        match self {
            Key::NodeRole => Value::text(role.word()),
            Key::NodeListen => listen(if server { 4747 } else { 0 }),
            Key::NodeAnnounceAddresses | Key::NodeBootstrap => Value::List(Vec::new()),
            Key::NodeMdns => Value::Flag(!server),
            Key::ApiSocket => Value::text("auto"),
            Key::ApiHttp => Value::text(if server { "off" } else { "127.0.0.1:7420" }),
            Key::ApiAllowedHosts => Value::list(&["localhost", "127.0.0.1", "[::1]"]),
            Key::OwnerPrincipal => Value::text(""),
            Key::SessionsDefaultClass => Value::text("internal"),
            Key::SessionsPinOwn => Value::Flag(true),
            Key::LimitsStoreMax => Value::text("50 GiB"),
            Key::LimitsStagingMax => Value::text("2 GiB"),
            Key::LimitsConnectionsIn => Value::Number(256),
            Key::LimitsConnectionsOut => Value::Number(64),
            Key::LimitsIdleTimeout => Value::text("30s"),
            Key::LogLevel => Value::text("info"),
            Key::LogFormat => Value::text("text"),
        }
    }

    /// The known key that is most like `name`: first one of the same leaf in another section, else the one that
    /// takes the fewest edits.
    pub(super) fn nearest(name: &str) -> Key {
        let leaf = name.rsplit('.').next().unwrap_or(name);
        let cost = |key: &Key| if key.leaf() == leaf { 0 } else { edits(name, key.name()) };
        Key::ALL.into_iter().min_by_key(cost).unwrap_or(Key::NodeRole)
    }
}

fn listen(port: u16) -> Value {
    Value::List(vec![
        format!("/ip4/0.0.0.0/udp/{port}/quic-v1"),
        format!("/ip4/0.0.0.0/tcp/{port}"),
        format!("/ip6/::/udp/{port}/quic-v1"),
    ])
}

/// The Levenshtein distance: insertions, deletions and replacements from `from` to `to`.
fn edits(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}
