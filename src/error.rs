//! One public error: a stable kind, a message, the path, and what to do next.

mod hint;

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use serde::Serialize;

pub use self::hint::{BucketAddress, CredentialsFault, Hint};

/// A shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Kinds with their names, in the order of the contract.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal,)*) => {
        /// What went wrong, in the words a caller branches on.
        ///
        /// A kind exists only where a caller would act differently. Its name, as
        /// [`ErrorKind::as_str`] gives it, is stable.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
        #[non_exhaustive]
        pub enum ErrorKind {
            $($(#[$doc])* #[serde(rename = $name)] $kind,)*
        }

        impl ErrorKind {
            /// All of them, in the order of the contract.
            pub const ALL: &[Self] = &[$(Self::$kind),*];

            /// The stable name, as it stands in JSON: `not_found`, `binary_file`, …
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }
        }
    };
}

kinds! {
    /// Nothing is there, or it lies outside the session's mounts. List the parent.
    NotFound = "not_found",
    /// Something is there already. Choose another name, or overwrite on purpose.
    AlreadyExists = "already_exists",
    /// Somebody else changed it meanwhile. Read it again, then retry.
    Conflict = "conflict",
    /// The mount takes no writes. Write to another mount.
    ReadOnly = "read_only",
    /// The storage refused. Check credentials and policies.
    Denied = "denied",
    /// The path can never name a file. Correct it.
    InvalidPath = "invalid_path",
    /// The identifier can never name a tenant. Correct it.
    InvalidId = "invalid_id",
    /// Another argument or setting is wrong. Correct it.
    InvalidInput = "invalid_input",
    /// A file was wanted and this is a directory. List it.
    IsDirectory = "is_directory",
    /// A directory was wanted and this is a file. Read it.
    NotDirectory = "not_directory",
    /// The content is no text. Read bytes, or refer to the path.
    BinaryFile = "binary_file",
    /// The content is larger than the limit. Read a window.
    TooLarge = "too_large",
    /// The skill cannot be used as it is.
    InvalidSkill = "invalid_skill",
    /// More than one thing has this name. Use the full path.
    Ambiguous = "ambiguous",
    /// A limit of the session is used up.
    QuotaExceeded = "quota_exceeded",
    /// The storage asks for fewer requests. Retry later.
    Throttled = "throttled",
    /// No answer in time. Retry.
    Timeout = "timeout",
    /// The storage cannot be reached, or its bucket is missing.
    Unavailable = "unavailable",
    /// What the storage returned contradicts itself. Do not use it.
    Corrupt = "corrupt",
    /// A defect of this library. Report it.
    Internal = "internal",
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The error of every operation.
///
/// `Display` prints the message, which is one line. What to do next is a [`Hint`]. [`Error::report`] has both, for a
/// reader who has to act on the error, such as a language model.
///
/// ```
/// use skillfs::{ErrorKind, VirtualPath};
///
/// let error = VirtualPath::parse("/workspace/../secrets").unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::InvalidPath);
/// assert!(!error.is_retryable());
/// assert_eq!(error.report(), format!("{error}\nhint: {}", error.hint().unwrap()));
/// ```
pub struct Error(Box<ErrorData>);

#[derive(Clone)]
struct ErrorData {
    kind: ErrorKind,
    message: String,
    path: Option<String>,
    hint: Option<Hint>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
    uncertain: bool,
    lasting: bool,
    forbidden: bool,
}

impl Error {
    /// An error of this kind, with a message of one line.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(ErrorData {
            kind,
            message: one_line(message.into()),
            path: None,
            hint: None,
            source: None,
            uncertain: false,
            lasting: false,
            forbidden: false,
        }))
    }

    /// Adds the path it happened to. The first one is kept: the innermost is the most precise.
    #[must_use]
    pub fn at(mut self, path: impl fmt::Display) -> Self {
        self.0.path.get_or_insert_with(|| shorten(&path.to_string()));
        self
    }

    /// Puts what was being done to which path before the message.
    pub(crate) fn during(mut self, verb: &str, path: impl fmt::Display) -> Self {
        self.0.message = one_line(format!("cannot {verb} `{path}`: {}", self.0.message));
        self.at(path)
    }

    /// Adds what to do next.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<Hint>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// Adds the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into().into());
        self
    }

    /// A write whose answer was lost, and of which nothing tells whether it took effect.
    pub(crate) fn uncertain(cause: Self) -> Self {
        let mut error = Self::new(
            ErrorKind::Conflict,
            format!("the change may have taken effect; this could not be determined: {}", cause.message()),
        )
        .with_hint("read it again before you repeat the change");
        error.0.uncertain = true;
        error.with_source(cause)
    }

    /// The same error, for another who waited for the same answer.
    pub(crate) fn shared(this: &Arc<Self>) -> Self {
        Self(this.0.clone())
    }

    /// The storage knows who asks, and does not allow it.
    pub(crate) fn forbidden(mut self) -> Self {
        self.0.forbidden = true;
        self
    }

    /// Of what is [`ErrorKind::Denied`]: whether it is this that is not allowed, and not that the credentials are no good.
    pub(crate) fn is_forbidden(&self) -> bool {
        self.0.forbidden
    }

    /// Whether the change that failed may have taken effect all the same. Then it must not simply be
    /// repeated: read first what is there.
    #[must_use]
    pub fn may_have_taken_effect(&self) -> bool {
        self.0.uncertain
    }

    /// An error that the same call gets again, although its kind suggests otherwise.
    pub(crate) fn lasting(mut self) -> Self {
        self.0.lasting = true;
        self
    }

    /// Whether the same call may succeed later, without any change to its arguments or to the configuration.
    ///
    /// True for what passes: the storage is throttling, slow or unreachable, or another writer got in between. False
    /// for everything that somebody has to fix first, such as a missing bucket, a condition on a version that no longer
    /// exists, or a change of which it is unknown [whether it took effect](Self::may_have_taken_effect).
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        use ErrorKind::{Conflict, Throttled, Timeout, Unavailable};
        let passes = matches!(self.0.kind, Conflict | Throttled | Timeout | Unavailable);
        passes && !self.0.lasting && !self.0.uncertain
    }

    /// What went wrong, to branch on.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// What happened, in one sentence, without the hint.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The virtual path it happened to, where there is one.
    #[must_use]
    pub fn path(&self) -> Option<&str> {
        self.0.path.as_deref()
    }

    /// What to do next, if that is known.
    #[must_use]
    pub fn hint(&self) -> Option<&Hint> {
        self.0.hint.as_ref()
    }

    /// The message and, on a second line, the hint: what to give to a language model that called a tool.
    #[must_use]
    pub fn report(&self) -> String {
        match &self.0.hint {
            Some(hint) => format!("{}\nhint: {hint}", self.0.message),
            None => self.0.message.clone(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("message", &self.0.message)
            .field("path", &self.0.path)
            .field("hint", &self.0.hint)
            .field("source", &self.0.source)
            .finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|e| e as _)
    }
}

impl From<std::convert::Infallible> for Error {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

/// A message is one line, whatever a path or a server put into it.
fn one_line(message: String) -> String {
    match message.contains(['\n', '\r']) {
        true => message.split(['\n', '\r']).map(str::trim).collect::<Vec<_>>().join(" "),
        false => message,
    }
}

/// Cuts hostile input down to something a terminal, a log or a prompt can bear,
/// and makes what cannot be seen visible.
pub(crate) fn shorten(text: &str) -> String {
    const MOST: usize = 200;
    let mut out = String::new();
    for (i, c) in text.chars().enumerate() {
        if i == MOST {
            out.push('…');
            break;
        }
        if c.is_control() {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_agree_with_serde() {
        for &kind in ErrorKind::ALL {
            let json = serde_json::to_string(&kind).unwrap();
            assert_eq!(json, format!("\"{kind}\""));
        }
    }

    #[test]
    fn only_what_passes_is_retryable() {
        use ErrorKind::{Conflict, Throttled, Timeout, Unavailable};
        for &kind in ErrorKind::ALL {
            let error = Error::new(kind, "x");
            assert_eq!(
                error.is_retryable(),
                [Conflict, Throttled, Timeout, Unavailable].contains(&kind),
                "{kind}"
            );
            assert!(!error.lasting().is_retryable());
        }
        let lost = Error::uncertain(Error::new(Timeout, "no response"));
        assert!(lost.may_have_taken_effect() && !lost.is_retryable());
    }

    #[test]
    fn display_is_one_line_without_the_hint() {
        let error =
            Error::new(ErrorKind::Internal, "one\n  two").during("read", "a\nb").with_hint("try again");
        assert_eq!(error.to_string(), "cannot read `a b`: one two");
        assert_eq!(error.report(), "cannot read `a b`: one two\nhint: try again");
        assert_eq!(Error::new(ErrorKind::Internal, "one").report(), "one");
    }

    #[test]
    fn hostile_input_is_shortened_and_made_visible() {
        assert_eq!(shorten("a\u{0}b\u{1b}"), "a\\u{0}b\\u{1b}");
        for long in ["x".repeat(100_000), "é".repeat(100_000), "🦀".repeat(5_000)] {
            assert_eq!(shorten(&long).chars().count(), 201);
        }
        for input in
            ["a\u{0}b\u{1b}", "\u{1b}[2J", "a\nerror: forged", "a\r", "\u{9b}1m", "a\u{85}", "\u{7f}"]
        {
            assert!(!shorten(input).chars().any(char::is_control), "{input:?}");
        }
    }
}
