//! What a refusal means outside: exit code, HTTP status and whether trying again can help.
//!
//! One table over the protocol's codes. A code that has no row of its own follows from whose fault it is, so a new
//! code is never without an answer.

use throughline_protocol::code::{Code, Fault};

/// Exit codes of the command line; scripts rely on the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Done; for `verify` and `audit` the verdict is `valid` or `sealed`.
    Done,
    /// An unexpected failure: a bug or the operating system.
    Unexpected,
    /// Usage, bad config, or an answer was needed and nobody could be asked.
    Usage,
    /// Bad hash, chain, signature or authority.
    Invalid,
    /// Not decidable yet: incomplete or not found yet.
    Undecided,
    /// Forked or frozen: the owner must decide.
    Forked,
    /// Valid, with a cut tail.
    CutTail,
    /// The head moved, another holds the session, it is frozen, retired or sealed.
    Conflict,
    /// No capability, owner key needed or locked, class, secret found.
    Refused,
    /// Peer or network; nothing was changed.
    Unreachable,
    /// Not initialised, locked, read-only, unsafe key file.
    Local,
    /// Finished, but some lines or payloads did not come along.
    Losses,
    /// Interrupted by the user.
    Interrupted,
}

impl Exit {
    /// The number.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Exit::Done => 0,
            Exit::Unexpected => 1,
            Exit::Usage => 2,
            Exit::Invalid => 3,
            Exit::Undecided => 4,
            Exit::Forked => 5,
            Exit::CutTail => 6,
            Exit::Conflict => 7,
            Exit::Refused => 8,
            Exit::Unreachable => 9,
            Exit::Local => 10,
            Exit::Losses => 11,
            Exit::Interrupted => 130,
        }
    }

    /// The exit code of a verdict word. An unknown word is never a success.
    #[must_use]
    pub fn of_verdict(word: &str) -> Self {
        match word {
            "valid" | "sealed" => Exit::Done,
            "incomplete" => Exit::Undecided,
            "forked" | "frozen" => Exit::Forked,
            "revoked-tail" | "fenced-tail" => Exit::CutTail,
            "corrupt" => Exit::Invalid,
            _ => Exit::Unexpected,
        }
    }
}

/// Whether the same request can succeed later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// It will fail again.
    Never,
    /// At once, with what the answer says.
    Now,
    /// Later.
    Later,
}

impl Retry {
    /// The word of the JSON interface.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Retry::Never => "never",
            Retry::Now => "now",
            Retry::Later => "later",
        }
    }
}

/// What a code means outside: exit code, HTTP status, retry.
#[must_use]
#[expect(clippy::wildcard_enum_match_arm, reason = "a code without a row follows from its fault")]
pub fn of(code: Code) -> (Exit, u16, Retry) {
    use Code as C;
    match code {
        C::Usage | C::Config => (Exit::Usage, 400, Retry::Never),
        C::Prompt | C::PeerUnknown | C::Ambiguous | C::InputNotFound | C::InputFormat => {
            (Exit::Usage, 400, Retry::Never)
        }
        C::Json | C::ApiBody | C::ApiQuery | C::ApiPath => (Exit::Usage, 400, Retry::Never),
        C::ApiRoute => (Exit::Usage, 404, Retry::Never),
        C::ApiHost | C::ApiOrigin | C::ApiFetchsite | C::ApiPeeruid | C::ApiScope => {
            (Exit::Refused, 403, Retry::Never)
        }
        C::ApiToken => (Exit::Refused, 401, Retry::Never),
        C::ApiTimeout => (Exit::Unreachable, 408, Retry::Now),
        C::ApiCtype => (Exit::Usage, 415, Retry::Never),
        C::TooBig | C::TooManyLinks => (Exit::Invalid, 413, Retry::Never),
        C::Incomplete | C::NotFoundYet => (Exit::Undecided, 404, Retry::Later),
        C::Version | C::NoContext | C::PeerVersion => (Exit::Undecided, 422, Retry::Never),
        C::Equivocation | C::OwnerEquivocation => (Exit::Forked, 409, Retry::Never),
        C::Revoked => (Exit::CutTail, 403, Retry::Never),
        C::HeadMoved => (Exit::Conflict, 409, Retry::Now),
        C::Frozen => (Exit::Conflict, 409, Retry::Later),
        C::Fenced
        | C::NotHolder
        | C::Retired
        | C::Sealed
        | C::EpochOld
        | C::MoveState
        | C::RefInconsistent => (Exit::Conflict, 409, Retry::Never),
        C::Idempotency => (Exit::Conflict, 422, Retry::Never),
        C::DraftGone => (Exit::Conflict, 404, Retry::Never),
        C::CapMissing | C::CapIssuer | C::CapAudience | C::CapRole | C::CapScope | C::TombIssuer => {
            (Exit::Refused, 403, Retry::Never)
        }
        C::OwnerKey
        | C::Passphrase
        | C::Class
        | C::ClassDowngrade
        | C::SecretSuspect
        | C::SignGuard
        | C::Refused => (Exit::Refused, 403, Retry::Never),
        C::PeerProof => (Exit::Refused, 401, Retry::Never),
        C::Unreachable => (Exit::Unreachable, 502, Retry::Later),
        C::Timeout => (Exit::Unreachable, 504, Retry::Later),
        C::NotInitialised | C::StoreVersion => (Exit::Local, 503, Retry::Never),
        C::Locked | C::StoreReadOnly | C::StoreIo => (Exit::Local, 503, Retry::Later),
        C::StoreCorrupt | C::IndexCorrupt => (Exit::Local, 500, Retry::Never),
        C::Quota => (Exit::Local, 429, Retry::Later),
        C::KeyfileMode | C::KeyfileType | C::KeyfileOwner | C::KeyfileFormat | C::KeyfileMissing => {
            (Exit::Local, 503, Retry::Never)
        }
        C::Internal => (Exit::Unexpected, 500, Retry::Never),
        C::Interrupted => (Exit::Interrupted, 503, Retry::Now),
        other => match other.fault() {
            Fault::Peer | Fault::Author => (Exit::Invalid, 422, Retry::Never),
            Fault::Local => (Exit::Unexpected, 500, Retry::Never),
            Fault::None => (Exit::Undecided, 422, Retry::Later),
        },
    }
}

/// The command that goes on from a code when nobody closer knows better. A word in capitals is to be filled in.
#[must_use]
#[expect(clippy::wildcard_enum_match_arm, reason = "a code without a command of its own is explained")]
pub fn next(code: Code) -> String {
    use Code as C;
    let command = match code {
        C::Incomplete | C::NotFoundYet => "throughline fetch S --from PEER",
        C::CapMissing => "throughline grant PEER --agent IRI",
        C::CapRole | C::CapScope | C::CapIssuer | C::Revoked => "throughline grants",
        C::Fenced | C::EpochOld | C::RefInconsistent | C::HeadMoved => "throughline status S",
        C::NotHolder | C::Retired | C::MoveState => "throughline status S",
        C::Equivocation | C::OwnerEquivocation => "throughline fork S",
        C::Frozen => "throughline move --abort S",
        C::SignGuard => "throughline move S --to self",
        C::Locked => "throughline stop",
        C::StoreIo | C::StoreReadOnly => "throughline status",
        C::StoreCorrupt => "throughline fsck --repair",
        C::IndexCorrupt => "throughline fsck",
        C::Quota => "throughline config show",
        C::NotInitialised => "throughline init",
        C::KeyfileMissing => "throughline key import FILE",
        C::OwnerKey => "throughline key show",
        C::Unreachable | C::PeerUnknown => "throughline peer list",
        C::Ambiguous => "throughline list",
        C::ApiToken => "throughline api token",
        C::ApiScope => "throughline api token --scope write",
        C::ApiHost | C::Config => "throughline config check",
        C::ApiRoute | C::ApiBody | C::ApiQuery | C::ApiCtype | C::ApiPath => "throughline api openapi",
        C::Usage => "throughline help",
        other => return format!("throughline explain {other}"),
    };
    command.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_names_a_command() {
        for code in Code::ALL {
            let next = next(*code);
            assert!(next.starts_with("throughline "), "{code}: {next}");
            assert_eq!(next.contains("explain"), next.ends_with(code.name()), "{code}: {next}");
        }
    }

    #[test]
    fn no_refusal_is_a_success() {
        for code in Code::ALL {
            let (exit, status, _) = of(*code);
            assert_ne!(exit, Exit::Done, "{code}");
            assert!((400..600).contains(&status), "{code}");
        }
    }

    #[test]
    fn only_valid_and_sealed_are_successes() {
        for (word, number) in [
            ("valid", 0),
            ("sealed", 0),
            ("incomplete", 4),
            ("forked", 5),
            ("frozen", 5),
            ("revoked-tail", 6),
            ("fenced-tail", 6),
            ("corrupt", 3),
            ("excellent", 1),
        ] {
            assert_eq!(Exit::of_verdict(word).number(), number, "{word}");
        }
    }
}
