//! Under which salts each session of a source is imported. `docs/PROTOCOL.md` R-PA-3, R-AU-7.
//!
//! An import is deterministic: the same source under the same salts gives the same genesis, and so the same session. In a data
//! directory whose sign guard is not trusted (a restored one, a copy, a new one under an old key) this key may have gone on in
//! that session after its import, and nobody here knows where. So there a session that is not held is begun under salts that no
//! other directory has: it is a new one, and nothing that was signed before is signed again or beside. It must never begin a
//! session under the first salts while the guard is not trusted.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use throughline_protocol::payload::ImportSalts;
use throughline_protocol::transcript::import::SessionKey;
use zeroize::Zeroizing;

/// Names the data directory since its sign guard was last emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Life([u8; 32]);

impl Life {
    pub(super) fn new(name: [u8; 32]) -> Self {
        Life(name)
    }

    /// As [`fmt::Display`] writes it.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        Some(Life(bytes.try_into().ok()?))
    }
}

impl fmt::Display for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&URL_SAFE_NO_PAD.encode(self.0))
    }
}

/// The salts of one run, by session.
pub(super) struct Lives {
    seed: Zeroizing<[u8; 32]>,
    /// The life that new sessions begin in; none while the guard is trusted.
    now: Option<Life>,
    first: ImportSalts,
    later: BTreeMap<Life, ImportSalts>,
    sessions: BTreeMap<SessionKey, Life>,
}

impl Lives {
    pub(super) fn new(seed: Zeroizing<[u8; 32]>, now: Option<Life>) -> Self {
        let first = ImportSalts::new(&seed);
        Lives { seed, now, first, later: BTreeMap::new(), sessions: BTreeMap::new() }
    }

    /// The salts of a session.
    pub(super) fn salts(&self, key: SessionKey) -> &ImportSalts {
        self.sessions.get(&key).and_then(|life| self.later.get(life)).unwrap_or(&self.first)
    }

    /// In which life a session was begun; none is the first.
    pub(super) fn of(&self, key: SessionKey) -> Option<Life> {
        self.sessions.get(&key).copied()
    }

    /// A session that was begun in this life.
    pub(super) fn put(&mut self, key: SessionKey, life: Life) {
        self.later.entry(life).or_insert_with(|| ImportSalts::of_life(&self.seed, &life.0));
        self.sessions.insert(key, life);
    }

    /// A session that is not held is about to begin. True: it begins in the present life, under other salts than before, and what
    /// was made for it has to be made again.
    pub(super) fn begins_anew(&mut self, key: SessionKey) -> bool {
        match self.now {
            Some(now) if self.of(key) != Some(now) => {
                self.put(key, now);
                true
            }
            Some(_) | None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use throughline_protocol::payload::RecordId;

    use super::*;

    fn salt(lives: &Lives) -> [u8; 32] {
        lives.salts(SessionKey::MAIN).salt("f", "s", RecordId::Line(1), "SessionNote")
    }

    #[test]
    fn each_life_has_salts_of_its_own_and_a_trusted_directory_those_of_the_key() {
        let seed = || Zeroizing::new([7; 32]);
        let mut trusted = Lives::new(seed(), None);
        assert!(!trusted.begins_anew(SessionKey::MAIN));
        let first = salt(&trusted);
        assert_eq!(first, ImportSalts::new(&seed()).salt("f", "s", RecordId::Line(1), "SessionNote"));
        let mut seen = vec![first];
        for name in [1, 2] {
            let mut lives = Lives::new(seed(), Some(Life::new([name; 32])));
            assert_eq!(salt(&lives), first, "what is held is found under the salts that it was made with");
            assert!(lives.begins_anew(SessionKey::MAIN));
            assert!(!lives.begins_anew(SessionKey::MAIN), "once");
            assert!(!seen.contains(&salt(&lives)));
            seen.push(salt(&lives));
            let again = Life::parse(&lives.of(SessionKey::MAIN).unwrap().to_string()).unwrap();
            let mut later = Lives::new(seed(), None);
            later.put(SessionKey::MAIN, again);
            assert_eq!(salt(&later), salt(&lives));
        }
        assert_eq!(Life::parse("00"), None);
    }
}
