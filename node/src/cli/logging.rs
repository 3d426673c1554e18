//! The log of this process, on stderr. It never holds words of a transcript, tokens or keys.

use tracing_subscriber::EnvFilter;

use crate::config::LogFormat;

/// Starts it with the configured directives, or with more when `-v` was given. A second start changes nothing.
pub(crate) fn start(configured: &str, verbosity: u8, format: LogFormat) {
    let directives = match verbosity {
        // Of the network library a bare `info` takes only what somebody has to look at.
        0 if configured == "info" => "info,libp2p=warn",
        0 => configured,
        1 => "debug,libp2p=info",
        _ => "trace",
    };
    // The configuration was checked; directives that cannot be read are none.
    let Ok(filter) = EnvFilter::try_new(directives) else { return };
    let builder =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false);
    let _ = match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
}
