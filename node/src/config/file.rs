//! The config file: TOML in, known keys with their lines out.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::ConfigError;
use super::key::Key;
use super::value::{Source, Value};

/// Largest config file that is read, in bytes.
const CONFIG_BYTES_MAX: u64 = 256 * 1024;

/// What one place says about the keys.
pub(super) type Layer = BTreeMap<Key, (Value, Source)>;

/// Reads the file at `path`; none when it does not exist.
pub(super) fn read(path: &Path) -> Result<Option<Layer>, ConfigError> {
    let failed = |source| ConfigError::Io { path: path.to_owned(), source };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut bytes = Vec::new();
    file.take(CONFIG_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > CONFIG_BYTES_MAX {
        return Err(ConfigError::TooBig { path: path.to_owned(), max_bytes: CONFIG_BYTES_MAX });
    }
    let text = String::from_utf8(bytes)
        .map_err(|_| failed(io::Error::new(io::ErrorKind::InvalidData, "bytes that are no utf-8")))?;
    parse(&text, path).map(Some)
}

/// Reads `text`, which stands in the file `path`.
pub(super) fn parse(text: &str, path: &Path) -> Result<Layer, ConfigError> {
    let file = Lines { text, path };
    let root = DeTable::parse(text).map_err(|error| ConfigError::Syntax {
        place: file.place(&error.span().unwrap_or_default()),
        message: error.message().to_owned(),
    })?;
    let mut layer = Layer::new();
    for (section, table) in root.get_ref() {
        let known = Key::ALL.into_iter().any(|key| key.section() == section.get_ref().as_ref());
        let Some(table) = table.get_ref().as_table() else {
            return Err(file.unknown(section.get_ref(), &section.span()));
        };
        if !known && table.is_empty() {
            return Err(file.unknown(section.get_ref(), &section.span()));
        }
        for (leaf, value) in table {
            let name = format!("{}.{}", section.get_ref(), leaf.get_ref());
            let key = Key::of_name(&name).ok_or_else(|| file.unknown(&name, &leaf.span()))?;
            layer.insert(key, (file.value(key, value)?, Source::Config { line: file.line(&leaf.span()) }));
        }
    }
    Ok(layer)
}

/// The text of the file, to tell lines from offsets.
struct Lines<'a> {
    text: &'a str,
    path: &'a Path,
}

impl Lines<'_> {
    fn line(&self, span: &Range<usize>) -> usize {
        let before = self.text.as_bytes().get(..span.start).unwrap_or_default();
        1 + before.iter().filter(|byte| **byte == b'\n').count()
    }

    fn place(&self, span: &Range<usize>) -> String {
        place(self.path, self.line(span))
    }

    fn unknown(&self, name: &str, span: &Range<usize>) -> ConfigError {
        ConfigError::Unknown {
            place: self.place(span),
            got: name.to_owned(),
            nearest: Key::nearest(name).name(),
        }
    }

    fn value(&self, key: Key, value: &Spanned<DeValue<'_>>) -> Result<Value, ConfigError> {
        let refuse = |got: &DeValue<'_>| ConfigError::Value {
            place: self.place(&value.span()),
            key: key.name(),
            expected: "a text, a list of texts, a whole number, true or false".to_owned(),
            got: match got.as_integer() {
                Some(number) => number.as_str().to_owned(),
                None => format!("a value of type {}", got.type_str()),
            },
        };
        match value.get_ref() {
            DeValue::String(text) => Ok(Value::Text(text.to_string())),
            DeValue::Boolean(flag) => Ok(Value::Flag(*flag)),
            DeValue::Integer(number) => u64::from_str_radix(number.as_str(), number.radix())
                .map(Value::Number)
                .map_err(|_| refuse(value.get_ref())),
            DeValue::Array(items) => {
                let text = |item: &Spanned<DeValue<'_>>| {
                    item.get_ref().as_str().map(str::to_owned).ok_or_else(|| refuse(item.get_ref()))
                };
                items.iter().map(text).collect::<Result<_, _>>().map(Value::List)
            }
            other @ (DeValue::Float(_) | DeValue::Datetime(_) | DeValue::Table(_)) => Err(refuse(other)),
        }
    }
}

/// File and line, for messages.
pub(super) fn place(path: &Path, line: usize) -> String {
    format!("{} line {line}", path.display())
}
