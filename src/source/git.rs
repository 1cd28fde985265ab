//! Git repositories. Runs the installed `git`, which has the user's keys, proxies and certificates.

use std::path::Path;
use std::process::{Command, Stdio};

use super::archive::temporary;
use super::place::redacted;
use super::{Origin, OriginKind, Source, SourceOptions, failed};
use crate::error::{Error, ErrorKind, Result, shorten};

/// Settings that override what a repository or a careless configuration could make git do.
const SETTINGS: [&str; 11] = [
    "protocol.ext.allow=never",
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.autocrlf=false",
    "core.protectHFS=true",
    "core.protectNTFS=true",
    "submodule.recurse=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "http.lowSpeedLimit=1000",
    "http.lowSpeedTime=60",
];

/// Environment variables that would make git use a different repository.
const FOREIGN: [&str; 7] = [
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_NAMESPACE",
    "GIT_TEMPLATE_DIR",
];

/// Fetches one commit without its history, and reads the skills in it.
pub(super) fn open(url: &str, reference: Option<&str>, options: &SourceOptions) -> Result<Source> {
    let folder = temporary()?;
    let target = folder.path().join("files");
    std::fs::create_dir(&target).map_err(failed("create", &target))?;
    // Git runs elsewhere, where a relative path means something else.
    let local = Path::new(url);
    let reached = match local.is_dir() {
        true => local.canonicalize().map_err(failed("open", local))?.display().to_string(),
        false => url.to_owned(),
    };
    let run = |arguments: &[&str]| git(&target, arguments, url);
    run(&["init", "--quiet", "--template="])?;
    run(&[
        "fetch",
        "--quiet",
        "--depth=1",
        "--no-tags",
        "--no-recurse-submodules",
        "--",
        &reached,
        reference.unwrap_or("HEAD"),
    ])?;
    let commit = run(&["rev-parse", "--verify", "FETCH_HEAD^{commit}"])?.trim().to_owned();
    run(&["-c", "advice.detachedHead=false", "checkout", "--quiet", "--detach", &commit])?;
    let origin = Origin {
        kind: OriginKind::Git,
        location: redacted(url),
        reference: reference.map(str::to_owned),
        commit: Some(commit),
    };
    let name = url.trim_end_matches('/').rsplit(['/', ':']).next().unwrap_or_default();
    let name = name.strip_suffix(".git").unwrap_or(name);
    Source::read(&target, Some(name), origin, Some(folder), options)
}

/// Runs git and returns its standard output.
fn git(folder: &Path, arguments: &[&str], url: &str) -> Result<String> {
    let mut command = Command::new("git");
    for variable in FOREIGN {
        command.env_remove(variable);
    }
    command
        .current_dir(folder)
        .stdin(Stdio::null())
        .args(SETTINGS.iter().flat_map(|setting| ["-c", setting]))
        .env("GIT_TERMINAL_PROMPT", "0")
        // Keep Git LFS pointers. Resolving them would send requests to another server.
        .env("GIT_LFS_SKIP_SMUDGE", "1")
        .env("LC_ALL", "C")
        .args(arguments);
    let output = command.output().map_err(|error| {
        Error::new(ErrorKind::Unavailable, format!("cannot start `git`: {error}"))
            .with_hint("install git, or name a folder or an archive instead")
            .lasting()
            .with_source(error)
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let shown = redacted(url);
    let said = String::from_utf8_lossy(&output.stderr).replace(url, &shown);
    let said = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
    let (kind, hint) = if said.contains("couldn't find remote ref") || said.contains("not our ref") {
        (ErrorKind::NotFound, "name a branch, tag or full commit that the repository has")
    } else {
        (ErrorKind::Unavailable, "check the URL, the network, and that you may read the repository")
    };
    Err(Error::new(kind, format!("cannot fetch `{}`: {}", shorten(&shown), shorten(&said))).with_hint(hint))
}
