//! What a caller can do about an error, as data.

use std::borrow::Cow;
use std::fmt;

use serde::{Serialize, Serializer};

/// What to do next about an [`Error`](super::Error), a [`Check`](crate::Check) or a finding of a verification.
///
/// `Display` is one sentence for a program's log or for a language model. It names no flags and no commands: a front
/// end matches on the variant and adds the words that its own users know, such as a flag or the argument of a tool.
///
/// ```
/// use skillfs::{Hint, VirtualPath};
///
/// let error = VirtualPath::parse("/workspace/../secrets").unwrap_err();
/// assert!(matches!(error.hint(), Some(Hint::Plain(_))));
/// assert_eq!(Hint::ReadWindow.to_string(), "read a window of its lines");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hint {
    /// A sentence that every reader gets verbatim.
    Plain(Cow<'static, str>),
    /// Several steps, in this order.
    Steps(Vec<Self>),

    /// Read some lines of the file instead of all of them.
    ReadWindow,
    /// Read a smaller window.
    FewerLines,
    /// List this directory.
    ListDirectory(String),
    /// Read this file.
    ReadFile(String),
    /// Delete the directory recursively.
    DeleteRecursively,
    /// Make the text to replace unique, or replace every occurrence.
    ReplaceAll,
    /// Overwrite the file, or allow changes without a condition.
    AcceptLostUpdates,
    /// Copy the file to a mount that accepts writes.
    WorkOnCopy,

    /// Open the session with one of these identities: `user`, `thread`, `ticket` or `library`.
    OpenWith {
        /// The mount that needs one of them, such as `/ticket`.
        mount: Option<String>,
        /// Any of them is enough.
        identities: Vec<&'static str>,
    },
    /// Open the session with the grant to write to a mount, such as `/ticket`.
    GrantWrite {
        /// The path of the mount.
        mount: String,
    },
    /// Open the session with a role.
    UseRole,
    /// Use the compact form of session policies.
    CompactPolicy {
        /// Whether the policy is known to fit then.
        fits: bool,
    },
    /// Open the session without session tags.
    OmitSessionTags,

    /// Upgrade this program: the data has a newer format.
    Upgrade,
    /// Configure a bucket, or an embedded store.
    SetBucket,
    /// Create the bucket, or configure another one.
    CreateBucket(BucketAddress),
    /// Configure the region of the bucket, if it is known which one that is.
    SetRegion {
        /// The region of the bucket.
        region: Option<String>,
        /// The bucket.
        bucket: BucketAddress,
    },
    /// Check the address of the storage.
    CheckEndpoint,
    /// Configure the address of STS.
    SetStsEndpoint,
    /// Use other credentials.
    FixCredentials(CredentialsFault),
    /// Set the clock of this machine.
    SetClock,
    /// Enable versioning of the bucket.
    EnableVersioning(BucketAddress),
    /// Delete an object that a check left in the bucket.
    DeleteObject {
        /// The bucket.
        bucket: BucketAddress,
        /// The key of the object.
        key: String,
    },

    /// Restore damaged or missing content of the library, or publish the skill again.
    RepairLibrary,
    /// Restore the index of the library from one of its releases.
    RestoreRelease {
        /// Releases that are known to be intact, newest first.
        intact: Vec<String>,
    },
    /// Bring the mirror of the library up to the newest release.
    CompleteMirror,
    /// Publish or revert what other programs changed in the mirror.
    PublishOrRevert,
    /// Turn the plain library into a published one.
    PublishLibrary,
    /// Turn the published library into a plain one.
    UnpublishLibrary,
    /// Push skills to the library.
    PushSkills,
    /// Choose one of the releases of the library.
    ListReleases,
    /// Roll the library back to one of its releases.
    RollBack,
    /// Name a skill of the library by its path.
    NameSkill,
    /// Unpin this skill.
    Unpin(String),
    /// Push again and overwrite what is in the way.
    Overwrite,
}

/// Where a bucket is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct BucketAddress {
    /// The name of the bucket.
    pub name: String,
    /// The address of the storage; `None` for AWS.
    pub endpoint: Option<String>,
    /// The region, if it is known and matters.
    pub region: Option<String>,
    /// Whether it is an embedded store, which creates its bucket with the first write.
    pub embedded: bool,
}

/// What is wrong with credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CredentialsFault {
    /// The storage does not accept them.
    Refused,
    /// The storage does not know the access key.
    UnknownKey,
    /// The secret does not belong to the access key.
    WrongSecret,
    /// They have expired.
    Expired,
    /// The session token does not belong to the access key.
    WrongToken,
}

impl Hint {
    /// Plain words.
    pub(crate) fn plain(words: impl Into<Cow<'static, str>>) -> Self {
        Self::Plain(words.into())
    }
}

impl From<&'static str> for Hint {
    fn from(words: &'static str) -> Self {
        Self::plain(words)
    }
}

impl From<String> for Hint {
    fn from(words: String) -> Self {
        Self::plain(words)
    }
}

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain(words) => words,
            Self::Steps(steps) => {
                let steps: Vec<_> = steps.iter().map(ToString::to_string).collect();
                return f.write_str(&steps.join("; then "));
            }
            Self::ReadWindow => "read a window of its lines",
            Self::FewerLines => "request fewer lines",
            Self::ListDirectory(path) => return write!(f, "list `{path}` to see what it contains"),
            Self::ReadFile(path) => return write!(f, "read `{path}` to see its content"),
            Self::DeleteRecursively => "delete it recursively, with everything in it",
            Self::ReplaceAll => "include more of the surrounding text, or replace all occurrences",
            Self::AcceptLostUpdates => {
                "overwrite the entire file, or accept that concurrent changes may be lost"
            }
            Self::WorkOnCopy => {
                "work in `/workspace`, on a copy if you need one; administrators publish skills"
            }
            Self::OpenWith { mount: Some(mount), identities } => {
                return write!(f, "`{mount}` needs {}: give the session one", one_of(identities));
            }
            Self::OpenWith { mount: None, identities } => {
                return write!(f, "give the session {}", one_of(identities));
            }
            Self::GrantWrite { mount } => {
                return write!(f, "open the session with the grant to write to `{mount}`");
            }
            Self::UseRole => "open the session with a role",
            Self::CompactPolicy { fits: true } => {
                "use the compact session policy, which fits; with the role of the Terraform module it allows the same; or name fewer libraries"
            }
            Self::CompactPolicy { fits: false } => {
                "name fewer libraries in one session, or use the compact session policy"
            }
            Self::OmitSessionTags => "use the session policy alone, without session tags",
            Self::Upgrade => "upgrade this reader; readers are upgraded before publishers",
            Self::SetBucket => "set a bucket, or use an embedded store",
            Self::CreateBucket(BucketAddress { embedded: true, .. }) => {
                "write a file to create the bucket, or set another one"
            }
            Self::CreateBucket(_) => "create the bucket, or set another one",
            Self::SetRegion { region: Some(region), .. } => return write!(f, "set the region to `{region}`"),
            Self::SetRegion { region: None, .. } => "set the region of the bucket",
            Self::CheckEndpoint => "check that the endpoint URL is the address of a running S3 server",
            Self::SetStsEndpoint => "set the endpoint URL of STS",
            Self::FixCredentials(fault) => return fault.fmt(f),
            Self::SetClock => "set the clock of this machine",
            Self::EnableVersioning(bucket) => {
                return write!(f, "enable versioning of the bucket `{}`", bucket.name);
            }
            Self::DeleteObject { bucket, key } => {
                return write!(f, "delete the object `{key}` from the bucket `{}`", bucket.name);
            }
            Self::RepairLibrary => "an administrator can repair the library, or publish the skill again",
            Self::RestoreRelease { intact } if intact.is_empty() => {
                "an administrator can restore it from one of its releases"
            }
            Self::RestoreRelease { intact } => {
                return write!(
                    f,
                    "an administrator can restore it from one of its releases (intact, newest first: {})",
                    intact.join(", ")
                );
            }
            Self::CompleteMirror => "repair the library, or push again, to complete its mirror",
            Self::PublishOrRevert => "publish what others changed, or revert it",
            Self::PublishLibrary => "publish the library, unless other programs write to it",
            Self::UnpublishLibrary => "push without the request for a plain library, or unpublish it first",
            Self::PushSkills => "push skills to it",
            Self::ListReleases => "choose one of the releases that the library lists",
            Self::RollBack => "to return to an earlier release, roll back to it",
            Self::NameSkill => "name the skill by its path, such as `category/skill`",
            Self::Unpin(skill) => return write!(f, "unpin `{skill}` to let pushes change it"),
            Self::Overwrite => "push again with overwriting allowed, which removes them",
        })
    }
}

impl fmt::Display for CredentialsFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Refused => "check the credentials, and renew expired ones",
            Self::UnknownKey => "use an access key of this account",
            Self::WrongSecret => {
                "use the secret that belongs to the access key; look for a missing character"
            }
            Self::Expired => "renew the temporary credentials",
            Self::WrongToken => {
                "use the session token that belongs to the access key; a permanent key has none"
            }
        })
    }
}

/// The words of `Display`.
impl Serialize for Hint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// `a user, a thread or a ticket`.
fn one_of(nouns: &[&str]) -> String {
    let nouns: Vec<_> = nouns.iter().map(|noun| format!("a {noun}")).collect();
    match nouns.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_written_as_people_do() {
        let with = |identities: &[&'static str]| {
            Hint::OpenWith { mount: None, identities: identities.to_vec() }.to_string()
        };
        assert_eq!(with(&["user"]), "give the session a user");
        assert_eq!(with(&["user", "thread", "ticket"]), "give the session a user, a thread or a ticket");
    }

    #[test]
    fn steps_are_in_order_and_hints_are_text_in_json() {
        let bucket = BucketAddress { name: "b".to_owned(), ..BucketAddress::default() };
        let steps = Hint::Steps(vec!["allow it".into(), Hint::DeleteObject { bucket, key: "k".to_owned() }]);
        let text = "allow it; then delete the object `k` from the bucket `b`";
        assert_eq!(steps.to_string(), text);
        assert_eq!(serde_json::to_value(&steps).unwrap(), text);
    }
}
