//! Creation of new skills.

use std::path::{Path, PathBuf};

use super::failed;
use crate::error::{Error, ErrorKind, Result, shorten};
use crate::manifest::{read_properties, validate};

/// Creates the folder `name` inside `folder`, with a valid `SKILL.md` and a reference file that it mentions.
/// Returns the path of the new folder.
///
/// # Errors
/// [`ErrorKind::InvalidSkill`] if the name or the description violates the specification, in the wording of
/// the validator; [`ErrorKind::AlreadyExists`] if the folder already exists.
pub fn new_skill(name: &str, description: &str, folder: &Path) -> Result<PathBuf> {
    let invalid = |problems: &str| {
        Error::new(ErrorKind::InvalidSkill, format!("`{}` cannot become a skill: {problems}", shorten(name)))
            .with_hint("a name has 1 to 64 lowercase letters, digits and single hyphens, a description 1 to 1024 characters")
    };
    let text = skill_text(name, description);
    let problems = validate(text.as_bytes(), name);
    if !problems.is_empty() {
        return Err(invalid(&problems.join("; ")));
    }
    // Check that the text parses back to the same values, because a description may contain anything.
    let read = read_properties(text.as_bytes()).map_err(|problem| invalid(&problem))?;
    if read.name != name || read.description != description.trim() {
        return Err(invalid("its name and description cannot be written in one line of YAML"));
    }
    std::fs::create_dir_all(folder).map_err(failed("create", folder))?;
    let target = folder.join(name);
    std::fs::create_dir(&target).map_err(failed("create", &target))?;
    let made = std::fs::create_dir(target.join("references"))
        .and_then(|()| std::fs::write(target.join("references/example.md"), REFERENCE))
        .and_then(|()| std::fs::write(target.join("SKILL.md"), text));
    if let Err(error) = made {
        // The folder is new, so do not leave an incomplete one.
        let _ = std::fs::remove_dir_all(&target);
        return Err(failed("write", &target)(error));
    }
    Ok(target)
}

const REFERENCE: &str = "# Example\n\n\
    Details that are needed only sometimes go into files like this one, which are read when the instructions say so.\n";

fn skill_text(name: &str, description: &str) -> String {
    let title = name.replace('-', " ");
    format!(
        "---\nname: {}\ndescription: {}\n---\n\n# {title}\n\n\
         ## When to use it\n\n\
         Say here what a task looks like that this skill is for.\n\n\
         ## Steps\n\n\
         1. Say what to do first.\n\
         2. Read [references/example.md](references/example.md) when you need an example.\n\
         3. Say how to check the result.\n",
        scalar(name),
        scalar(description.trim()),
    )
}

/// Formats a YAML scalar: plain if that is safe, otherwise quoted.
fn scalar(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || " ,.()-/;+".contains(c);
    if text.starts_with(char::is_alphabetic) && text.chars().all(plain) && !text.contains(" - ") {
        return text.to_owned();
    }
    serde_json::Value::String(text.to_owned()).to_string()
}
