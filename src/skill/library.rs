//! A skill library in memory: finding skills, resolving lists of names, ordering dependencies.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

use super::{Budgeted, CatalogFormat, Category, Skill};
use crate::error::{Error, ErrorKind, Result, shorten};
use crate::manifest::{Diagnostic, Severity};
use crate::path::{SkillPath, is_within};

/// How many rendered catalogs of one library are cached.
const MAX_RENDERED: usize = 4;

/// Deeper dependency chains are reported.
const MAX_DEPENDENCY_DEPTH: usize = 5;

/// What to do about an unknown skill name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unknown {
    /// Fail.
    Refuse,
    /// Report a diagnostic and skip the name.
    Warn,
}

/// The skills of a session, or of one category, at the time they were read.
///
/// Cloning is cheap.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SkillLibrary {
    #[serde(flatten)]
    inner: Arc<LibraryData>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
struct LibraryData {
    skills: Vec<Arc<Skill>>,
    categories: Vec<Category>,
    diagnostics: Vec<Diagnostic>,
    #[serde(skip)]
    rendered: Rendered,
}

/// A format and a budget.
type CatalogRequest = (CatalogFormat, Option<usize>);

/// Recently rendered catalogs, because the same ones are requested repeatedly. They are derived
/// data: ignored by comparisons, and not cloned.
#[derive(Debug, Default)]
struct Rendered(Mutex<Vec<(CatalogRequest, Budgeted)>>);

impl Clone for Rendered {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for Rendered {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Rendered {}

/// The dependencies of each skill.
type Edges<'s> = BTreeMap<&'s SkillPath, BTreeSet<&'s SkillPath>>;
/// The dependents of each skill.
type Users<'s> = BTreeMap<&'s SkillPath, Vec<&'s SkillPath>>;

/// The result of [`SkillLibrary::dependencies`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Dependencies {
    /// The paths of the skills, each after its dependencies. Ties are resolved alphabetically.
    pub order: Vec<SkillPath>,
    /// Groups of skills that depend on each other in a cycle. They are not part of `order`.
    pub cycles: Vec<Vec<SkillPath>>,
    /// The capabilities that each skill requires, including those of its dependencies.
    pub capabilities: BTreeMap<SkillPath, BTreeSet<String>>,
    /// Missing dependencies, cycles, chains that are too deep, and undeclared capabilities.
    pub diagnostics: Vec<Diagnostic>,
}

impl SkillLibrary {
    pub(super) fn new(
        skills: Vec<Arc<Skill>>,
        categories: Vec<Category>,
        diagnostics: Vec<Diagnostic>,
    ) -> Self {
        Self {
            inner: Arc::new(LibraryData { skills, categories, diagnostics, rendered: Rendered::default() }),
        }
    }

    /// Approximate memory usage.
    pub(super) fn weight(&self) -> u64 {
        let categories = self.categories().iter().map(|Category { path, description }| {
            path.len() + description.as_ref().map_or(0, String::len) + 60
        });
        let said = self.diagnostics().iter().map(|said| said.file.len() + said.message.len() + 80);
        // Count one catalog, because most programs render one format. The skills are cached, and
        // accounted for, separately.
        let skill = |skill: &Arc<Skill>| {
            let (path, location) = (skill.path.as_str(), skill.location.as_str());
            path.len() + skill.manifest.description.len() + location.len() + 80
        };
        let text = self.list().iter().map(skill);
        (categories.sum::<usize>() + said.sum::<usize>() + text.sum::<usize>()) as u64
    }

    /// Renders the catalog for a prompt. Skills with `disable-model-invocation` are not included.
    ///
    /// With a budget, in characters, all names are kept and long descriptions are cut to the same
    /// length. If that is not enough, descriptions are omitted, and then skills, from the end. The
    /// text says what was omitted and how to find it.
    #[must_use]
    pub fn catalog(&self, format: CatalogFormat, budget: Option<usize>) -> Budgeted {
        let rendered = || self.inner.rendered.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (format, budget);
        if let Some((_, text)) = rendered().iter().find(|(known, _)| *known == key) {
            return text.clone();
        }
        let text = self.render_catalog(format, budget);
        let mut rendered = rendered();
        rendered.truncate(MAX_RENDERED - 1);
        rendered.insert(0, (key, text.clone()));
        text
    }

    /// Returns all skills, sorted by path.
    #[must_use]
    pub fn list(&self) -> &[Arc<Skill>] {
        &self.inner.skills
    }

    /// Returns the categories that contain skills, sorted by path.
    #[must_use]
    pub fn categories(&self) -> &[Category] {
        &self.inner.categories
    }

    /// Returns problems of the library, such as unreadable skills and collisions between layers.
    #[must_use]
    pub fn diagnostics(&self) -> &[Diagnostic] {
        &self.inner.diagnostics
    }

    fn skills(&self) -> impl Iterator<Item = &Skill> {
        self.list().iter().map(|skill| &**skill)
    }

    /// Returns the skill at a path.
    #[must_use]
    pub fn get(&self, path: &str) -> Option<&Skill> {
        let skills = self.list();
        skills.binary_search_by(|skill| skill.path.as_str().cmp(path)).ok().map(|at| &*skills[at])
    }

    /// Finds a skill by its path, or else by the last name of its path or the name in its
    /// frontmatter.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], or [`ErrorKind::Ambiguous`] with the candidates.
    pub fn find(&self, name: &str) -> Result<&Skill> {
        if let Some(skill) = self.get(name) {
            return Ok(skill);
        }
        let named = |skill: &&Skill| skill.leaf() == name || skill.manifest.name == name;
        let found: Vec<&Skill> = self.skills().filter(named).collect();
        match found[..] {
            [skill] => Ok(skill),
            [] => Err(no_skill(name)),
            _ => {
                let paths: Vec<_> = found.iter().map(|skill| format!("`{}`", skill.path)).collect();
                let message =
                    format!("more than one skill is called `{}`: {}", shorten(name), paths.join(", "));
                Err(Error::new(ErrorKind::Ambiguous, message).at(name).with_hint("name one by its path"))
            }
        }
    }

    /// Returns the skills with any of these tags.
    #[must_use]
    pub fn by_tag(&self, tags: &[&str]) -> Vec<&Skill> {
        let wanted = |tag: &String| tags.contains(&tag.as_str());
        self.skills().filter(|skill| skill.manifest.tags.iter().any(wanted)).collect()
    }

    /// Returns the skills that require any of these capabilities.
    #[must_use]
    pub fn by_capability(&self, capabilities: &[&str]) -> Vec<&Skill> {
        let wanted = |capability: &String| capabilities.contains(&capability.as_str());
        self.skills().filter(|skill| skill.manifest.required_capabilities.iter().any(wanted)).collect()
    }

    /// Returns the skills of a category, including nested categories.
    #[must_use]
    pub fn by_category(&self, category: &str) -> Vec<&Skill> {
        let category = category.trim_matches('/');
        self.skills().filter(|skill| is_within(skill.category(), category)).collect()
    }

    /// Adds a skill, replacing the one at the same path.
    pub fn register(&mut self, skill: Skill) {
        let inner = Arc::make_mut(&mut self.inner);
        let skills = &mut inner.skills;
        match skills.binary_search_by(|known| known.path.cmp(&skill.path)) {
            Ok(at) => skills[at] = Arc::new(skill),
            Err(at) => skills.insert(at, Arc::new(skill)),
        }
        inner.rendered = Rendered::default();
    }

    /// Resolves a list of names, in order and without duplicates, and reports diagnostics.
    ///
    /// # Errors
    /// With [`Unknown::Refuse`], [`ErrorKind::NotFound`] or [`ErrorKind::Ambiguous`] for the first
    /// name that does not resolve.
    pub fn resolve(&self, names: &[&str], unknown: Unknown) -> Result<(Vec<&Skill>, Vec<Diagnostic>)> {
        let (mut skills, mut diagnostics): (Vec<&Skill>, Vec<Diagnostic>) = (Vec::new(), Vec::new());
        for name in names {
            match self.find(name) {
                Ok(skill) if skills.iter().any(|known| known.path == skill.path) => {}
                Ok(skill) => skills.push(skill),
                Err(error) if unknown == Unknown::Refuse => return Err(error),
                Err(error) => {
                    let code =
                        if error.kind() == ErrorKind::Ambiguous { "ambiguous" } else { "unknown-skill" };
                    diagnostics.push(Diagnostic::new(
                        Severity::Warning,
                        code,
                        shorten(name),
                        error.message(),
                    ));
                }
            }
        }
        Ok((skills, diagnostics))
    }

    /// Orders all skills by their dependencies.
    #[must_use]
    pub fn dependencies(&self) -> Dependencies {
        let mut result = Dependencies::default();
        let mut edges = Edges::new();
        for skill in self.skills() {
            let targets = edges.entry(&skill.path).or_default();
            for name in &skill.manifest.depends {
                match self.find(name) {
                    Ok(target) => {
                        targets.insert(&target.path);
                    }
                    Err(error) => result.say(skill, "missing-dependency", error.message().to_owned()),
                }
            }
        }
        let mut users = Users::new();
        for (path, targets) in &edges {
            for target in targets {
                users.entry(target).or_default().push(path);
            }
        }
        result.cycles = cycles(&edges, &users);
        for cycle in result.cycles.clone() {
            for path in &cycle {
                edges.remove(path);
            }
            let paths: Vec<_> = cycle.iter().map(SkillPath::as_str).collect();
            let message = format!("these skills depend on each other in a cycle: {}", paths.join(", "));
            if let Some(skill) = cycle.first().and_then(|path| self.get(path.as_str())) {
                result.say(skill, "dependency-cycle", message);
            }
        }
        self.order(&edges, &users, &mut result);
        result
    }

    /// Kahn's algorithm. Cycles have already been removed from the edges.
    fn order<'s>(&self, edges: &Edges<'s>, users: &Users<'s>, result: &mut Dependencies) {
        let known =
            |targets: &BTreeSet<_>| targets.iter().filter(|target| edges.contains_key(*target)).count();
        let mut waiting: BTreeMap<&SkillPath, usize> =
            edges.iter().map(|(path, targets)| (*path, known(targets))).collect();
        let mut ready: BTreeSet<&SkillPath> =
            waiting.iter().filter(|(_, count)| **count == 0).map(|(path, _)| *path).collect();
        let mut depth: BTreeMap<&SkillPath, usize> = BTreeMap::new();
        while let Some(path) = ready.pop_first() {
            result.order.push(path.clone());
            let Some(skill) = self.get(path.as_str()) else { continue };
            let own: BTreeSet<String> = skill.manifest.required_capabilities.iter().cloned().collect();
            let mut all = own.clone();
            let mut deepest = 0;
            for target in &edges[path] {
                all.extend(result.capabilities.get(*target).into_iter().flatten().cloned());
                deepest = deepest.max(depth.get(target).map_or(0, |depth| depth + 1));
            }
            let undeclared: Vec<_> = all.difference(&own).cloned().collect();
            if !undeclared.is_empty() {
                let message =
                    format!("skills below it require {}, which it does not declare", undeclared.join(", "));
                result.say(skill, "undeclared-capability", message);
            }
            if deepest > MAX_DEPENDENCY_DEPTH {
                let message =
                    format!("its dependencies are {deepest} deep; {MAX_DEPENDENCY_DEPTH} is the limit");
                result.say(skill, "deep-dependency", message);
            }
            depth.insert(path, deepest);
            result.capabilities.insert(path.clone(), all);
            for user in users.get(path).into_iter().flatten() {
                if let Some(count) = waiting.get_mut(user) {
                    *count -= 1;
                    if *count == 0 {
                        ready.insert(user);
                    }
                }
            }
        }
    }
}

impl Dependencies {
    fn say(&mut self, skill: &Skill, code: &'static str, message: String) {
        let file = skill.location.as_str();
        self.diagnostics.push(Diagnostic::new(Severity::Warning, code, file, message));
    }
}

pub(super) fn no_skill(name: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no skill `{}`", shorten(name)))
        .at(name)
        .with_hint("list the skills, and name one by its path, such as `category/skill`")
}

/// Returns the strongly connected components that are cycles, sorted: Kosaraju's algorithm.
fn cycles<'s>(edges: &Edges<'s>, users: &Users<'s>) -> Vec<Vec<SkillPath>> {
    // First pass: depth-first postorder.
    let (mut seen, mut done) = (BTreeSet::new(), Vec::new());
    for start in edges.keys() {
        let mut open = vec![(*start, false)];
        while let Some((path, left)) = open.pop() {
            if left {
                done.push(path);
            } else if seen.insert(path) {
                open.push((path, true));
                open.extend(edges.get(path).into_iter().flatten().map(|target| (*target, false)));
            }
        }
    }
    // Second pass, on the transposed graph in reverse postorder: each tree is one component.
    let mut taken: BTreeSet<&SkillPath> = BTreeSet::new();
    let mut found = Vec::new();
    for start in done.into_iter().rev() {
        let (mut set, mut open) = (Vec::new(), vec![start]);
        while let Some(path) = open.pop() {
            if taken.insert(path) {
                set.push(path.clone());
                open.extend(users.get(path).into_iter().flatten());
            }
        }
        let loops = set.len() > 1 || edges.get(start).is_some_and(|targets| targets.contains(start));
        if loops && !set.is_empty() {
            set.sort();
            found.push(set);
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn library(skills: &[(&str, &str)]) -> SkillLibrary {
        let mut library = SkillLibrary::default();
        for (path, fields) in skills {
            let leaf = path.rsplit('/').next().unwrap();
            let name = if fields.contains("name:") { String::new() } else { format!("name: {leaf}\n") };
            let content = format!("---\n{name}description: d\n{fields}\n---\n");
            library.register(Skill::in_memory(path, &content).unwrap());
        }
        library
    }

    fn paths(skills: &[&Skill]) -> Vec<String> {
        skills.iter().map(|skill| skill.path.to_string()).collect()
    }

    #[test]
    fn skills_are_found_by_path_leaf_and_name() {
        let library = library(&[("a/x", ""), ("b/x", ""), ("b/y", "name: why"), ("z", "")]);
        assert_eq!(library.find("a/x").unwrap().path, "a/x");
        assert_eq!(library.find("y").unwrap().path, "b/y");
        assert_eq!(library.find("why").unwrap().path, "b/y");
        assert_eq!(library.find("z").unwrap().path, "z");
        let error = library.find("x").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Ambiguous);
        assert!(error.message().contains("`a/x`, `b/x`"), "{error}");
        assert_eq!(library.find("q").unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn skills_are_found_by_tag_capability_and_category() {
        let library = library(&[
            ("a/b/x", "tags: [t1]"),
            ("a/y", "tags: t2, t1\nrequired_capabilities: [shell:execute]"),
            ("ab/z", ""),
        ]);
        assert_eq!(paths(&library.by_tag(&["t1"])), ["a/b/x", "a/y"]);
        assert_eq!(paths(&library.by_tag(&["t2", "t9"])), ["a/y"]);
        assert_eq!(paths(&library.by_capability(&["shell:execute"])), ["a/y"]);
        assert_eq!(paths(&library.by_category("a")), ["a/b/x", "a/y"]);
        assert_eq!(library.by_category("").len(), 3);
    }

    #[test]
    fn an_agents_list_is_strict_or_graceful() {
        let library = library(&[("a/x", ""), ("b/x", ""), ("b/y", "")]);
        let (skills, said) = library.resolve(&["y", "q", "b/y", "x"], Unknown::Warn).unwrap();
        assert_eq!(paths(&skills), ["b/y"]);
        assert_eq!(said.iter().map(|d| d.code).collect::<Vec<_>>(), ["unknown-skill", "ambiguous"]);
        assert_eq!(library.resolve(&["y", "q"], Unknown::Refuse).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(library.resolve(&["y"], Unknown::Refuse).unwrap().0.len(), 1);
    }

    #[test]
    fn dependencies_come_first_and_circles_are_named() {
        let library = library(&[
            ("app", "depends: [mid, none]\nrequired_capabilities: []"),
            ("base", "required_capabilities: [fs]"),
            ("c1", "depends: [c2]"),
            ("c2", "depends: [c3]"),
            ("c3", "depends: [c1]"),
            ("mid", "depends: [base]\nrequired_capabilities: [fs, net]"),
            ("self", "depends: [self]"),
            ("uses-c", "depends: [c1, base]"),
        ]);
        let result = library.dependencies();
        assert_eq!(result.order, ["base", "mid", "app", "uses-c"]);
        assert_eq!(result.cycles, [vec!["c1", "c2", "c3"], vec!["self"]]);
        assert_eq!(result.capabilities["app"], BTreeSet::from(["fs".to_owned(), "net".to_owned()]));
        let codes: Vec<_> = result.diagnostics.iter().map(|d| d.code).collect();
        assert_eq!(
            codes,
            [
                "missing-dependency",
                "dependency-cycle",
                "dependency-cycle",
                "undeclared-capability",
                "undeclared-capability"
            ]
        );
        let chain: Vec<(String, String)> =
            (0..9).map(|i| (format!("s{i}"), format!("depends: [s{}]", i + 1))).collect();
        let chain: Vec<(&str, &str)> = chain.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        let deep = self::library(&chain).dependencies();
        assert_eq!(deep.diagnostics.iter().filter(|d| d.code == "deep-dependency").count(), 3);
    }

    #[test]
    fn in_memory_skill_needs_a_path_and_content() {
        let skill = |path: &str, content: &str| {
            Skill::in_memory(path, content).map(|s| s.path.to_string()).map_err(|e| e.kind())
        };
        assert_eq!(skill("/skills/a/b/SKILL.md", "# Text\n"), Ok("a/b".to_owned()));
        for path in ["", "/", "/skills/", "a/../b", "..", "/skills/../a", "a/%2e%2e/b", "a\0b", "a\\b"] {
            assert_eq!(skill(path, "# Text\n"), Err(ErrorKind::InvalidPath), "{path}");
        }
        assert_eq!(skill("a", ""), Err(ErrorKind::InvalidSkill));
    }

    #[test]
    fn register_keeps_order_and_replaces() {
        let mut library = library(&[("b", ""), ("a", ""), ("c/d", "")]);
        library.register(Skill::in_memory("b", "---\nname: b\ndescription: new\n---\n").unwrap());
        let listed: Vec<_> =
            library.list().iter().map(|s| (s.path.as_str(), s.manifest.description.as_str())).collect();
        assert_eq!(listed, [("a", "d"), ("b", "new"), ("c/d", "d")]);
    }
}
