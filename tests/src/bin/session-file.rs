//! Writes the session file that a measurement needs, so that another machine can measure with the same bytes.
//! `docs/PERFORMANCE.md` §Verification.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use throughline_protocol::car::{EntryBlocks, SessionWriter};
use throughline_protocol::testing::{Built, SessionBuilder};

/// Writes a valid session as a CAR, signed with public test keys: turns of a message, a response with one call, and its result,
/// each with its payload. The same arguments give the same bytes.
#[derive(Parser)]
struct Arguments {
    /// Entries, the genesis among them.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    entries: u32,
    /// Text of each message, response and result, in bytes.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=60_000))]
    text_bytes: u16,
    /// The file.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let session = session(arguments.entries, usize::from(arguments.text_bytes));
    match File::create(&arguments.output).and_then(|file| write(&session, file)) {
        Ok(size) => {
            println!("{} entries, {size} bytes, session {}", session.entries().len(), session.session());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{}: {error}", arguments.output.display());
            ExitCode::FAILURE
        }
    }
}

fn session(entries: u32, text_bytes: usize) -> SessionBuilder {
    let mut session = SessionBuilder::new("session file");
    let server = session.server1.clone();
    for number in 1..entries {
        let text: String = format!("entry {number} ").chars().cycle().take(text_bytes).collect();
        let call = format!("call-{}", number.div_ceil(3));
        match number % 3 {
            1 => session.user(&server, &text),
            2 => session.response(&server, &text, &[&call]),
            _ => {
                let response = session.head().entry.cid();
                session.tool(&server, response, &call, &text)
            }
        };
    }
    session
}

/// Writes the session; its size in bytes.
fn write(session: &SessionBuilder, file: File) -> io::Result<u64> {
    let mut out = BufWriter::new(file);
    let (mut bytes, mut size) = (Vec::new(), 0);
    let (genesis, rest) = session.entries().split_first().ok_or(io::ErrorKind::InvalidData)?;
    let controls = session.controls().iter().map(|control| (control.value(), control.bytes().as_ref()));
    let mut car = SessionWriter::begin(&mut bytes, session.head().entry.cid(), &blocks(genesis), controls);
    for entry in rest {
        car.entry(&mut bytes, &blocks(entry));
        out.write_all(&bytes)?;
        size += bytes.len() as u64;
        bytes.clear();
    }
    out.write_all(&bytes)?;
    out.flush()?;
    Ok(size + bytes.len() as u64)
}

fn blocks(built: &Built) -> EntryBlocks<'_> {
    EntryBlocks { entry: built.entry.bytes(), payload: built.payload.as_deref(), config: None, files: &[] }
}
