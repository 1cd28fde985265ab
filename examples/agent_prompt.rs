//! The middleware of an agent: what its system prompt says about skills.
//!
//! Without a current skill the prompt has the catalogue of a category, so that the model knows what
//! there is. Once the model has chosen one, the prompt has that skill's instructions.
//!
//! ```text
//! cargo run --example agent_prompt
//! ```

#![allow(clippy::print_stdout, reason = "it is a program")]

use skillfs::embedded::Embedded;
use skillfs::{
    CatalogFormat, ErrorKind, PromptText, S3Backend, Session, Settings, SkillFs, SkillPath, UserId,
};

const SYSTEM: &str = "You draft legal documents. To use a skill, call `load_skill` with its path.";

/// What an agent remembers between two turns.
#[derive(Default)]
struct State {
    current_skill: Option<SkillPath>,
}

/// Called before each turn of the model.
async fn system_prompt(backend: &S3Backend, state: &State, category: &str) -> skillfs::Result<String> {
    if let Some(current) = &state.current_skill {
        match backend.load_skill(current.as_str()).await {
            Ok(loaded) => return Ok(format!("{SYSTEM}\n\n{}", loaded.to_prompt(PromptText::Complete))),
            // Deleted since it was chosen: offer what is there now.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    let library = backend.skills(Some(category)).await?;
    let catalog = library.catalog(CatalogFormat::Xml, Some(8_000)).text;
    Ok(format!("{SYSTEM}\n\n{catalog}"))
}

/// The tool that the model calls. Its errors are for the model, too.
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
            "ana/skills/deeds/sale/SKILL.md",
            "---\nname: sale\ndescription: Drafts deeds of sale.\n---\n# Sale\n\n1. Ask who sells.\n",
        ),
        ("ana/skills/deeds/sale/references/clauses.md", "# Clauses\n"),
        (
            "ana/skills/deeds/gift/SKILL.md",
            "---\nname: gift\ndescription: Drafts deeds of gift.\n---\n# Gift\n",
        ),
    ] {
        store.put("sample", key, content).await?;
    }
    let fs = SkillFs::embedded(&store, &Settings::new("sample")).await?;
    let backend = fs.session(&Session::default().user(UserId::parse("ana")?));

    let mut state = State::default();
    println!("--- turn 1\n{}\n", system_prompt(&backend, &state, "deeds").await?);
    println!(
        "--- the model calls load_skill(\"will\")\n{}\n",
        load_skill(&backend, &mut state, "will").await
    );
    println!(
        "--- the model calls load_skill(\"sale\")\n{}\n",
        load_skill(&backend, &mut state, "sale").await
    );
    println!("--- turn 2\n{}", system_prompt(&backend, &state, "deeds").await?);
    println!("--- {} requests in all", fs.requests().total());
    Ok(())
}
