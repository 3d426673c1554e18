//! What the operating system says about this process and this machine. Linux only; elsewhere there is no answer.

use std::fs;

/// Resident memory of a process now, in bytes.
pub(super) fn resident_bytes(process: Process) -> Option<u64> {
    let path = match process {
        Process::This => "/proc/self/status".to_owned(),
        Process::Other(id) => format!("/proc/{id}/status"),
    };
    resident_of(&fs::read_to_string(path).ok()?)
}

/// Which process.
#[derive(Clone, Copy, Debug)]
pub(super) enum Process {
    /// This one.
    This,
    /// The one with this id.
    Other(u32),
}

/// Runnable tasks on average over the last minute.
pub(super) fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

/// The highest resident memory that was seen, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Peak(pub(super) Option<u64>);

impl Peak {
    /// Looks again.
    pub(super) fn sample(&mut self) {
        self.0 = self.0.max(resident_bytes(Process::This));
    }
}

fn resident_of(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1_024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_read_from_the_status() {
        assert_eq!(resident_of("Name:\tx\nVmPeak:\t 9 kB\nVmRSS:\t    2048 kB\n"), Some(2_097_152));
        assert_eq!(resident_of("Name:\tx\n"), None);
    }
}
