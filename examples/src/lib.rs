//! Recorded sessions that documents, the demo and tests use. All were written for this project; every name is made up.

/// A Claude Code session of 80 lines: parallel calls, signed reasoning, a picture, a sub-agent, a refused edit.
pub const CLAUDE_CODE: &[u8] = include_bytes!("../sessions/claude-code.jsonl");

/// What importing [`CLAUDE_CODE`] gives, as JSON.
pub const CLAUDE_CODE_EXPECTED: &str = include_str!("../sessions/claude-code.expected.json");

/// A short session whose third line is cut in half; the lines after it are whole.
pub const HALF_LINE: &[u8] = include_bytes!("../sessions/half-line.jsonl");
