//! The skill library: discovery, layers, names, loading, and costs.

use skillfs::embedded::Embedded;
use skillfs::{
    CatalogFormat, ErrorKind, LibraryId, PromptText, ResourceKind, S3Backend, Session, SkillFs, SkillLibrary,
    UserId,
};

use crate::support::{Bucket, names, on_every_server, session, settings};

on_every_server!(
    skills_are_found_at_any_depth,
    a_skill_inside_a_skill_is_a_resource,
    categories_have_descriptions,
    one_bad_skill_never_hides_the_others,
    the_helpers_of_the_core_by_name,
    a_skill_is_named_by_path_then_by_leaf_or_name,
    an_ambiguous_leaf_is_told_with_its_candidates,
    any_letter_case_of_the_file_is_taken,
    resources_are_listed_by_kind_and_confined,
    loading_gives_text_directory_and_resources,
    two_layers_with_a_collision,
    layers_hide_above_and_below_as_a_whole,
    all_operations_see_the_same_union,
    loose_files_of_the_earlier_layer_win,
    hidden_directories_are_reported,
    deleted_skills_disappear,
);

pub fn skill(name: &str) -> String {
    format!("---\nname: {name}\ndescription: Does {name}.\n---\n# {name}\n\nSteps.\n")
}

pub fn paths(library: &SkillLibrary) -> Vec<&str> {
    library.list().iter().map(|skill| skill.path.as_str()).collect()
}

fn codes(library: &SkillLibrary) -> Vec<&str> {
    library.diagnostics().iter().map(|d| d.code).collect()
}

fn with_libraries(b: &Bucket, libraries: &[&str]) -> S3Backend {
    let libraries = libraries.iter().map(|id| LibraryId::parse(id).unwrap());
    b.fs.session(&session("u1", "1", "k1").libraries(libraries))
}

async fn skills_are_found_at_any_depth(b: Bucket) {
    for path in ["root-skill", "a/one", "a/b/two", "a/b/c/three"] {
        let leaf = path.rsplit('/').next().unwrap();
        b.put(&format!("u1/skills/{path}/SKILL.md"), skill(leaf)).await;
    }
    b.put("u1/skills/a/notes.md", "no skill").await;
    b.put("u1/skills/SKILL.md", "not a skill: it lies in no directory of its own").await;
    b.put("u2/skills/a/secret/SKILL.md", skill("secret")).await;
    let backend = b.session();
    let all = ["a/b/c/three", "a/b/two", "a/one", "root-skill"];
    assert_eq!(backend.load_skills(None).await.unwrap(), all);
    assert_eq!(backend.load_skills(Some("all")).await.unwrap(), all);
    assert_eq!(backend.load_skills(Some("")).await.unwrap(), all);
    assert_eq!(backend.load_skills(Some("a")).await.unwrap(), all[..3]);
    assert_eq!(backend.load_skills(Some("a/b")).await.unwrap(), all[..2]);
    assert_eq!(backend.load_skills(Some("/a/b/")).await.unwrap(), all[..2]);
    assert_eq!(backend.load_skills(Some("none")).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(backend.load_skills(Some("../x")).await.unwrap_err().kind(), ErrorKind::InvalidPath);
    let library = backend.skills(None).await.unwrap();
    assert_eq!(paths(&library), all);
    assert_eq!(library.get("a/b/two").unwrap().category(), "a/b");
    assert_eq!(library.get("root-skill").unwrap().category(), "");
    assert_eq!(library.get("a/one").unwrap().location.as_str(), "/skills/a/one/SKILL.md");
    let none = b.fs.session(&Session::default().user(UserId::parse("u9").unwrap()));
    assert!(none.load_skills(None).await.unwrap().is_empty());
    assert!(none.skills(None).await.unwrap().list().is_empty());
}

async fn a_skill_inside_a_skill_is_a_resource(b: Bucket) {
    b.put("u1/skills/c/outer/SKILL.md", skill("outer")).await;
    b.put("u1/skills/c/outer/inner/SKILL.md", skill("inner")).await;
    let backend = b.session();
    assert_eq!(backend.load_skills(None).await.unwrap(), ["c/outer"]);
    let resources = backend.skill_resources("c/outer").await.unwrap();
    assert_eq!(resources.iter().map(|r| r.path.as_str()).collect::<Vec<_>>(), ["inner/SKILL.md"]);
    assert_eq!(backend.load_skill("c/outer/inner").await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(backend.load_skill("inner").await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(backend.load_skill_content("c/outer/inner").await.unwrap(), None);
}

async fn categories_have_descriptions(b: Bucket) {
    b.put("u1/skills/a/one/SKILL.md", skill("one")).await;
    b.put("u1/skills/a/DESCRIPTION.md", "---\ndescription: From a field\n---\n").await;
    b.put("u1/skills/b/two/SKILL.md", skill("two")).await;
    b.put("u1/skills/b/DESCRIPTION.md", "# Heading\n\nFrom the text\n").await;
    b.put("u1/skills/c/d/three/SKILL.md", skill("three")).await;
    let library = b.session().skills(None).await.unwrap();
    let categories: Vec<_> =
        library.categories().iter().map(|c| (c.path.as_str(), c.description.as_deref())).collect();
    assert_eq!(
        categories,
        [("a", Some("From a field")), ("b", Some("From the text")), ("c", None), ("c/d", None)]
    );
    assert_eq!(
        library.catalog(CatalogFormat::Markdown, None).text,
        "## a\n\nFrom a field\n\n- `a/one`: Does one.\n\n## b\n\nFrom the text\n\n- `b/two`: Does two.\n\n\
         ## c/d\n\n- `c/d/three`: Does three.\n"
    );
}

async fn one_bad_skill_never_hides_the_others(b: Bucket) {
    b.put("u1/skills/c/good/SKILL.md", skill("good")).await;
    b.put("u1/skills/c/empty/SKILL.md", "").await;
    b.put("u1/skills/c/binary/SKILL.md", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR").await;
    b.put("u1/skills/c/bare/SKILL.md", "# Bare\n\nJust text.\n").await;
    b.put("u1/skills/c/broken/SKILL.md", "---\nname: broken\ndescription: a: b: [c\n---\n").await;
    b.put("u1/skills/c/latin/SKILL.md", b"---\nname: latin\ndescription: a\xf1o nuevo, Espa\xf1a\n---\n")
        .await;
    let backend = b.session();
    let library = backend.skills(None).await.unwrap();
    assert_eq!(paths(&library), ["c/bare", "c/broken", "c/good", "c/latin"]);
    assert_eq!(codes(&library), ["binary", "no-frontmatter", "no-name", "empty"]);
    assert_eq!(library.get("c/bare").unwrap().manifest.description, "Just text.");
    assert_eq!(library.get("c/broken").unwrap().manifest.description, "a: b: [c");
    assert_eq!(library.get("c/latin").unwrap().manifest.description, "año nuevo, España");
    assert_eq!(backend.load_skill("c/empty").await.unwrap_err().kind(), ErrorKind::InvalidSkill);
    assert_eq!(backend.load_skill("c/binary").await.unwrap_err().kind(), ErrorKind::BinaryFile);
}

async fn the_helpers_of_the_core_by_name(b: Bucket) {
    b.put(
        "u1/skills/escrituras/compraventa/SKILL.md",
        "---\r\nname: compraventa\r\ndescription: Vende.\r\nversion: 1.10\r\n---\r\nPasos\r\n",
    )
    .await;
    b.put("u1/skills/escrituras/bare/SKILL.md", "# Title\n\nSays \"hi\".\n").await;
    b.put(
        "u1/skills/escrituras/secret/SKILL.md",
        "---\nname: secret\ndescription: d\ndisable-model-invocation: true\n---\n",
    )
    .await;
    b.put("u1/skills/other/x/SKILL.md", skill("x")).await;
    let backend = b.session();
    let frontmatter = backend.load_skills_frontmatter(Some("escrituras")).await.unwrap();
    assert_eq!(
        frontmatter,
        "---\n# escrituras/bare\nname: \"bare\"\ndescription: \"Says \\\"hi\\\".\"\n\
         ---\n# escrituras/compraventa\nname: compraventa\ndescription: Vende.\nversion: 1.10\n"
    );
    assert_eq!(backend.load_skills_frontmatter(Some("escrituras")).await.unwrap(), frontmatter);
    assert_eq!(
        backend.load_all_skills_formatted(Some("escrituras")).await.unwrap(),
        "## escrituras\n\n- `escrituras/bare`: Says \"hi\".\n- `escrituras/compraventa`: Vende.\n"
    );
    assert!(backend.load_all_skills_formatted(None).await.unwrap().contains("## other"));
    let content = backend.load_skill_content("escrituras/compraventa").await.unwrap().unwrap();
    assert!(content.starts_with("---\r\nname: compraventa") && content.ends_with("Pasos\r\n"));
    assert_eq!(backend.load_skill_content("escrituras/none").await.unwrap(), None);
}

async fn a_skill_is_named_by_path_then_by_leaf_or_name(b: Bucket) {
    b.put("u1/skills/a/one/SKILL.md", "---\nname: The One\ndescription: d\n---\n").await;
    b.put("u1/skills/two/SKILL.md", skill("two")).await;
    let backend = b.session();
    for name in [
        "a/one",
        "/skills/a/one",
        "/skills/a/one/",
        "a/one/SKILL.md",
        "/skills/a/one/SKILL.md",
        "one",
        "The One",
    ] {
        assert_eq!(backend.load_skill(name).await.unwrap().skill.path, "a/one", "{name}");
    }
    assert_eq!(backend.load_skill("two").await.unwrap().skill.path, "two");
    for (name, kind) in [
        ("a", ErrorKind::NotFound),
        ("", ErrorKind::NotFound),
        ("b/one", ErrorKind::NotFound),
        ("../u2/skills/x", ErrorKind::InvalidPath),
        ("a/%2e%2e/x", ErrorKind::InvalidPath),
    ] {
        assert_eq!(backend.load_skill(name).await.unwrap_err().kind(), kind, "{name}");
    }
}

async fn an_ambiguous_leaf_is_told_with_its_candidates(b: Bucket) {
    b.put("u1/skills/a/same/SKILL.md", skill("same")).await;
    b.put("u1/skills/b/same/SKILL.md", skill("same")).await;
    b.put("u1/skills/c/other/SKILL.md", skill("same")).await;
    let error = b.session().load_skill("same").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Ambiguous);
    assert!(error.message().contains("`a/same`, `b/same`, `c/other`"), "{error}");
    assert_eq!(b.session().load_skill_content("same").await.unwrap_err().kind(), ErrorKind::Ambiguous);
    assert_eq!(b.session().load_skill("b/same").await.unwrap().skill.path, "b/same");
}

async fn any_letter_case_of_the_file_is_taken(b: Bucket) {
    b.put("u1/skills/c/lower/skill.md", skill("lower")).await;
    b.put("u1/skills/c/mixed/Skill.MD", skill("mixed")).await;
    for file in ["SKILL.md", "skill.md", "Skill.md"] {
        b.put(&format!("u1/skills/c/many/{file}"), format!("---\nname: many\ndescription: {file}\n---\n"))
            .await;
    }
    b.put("u1/skills/c/two/skill.md", "---\nname: two\ndescription: second choice\n---\n").await;
    b.put("u1/skills/c/two/Skill.md", "---\nname: two\ndescription: byte order\n---\n").await;
    let library = b.session().skills(None).await.unwrap();
    assert_eq!(paths(&library), ["c/lower", "c/many", "c/mixed", "c/two"]);
    assert_eq!(library.get("c/many").unwrap().manifest.description, "SKILL.md");
    assert_eq!(library.get("c/two").unwrap().manifest.description, "second choice");
    assert_eq!(library.get("c/lower").unwrap().location.as_str(), "/skills/c/lower/skill.md");
    assert!(b.session().load_skill("c/mixed").await.unwrap().content.contains("Does mixed."));
}

async fn resources_are_listed_by_kind_and_confined(b: Bucket) {
    b.put("u1/skills/c/s/SKILL.md", skill("s")).await;
    for (path, content) in [
        ("disclosure_1.md", "more"),
        ("references/guide.md", "guide"),
        ("reference/old.md", "old"),
        ("scripts/run.sh", "#!/bin/sh\n"),
        ("assets/a.txt", "asset"),
        ("resources/r.json", "{}"),
        ("other/x", "x"),
        ("LICENSE", "MIT"),
    ] {
        b.put(&format!("u1/skills/c/s/{path}"), content).await;
    }
    b.put("u1/skills/c/s2/secret.md", "another skill's").await;
    b.put("threads/1/w.md", "the workspace").await;
    let backend = b.session();
    let resources = backend.skill_resources("c/s").await.unwrap();
    let kinds: Vec<_> = resources.iter().map(|r| (r.path.as_str(), r.kind)).collect();
    assert_eq!(
        kinds,
        [
            ("LICENSE", ResourceKind::Other),
            ("assets/a.txt", ResourceKind::Asset),
            ("disclosure_1.md", ResourceKind::Disclosure),
            ("other/x", ResourceKind::Other),
            ("reference/old.md", ResourceKind::Reference),
            ("references/guide.md", ResourceKind::Reference),
            ("resources/r.json", ResourceKind::Resource),
            ("scripts/run.sh", ResourceKind::Script),
        ]
    );
    assert_eq!(backend.read_skill_resource("c/s", "references/guide.md").await.unwrap().content, "guide");
    assert_eq!(backend.read_skill_resource("s", "./references//guide.md").await.unwrap().content, "guide");
    for (resource, kind) in [
        ("../s2/secret.md", ErrorKind::InvalidPath),
        ("..", ErrorKind::InvalidPath),
        ("a\\..\\..\\s2\\secret.md", ErrorKind::InvalidPath),
        ("x\0", ErrorKind::InvalidPath),
        ("//skills/c/s2/secret.md", ErrorKind::InvalidPath),
        ("%252e%252e/s2/secret.md", ErrorKind::InvalidPath),
        ("references/../../s2/secret.md", ErrorKind::InvalidPath),
        ("%2e%2e/s2/secret.md", ErrorKind::InvalidPath),
        ("/skills/c/s2/secret.md", ErrorKind::InvalidPath),
        ("/workspace/w.md", ErrorKind::InvalidPath),
        ("none.md", ErrorKind::NotFound),
        ("references", ErrorKind::NotFound),
        ("", ErrorKind::NotFound),
    ] {
        let error = backend.read_skill_resource("c/s", resource).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{resource}: {error}");
    }
}

async fn loading_gives_text_directory_and_resources(b: Bucket) {
    b.put("u1/skills/c/s/SKILL.md", skill("s")).await;
    for i in 0..60 {
        b.put(&format!("u1/skills/c/s/references/f{i:02}.md"), "x").await;
    }
    let loaded = b.session().load_skill("c/s").await.unwrap();
    assert_eq!(loaded.content, skill("s"));
    assert_eq!(loaded.body, "# s\n\nSteps.\n");
    assert_eq!(loaded.skill.directory().as_str(), "/skills/c/s");
    assert_eq!(loaded.skill.resources.len(), 60);
    let prompt = loaded.to_prompt(PromptText::Body);
    assert!(prompt.starts_with("# s\n\nSteps.\n\nSkill directory: /skills/c/s\n"), "{prompt}");
    assert!(prompt.contains("- references/f49.md (reference, 1 bytes)\n- and 10 more"), "{prompt}");
    assert!(loaded.to_prompt(PromptText::Complete).starts_with("---\nname: s\n"));
}

async fn two_layers_with_a_collision(b: Bucket) {
    b.put("u1/skills/c/mine/SKILL.md", skill("mine")).await;
    b.put("u1/skills/c/both/SKILL.md", "---\nname: both\ndescription: my own\n---\n").await;
    b.put("u1/skills/c/both/own.md", "own").await;
    b.put("shared/acme/skills/c/both/SKILL.md", "---\nname: both\ndescription: the company's\n---\n").await;
    b.put("shared/acme/skills/c/both/theirs.md", "theirs").await;
    b.put("shared/acme/skills/c/ours/SKILL.md", skill("ours")).await;
    b.put("shared/acme/skills/c/DESCRIPTION.md", "The company's words\n").await;
    b.put("shared/other/skills/c/unseen/SKILL.md", skill("unseen")).await;
    let backend = with_libraries(&b, &["acme"]);
    let library = backend.skills(None).await.unwrap();
    assert_eq!(paths(&library), ["c/both", "c/mine", "c/ours"]);
    assert_eq!(library.get("c/both").unwrap().manifest.description, "my own");
    assert_eq!(library.get("c/both").unwrap().library, None);
    assert_eq!(library.get("c/ours").unwrap().library.as_ref().unwrap().as_str(), "acme");
    assert_eq!(codes(&library), ["collision"]);
    assert!(library.diagnostics()[0].message.contains("`acme`"), "{}", library.diagnostics()[0]);
    assert_eq!(library.categories()[0].description.as_deref(), Some("The company's words"));
    // Skills are never merged file by file.
    let listed = backend.ls("/skills/c/both").await.unwrap();
    assert_eq!(names(&listed.entries), ["/skills/c/both/SKILL.md", "/skills/c/both/own.md"]);
    assert!(!backend.exists("/skills/c/both/theirs.md").await.unwrap());
    assert_eq!(backend.load_skill("c/ours").await.unwrap().skill.library.unwrap().as_str(), "acme");
    // The order of layers decides; without the user's own library the company's is seen.
    let company = b.fs.session(&Session::default().libraries(vec![LibraryId::parse("acme").unwrap()]));
    assert_eq!(company.load_skills(None).await.unwrap(), ["c/both", "c/ours"]);
    assert!(company.load_skill_content("c/both").await.unwrap().unwrap().contains("the company's"));
}

async fn layers_hide_above_and_below_as_a_whole(b: Bucket) {
    b.put("u1/skills/a/deep/skill/SKILL.md", skill("skill")).await;
    b.put("u1/skills/b/SKILL.md", skill("b")).await;
    // Above: a skill at `a`. Below: a skill inside `b`.
    b.put("shared/acme/skills/a/SKILL.md", skill("a")).await;
    b.put("shared/acme/skills/a/extra.md", "hidden with its skill").await;
    b.put("shared/acme/skills/b/inner/SKILL.md", skill("inner")).await;
    b.put("shared/acme/skills/ab/SKILL.md", skill("ab")).await;
    // A hidden skill hides nothing.
    b.put("shared/more/skills/a/other/SKILL.md", skill("other")).await;
    let backend = with_libraries(&b, &["acme", "more"]);
    let library = backend.skills(None).await.unwrap();
    assert_eq!(paths(&library), ["a/deep/skill", "a/other", "ab", "b"]);
    assert_eq!(codes(&library), ["collision", "collision"]);
    assert!(!backend.exists("/skills/a/extra.md").await.unwrap());
    assert!(!backend.exists("/skills/b/inner").await.unwrap());
    assert!(!backend.exists("/skills/b/inner/SKILL.md").await.unwrap());
}

async fn all_operations_see_the_same_union(b: Bucket) {
    b.put("u1/skills/a/one/SKILL.md", skill("one")).await;
    b.put("u1/skills/loose.md", "mine").await;
    b.put("shared/acme/skills/a/one/SKILL.md", "hidden").await;
    b.put("shared/acme/skills/a/two/SKILL.md", skill("two")).await;
    b.put("shared/acme/skills/a/two/refs//odd", "no path names it").await;
    b.put("shared/acme/skills/z/", "").await;
    let backend = with_libraries(&b, &["acme"]);
    assert_eq!(
        names(&backend.ls("/skills").await.unwrap().entries),
        ["/skills/a/", "/skills/loose.md", "/skills/z/"]
    );
    assert_eq!(names(&backend.ls("/skills/a").await.unwrap().entries), ["/skills/a/one/", "/skills/a/two/"]);
    let all = backend.ls_recursive("/skills").await.unwrap();
    assert_eq!(
        names(&all.entries),
        [
            "/skills/a/",
            "/skills/a/one/",
            "/skills/a/one/SKILL.md",
            "/skills/a/two/",
            "/skills/a/two/SKILL.md",
            "/skills/a/two/refs/",
            "/skills/loose.md",
            "/skills/z/",
        ]
    );
    assert_eq!(all.hidden, 1);
    assert_eq!(backend.tree("/skills").await.unwrap().count(), (5, 3));
    assert_eq!(backend.ls_recursive("/").await.unwrap().entries.len(), 8 + 3);
    assert_eq!(backend.read("/skills/a/one/SKILL.md").await.unwrap().content, skill("one"));
    assert_eq!(backend.read("/skills/a/two/SKILL.md").await.unwrap().content, skill("two"));
    assert_eq!(backend.read("/skills/loose").await.unwrap().path.as_str(), "/skills/loose.md");
    assert_eq!(backend.read_bytes("/skills/a/two/SKILL.md", 4..8).await.unwrap().bytes, "name");
    assert_eq!(backend.stat("/skills/a/two").await.unwrap().size, None);
    assert_eq!(backend.stat("/skills/a/two/SKILL.md").await.unwrap().size, Some(skill("two").len() as u64));
    for (path, kind) in [
        ("/skills/none", ErrorKind::NotFound),
        ("/skills/a/none", ErrorKind::NotFound),
        ("/skills/a/one/SKILL.md/x", ErrorKind::NotFound),
        ("/skills/loose.md", ErrorKind::NotDirectory),
    ] {
        assert_eq!(backend.ls(path).await.unwrap_err().kind(), kind, "{path}");
    }
    assert_eq!(backend.read("/skills/a").await.unwrap_err().kind(), ErrorKind::IsDirectory);
    assert_eq!(backend.read("/skills/a/none.md").await.unwrap_err().kind(), ErrorKind::NotFound);
    assert!(backend.exists("/skills/z").await.unwrap());
    assert!(backend.exists("/skills").await.unwrap());
    assert_eq!(backend.read("/skills/../x").await.unwrap_err().kind(), ErrorKind::InvalidPath);
}

async fn loose_files_of_the_earlier_layer_win(b: Bucket) {
    b.put("u1/skills/c/DESCRIPTION.md", "mine").await;
    b.put("u1/skills/c/s/stray.md", "a loose file where the company has a skill").await;
    b.put("shared/acme/skills/c/DESCRIPTION.md", "theirs").await;
    b.put("shared/acme/skills/c/only.md", "only theirs").await;
    b.put("shared/acme/skills/c/s/SKILL.md", skill("s")).await;
    let backend = with_libraries(&b, &["acme"]);
    assert_eq!(backend.read("/skills/c/DESCRIPTION.md").await.unwrap().content, "mine");
    assert_eq!(backend.read("/skills/c/only.md").await.unwrap().content, "only theirs");
    // A skill appears exactly as it was published, without any other files.
    assert_eq!(names(&backend.ls("/skills/c/s").await.unwrap().entries), ["/skills/c/s/SKILL.md"]);
    assert_eq!(codes(&backend.skills(None).await.unwrap()), ["collision"]);
}

async fn hidden_directories_are_reported(b: Bucket) {
    b.put("u1/skills/.git/x/SKILL.md", skill("x")).await;
    b.put("u1/skills/1/2/3/4/5/6/7/8/9/SKILL.md", skill("9")).await;
    b.put("u1/skills/c/s/SKILL.md", skill("s")).await;
    let library = b.session().skills(None).await.unwrap();
    assert_eq!(paths(&library), ["c/s"]);
    assert_eq!(codes(&library), ["hidden", "too-deep"]);
}

async fn deleted_skills_disappear(b: Bucket) {
    b.put("u1/skills/c/s/SKILL.md", skill("s")).await;
    let backend = b.session();
    assert_eq!(backend.load_skills(None).await.unwrap().len(), 1);
    b.delete("u1/skills/c/s/SKILL.md").await;
    assert!(backend.load_skills(None).await.unwrap().is_empty());
    assert_eq!(backend.load_skill_content("c/s").await.unwrap(), None);
}

#[tokio::test]
async fn skills_without_a_description_are_listed_or_not_as_set() {
    let embedded = Embedded::in_memory().unwrap();
    embedded.create_bucket("sample").await.unwrap();
    embedded.put("sample", "u1/skills/c/bare/SKILL.md", "# Bare\n\nText.\n").await.unwrap();
    for (list_undescribed_skills, count) in [(true, 1), (false, 0)] {
        let settings = settings("sample").list_undescribed_skills(list_undescribed_skills);
        let backend =
            SkillFs::embedded(&embedded, &settings).await.unwrap().session(&session("u1", "1", "k1"));
        let library = backend.skills(None).await.unwrap();
        assert_eq!(library.list().len(), count);
        let said: Vec<_> =
            library.diagnostics().iter().chain(library.list().iter().flat_map(|s| &s.diagnostics)).collect();
        assert!(said.iter().any(|d| d.code == "no-description"));
    }
}
