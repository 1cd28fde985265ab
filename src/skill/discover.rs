//! Discovery: one flat listing a layer, then the heads of the skill files, many at once.

use std::collections::BTreeSet;

use futures_util::{StreamExt, TryStreamExt, stream};
use tracing::instrument;

use super::{Category, Resource, ResourceKind, Skill, SkillLibrary, is_within};
use crate::backend::{S3Backend, SkillPlace, Union};
use crate::error::{Error, ErrorKind, Result};
use crate::manifest::{Diagnostic, Head, MAX_FRONTMATTER_BYTES, Severity, Size, read_description, read_head};
use crate::path::VirtualPath;

/// A ranged read of this size holds all but one of 1,500 real frontmatters.
const FIRST_BYTES: u64 = 4 * 1024;
/// And this one every one that is read at all.
const MOST_BYTES: u64 = MAX_FRONTMATTER_BYTES as u64 + 1024;
/// How many heads are read at once.
const AT_ONCE: usize = 64;
/// Skills that lie deeper are reported and left out.
const MAX_DEPTH: usize = 8;
/// So are skills beyond this many.
const MAX_SKILLS: usize = 5_000;
/// A `SKILL.md` over this size is reported; its head is read all the same.
const LARGE_BYTES: u64 = 1024 * 1024;

/// The skills of a listing that are taken, and what is said of the others.
pub(super) struct Selection<'u> {
    pub(super) skills: Vec<(&'u str, &'u SkillPlace)>,
    pub(super) diagnostics: Vec<Diagnostic>,
}

/// `None`, nothing and `all` mean every category.
pub(super) fn category_path(category: Option<&str>) -> Result<Option<VirtualPath>> {
    let category = category.map(|text| text.trim().trim_matches('/')).unwrap_or_default();
    if category.is_empty() || category == "all" {
        return Ok(None);
    }
    let path = VirtualPath::parse(&format!("/skills/{category}"))?;
    Ok(Some(path))
}

impl S3Backend {
    /// The skills of a category, with their frontmatter; `None` and `"all"` mean every category.
    ///
    /// Costs one listing (one request for every 1,000 keys of each library), one ranged request for
    /// each skill and for each category's `DESCRIPTION.md`, 64 of them at once, and a second one for
    /// a skill whose frontmatter is longer than 4 KiB.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when there is no such category. A skill that cannot be read is no
    /// error: it is left out and stands in the library's diagnostics.
    #[instrument(name = "skills", skip_all, fields(?category))]
    pub async fn skills(&self, category: Option<&str>) -> Result<SkillLibrary> {
        let (union, category) = self.discover(category).await?;
        self.read_library(&union, category.as_deref()).await
    }

    /// Reads the skills that a listing found.
    pub(super) async fn read_library(&self, union: &Union, category: Option<&str>) -> Result<SkillLibrary> {
        let Selection { skills, mut diagnostics } = self.select(union, category);
        let categories = self.categories(union, &skills, category).await?;
        // Made at once: a closure inside the stream would tie the future to this thread.
        let heads: Vec<_> =
            skills.into_iter().map(|(path, place)| self.head_of(union, path, place)).collect();
        let read: Vec<_> = stream::iter(heads).buffered(AT_ONCE).try_collect().await?;
        let mut found = Vec::new();
        for skill in read {
            match skill {
                Ok(skill) => found.push(skill),
                Err(said) => diagnostics.extend(said),
            }
        }
        Ok(SkillLibrary::new(found, categories, diagnostics))
    }

    /// The listing that a category needs, and the category's path below `/skills`.
    pub(super) async fn discover(&self, category: Option<&str>) -> Result<(Union, Option<String>)> {
        let path = category_path(category)?;
        let union = match &path {
            Some(path) => self.union_of_first(path).await?,
            None => self.union_all().await?,
        };
        let relative = path.as_ref().map(|path| path.as_str()["/skills/".len()..].to_owned());
        if let (Some(path), Some(relative)) = (&path, &relative)
            && !union.is_directory(relative)
        {
            let hint = "list the categories: `ls /skills`";
            return Err(Error::new(ErrorKind::NotFound, format!("there is no category `{relative}`"))
                .at(path)
                .with_hint(hint));
        }
        Ok((union, relative))
    }

    /// Which skills of a listing count, sorted by path.
    pub(super) fn select<'u>(&self, union: &'u Union, category: Option<&str>) -> Selection<'u> {
        let mut selection = Selection { skills: Vec::new(), diagnostics: Vec::new() };
        let inside = |path: &str| is_within(path, category.unwrap_or_default());
        let mut say = |path: &str, severity, code, message: String| {
            let file = format!("/skills/{path}");
            selection.diagnostics.push(Diagnostic { file, line: None, severity, code, message });
        };
        for collision in union.collisions().iter().filter(|collision| inside(&collision.path)) {
            let (hidden, kept) = (self.layer_name(collision.hidden_layer), self.layer_name(collision.layer));
            let message =
                format!("hidden: {hidden} has it, and the skill `{}` of {kept} comes first", collision.by);
            say(&collision.path, Severity::Warning, "collision", message);
        }
        for (path, place) in union.skills().filter(|(path, _)| inside(path)) {
            if path.split('/').any(|segment| segment.starts_with('.')) {
                say(
                    path,
                    Severity::Info,
                    "hidden",
                    "it lies in a directory whose name starts with a dot".to_owned(),
                );
            } else if path.split('/').count() > MAX_DEPTH {
                say(
                    path,
                    Severity::Warning,
                    "too-deep",
                    format!("skills are found up to {MAX_DEPTH} directories deep"),
                );
            } else if selection.skills.len() == MAX_SKILLS {
                say(
                    path,
                    Severity::Warning,
                    "too-many",
                    format!("of a library {MAX_SKILLS} skills are read"),
                );
            } else {
                selection.skills.push((path, place));
            }
        }
        selection
    }

    fn layer_name(&self, layer: usize) -> String {
        match self.library_of(layer) {
            Some(library) => format!("the library `{library}`"),
            None => "the user's own library".to_owned(),
        }
    }

    /// Reads the head of one skill's file.
    async fn head_of(
        &self,
        union: &Union,
        path: &str,
        place: &SkillPlace,
    ) -> Result<std::result::Result<Skill, Vec<Diagnostic>>> {
        let relative = format!("{path}/{}", place.file);
        let location = VirtualPath::parse(&format!("/skills/{relative}"))?;
        let file = union.file(&relative).map(|found| found.meta.clone());
        let (size, etag) = file.map_or((0, None), |meta| (meta.size, meta.etag));
        let directory = path.rsplit('/').next().unwrap_or_default();
        let unreadable = |error: &Error| {
            let message = format!("it cannot be read: {}", error.message());
            Diagnostic {
                file: location.to_string(),
                line: None,
                severity: Severity::Error,
                code: "unreadable",
                message,
            }
        };
        let mut wanted = FIRST_BYTES;
        let (manifest, mut diagnostics) = loop {
            // The listing knows the size: an empty file needs no request.
            let bytes = match size {
                0 => bytes::Bytes::new(),
                _ => match self.read_layer(&location, place.layer, wanted.min(size)).await {
                    Ok(bytes) => bytes,
                    // A skill that was deleted meanwhile is no skill.
                    Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Err(Vec::new())),
                    Err(error) if is_about_one_file(&error) => return Ok(Err(vec![unreadable(&error)])),
                    Err(error) => return Err(error),
                },
            };
            let whole = bytes.len() as u64 >= size;
            match read_head(
                &bytes,
                Size { whole, last: whole || wanted >= MOST_BYTES },
                directory,
                location.as_str(),
            ) {
                Head::More => wanted = MOST_BYTES,
                Head::Unusable(diagnostics) => return Ok(Err(diagnostics)),
                Head::Done(manifest, diagnostics) => break (manifest, diagnostics),
            }
        };
        if !manifest.described && !self.lists_undescribed_skills() {
            return Ok(Err(diagnostics));
        }
        if size > LARGE_BYTES {
            let message = format!("it has {size} bytes; only its head was read");
            let file = location.to_string();
            diagnostics.push(Diagnostic {
                file,
                line: None,
                severity: Severity::Warning,
                code: "large",
                message,
            });
        }
        Ok(Ok(Skill {
            path: path.to_owned(),
            library: self.library_of(place.layer).cloned(),
            manifest: *manifest,
            size,
            etag,
            resources: resources(union, path, &place.file),
            diagnostics,
            location,
        }))
    }

    /// The categories of the skills, with their descriptions.
    async fn categories(
        &self,
        union: &Union,
        skills: &[(&str, &SkillPlace)],
        within: Option<&str>,
    ) -> Result<Vec<Category>> {
        let mut paths: BTreeSet<&str> = BTreeSet::new();
        for (skill, _) in skills {
            paths.extend(skill.match_indices('/').map(|(at, _)| &skill[..at]));
        }
        let inside = |path: &&str| is_within(path, within.unwrap_or_default());
        let described = paths.into_iter().filter(inside).map(|path| async move {
            let file = format!("{path}/DESCRIPTION.md");
            let description = match union.file(&file) {
                Some(found) if found.meta.size > 0 => {
                    let location = VirtualPath::parse(&format!("/skills/{file}"))?;
                    match self.read_layer(&location, found.layer, FIRST_BYTES.min(found.meta.size)).await {
                        Ok(bytes) => read_description(&bytes, bytes.len() as u64 >= found.meta.size),
                        Err(error) if error.kind() == ErrorKind::NotFound || is_about_one_file(&error) => {
                            None
                        }
                        Err(error) => return Err(error),
                    }
                }
                _ => None,
            };
            Ok(Category { path: path.to_owned(), description })
        });
        let described: Vec<_> = described.collect();
        stream::iter(described).buffered(AT_ONCE).try_collect().await
    }
}

/// Whether the other files may still be read: one bad skill never hides the others.
fn is_about_one_file(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Denied | ErrorKind::Corrupt | ErrorKind::Conflict | ErrorKind::TooLarge)
}

/// The other files of a skill.
pub(super) fn resources(union: &Union, skill: &str, file: &str) -> Vec<Resource> {
    let others = union.files_in(skill).filter(|(path, _)| *path != file);
    others
        .map(|(path, found)| Resource {
            path: path.to_owned(),
            kind: ResourceKind::of(path),
            size: found.meta.size,
        })
        .collect()
}
