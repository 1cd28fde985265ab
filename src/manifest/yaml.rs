//! A YAML tree whose scalars stay text: `1.10` is not `1.1`, and `yes` is not `true`.

use std::cell::Cell;
use std::fmt;

use serde::de::{
    DeserializeSeed, EnumAccess, Error, IgnoredAny, MapAccess, SeqAccess, VariantAccess, Visitor,
};
use serde::{Deserialize as _, Deserializer, Serialize, Serializer};

/// The maximum size of frontmatter that is parsed. The longest of 30,373 real-world examples has 9,096 bytes.
pub(crate) const MAX_FRONTMATTER_BYTES: usize = 16 * 1024;
/// The maximum nesting depth of flow style, because `serde_yaml` takes quadratic time on it.
const MAX_FLOW_DEPTH: usize = 32;

/// A YAML value whose scalars are not converted.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Yaml {
    /// An empty value, `~` or `null`.
    Null,
    /// Any other scalar, verbatim.
    Text(String),
    /// A list.
    List(Vec<Yaml>),
    /// A map in its original order. Keys are unique.
    Map(Vec<(String, Yaml)>),
}

impl Yaml {
    /// Returns the text of a scalar.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Looks up a key in a map.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Self> {
        self.entries().iter().find(|(known, _)| known == key).map(|(_, value)| value)
    }

    /// The entries of a map; empty for any other value.
    #[must_use]
    pub fn entries(&self) -> &[(String, Self)] {
        match self {
            Self::Map(entries) => entries,
            _ => &[],
        }
    }
}

impl Serialize for Yaml {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_none(),
            Self::Text(text) => serializer.serialize_str(text),
            Self::List(items) => serializer.collect_seq(items),
            Self::Map(entries) => serializer.collect_map(entries.iter().map(|(key, value)| (key, value))),
        }
    }
}

/// A parse error and its line, counted from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct YamlError {
    pub(crate) line: usize,
    pub(crate) message: String,
}

impl YamlError {
    pub(super) fn at(row: usize, message: impl Into<String>) -> Self {
        Self { line: row + 1, message: message.into() }
    }
}

/// Parses YAML, within limits on size and nesting. This is the only function that calls `serde_yaml`.
///
/// The first value of a duplicate key wins. The names of duplicate keys are returned separately.
pub(super) fn parse(text: &str) -> Result<(Yaml, Vec<String>), YamlError> {
    if text.len() > MAX_FRONTMATTER_BYTES {
        let limit = MAX_FRONTMATTER_BYTES;
        return Err(YamlError::at(0, format!("it has {} bytes; at most {limit} are read", text.len())));
    }
    if let Some(row) = too_deep(text) {
        return Err(YamlError::at(row, format!("`[` or `{{` is nested more than {MAX_FLOW_DEPTH} deep")));
    }
    let failed = |error: serde_yaml::Error| YamlError {
        line: error.location().map_or(1, |at| at.line()),
        message: crate::error::shorten(&error.to_string()),
    };
    // The text is parsed twice. `serde_yaml` converts scalars unless the caller requests a string, so the
    // first pass finds out which nodes are scalars. Aliases can expand a small text into a large tree;
    // without them, a tree never has more nodes than its text has bytes.
    let nodes = Cell::new(text.len() + 1);
    let shape = ShapeSeed(&nodes).deserialize(serde_yaml::Deserializer::from_str(text)).map_err(failed)?;
    let mut found = YamlFindings { duplicates: Vec::new(), bytes_left: Cell::new(2 * text.len() + 16) };
    let tree = TreeSeed { shape: &shape, found: &mut found };
    let tree = tree.deserialize(serde_yaml::Deserializer::from_str(text)).map_err(failed)?;
    Ok((tree, found.duplicates))
}

/// Returns the first line where flow style is nested too deeply. Brackets in quoted text are counted as well.
fn too_deep(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    for (row, line) in text.lines().enumerate() {
        for byte in line.bytes() {
            match byte {
                b'[' | b'{' => depth += 1,
                b']' | b'}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth > MAX_FLOW_DEPTH {
                return Some(row);
            }
        }
    }
    None
}

/// Deducts from a budget that only aliases can exceed.
fn spend<E: Error>(budget: &Cell<usize>, amount: usize) -> Result<(), E> {
    let left = budget.get().checked_sub(amount);
    budget.set(left.ok_or_else(|| E::custom("aliases make it larger than its text"))?);
    Ok(())
}

#[derive(Debug)]
enum Shape {
    Null,
    Scalar,
    List(Vec<Shape>),
    Map(Vec<Shape>),
    Tagged(Box<Shape>),
}

/// Carries the number of nodes that are left in the budget.
#[derive(Clone, Copy)]
struct ShapeSeed<'c>(&'c Cell<usize>);

impl<'de> DeserializeSeed<'de> for ShapeSeed<'_> {
    type Value = Shape;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Shape, D::Error> {
        spend(self.0, 1)?;
        deserializer.deserialize_any(self)
    }
}

macro_rules! scalars {
    ($($visit:ident: $type:ty),+ $(,)?) => {
        $(fn $visit<E>(self, _: $type) -> Result<Shape, E> {
            Ok(Shape::Scalar)
        })+
    };
}

impl<'de> Visitor<'de> for ShapeSeed<'_> {
    type Value = Shape;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("YAML")
    }

    scalars!(
        visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_i128: i128, visit_u128: u128, visit_f64: f64,
        visit_str: &str,
    );

    fn visit_none<E>(self) -> Result<Shape, E> {
        Ok(Shape::Null)
    }

    fn visit_unit<E>(self) -> Result<Shape, E> {
        Ok(Shape::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Shape, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element_seed(self)? {
            items.push(item);
        }
        Ok(Shape::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Shape, A::Error> {
        let mut values = Vec::new();
        while access.next_key_seed(TextSeed)?.is_some() {
            values.push(access.next_value_seed(self)?);
        }
        Ok(Shape::Map(values))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, access: A) -> Result<Shape, A::Error> {
        let (_, value) = access.variant_seed(TextSeed)?;
        Ok(Shape::Tagged(Box::new(value.newtype_variant_seed(self)?)))
    }
}

/// Deserializes a scalar as text, without conversion.
struct TextSeed;

impl<'de> DeserializeSeed<'de> for TextSeed {
    type Value = String;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for TextSeed {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a plain key or text")
    }

    fn visit_str<E>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }
}

/// State that is collected while a tree is read.
struct YamlFindings {
    duplicates: Vec<String>,
    bytes_left: Cell<usize>,
}

/// Deserializes a node of a known shape.
struct TreeSeed<'s, 'd> {
    shape: &'s Shape,
    found: &'d mut YamlFindings,
}

impl<'de> DeserializeSeed<'de> for TreeSeed<'_, '_> {
    type Value = Yaml;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Yaml, D::Error> {
        match self.shape {
            Shape::Null => IgnoredAny::deserialize(deserializer).map(|_| Yaml::Null),
            Shape::Scalar => {
                let text = TextSeed.deserialize(deserializer)?;
                spend(&self.found.bytes_left, text.len())?;
                Ok(Yaml::Text(text))
            }
            Shape::List(_) => deserializer.deserialize_seq(self),
            Shape::Map(_) => deserializer.deserialize_map(self),
            Shape::Tagged(_) => deserializer.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for TreeSeed<'_, '_> {
    type Value = Yaml;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the same YAML again")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Yaml, A::Error> {
        let Self { shape: Shape::List(shapes), found } = self else { return Ok(Yaml::Null) };
        let mut items = Vec::with_capacity(shapes.len());
        for shape in shapes {
            let Some(item) = access.next_element_seed(TreeSeed { shape, found })? else { break };
            items.push(item);
        }
        Ok(Yaml::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Yaml, A::Error> {
        let Self { shape: Shape::Map(shapes), found } = self else { return Ok(Yaml::Null) };
        let mut entries: Vec<(String, Yaml)> = Vec::with_capacity(shapes.len());
        for shape in shapes {
            let Some(key) = access.next_key_seed(TextSeed)? else { break };
            spend(&found.bytes_left, key.len())?;
            let value = access.next_value_seed(TreeSeed { shape, found })?;
            if entries.iter().any(|(known, _)| *known == key) {
                found.duplicates.push(key);
            } else {
                entries.push((key, value));
            }
        }
        Ok(Yaml::Map(entries))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, access: A) -> Result<Yaml, A::Error> {
        let Self { shape: Shape::Tagged(shape), found } = self else { return Ok(Yaml::Null) };
        let (_, value) = access.variant_seed(TextSeed)?;
        value.newtype_variant_seed(TreeSeed { shape, found })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> String {
        serde_json::to_string(&parse(text).unwrap().0).unwrap()
    }

    #[test]
    fn scalars_stay_as_they_are_written() {
        assert_eq!(
            json("a: 1.10\nb: yes\nc: 0x1F\nd: 2024-01-02\ne: 'true'\nf: ~\ng:\nh: \"\"\n"),
            r#"{"a":"1.10","b":"yes","c":"0x1F","d":"2024-01-02","e":"true","f":null,"g":null,"h":""}"#
        );
        assert_eq!(
            json("a: [1.0, {b: 007}]\n1: x\ntrue: y\n"),
            r#"{"a":["1.0",{"b":"007"}],"1":"x","true":"y"}"#
        );
        assert_eq!(json("a: 123456789012345678901234567890\n"), r#"{"a":"123456789012345678901234567890"}"#);
        assert_eq!(json(""), "null");
        assert_eq!(json("just text"), r#""just text""#);
    }

    #[test]
    fn tags_and_anchors_are_seen_through() {
        assert_eq!(json("a: !custom hello\nb: &x hi\nc: *x\n"), r#"{"a":"hello","b":"hi","c":"hi"}"#);
        assert_eq!(json("a: !!str 1.0\n"), r#"{"a":"1.0"}"#);
    }

    #[test]
    fn the_first_of_two_values_counts() {
        let (tree, duplicates) = parse("a: 1\nb: 2\na: 3\n").unwrap();
        assert_eq!(tree.get("a").and_then(Yaml::as_text), Some("1"));
        assert_eq!(duplicates, ["a"]);
    }

    #[test]
    fn wild_yaml_is_refused_fast() {
        let deep = format!("a: {}", "[".repeat(8_000));
        assert!(parse(&deep).unwrap_err().message.contains("nested"));
        assert!(parse(&"a: b\n".repeat(10_000)).unwrap_err().message.contains("bytes"));
        let mut bomb = "a0: &a0 [x, x]\n".to_owned();
        for i in 1..40 {
            bomb += &format!("a{i}: &a{i} [*a{0}, *a{0}, *a{0}, *a{0}]\n", i - 1);
        }
        assert!(parse(&bomb).is_err());
        let long = format!("x: &a \"{}\"\ny: [{}]\n", "x".repeat(7_000), "*a, ".repeat(1_500));
        assert!(parse(&long).unwrap_err().message.contains("aliases"));
        assert_eq!(parse("ok: 1\n\tbad: 2\n").unwrap_err().line, 2);
        for (name, wild) in [
            ("8,000 braces", format!("a: {}", "{a: ".repeat(8_000))),
            ("8,000 dashes", format!("a:\n  {}b", "- ".repeat(8_000))),
            ("8,000 questions", format!("a:\n  {}b", "? ".repeat(8_000))),
            ("an alias to itself", "a: &a [*a]\n".to_owned()),
            ("an alias to nothing", "a: *gone\n".to_owned()),
            ("a list that does not end", "a: [1, 2\n".to_owned()),
            ("a text that does not end", "a: \"b\n".to_owned()),
        ] {
            assert!(parse(&wild).is_err(), "{name}");
        }
    }
}
