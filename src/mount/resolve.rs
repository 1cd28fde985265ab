//! The mounts of one session, and the resolution of paths to keys. No I/O.
//!
//! - A path outside of the session's mounts has no key, whether an object exists there or not.
//! - Only [`Mounts::target`] decides what may be changed.
//! - In a mount with libraries, a path has one key per layer. Which one it refers to depends on the contents of all
//!   libraries.

use std::sync::{Arc, LazyLock};

use super::keys::{Directory, KeyPrefix, ObjectKey, WritableKey, check_length, checked_key};
use super::library::{self, Library};
use super::reach::Reach;
use super::session::{Access, Owner, Session};
use super::table::{Identity, LayerSpec, MOUNTS, MountSpec};
use crate::error::{Error, ErrorKind, Hint, Result, shorten};
use crate::id::LibraryId;
use crate::index::{Digest, ReleaseId};
use crate::path::{IntoPath, SKILLS, VirtualPath};

/// The paths of [`MOUNTS`], shared by all sessions.
static PATHS: LazyLock<[VirtualPath; MOUNTS.len()]> =
    LazyLock::new(|| MOUNTS.each_ref().map(|mount| VirtualPath::top_level(mount.name)));

/// A directory below `/`, backed by one or more prefixes of the bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    spec: &'static MountSpec,
    path: &'static VirtualPath,
    access: Access,
    /// The layers in order of precedence. Only `/skills` can have more than one.
    layers: Box<[Layer]>,
}

/// One prefix of the bucket that a mount shows; for `/skills`, one library. It only builds keys for reading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layer {
    of: Owner,
    spec: &'static LayerSpec,
    /// Shared with cache keys.
    prefix: Arc<str>,
}

impl Layer {
    /// The id of the shared library; `None` for the user's own library.
    pub(crate) fn shared(&self) -> Option<&LibraryId> {
        match &self.of {
            Owner::Library(id) => Some(id),
            _ => None,
        }
    }

    /// The library that this layer shows.
    pub(crate) fn library(&self) -> Option<Library> {
        match &self.of {
            Owner::User(id) => Some(Library::User(id.clone())),
            Owner::Library(id) => Some(Library::Shared(id.clone())),
            Owner::Thread(_) | Owner::Ticket(_) => None,
        }
    }

    pub(crate) fn prefix(&self) -> &Arc<str> {
        &self.prefix
    }

    /// The root directory of the library.
    pub(crate) fn top(&self) -> Directory {
        self.directory(&VirtualPath::top_level(SKILLS))
    }

    /// The directory that a path of the mount refers to in this layer.
    pub(crate) fn directory(&self, path: &VirtualPath) -> Directory {
        let prefix = match path.below_mount() {
            "" => self.prefix.to_string(),
            relative => [&*self.prefix, relative, "/"].concat(),
        };
        Directory::new(path.clone(), KeyPrefix(prefix))
    }

    /// The name of the library in messages.
    pub(crate) fn name(&self) -> String {
        match self.shared() {
            Some(library) => format!("the shared library `{library}`"),
            None => "the user's own library".to_owned(),
        }
    }

    /// The prefix of everything with the same owner.
    fn home(&self) -> &str {
        &self.prefix[..self.prefix.len() - self.spec.folder.len()]
    }

    /// The key of the library's index. It is next to the skills, and no path refers to it.
    pub(crate) fn index(&self) -> ObjectKey {
        library::index_in(self.home())
    }

    /// The key of the content of a published file.
    pub(crate) fn blob(&self, sha256: Digest, id: &ReleaseId) -> ObjectKey {
        library::blob_in(self.home(), sha256, id)
    }

    /// The key that a path of the mount refers to in this layer.
    pub(crate) fn file(&self, path: &VirtualPath) -> Result<ObjectKey> {
        checked_key(path, [&*self.prefix, path.below_mount()].concat())
    }

    /// Resolves a path of the mount in this layer. No I/O.
    pub(crate) fn resolve(&self, path: &VirtualPath) -> Result<Location<'_>> {
        Ok(match path.below_mount() {
            "" => Location::Mount(self.directory(path)),
            _ => Location::Inside { key: self.file(path)?, layer: self },
        })
    }
}

impl Mount {
    /// The path of the mount: `/workspace`, `/ticket` or `/skills`.
    #[must_use]
    pub fn path(&self) -> &VirtualPath {
        self.path
    }

    /// The prefixes of the bucket that it shows, in the order of precedence; more than one only for `/skills`.
    pub fn prefixes(&self) -> impl Iterator<Item = &str> {
        self.layers.iter().map(|layer| &*layer.prefix)
    }

    /// The session's access to the mount.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    pub(crate) fn spec(&self) -> &'static MountSpec {
        self.spec
    }

    /// Returns the mount if the session has one of its identities.
    fn of(session: &Session, spec: &'static MountSpec, path: &'static VirtualPath) -> Option<Self> {
        let layer = |spec: &'static LayerSpec, of: Owner| {
            let prefix = (of.home() + spec.folder).into();
            Layer { of, spec, prefix }
        };
        let of_session = |spec: &'static LayerSpec| {
            session.owners(spec.identity).into_iter().map(move |of| layer(spec, of))
        };
        let layers: Box<[Layer]> = spec.layers.iter().flat_map(of_session).collect();
        let access = spec.grant().map_or(Access::ReadOnly, |grant| session.grants.access(grant));
        (!layers.is_empty()).then_some(Self { spec, path, access, layers })
    }

    fn reach(&self) -> impl Iterator<Item = Reach> {
        let write = self.access == Access::ReadWrite;
        self.layers.iter().map(move |Layer { of, prefix, .. }| match self.spec.has_libraries() {
            true => Reach::library(of.clone()),
            false => Reach::Below { prefix: prefix.to_string(), write, of: of.clone() },
        })
    }
}

impl Session {
    /// Checks that the session may write to a path: its mount exists and is writable. No I/O.
    ///
    /// # Errors
    /// Those that a write would return before it sends anything: [`ErrorKind::ReadOnly`](crate::ErrorKind::ReadOnly),
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound), [`ErrorKind::InvalidPath`](crate::ErrorKind::InvalidPath).
    pub fn check_writable(&self, path: impl IntoPath) -> Result<()> {
        Mounts::of(self).target(&path.into_path()?).map(|_| ())
    }
}

/// The location that a path resolves to in a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Location<'m> {
    /// `/`, which lists the mounts.
    Root,
    /// A mount itself, which is a directory that always exists.
    Mount(Directory),
    /// A path inside a mount. It may be a file, a directory, both, or not exist.
    Inside { key: ObjectKey, layer: &'m Layer },
    /// `/skills` or a path inside it, which depends on the contents of all libraries.
    Layered,
}

/// A path that the session may change, with its keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) path: VirtualPath,
    /// The mount that contains the path.
    pub(crate) mount: Directory,
    /// The key of the file with this path; `None` for the mount itself.
    pub(crate) key: Option<WritableKey>,
    /// The directory with this path.
    pub(crate) directory: Directory,
}

impl Target {
    /// Accepts a key from a listing of this directory, even if no path can name it.
    pub(crate) fn listed(&self, key: &str) -> Option<WritableKey> {
        self.directory.relative(key)?;
        Some(WritableKey(ObjectKey(key.to_owned())))
    }

    /// The path and the key of a file below this directory.
    pub(crate) fn below(&self, relative: &str) -> Result<(VirtualPath, WritableKey)> {
        let path = self.path.join_exact(relative).ok_or_else(|| {
            Error::new(ErrorKind::InvalidPath, format!("no path can name `{}`", shorten(relative)))
                .at(&self.path)
        })?;
        let key = checked_key(&path, format!("{}{relative}", self.directory.prefix().as_str()))?;
        Ok((path, WritableKey(key)))
    }

    /// The key of the folder marker of a directory below this one, or of this one if `relative` is empty.
    pub(crate) fn marker(&self, relative: &str) -> Option<WritableKey> {
        self.directory.marker(&format!("{}{relative}", self.directory.prefix().as_str())).map(WritableKey)
    }

    /// A key in the mount for a temporary probe object.
    pub(crate) fn probe(&self, name: &str) -> WritableKey {
        WritableKey(ObjectKey(format!("{}{name}", self.mount.prefix().as_str())))
    }
}

/// The mounts of one session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mounts(Box<[Mount]>);

impl Mounts {
    pub(crate) fn of(session: &Session) -> Self {
        Self(MOUNTS.iter().zip(&*PATHS).filter_map(|(spec, path)| Mount::of(session, spec, path)).collect())
    }

    /// The parts of the bucket that the mounts show. Sorted, so that the order of the libraries does not matter.
    pub(crate) fn reach(&self) -> Vec<Reach> {
        let mut reach: Vec<_> = self.iter().flat_map(Mount::reach).collect();
        reach.sort();
        reach
    }

    /// The common prefix of all users, threads, tickets or libraries. No session may list it.
    pub(crate) fn of_all(identity: Identity) -> KeyPrefix {
        KeyPrefix(identity.spec().root.to_owned())
    }

    /// Returns whether the mount with this name shows libraries.
    pub(crate) fn is_layered(name: &str) -> bool {
        MountSpec::named(name).is_some_and(MountSpec::has_libraries)
    }

    /// Iterates over the mounts, sorted by path.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Mount> {
        self.0.iter()
    }

    /// The mount that shows libraries.
    fn skills(&self) -> Option<&Mount> {
        self.iter().find(|mount| mount.spec.has_libraries())
    }

    /// The layers of `/skills` in order of precedence; empty if the session does not have the mount.
    pub(crate) fn skill_layers(&self) -> &[Layer] {
        self.skills().map_or(&[], |mount| &mount.layers)
    }

    /// Like [`Mounts::skill_layers`], but requires the mount.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the session has no `/skills`.
    pub(crate) fn some_skill_layers(&self) -> Result<&[Layer]> {
        match self.skill_layers() {
            [] => Err(self.no_such_mount(&VirtualPath::top_level(SKILLS))),
            layers => Ok(layers),
        }
    }

    /// Resolves a path. No I/O.
    pub(crate) fn resolve(&self, path: &VirtualPath) -> Result<Location<'_>> {
        match self.mount_of(path)? {
            None => Ok(Location::Root),
            Some(mount) if mount.spec.has_libraries() => {
                // The longest prefix decides whether the key is too long.
                let longest = mount.layers.iter().map(|layer| layer.prefix.len()).max();
                check_length(path, longest.unwrap_or(0) + path.below_mount().len())?;
                Ok(Location::Layered)
            }
            // A mount always has at least one layer.
            Some(Mount { layers, .. }) => layers[0].resolve(path),
        }
    }

    /// Resolves a path that is to be changed. No I/O.
    ///
    /// # Errors
    /// [`ErrorKind::ReadOnly`] for `/`, for everything in `/skills` whether it exists or not, and for every mount for
    /// which the session has no write grant.
    pub(crate) fn target(&self, path: &VirtualPath) -> Result<Target> {
        let refused = |message: String, hint: Hint| {
            Err(Error::new(ErrorKind::ReadOnly, message).at(path).with_hint(hint))
        };
        let Some(first) = path.segments().next() else {
            return refused(
                "`/` contains the mounts and cannot be changed".to_owned(),
                "write below `/workspace`".into(),
            );
        };
        if Self::is_layered(first) {
            return refused(
                format!("`{path}` is read-only: `/{first}` does not accept writes"),
                Hint::WorkOnCopy,
            );
        }
        let Some(mount) = self.mount_of(path)? else { return Err(self.no_such_mount(path)) };
        if mount.access != Access::ReadWrite {
            return refused(
                format!("`{path}` is read-only: this session may not write to `{}`", mount.path),
                Hint::GrantWrite { mount: mount.path.to_string() },
            );
        }
        let layer = &mount.layers[0];
        let top = layer.directory(mount.path);
        let (key, directory) = match layer.resolve(path)? {
            Location::Inside { key, layer } => (Some(WritableKey(key)), layer.directory(path)),
            _ => (None, top.clone()),
        };
        Ok(Target { path: path.clone(), mount: top, key, directory })
    }

    /// Returns the mount that contains a path; `None` for the root.
    fn mount_of(&self, path: &VirtualPath) -> Result<Option<&Mount>> {
        let Some(first) = path.segments().next() else { return Ok(None) };
        let mount = self.iter().find(|mount| mount.path.name() == Some(first));
        mount.map(Some).ok_or_else(|| self.no_such_mount(path))
    }

    fn no_such_mount(&self, path: &VirtualPath) -> Error {
        let names: Vec<_> = self.iter().map(|m| format!("`{}`", m.path)).collect();
        let hint = match path.segments().next().and_then(MountSpec::named) {
            Some(spec) => spec.needs(),
            None if names.is_empty() => {
                let identities = Identity::single().map(|identity| identity.spec().name).collect();
                Hint::OpenWith { mount: None, identities }
            }
            None => format!("this session has {}", names.join(", ")).into(),
        };
        Error::new(ErrorKind::NotFound, format!("no such file or directory: `{}`", shorten(path.as_str())))
            .at(path)
            .with_hint(hint)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::keys::MAX_KEY_BYTES;
    use super::*;
    use crate::id::{ThreadId, TicketId, UserId};

    fn session(user: &str, thread: &str, ticket: &str) -> Session {
        Session {
            user: Some(UserId::parse(user).unwrap()),
            thread: Some(ThreadId::parse(thread).unwrap()),
            ticket: Some(TicketId::parse(ticket).unwrap()),
            ..Session::default()
        }
    }

    /// Resolves a path; below `/skills`, in the first library.
    fn first<'m>(mounts: &'m Mounts, path: &VirtualPath) -> Result<Location<'m>> {
        match mounts.resolve(path)? {
            Location::Layered => mounts.skill_layers()[0].resolve(path),
            other => Ok(other),
        }
    }

    fn key(mounts: &Mounts, path: &str) -> Result<String> {
        match first(mounts, &VirtualPath::parse(path)?)? {
            Location::Root => Ok(String::new()),
            Location::Mount(directory) => Ok(directory.prefix().as_str().to_owned()),
            Location::Inside { key, .. } => Ok(key.as_str().to_owned()),
            Location::Layered => panic!("a layer is never layered"),
        }
    }

    #[test]
    fn the_mount_table_holds() {
        let mounts = Mounts::of(&session("u1", "t1", "k1"));
        let check = |path: &str, expected: &str| assert_eq!(key(&mounts, path).unwrap(), expected);
        check("/workspace/notes.md", "threads/t1/notes.md");
        check("/ticket/requirements.md", "tickets/k1/requirements.md");
        check("/skills/escrituras/compraventa/SKILL.md", "u1/skills/escrituras/compraventa/SKILL.md");
        check("notes.md", "threads/t1/notes.md");
        check("/workspace", "threads/t1/");
        check("/", "");
    }

    #[test]
    fn libraries_are_layers_behind_the_users_own() {
        let libraries = vec![LibraryId::parse("acme").unwrap(), LibraryId::parse("skills").unwrap()];
        let mounts = Mounts::of(&Session { libraries, ..session("u1", "t1", "k1") });
        let path = VirtualPath::parse("/skills/a/SKILL.md").unwrap();
        assert_eq!(mounts.resolve(&path).unwrap(), Location::Layered);
        let in_layer = |layer: usize| match mounts.skill_layers()[layer].resolve(&path).unwrap() {
            Location::Inside { key, .. } => key.as_str().to_owned(),
            other => panic!("{other:?}"),
        };
        assert_eq!(in_layer(0), "u1/skills/a/SKILL.md");
        assert_eq!(in_layer(1), "shared/acme/skills/a/SKILL.md");
        assert_eq!(in_layer(2), "shared/skills/skills/a/SKILL.md");
        assert_eq!(mounts.skill_layers().len(), 3);
        assert_eq!(mounts.skill_layers()[0].shared(), None);
        assert_eq!(mounts.skill_layers()[1].shared().unwrap().as_str(), "acme");
        // A single shared library is a mount with one layer.
        let libraries = vec![LibraryId::parse("acme").unwrap()];
        let mounts = Mounts::of(&Session { libraries, ..Session::default() });
        assert_eq!(key(&mounts, path.as_str()).unwrap(), "shared/acme/skills/a/SKILL.md");
    }

    #[test]
    fn names_are_never_decoded() {
        let mounts = Mounts::of(&session("u1", "t1", "k1"));
        for name in ["v1..v2.md", "100%.md", "%41", "a b", "a+b", "é", "🦀", "%2f"] {
            assert_eq!(key(&mounts, &format!("/workspace/{name}")).unwrap(), format!("threads/t1/{name}"));
        }
    }

    #[test]
    fn mounts_match_whole_segments_in_their_own_case() {
        let mounts = Mounts::of(&session("u1", "t1", "k1"));
        for path in [
            "/skillsfoo",
            "/Skills",
            "/skill",
            "/workspace2/x",
            "/u1/skills/x",
            "/threads/t1/x",
            "/etc",
            // Guesses of somebody who knows the layout of the keys.
            "/threads/t2/x",
            "/threads",
            "/tickets/k2/x",
            "/tickets",
            "/shared/acme/skills/x",
            "/shared",
            "/u2/skills/x",
            "/u1",
            "/u1/.skillfs/index.json",
            "/.skillfs/index.json",
            "/t1",
            "/k1",
            "/bucket/threads/t2/x",
            // Other spellings of a mount.
            "/SKILLS/x",
            "/WORKSPACE/x",
            "/Ticket/x",
            "/workspace /x",
            "/ workspace/x",
            "/workspace./x",
            "/skills.md",
            "/.workspace/x",
            "/workspace%2f",
            "/workspace%00/x",
            "/%77orkspace/x",
            "/workspaceｅ",
            "/ｗorkspace/x",
            "/worksp\u{430}ce/x",
            "/workspace\u{200b}/x",
            "/skill\u{17f}/x",
            "/s\u{212a}ills/x",
            "/~/x",
            "/~root",
            "/workspace:x",
            "/workspace?x",
            "/workspace#x",
            "/*",
            "/*/x",
            "/{workspace,skills}/x",
            "/work*/x",
        ] {
            assert_eq!(key(&mounts, path).unwrap_err().kind(), ErrorKind::NotFound, "{path}");
        }
    }

    /// Names are not normalized, so a look-alike is an ordinary name and stays in the session's prefix byte for byte.
    #[test]
    fn look_alikes_of_dots_and_slashes_are_plain_names() {
        let mounts = Mounts::of(&session("u1", "t1", "k1"));
        for name in [
            "\u{ff0e}\u{ff0e}",
            "\u{2024}\u{2024}",
            "\u{2025}",
            "\u{fe52}\u{fe52}",
            "\u{fe30}",
            ".\u{200b}.",
            ".\u{feff}.",
            "\u{202e}..",
            ". .",
            ".. ",
            " ..",
            "...",
            "....",
            "..;",
            "..%",
            "..%00",
            "..%ff",
            "%c0%ae%c0%ae",
            "%e0%80%ae%e0%80%ae",
            "%uff0e%uff0e",
            "%u002e%u002e",
            "&#46;&#46;",
            "\u{b7}\u{b7}",
            "a\u{2215}..\u{2215}b",
            "..\u{2215}t2",
            "..\u{ff0f}t2",
            "..\u{2044}t2",
            "..\u{29f8}t2",
            "..%2ft2",
            "..%5ct2",
            "..%252ft2",
            "..:t2",
            "\u{ff3c}..\u{ff3c}t2",
            "~",
            "~root",
            "$HOME",
            "${aws:username}",
            "*",
            "?",
            "CON",
            "NUL",
            "aux.md",
            "com1",
            "x:y",
            ".skillfs",
            ".git",
            "s3:",
            "a.md%00.png",
            "a.md ",
            "a.md.",
            "-rf",
            "--",
            "|sh",
            "$(id)",
        ] {
            let path = format!("/workspace/{name}");
            assert_eq!(key(&mounts, &path).unwrap(), format!("threads/t1/{name}"), "{name:?}");
            let path = format!("/workspace/{name}/t2/x");
            assert_eq!(key(&mounts, &path).unwrap(), format!("threads/t1/{name}/t2/x"), "{name:?}");
        }
    }

    /// Keys are case-sensitive, so `Threads` is an ordinary user with its own prefix.
    #[test]
    fn an_identifier_stays_between_its_slashes() {
        for id in [
            "Threads",
            "THREADS",
            "threads2",
            "threads.",
            "tickets-",
            "Shared",
            "sHARED",
            "shared@x",
            "skills",
            "a..b",
            "a...",
            "u1..",
            "~",
            "-",
            "-rf",
            "t1+t2",
            "a:b",
            "a=b",
            "a|b",
            "a#b",
            "http:",
            "CON",
            "nul",
            "1",
            "01",
            "+1",
            "0x1",
            "null",
            "None",
            "true",
            "C:",
            "x@y@z",
            "--",
            "_",
            "arn:aws:s3:::b",
        ] {
            let mounts = Mounts::of(&session(id, id, id));
            for (path, expected) in [
                ("/skills/x", format!("{id}/skills/x")),
                ("/workspace/x", format!("threads/{id}/x")),
                ("/ticket/x", format!("tickets/{id}/x")),
            ] {
                assert_eq!(key(&mounts, path).unwrap(), expected);
            }
        }
    }

    #[test]
    fn absent_identity_means_absent_mount() {
        let mounts = Mounts::of(&Session::default());
        for path in ["/skills", "/ticket/x", "/workspace", "x"] {
            assert_eq!(key(&mounts, path).unwrap_err().kind(), ErrorKind::NotFound, "{path}");
        }
    }

    #[test]
    fn a_neighbours_key_is_no_path() {
        let mounts = Mounts::of(&session("u1", "1", "k"));
        let Location::Mount(directory) = mounts.resolve(&VirtualPath::parse("/workspace").unwrap()).unwrap()
        else {
            panic!("expected a mount");
        };
        assert_eq!(directory.path_of("threads/1/x").unwrap().as_str(), "/workspace/x");
        let long = format!("threads/1/{}", "x".repeat(300));
        for hidden in [
            // Keys of other owners.
            "threads/10/x",
            "threads/1",
            "threads/",
            "threads",
            "",
            "threads/1x/y",
            "threads/1./x",
            "threads/1 /x",
            "Threads/1/x",
            "THREADS/1/x",
            "tickets/k/x",
            "u1/skills/x",
            "shared/1/x",
            "/threads/1/x",
            "./threads/1/x",
            "threads//1/x",
            "xthreads/1/x",
            "threads/1%2fx",
            "threads/\u{661}/x",
            "threads/0/1/x",
            "threads/2/../1/x",
            // Keys in the session's prefix that no path can name.
            "threads/1//x",
            "threads/1/a/./b",
            "threads/1/..",
            "threads/1/a\u{1}",
            "threads/1/",
            "threads/1/a\\b",
            "threads/1/../2/x",
            "threads/1/a/../../2/x",
            "threads/1/.",
            "threads/1/a/",
            "threads/1/a//",
            "threads/1/%2e%2e/x",
            "threads/1/%252e./x",
            "threads/1/a\0b",
            "threads/1/a\nb",
            "threads/1/\u{1b}[2J",
            "threads/1/a\u{85}",
            "threads/1/..\\2",
            "threads/1///",
            &long,
        ] {
            assert_eq!(directory.path_of(hidden), None, "{hidden}");
        }
    }

    #[test]
    fn keys_end_at_1024_bytes() {
        let mounts = Mounts::of(&session("u1", "t1", "k1"));
        let deep = |bytes: usize| {
            let mut path = "/workspace".to_owned();
            let mut left = bytes - "threads/t1".len();
            while left > 0 {
                let take = left.min(201);
                path.push('/');
                path.push_str(&"x".repeat(take - 1));
                left -= take;
            }
            path
        };
        assert_eq!(key(&mounts, &deep(1024)).unwrap().len(), 1024);
        for bytes in [1025, 1100, 10_000, 1_000_000] {
            let path = deep(bytes);
            assert_eq!(key(&mounts, &path).unwrap_err().kind(), ErrorKind::InvalidPath);
        }
        for depth in [600, 100_000] {
            let path = format!("/ticket{}", "/x".repeat(depth));
            assert_eq!(key(&mounts, &path).unwrap_err().kind(), ErrorKind::InvalidPath);
        }
    }

    /// Strings that may confuse the parser: pieces of paths, ids and encodings, and arbitrary characters.
    fn hostile() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            4 => prop::sample::select(vec![
                "/", "//", ".", "..", "...", "%2e", "%2E", "%252e", "%25", "%", "\\", "\0", "\n", " ", "+", "é", "🦀",
                "skills", "workspace", "ticket", "threads", "tickets", "shared", "u1", "u2", "t1", "t10", "1", "10",
                "SKILL.md", "a", "b.md", "%2f", "%5c", "\u{202e}", "\u{85}", "~", ":", "|",
            ]).prop_map(str::to_owned),
            1 => any::<String>(),
            1 => "[a-z]{1,300}",
        ];
        prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
    }

    fn hostile_path() -> impl Strategy<Value = String> {
        prop_oneof![
            hostile(),
            hostile().prop_map(|s| format!("/workspace/{s}")),
            hostile().prop_map(|s| format!("/skills/{s}")),
            hostile().prop_map(|s| format!("/ticket/{s}")),
        ]
    }

    /// All of them in `make test-long`, which sets the variable.
    fn cases() -> u32 {
        if std::env::var_os("SKILLFS_TEST_LONG").is_some() { 10_000 } else { 1_000 }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(cases()))]

        #[test]
        fn no_string_yields_a_key_outside_the_session(text in hostile_path()) {
            let mounts = Mounts::of(&session("u1", "t1", "k1"));
            if let Ok(key) = key(&mounts, &text) && !key.is_empty() {
                let inside = ["u1/skills/", "threads/t1/", "tickets/k1/"].iter().find_map(|p| key.strip_prefix(p));
                prop_assert!(inside.is_some(), "{text:?} -> {key:?}");
                for segment in inside.unwrap_or_default().split('/') {
                    prop_assert!(segment != "." && segment != "..");
                    let decoded = percent_encoding::percent_decode_str(segment).decode_utf8_lossy();
                    prop_assert!(decoded != "." && decoded != "..");
                }
                prop_assert!(key.len() <= MAX_KEY_BYTES);
                prop_assert!(!key.chars().any(|c| c.is_control() || c == '\\'));
            }
        }

        #[test]
        fn no_id_yields_a_key_outside_its_own_prefix(id in hostile(), name in "[a-z]{1,8}") {
            if let Ok(user) = UserId::parse(&id) {
                prop_assert!(!["threads", "tickets", "shared"].contains(&user.as_str()));
                let mounts = Mounts::of(&Session { user: Some(user), ..Session::default() });
                let key = key(&mounts, &format!("/skills/{name}")).unwrap();
                prop_assert_eq!(key.split('/').collect::<Vec<_>>(), [id.as_str(), "skills", &name]);
            }
            if let Ok(thread) = ThreadId::parse(&id) {
                let mounts = Mounts::of(&Session { thread: Some(thread), ..Session::default() });
                let key = key(&mounts, &name).unwrap();
                prop_assert_eq!(key.split('/').collect::<Vec<_>>(), ["threads", id.as_str(), &name]);
            }
        }

        #[test]
        fn two_sessions_never_share_a_key(a in "[a-z0-9.|@-]{1,6}", b in "[a-z0-9.|@-]{1,6}", path in hostile_path()) {
            prop_assume!(a != b);
            let Ok((a, b)) = UserId::parse(&a).and_then(|a| Ok((a, UserId::parse(&b)?))) else { return Ok(()) };
            let thread = |id: &UserId| ThreadId::parse(id.as_str()).ok();
            let ticket = |id: &UserId| TicketId::parse(id.as_str()).ok();
            let of = |id: UserId| {
                Mounts::of(&Session { thread: thread(&id), ticket: ticket(&id), user: Some(id), ..Session::default() })
            };
            let (a, b) = (of(a), of(b));
            let Ok(path) = VirtualPath::parse(&path) else { return Ok(()) };
            if let Ok(Location::Inside { key, .. }) = first(&a, &path) {
                for mount in b.iter() {
                    prop_assert!(!key.as_str().starts_with(&*mount.layers[0].prefix));
                }
            }
        }

        #[test]
        fn parsing_is_idempotent(text in hostile_path()) {
            if let Ok(path) = VirtualPath::parse(&text) {
                prop_assert_eq!(VirtualPath::parse(path.as_str()).unwrap(), path);
            }
        }

        #[test]
        fn the_way_back_is_exact(text in hostile_path()) {
            let mounts = Mounts::of(&session("u1", "t1", "k1"));
            let Ok(path) = VirtualPath::parse(&text) else { return Ok(()) };
            if let Ok(Location::Inside { key, .. }) = first(&mounts, &path) {
                let mount = VirtualPath::parse(&format!("/{}", path.segments().next().unwrap())).unwrap();
                let Ok(Location::Mount(directory)) = first(&mounts, &mount) else { panic!("expected a mount") };
                prop_assert_eq!(directory.path_of(key.as_str()), Some(path));
            }
        }

        #[test]
        fn a_listed_key_comes_back_as_its_own_path_or_as_nothing(relative in hostile()) {
            let mounts = Mounts::of(&session("u1", "t1", "k1"));
            let Ok(Location::Mount(directory)) = mounts.resolve(&VirtualPath::parse("/workspace").unwrap()) else {
                panic!("expected a mount");
            };
            let listed = format!("threads/t1/{relative}");
            if let Some(path) = directory.path_of(&listed) {
                let Ok(Location::Inside { key, .. }) = mounts.resolve(&path) else {
                    return Err(TestCaseError::fail(format!("{path} has no key")));
                };
                prop_assert_eq!(key.as_str(), listed);
            }
        }
    }
}
