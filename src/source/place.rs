//! Parsing of source names.

use std::path::PathBuf;

use crate::error::{Error, ErrorKind, Result, shorten};

/// A parsed source name. Nothing has been accessed yet.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A folder or a file.
    Local(PathBuf),
    /// A repository, and optionally a branch, tag or commit.
    Git { url: String, reference: Option<String> },
}

/// URL schemes that git may use. `http://` and `git://` do not authenticate the server.
const SCHEMES: [&str; 3] = ["https://", "ssh://", "file://"];

impl Place {
    pub(super) fn parse(text: &str) -> Result<Self> {
        let bad = |message: String, hint: &'static str| {
            Err(Error::new(ErrorKind::InvalidInput, message).with_hint(hint))
        };
        if text.is_empty() {
            return bad("no source was given".to_owned(), "name a folder, an archive or a git URL");
        }
        let (url, reference) =
            text.split_once('#').map_or((text, None), |(url, reference)| (url, Some(reference)));
        let lower = url.to_ascii_lowercase();
        let scheme = lower.find("://").map(|at| &lower[..at + 3]);
        let known = SCHEMES.iter().any(|known| scheme == Some(known));
        if !known
            && let Some(scheme) = scheme
                .filter(|scheme| scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.:/".contains(&b)))
        {
            return bad(
                format!("`{scheme}` is not supported: `{}`", shorten(&redacted(url))),
                "use https://, ssh://, file:// or git@host:path",
            );
        }
        // `helper::address` would run a program with that name.
        let remote = lower.split_once(':').is_some_and(|(host, _)| host.contains('@') && !host.contains('/'));
        let repository = std::path::Path::new(&lower).extension().is_some_and(|end| end == "git");
        if !(known || remote || repository) {
            return Ok(Self::Local(PathBuf::from(text)));
        }
        if url.starts_with('-') || url.contains("::") || url.chars().any(char::is_control) {
            return bad(
                format!("`{}` is not the URL of a repository", shorten(&redacted(url))),
                "use https://, ssh://, file:// or git@host:path",
            );
        }
        if let Some(reference) = reference
            && !is_reference(reference)
        {
            return bad(
                format!("`{}` is not a branch, tag or commit", shorten(reference)),
                "write the name after `#` as the repository spells it",
            );
        }
        Ok(Self::Git { url: url.to_owned(), reference: reference.map(str::to_owned) })
    }
}

/// Accepts only names: no options, refspecs or revision syntax.
fn is_reference(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(['-', '+', '/', '.'])
        && !name.contains("..")
        && name.chars().all(|c| c.is_alphanumeric() || "-_./+@".contains(c))
        && !name.contains("@{")
}

/// Removes secrets from a URL: the password, and for https also the user name, which may be a token.
pub(super) fn redacted(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (host, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    let Some((user, host)) = host.rsplit_once('@') else { return url.to_owned() };
    match user.split(':').next() {
        Some(user) if scheme.eq_ignore_ascii_case("ssh") => format!("{scheme}://{user}@{host}{path}"),
        _ => format!("{scheme}://{host}{path}"),
    }
}

/// The error for sources that require the `import` feature.
#[cfg(not(feature = "import"))]
pub(super) fn not_built(place: &str) -> Error {
    let place = shorten(&redacted(place));
    let message = format!("`{place}` is not a folder, and this build reads only folders");
    Error::new(ErrorKind::InvalidInput, message)
        .with_hint("build with the feature `import` to read archives and repositories")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn git(text: &str, url: &str, reference: Option<&str>) {
        let expected = Place::Git { url: url.to_owned(), reference: reference.map(str::to_owned) };
        assert_eq!(Place::parse(text).unwrap(), expected, "{text}");
    }

    #[test]
    fn sources_are_recognized() {
        git("https://h/o/r", "https://h/o/r", None);
        git("https://h/o/r.git#v1.2", "https://h/o/r.git", Some("v1.2"));
        git("git@h:o/r.git#feature/x", "git@h:o/r.git", Some("feature/x"));
        git("ssh://git@h/o/r", "ssh://git@h/o/r", None);
        git("file:///tmp/r", "file:///tmp/r", None);
        git("../r.git", "../r.git", None);
        for local in ["skills", "./a.zip", "/tmp/x#y", "a@b", "a@b/c:d"] {
            assert_eq!(Place::parse(local).unwrap(), Place::Local(local.into()), "{local}");
        }
    }

    #[test]
    fn options_and_programs_are_refused() {
        for bad in [
            "",
            "-x.git",
            "--upload-pack=touch@x:y",
            "ext::sh -c x@y:z.git",
            "http://h/r",
            "git://h/r.git",
            "ftp://h/r",
            "https://h/r#-x",
            "https://h/r#",
            "https://h/r#a..b",
            "https://h/r#a:b",
            "https://h/r#a@{1}",
            "https://h/r\n#a",
            "--config=core.sshCommand=x.git",
            "-oProxyCommand=x@y:z",
            "ext::sh -c touch% x.git",
            "fd::17/x.git",
            "EXT::sh -c x.git",
            "https://h/r::x",
            "HTTP://h/r",
            "data://x",
            "rsync://h/r",
            "git+ssh://h/r",
            "javascript://h/r",
            "https://h/r\0",
            "https://h/r\u{1b}[2J",
            "https://h/r#--upload-pack=x",
            "https://h/r#+refs/heads/*",
            "https://h/r#/etc",
            "https://h/r#.git",
            "https://h/r#a^",
            "https://h/r#a~1",
            "https://h/r#a b",
            "https://h/r#*",
            "https://h/r#a\\b",
            "https://h/r#a\nb",
            "https://h/r#a#b",
            "git@h:o/r.git#-x",
        ] {
            assert_eq!(Place::parse(bad).unwrap_err().kind(), ErrorKind::InvalidInput, "{bad:?}");
        }
    }

    #[test]
    fn passwords_are_redacted() {
        assert_eq!(redacted("https://me:secret@h/o/r"), "https://h/o/r");
        assert_eq!(redacted("https://token@h/o/r@x"), "https://h/o/r@x");
        assert_eq!(redacted("ssh://git:secret@h:22/o"), "ssh://git@h:22/o");
        assert_eq!(redacted("git@h:o/r"), "git@h:o/r");
        let error = Place::parse("http://me:secret@h/r").unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}
