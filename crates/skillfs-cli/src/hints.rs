//! Renders the library's hints for the command line, with flags, environment variables and commands.

use std::borrow::Cow;

use skillfs::{BucketAddress, CredentialsFault, Hint, Library, env};

use super::args::Global;
use super::terminal::shell;

/// The flags of the current invocation that suggested commands repeat, so that they can be copied and run.
#[derive(Debug, Default)]
pub(super) struct Invocation {
    store: String,
    library: String,
}

impl Invocation {
    /// Repeats the flags that select the store.
    pub(super) fn of(global: &Global) -> Self {
        let embedded = global.embedded.as_ref().map(|directory| directory.display().to_string());
        let mut store = String::new();
        for (flag, value) in [
            ("--embedded", &embedded),
            ("--bucket", &global.bucket),
            ("--endpoint-url", &global.endpoint_url),
            ("--region", &global.region),
        ] {
            if let Some(value) = value {
                store += &format!(" {flag} {}", shell(value));
            }
        }
        Self { store, library: String::new() }
    }

    /// Also adds the flag that selects a library.
    pub(super) fn with_library(&self, library: Option<&Library>) -> Self {
        let flag = library.map(|library| format!(" --{} {}", library.kind(), shell(library.id())));
        Self { store: self.store.clone(), library: flag.unwrap_or_default() }
    }

    /// An `admin` command line, such as `` `skillfs --bucket b admin verify --library l` ``.
    fn admin(&self, command: &str, flags: &str) -> String {
        format!("`skillfs{} admin {command}{}{flags}`", self.store, self.library)
    }
}

/// Renders a hint for a shell user.
///
/// Variants without an arm of their own are rendered in the library's words.
pub(super) fn render<'h>(hint: &'h Hint, invocation: &Invocation) -> Cow<'h, str> {
    let text = match hint {
        Hint::Plain(words) => return Cow::Borrowed(words),
        Hint::Steps(steps) => {
            steps.iter().map(|step| render(step, invocation)).collect::<Vec<_>>().join("; then ")
        }
        Hint::ReadWindow => format!("{hint}: `--offset N --limit N`"),
        Hint::FewerLines => format!("{hint}: a smaller `--limit`"),
        Hint::ListDirectory(path) => format!("`skillfs ls {}` lists what exists", shell(path)),
        Hint::ReadFile(path) => format!("`skillfs read {}` shows its content", shell(path)),
        Hint::DeleteRecursively => format!("{hint}: `rm -r`"),
        Hint::ReplaceAll => format!("{hint} (`--all`)"),
        Hint::AcceptLostUpdates => format!("{hint} (`--accept-lost-updates`)"),
        Hint::WorkOnCopy => {
            "work in `/workspace`, on a copy (`skillfs cp`) if you need one; administrators publish skills"
                .to_owned()
        }
        Hint::OpenWith { mount: Some(mount), identities } => {
            let ways: Vec<_> = identities.iter().map(|name| flag_or_variable(name)).collect();
            format!("`{mount}` needs {}: {}", either(identities, |name| format!("a {name}")), ways.join(", "))
        }
        Hint::OpenWith { mount: None, identities } => {
            format!("add {}", either(identities, |name| format!("`--{name} ID`")))
        }
        Hint::GrantWrite { mount } => {
            match mount.as_str() {
                "/ticket" => format!("{hint}: `--grant ticket-write`"),
                _ => format!("{hint}: omit `--read-only`"),
            }
        }
        Hint::UseRole => format!("{hint}: `--role-arn ARN`; see terraform/README.md"),
        Hint::CompactPolicy { fits: true } => {
            "use `--role-with compact`, which allows the same with the role of the Terraform module, or name fewer libraries"
                .to_owned()
        }
        Hint::CompactPolicy { fits: false } => format!("{hint} (`--role-with compact`)"),
        Hint::OmitSessionTags => format!("{hint}: omit `--role-with tags`"),
        Hint::Upgrade => "upgrade skillfs here; upgrade readers before publishers".to_owned(),
        Hint::SetBucket => {
            "set `--bucket` or SKILLFS_BUCKET, or use a local store with `--embedded DIR`".to_owned()
        }
        Hint::CreateBucket(bucket) => create(bucket),
        Hint::SetRegion { region: Some(region), .. } => {
            let region = shell(region);
            format!("set `--region {region}` or AWS_REGION={region}")
        }
        Hint::SetRegion { region: None, bucket } => {
            let find = aws(bucket, &format!("s3api get-bucket-location --bucket {}", shell(&bucket.name)));
            format!("set the bucket's region with `--region` or AWS_REGION; {find} shows it")
        }
        Hint::CheckEndpoint => {
            "check that an S3 server runs at the address in `--endpoint-url`, SKILLFS_ENDPOINT_URL or the AWS variables"
                .to_owned()
        }
        Hint::SetStsEndpoint => format!("{hint} with AWS_ENDPOINT_URL_STS"),
        Hint::FixCredentials(fault) => return credentials(*fault),
        Hint::SetClock => format!("{hint}: `sudo timedatectl set-ntp true`"),
        Hint::EnableVersioning(bucket) => {
            let name = shell(&bucket.name);
            let region = region_flag(bucket);
            let enable = "--versioning-configuration Status=Enabled";
            aws(bucket, &format!("s3api put-bucket-versioning --bucket {name} {enable}{region}"))
        }
        Hint::DeleteObject { bucket, key } => {
            aws(bucket, &format!("s3 rm {}", shell(&format!("s3://{}/{key}", bucket.name))))
        }
        Hint::RepairLibrary => format!(
            "restore it from another copy with {}, or push the skill again with `--overwrite`",
            invocation.admin("verify", " --repair")
        ),
        Hint::RestoreRelease { intact } if intact.is_empty() => format!(
            "list the intact releases with {}, then restore one with `--repair --release N`",
            invocation.admin("verify", "")
        ),
        Hint::RestoreRelease { intact } => format!(
            "restore one of its releases with {} (intact, newest first: {})",
            invocation.admin("verify", " --repair --release N"),
            intact.join(", ")
        ),
        Hint::CompleteMirror => {
            format!("{} or the next push completes the mirror", invocation.admin("verify", " --repair"))
        }
        Hint::PublishOrRevert => format!(
            "publish the changes of other tools with {}, or revert them with {}",
            invocation.admin("index", ""),
            invocation.admin("verify", " --repair --overwrite")
        ),
        Hint::PublishLibrary => {
            format!("publish it with {}, unless other tools write to it", invocation.admin("index", " --publish"))
        }
        Hint::UnpublishLibrary => {
            format!("push without `--plain`, or make it plain first with {}", invocation.admin("unpublish", ""))
        }
        Hint::PushSkills => invocation.admin("push DIR", ""),
        Hint::ListReleases => format!("list the available releases with {}", invocation.admin("releases", "")),
        Hint::RollBack => format!("to return to an earlier release, use {}", invocation.admin("rollback N", "")),
        Hint::NameSkill => format!("{hint}; {} lists them", invocation.admin("list", "")),
        Hint::Unpin(skill) => {
            format!("unpin it with {}", invocation.admin(&format!("unpin {}", shell(skill)), ""))
        }
        Hint::Overwrite => "remove them with `--overwrite`".to_owned(),
        _ => hint.to_string(),
    };
    Cow::Owned(text)
}

/// Renders a hint and returns it as a plain hint, for JSON documents that contain hints.
pub(super) fn in_flags(hint: &Hint, invocation: &Invocation) -> Hint {
    Hint::Plain(Cow::Owned(render(hint, invocation).into_owned()))
}

/// `` `--thread` or SKILLFS_THREAD ``.
fn flag_or_variable(name: &str) -> String {
    let variables =
        [("user", env::USER), ("thread", env::THREAD), ("ticket", env::TICKET), ("library", env::LIBRARIES)];
    match variables.iter().find(|(identity, _)| *identity == name) {
        Some((_, variable)) => format!("`--{name}` or {variable}"),
        None => format!("`--{name}`"),
    }
}

/// Joins alternatives: `a, b or c`.
fn either(names: &[&str], word: impl Fn(&str) -> String) -> String {
    let words: Vec<_> = names.iter().map(|name| word(name)).collect();
    match words.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

fn create(bucket: &BucketAddress) -> String {
    const OTHER: &str = "or name another with `--bucket` or SKILLFS_BUCKET";
    if bucket.embedded {
        return format!("write a file to create it, {OTHER}");
    }
    let make = aws(bucket, &format!("s3 mb s3://{}{}", shell(&bucket.name), region_flag(bucket)));
    match bucket.endpoint {
        Some(_) => format!("create it with {make}, {OTHER}; `localstack/start` creates one for testing"),
        None => format!("create it with {make} or terraform/, {OTHER}"),
    }
}

fn credentials(fault: CredentialsFault) -> Cow<'static, str> {
    Cow::Borrowed(match fault {
        CredentialsFault::Refused => {
            "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN and AWS_PROFILE; renew expired credentials"
        }
        CredentialsFault::UnknownKey => {
            "set AWS_ACCESS_KEY_ID or AWS_PROFILE to a key of this account; `aws configure list` shows which one is used"
        }
        CredentialsFault::WrongSecret => {
            "set AWS_SECRET_ACCESS_KEY again, together with its AWS_ACCESS_KEY_ID; look for a missing character"
        }
        CredentialsFault::Expired => {
            "renew them with `aws sso login`, or however you got them; then set AWS_SESSION_TOKEN with its key and secret"
        }
        CredentialsFault::WrongToken => {
            "set AWS_SESSION_TOKEN together with its key and secret; for a permanent key, `unset AWS_SESSION_TOKEN`"
        }
        _ => return Cow::Owned(fault.to_string()),
    })
}

/// An AWS CLI command for this bucket.
fn aws(bucket: &BucketAddress, command: &str) -> String {
    match &bucket.endpoint {
        Some(url) => format!("`aws --endpoint-url {} {command}`", shell(url)),
        None => format!("`aws {command}`"),
    }
}

fn region_flag(bucket: &BucketAddress) -> String {
    bucket.region.as_ref().map_or(String::new(), |region| format!(" --region {}", shell(region)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shell_quotes_only_when_needed() {
        assert_eq!(shell("ana@example.com"), "ana@example.com");
        assert_eq!(shell("auth0|x"), "'auth0|x'");
        assert_eq!(shell("it's"), "'it'\\''s'");
        assert_eq!(shell(""), "''");
    }

    #[test]
    fn commands_repeat_the_store_and_the_library() {
        let invocation =
            Invocation { store: " --embedded ./x".to_owned(), library: " --library acme".to_owned() };
        assert_eq!(
            render(&Hint::CompleteMirror, &invocation),
            "`skillfs --embedded ./x admin verify --library acme --repair` or the next push completes the mirror"
        );
        assert_eq!(render(&Hint::PushSkills, &Invocation::default()), "`skillfs admin push DIR`");
    }
}
