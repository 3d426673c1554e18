//! Why a port or a socket cannot be opened, in words: what the system said, and who has it as far as that is cheap to know.
//!
//! It only reads, and decides nothing. Who has a port is told on Linux, of processes that this user may look at.

use std::fs;
use std::io::{self, ErrorKind};

/// A port of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Port {
    /// Of TCP.
    Tcp(u16),
    /// Of UDP.
    Udp(u16),
}

/// The first port that needs no privilege.
const UNPRIVILEGED: u16 = 1024;
/// The state of a TCP socket that listens, as `/proc/net/tcp` writes it.
const LISTENS: &str = "0A";

/// What the system has against opening a port.
#[must_use]
pub(crate) fn why(error: &io::Error, port: Port) -> String {
    let (Port::Tcp(number) | Port::Udp(number)) = port;
    let kind = error.kind();
    if kind == ErrorKind::AddrInUse {
        let who = holder(port).unwrap_or_else(|| "another process".to_owned());
        format!("the port is in use by {who}")
    } else if kind == ErrorKind::AddrNotAvailable {
        "no interface of this machine has this address".to_owned()
    } else if kind == ErrorKind::PermissionDenied && number < UNPRIVILEGED {
        format!("permission denied: ports below {UNPRIVILEGED} are the system's")
    } else if kind == ErrorKind::PermissionDenied {
        "permission denied".to_owned()
    } else {
        error.to_string()
    }
}

/// The process with this id, as people know it.
#[must_use]
pub(crate) fn process(pid: impl std::fmt::Display) -> String {
    match fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => format!("process {pid} ({})", name.trim()),
        Err(_) => format!("process {pid}"),
    }
}

/// Who has a port; none when that cannot be seen.
fn holder(port: Port) -> Option<String> {
    let (tables, number) = match port {
        Port::Tcp(number) => (["/proc/net/tcp", "/proc/net/tcp6"], number),
        Port::Udp(number) => (["/proc/net/udp", "/proc/net/udp6"], number),
    };
    let inode = tables
        .iter()
        .find_map(|table| inode(&fs::read_to_string(table).ok()?, port, number).map(str::to_owned))?;
    let socket = format!("socket:[{inode}]");
    let has = |pid: &str| {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        files.filter_map(|file| fs::read_link(file.path()).ok()).any(|to| to.as_os_str() == socket.as_str())
    };
    let ids = fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    ids.filter(|id| id.bytes().all(|byte| byte.is_ascii_digit())).find(|id| has(id)).map(process)
}

/// The socket that has a port in a table such as `/proc/net/tcp` (proc(5)).
fn inode(table: &str, port: Port, number: u16) -> Option<&str> {
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (_, local) = fields.get(1)?.rsplit_once(':')?;
        let is_open = matches!(port, Port::Udp(_)) || fields.get(3) == Some(&LISTENS);
        (is_open && u16::from_str_radix(local, 16) == Ok(number)).then(|| fields.get(9).copied())?
    })
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use super::*;

    #[test]
    fn a_table_tells_the_socket_that_listens() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:1D00 0100007F:9000 01 00000000:00000000 00:00000000 00000000  1000 0 11 1 0\n\
            1: 0100007F:1D00 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000 0 22 1 0\n\
            2: junk\n";
        assert_eq!(inode(table, Port::Tcp(0x1d00), 0x1d00), Some("22"));
        assert_eq!(inode(table, Port::Tcp(0x1d01), 0x1d01), None);
        assert_eq!(inode("", Port::Udp(1), 1), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn who_has_a_port_is_named() {
        // A process that another test starts has all files of this one for a moment.
        let own = "the port is in use by process ";
        let held = TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = held.local_addr().unwrap().port();
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let taken = io::Error::from(ErrorKind::AddrInUse);
        assert!(why(&taken, Port::Tcp(tcp)).starts_with(own), "{}", why(&taken, Port::Tcp(tcp)));
        let port = udp.local_addr().unwrap().port();
        assert!(why(&taken, Port::Udp(port)).starts_with(own), "{}", why(&taken, Port::Udp(port)));
        assert!(why(&ErrorKind::PermissionDenied.into(), Port::Tcp(80)).contains("below 1024"));
        assert_eq!(why(&ErrorKind::PermissionDenied.into(), Port::Tcp(8080)), "permission denied");
    }
}
