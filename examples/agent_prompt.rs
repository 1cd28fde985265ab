//! Agent middleware that puts skills into the system prompt.
//!
//! Until the model has chosen a skill, the prompt contains the catalog of a category. Afterward it
//! contains the instructions of the chosen skill.
//!
//! ```text
//! cargo run --example agent_prompt
//! ```

#![allow(clippy::print_stdout, reason = "it is a command-line program")]

use skillfs::embedded::Embedded;
use skillfs::{
    CatalogFormat, ErrorKind, PromptText, S3Backend, Session, Settings, SkillFs, SkillPath, UserId,
};

const SYSTEM: &str = "You draft legal documents. To use a skill, call `load_skill` with its path.";

/// The state that the agent keeps between turns.
#[derive(Default)]
struct State {
    current_skill: Option<SkillPath>,
}

/// Builds the system prompt. Called before each turn of the model.
async fn system_prompt(backend: &S3Backend, state: &State, category: &str) -> skillfs::Result<String> {
    if let Some(current) = &state.current_skill {
        match backend.load_skill(current.as_str()).await {
            Ok(loaded) => return Ok(format!("{SYSTEM}\n\n{}", loaded.to_prompt(PromptText::Complete))),
            // The skill was deleted after the model chose it: offer the current catalog.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    let library = backend.skills(Some(category)).await?;
    let catalog = library.catalog(CatalogFormat::Xml, Some(8_000)).text;
    Ok(format!("{SYSTEM}\n\n{catalog}"))
}

/// The tool that the model calls. The model also sees its errors.
async fn load_skill(backend: &S3Backend, state: &mut State, skill: &str) -> String {
    match backend.load_skill(skill).await {
        Ok(loaded) => {
            state.current_skill = Some(loaded.skill.path.clone());
            format!("`{}` is loaded.", loaded.skill.path)
        }
        Err(error) => error.report(),
    }
}

#[tokio::main]
async fn main() -> skillfs::Result<()> {
    let store = Embedded::in_memory()?;
    store.create_bucket("sample").await?;
    for (key, content) in [
        (
            "ana/skills/contracts/sale/SKILL.md",
            "---\nname: sale\ndescription: Drafts purchase agreements.\n---\n# Sale\n\n1. Identify the parties.\n",
        ),
        ("ana/skills/contracts/sale/references/clauses.md", "# Clauses\n"),
        (
            "ana/skills/contracts/donation/SKILL.md",
            "---\nname: donation\ndescription: Drafts deeds of gift.\n---\n# Gift\n",
        ),
    ] {
        store.put("sample", key, content).await?;
    }
    let fs = SkillFs::embedded(&store, &Settings::new("sample")).await?;
    let backend = fs.session(&Session::new().user(UserId::parse("ana")?));

    let mut state = State::default();
    println!("--- turn 1\n{}\n", system_prompt(&backend, &state, "contracts").await?);
    println!(
        "--- the model calls load_skill(\"will\")\n{}\n",
        load_skill(&backend, &mut state, "will").await
    );
    println!(
        "--- the model calls load_skill(\"sale\")\n{}\n",
        load_skill(&backend, &mut state, "sale").await
    );
    println!("--- turn 2\n{}", system_prompt(&backend, &state, "contracts").await?);
    println!("--- {} requests in total", fs.requests().total());
    Ok(())
}
