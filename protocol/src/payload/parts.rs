//! The nested kinds of payloads: attachment, source, segment, import report and others. All are closed maps.

use crate::code::{Code, Reject};
use crate::codec::{Map, Value, uint as uint_value};
use crate::id::{Cid, EntryCid};
use crate::schema::{self, Fields};

/// A file that came with a message; its bytes are a block or UnixFS file of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// The file's root block.
    pub cid: Cid,
    /// Its length in bytes.
    pub size: u64,
    /// Its media type, such as `text/plain`.
    pub media_type: String,
    /// Its file name.
    pub name: Option<String>,
}

impl Attachment {
    pub(super) fn from_map(map: &Map<'_>) -> Result<Self, Reject> {
        let fields = Fields::closed(map, "attachment", &["cid", "size", "mediaType"], &["name"])?;
        Ok(Attachment {
            cid: fields.need("cid", schema::block)?,
            name: fields.maybe("name", schema::name)?,
            size: fields.need("size", schema::uint)?,
            media_type: fields.need("mediaType", schema::id)?,
        })
    }

    pub(super) fn to_map(&self) -> Map<'_> {
        Map::new()
            .with("cid", self.cid)
            .with("size", uint_value(self.size))
            .with("mediaType", &*self.media_type)
            .with_some("name", self.name.as_deref())
    }
}

/// The record of another tool's transcript that an entry was made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The transcript's format, such as `claude-code`.
    pub format: String,
    /// The source file, or the segment of it, stored as a file.
    pub file: Cid,
    /// First line of the record, counted from 1.
    pub line: u64,
    /// All lines, when several were joined.
    pub lines: Vec<u64>,
    /// The record's own id.
    pub id: Option<String>,
    /// The record's own time, as it was written there.
    pub ts: Option<String>,
    /// The source's word for what belongs together.
    pub group: Option<String>,
    /// The id of the record before it, as the source says.
    pub parent: Option<String>,
}

impl Source {
    pub(super) fn from_map(map: &Map<'_>) -> Result<Self, Reject> {
        let optional = ["lines", "id", "ts", "group", "parent"];
        let fields = Fields::closed(map, "source", &["format", "file", "line"], &optional)?;
        Ok(Source {
            id: fields.maybe("id", schema::id)?,
            ts: fields.maybe("ts", schema::id)?,
            file: fields.need("file", schema::block)?,
            line: fields.need("line", line_number)?,
            group: fields.maybe("group", schema::id)?,
            lines: fields.maybe("lines", schema::list(usize::MAX, schema::uint))?.unwrap_or_default(),
            format: fields.need("format", schema::id)?,
            parent: fields.maybe("parent", schema::id)?,
        })
    }

    pub(super) fn to_map(&self) -> Map<'_> {
        let lines = self.lines.iter().map(|line| uint_value(*line)).collect::<Vec<_>>();
        Map::new()
            .with("format", &*self.format)
            .with("file", self.file)
            .with("line", uint_value(self.line))
            .with_some("lines", (!lines.is_empty()).then_some(lines))
            .with_some("id", self.id.as_deref())
            .with_some("ts", self.ts.as_deref())
            .with_some("group", self.group.as_deref())
            .with_some("parent", self.parent.as_deref())
    }
}

fn line_number(value: &Value<'_>) -> Result<u64, Reject> {
    match schema::uint(value)? {
        0 => Err(Reject::new(Code::SchemaType, "lines count from 1")),
        line => Ok(line),
    }
}

/// Where a session was started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// The operating system.
    pub os: Option<String>,
    /// The working directory.
    pub cwd: Option<String>,
    /// The repository.
    pub repo: Option<String>,
    /// Its branch.
    pub branch: Option<String>,
    /// Its commit.
    pub commit: Option<String>,
    /// Names of the tools that the agent had.
    pub tools: Vec<String>,
}

impl Environment {
    pub(super) fn from_map(map: &Map<'_>) -> Result<Self, Reject> {
        let keys = ["os", "cwd", "repo", "branch", "commit", "tools"];
        let fields = Fields::closed(map, "environment", &[], &keys)?;
        Ok(Environment {
            os: fields.maybe("os", schema::text)?,
            cwd: fields.maybe("cwd", schema::text)?,
            repo: fields.maybe("repo", schema::text)?,
            tools: fields.maybe("tools", schema::list(usize::MAX, schema::name))?.unwrap_or_default(),
            branch: fields.maybe("branch", schema::text)?,
            commit: fields.maybe("commit", schema::text)?,
        })
    }

    pub(super) fn to_map(&self) -> Map<'_> {
        let tools = self.tools.iter().map(|tool| Value::from(tool.as_str())).collect::<Vec<_>>();
        Map::new()
            .with_some("os", self.os.as_deref())
            .with_some("cwd", self.cwd.as_deref())
            .with_some("repo", self.repo.as_deref())
            .with_some("branch", self.branch.as_deref())
            .with_some("commit", self.commit.as_deref())
            .with_some("tools", (!tools.is_empty()).then_some(tools))
    }
}

/// Who said it, in a conversation of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Participant {
    /// Their id in that conversation.
    pub id: String,
    /// Their part in it.
    pub role: Option<String>,
    /// Where they said it.
    pub channel: Option<String>,
}

impl Participant {
    pub(super) fn from_map(map: &Map<'_>) -> Result<Self, Reject> {
        let fields = Fields::closed(map, "participant", &["id"], &["role", "channel"])?;
        Ok(Participant {
            id: fields.need("id", schema::id)?,
            role: fields.maybe("role", schema::id)?,
            channel: fields.maybe("channel", schema::name)?,
        })
    }

    pub(super) fn to_map(&self) -> Map<'_> {
        Map::new()
            .with("id", &*self.id)
            .with_some("role", self.role.as_deref())
            .with_some("channel", self.channel.as_deref())
    }
}

/// What went wrong, in a response or an error note.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    /// For people.
    pub message: String,
    /// The provider's code.
    pub code: Option<String>,
    /// The provider's answer as it came, normally JSON.
    pub raw: Option<String>,
}

impl Failure {
    pub(super) fn from_map(map: &Map<'_>) -> Result<Self, Reject> {
        let fields = Fields::closed(map, "error", &["message"], &["code", "raw"])?;
        Ok(Failure {
            raw: fields.maybe("raw", schema::text)?,
            code: fields.maybe("code", schema::id)?,
            message: fields.need("message", schema::text)?,
        })
    }

    /// From the fields of a note's payload, which are judged in another order than those of an inner map.
    pub(super) fn from_fields(fields: &Fields<'_, '_>) -> Result<Self, Reject> {
        Ok(Failure {
            message: fields.need("message", schema::text)?,
            code: fields.maybe("code", schema::id)?,
            raw: fields.maybe("raw", schema::text)?,
        })
    }

    pub(super) fn to_map(&self) -> Map<'_> {
        self.add_to(Map::new())
    }

    pub(super) fn add_to<'a>(&'a self, map: Map<'a>) -> Map<'a> {
        map.with("message", &*self.message)
            .with_some("code", self.code.as_deref())
            .with_some("raw", self.raw.as_deref())
    }
}

/// The source's bytes of one import run, stored as a file, so that every byte of the source is somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The file's root block.
    pub cid: Cid,
    /// Where in the source it begins, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
    /// Its first line, counted from 1.
    pub first_line: u64,
    /// Number of lines in it.
    pub lines: u64,
}

/// A part of the source that no entry was made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Its line, counted from 1.
    pub line: u64,
    /// Where it begins, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
    /// Why, an error code or a word of the importer.
    pub reason: String,
}

/// A record that was repaired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repaired {
    /// Its line, counted from 1.
    pub line: u64,
    /// What was done.
    pub what: String,
}

/// A record that was kept in its segment only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptRaw {
    /// Its line, counted from 1.
    pub line: u64,
    /// The source's word for it.
    pub kind: String,
}

/// How an import went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportReport {
    /// The transcript's format.
    pub format: String,
    /// The source's bytes.
    pub segments: Vec<Segment>,
    /// What no entry was made from.
    pub skipped: Vec<Skipped>,
    /// What was repaired.
    pub repaired: Vec<Repaired>,
    /// What was kept in its segment only.
    pub raw: Vec<KeptRaw>,
}

impl ImportReport {
    pub(super) fn from_fields(fields: &Fields<'_, '_>) -> Result<Self, Reject> {
        let segment = schema::map(|map| {
            let fields =
                Fields::closed(map, "segments[]", &["cid", "offset", "length", "firstLine", "lines"], &[])?;
            Ok(Segment {
                cid: fields.need("cid", schema::block)?,
                lines: fields.need("lines", schema::uint)?,
                length: fields.need("length", schema::uint)?,
                offset: fields.need("offset", schema::uint)?,
                first_line: fields.need("firstLine", schema::uint)?,
            })
        });
        let skipped = schema::map(|map| {
            let fields = Fields::closed(map, "skipped[]", &["line", "offset", "length", "reason"], &[])?;
            Ok(Skipped {
                line: fields.need("line", schema::uint)?,
                length: fields.need("length", schema::uint)?,
                offset: fields.need("offset", schema::uint)?,
                reason: fields.need("reason", schema::id)?,
            })
        });
        let repaired = schema::map(|map| {
            let fields = Fields::closed(map, "repaired[]", &["line", "what"], &[])?;
            Ok(Repaired {
                line: fields.need("line", schema::uint)?,
                what: fields.need("what", schema::text)?,
            })
        });
        let raw = schema::map(|map| {
            let fields = Fields::closed(map, "raw[]", &["line", "kind"], &[])?;
            Ok(KeptRaw { kind: fields.need("kind", schema::name)?, line: fields.need("line", schema::uint)? })
        });
        Ok(ImportReport {
            format: fields.need("format", schema::id)?,
            segments: fields.need("segments", schema::list(usize::MAX, segment))?,
            skipped: fields.maybe("skipped", schema::list(usize::MAX, skipped))?.unwrap_or_default(),
            repaired: fields.maybe("repaired", schema::list(usize::MAX, repaired))?.unwrap_or_default(),
            raw: fields.maybe("raw", schema::list(usize::MAX, raw))?.unwrap_or_default(),
        })
    }

    pub(super) fn add_to<'a>(&'a self, map: Map<'a>) -> Map<'a> {
        map.with("format", &*self.format)
            .with("segments", self.segments.iter().map(segment_value).collect::<Vec<_>>())
            .with_some("skipped", mapped(&self.skipped, skipped_map))
            .with_some(
                "repaired",
                mapped(&self.repaired, |repaired| {
                    Map::new().with("line", uint_value(repaired.line)).with("what", &*repaired.what)
                }),
            )
            .with_some(
                "raw",
                mapped(&self.raw, |raw| {
                    Map::new().with("line", uint_value(raw.line)).with("kind", &*raw.kind)
                }),
            )
    }
}

fn segment_value(segment: &Segment) -> Value<'_> {
    Value::Map(
        Map::new()
            .with("cid", segment.cid)
            .with("offset", uint_value(segment.offset))
            .with("length", uint_value(segment.length))
            .with("firstLine", uint_value(segment.first_line))
            .with("lines", uint_value(segment.lines)),
    )
}

fn skipped_map(skipped: &Skipped) -> Map<'_> {
    Map::new()
        .with("line", uint_value(skipped.line))
        .with("offset", uint_value(skipped.offset))
        .with("length", uint_value(skipped.length))
        .with("reason", &*skipped.reason)
}

/// Items as an array of maps; none at all is left out.
pub(super) fn mapped<'a, T>(items: &'a [T], map: impl Fn(&'a T) -> Map<'a>) -> Option<Vec<Value<'a>>> {
    (!items.is_empty()).then(|| items.iter().map(|item| Value::Map(map(item))).collect())
}

/// An array of entry links; none at all is left out.
pub(super) fn links(cids: &[EntryCid]) -> Option<Vec<Value<'static>>> {
    (!cids.is_empty()).then(|| cids.iter().map(|cid| Value::from(*cid)).collect())
}
