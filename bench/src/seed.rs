//! The content of the bucket. It is written with a plain client and not through the proxy, so that it is in
//! no cache.

use anyhow::{Context, Result};
use aws_sdk_s3::Client;
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};

use crate::place::Place;
use crate::rivals;

const SKILLS_IN_A_CATEGORY: usize = 25;

/// The marker in the description of skills as they are seeded.
pub(crate) const FIRST: &str = "as it was first";

pub(crate) struct Seeder {
    client: Client,
    bucket: String,
}

impl Seeder {
    pub(crate) fn new(place: &Place) -> Self {
        Self { client: rivals::tuned(place), bucket: place.bucket.clone() }
    }

    pub(crate) async fn put(&self, key: String, content: Bytes) -> Result<()> {
        let request = self.client.put_object().bucket(&self.bucket).key(&key).body(content.into());
        request.send().await.with_context(|| format!("cannot write `{key}`"))?;
        Ok(())
    }

    pub(crate) async fn put_all(&self, objects: impl IntoIterator<Item = (String, Bytes)>) -> Result<()> {
        stream::iter(objects)
            .map(|(key, content)| self.put(key, content))
            .buffer_unordered(16)
            .try_collect::<()>()
            .await
    }

    pub(crate) async fn delete(&self, key: &str) -> Result<()> {
        let request = self.client.delete_object().bucket(&self.bucket).key(key);
        request.send().await.with_context(|| format!("cannot delete `{key}`"))?;
        Ok(())
    }

    /// Returns the size of an object.
    pub(crate) async fn size(&self, key: &str) -> Result<u64> {
        let request = self.client.head_object().bucket(&self.bucket).key(key);
        let answer = request.send().await.with_context(|| format!("cannot look at `{key}`"))?;
        Ok(answer.content_length.unwrap_or_default().unsigned_abs())
    }

    /// Writes a plain library. An earlier run may have published it, so the index is deleted first.
    pub(crate) async fn skills(&self, root: &str, count: usize) -> Result<()> {
        for name in ["index.json", "mirror.json"] {
            self.delete(&format!("{root}/.skillfs/{name}")).await?;
        }
        self.put_all((0..count).flat_map(|i| skill(root, i, FIRST))).await
    }

    /// Writes text files `f-0000.md`, `f-0001.md`, … to a thread's workspace.
    pub(crate) async fn files(&self, thread: &str, count: usize, size: usize) -> Result<()> {
        let content = |i: usize| Bytes::from(text(&format!("File {i} of {thread}."), size));
        self.put_all((0..count).map(|i| (format!("threads/{thread}/{}", file_name(i)), content(i)))).await
    }
}

pub(crate) fn file_name(i: usize) -> String {
    format!("f-{i:05}.md")
}

/// The path of a skill in its library.
pub(crate) fn skill_path(i: usize) -> String {
    format!("category-{:03}/skill-{i:05}", i / SKILLS_IN_A_CATEGORY)
}

/// The files of a skill. `mark` appears in its description.
pub(crate) fn skill_files(i: usize, mark: &str) -> [(&'static str, Bytes); 3] {
    let frontmatter = format!(
        "---\nname: skill-{i:05}\ndescription: Drafts document number {i}; {mark}. Use it for {}.\nlicense: MIT\n\
         metadata:\n  author: example\n  version: \"1.{i}\"\n---\n",
        letters(i, 250)
    );
    let guide = text(&format!("# Guide to document {i}"), 2048);
    let script = format!("#!/bin/sh\n# Checks document {i}.\ngrep -c clause \"$1\"\n");
    [
        ("SKILL.md", text(&frontmatter, 1536).into()),
        ("references/guide.md", guide.into()),
        ("scripts/run.sh", script.into()),
    ]
}

/// The files of a skill with their keys in a library. `root` is the key prefix of the library.
pub(crate) fn skill(root: &str, i: usize, mark: &str) -> [(String, Bytes); 3] {
    let path = skill_path(i);
    skill_files(i, mark).map(|(file, content)| (format!("{root}/skills/{path}/{file}"), content))
}

/// Generates pseudorandom words, deterministically for each seed. With these, a compressed index is as large
/// as one with the frontmatter of real skills (compared with 1,460 of them). Repeating the same phrases in
/// every skill would make it half as large.
fn letters(seed: usize, count: usize) -> String {
    let mut random = (seed as u32).wrapping_mul(2_654_435_761).wrapping_add(12_345);
    let mut letter = |at: usize| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        if at % 7 == 6 { ' ' } else { char::from(b'a' + ((random >> 16) % 26) as u8) }
    };
    (0..count).map(&mut letter).collect()
}

/// Generates text of this size that starts with `beginning`.
fn text(beginning: &str, size: usize) -> String {
    let mut text = format!("{beginning}\n");
    let mut line = 0;
    while text.len() < size {
        line += 1;
        text += &format!("{line}. Ask who the parties are, and write down their names as in their papers.\n");
    }
    // The text is ASCII, so this cannot split a character.
    text.truncate(size);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skill_has_realistic_sizes() {
        let [(key, content), ..] = skill("ana", 30, "x");
        assert_eq!(key, "ana/skills/category-001/skill-00030/SKILL.md");
        assert_eq!(content.len(), 1536);
        let content = String::from_utf8(content.to_vec()).unwrap_or_default();
        let frontmatter = content.split("---\n").nth(1).unwrap_or_default();
        assert!((250..400).contains(&frontmatter.len()), "{}", frontmatter.len());
    }
}
