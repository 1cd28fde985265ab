//! Quoted scalars of strict YAML, parsed line by line.

/// Folds line breaks: a single break becomes a space, and `blank` empty lines become that many line breaks.
pub(super) fn fold(text: &mut String, blank: usize) {
    match blank {
        0 => text.push(' '),
        lines => text.extend(std::iter::repeat_n('\n', lines)),
    }
}

/// A quoted scalar that is parsed line by line.
pub(super) struct Quoted {
    quote: char,
    pub(super) text: String,
    /// The offset in `text` that trailing spaces of the current line may be trimmed back to.
    kept: usize,
    blank: usize,
    first: bool,
    escaped_break: bool,
}

impl Quoted {
    pub(super) fn new(quote: char) -> Self {
        Self { quote, text: String::new(), kept: 0, blank: 0, first: true, escaped_break: false }
    }

    /// Parses one line. Returns the offset after the closing quote, or `None` if the scalar continues on the
    /// next line.
    pub(super) fn feed(&mut self, line: &str) -> Result<Option<usize>, String> {
        let first = std::mem::take(&mut self.first);
        let content = if first { line } else { line.trim_start_matches([' ', '\t']) };
        let offset = line.len() - content.len();
        if !first {
            if content.is_empty() {
                self.blank += 1;
                return Ok(None);
            }
            if !std::mem::take(&mut self.escaped_break) || self.blank > 0 {
                fold(&mut self.text, self.blank);
            }
            self.blank = 0;
            self.kept = self.text.len();
        }
        let mut chars = content.char_indices().peekable();
        while let Some((at, c)) = chars.next() {
            match c {
                '\'' if self.quote == '\'' => {
                    if chars.next_if(|(_, next)| *next == '\'').is_none() {
                        return Ok(Some(offset + at + 1));
                    }
                    self.text.push('\'');
                    self.kept = self.text.len();
                }
                '"' if self.quote == '"' => return Ok(Some(offset + at + 1)),
                '\\' if self.quote == '"' => {
                    let Some((_, escape)) = chars.next() else {
                        self.escaped_break = true;
                        self.kept = self.text.len();
                        break;
                    };
                    self.escape(escape, &mut chars)?;
                    self.kept = self.text.len();
                }
                c => self.text.push(c),
            }
        }
        // Trailing spaces are not part of the text.
        let trimmed = self.text[self.kept..].trim_end_matches([' ', '\t']).len();
        self.text.truncate(self.kept + trimmed);
        Ok(None)
    }

    fn escape(
        &mut self,
        escape: char,
        chars: &mut std::iter::Peekable<std::str::CharIndices<'_>>,
    ) -> Result<(), String> {
        let mut hex = |digits: usize| {
            let mut code = 0u32;
            for _ in 0..digits {
                let digit = chars.next().and_then(|(_, c)| c.to_digit(16));
                code = code.wrapping_mul(16)
                    + digit.ok_or_else(|| format!("`\\{escape}` needs {digits} hex digits"))?;
            }
            // An unpaired surrogate is not a character.
            Ok::<_, String>(char::from_u32(code).unwrap_or('\u{fffd}'))
        };
        self.text.push(match escape {
            'x' => hex(2)?,
            'u' => hex(4)?,
            'U' => hex(8)?,
            '0' => '\0',
            'a' => '\u{7}',
            'b' => '\u{8}',
            't' | '\t' => '\t',
            'n' => '\n',
            'v' => '\u{b}',
            'f' => '\u{c}',
            'r' => '\r',
            'e' => '\u{1b}',
            ' ' | '"' | '/' | '\\' => escape,
            'N' => '\u{85}',
            '_' => '\u{a0}',
            'L' => '\u{2028}',
            'P' => '\u{2029}',
            other => return Err(format!("`\\{other}` is not an escape")),
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(quote: char, lines: &[&str]) -> Result<Option<String>, String> {
        let mut quoted = Quoted::new(quote);
        for line in lines {
            if quoted.feed(line)?.is_some() {
                return Ok(Some(quoted.text));
            }
        }
        Ok(None)
    }

    #[test]
    fn quotes_escapes_and_folds() {
        let check = |quote, lines: &[&str], expected: &str| {
            assert_eq!(read(quote, lines), Ok(Some(expected.to_owned())), "{lines:?}");
        };
        check('\'', &["it''s' rest"], "it's");
        check('"', &["a\\n\\u00e9\\x41\\\"\""], "a\né\u{41}\"");
        check('"', &["one  ", "  two", "", "three\""], "one two\nthree");
        check('"', &["one\\", "  two\""], "onetwo");
        check('"', &["\\ud83e\""], "\u{fffd}");
        assert_eq!(read('"', &["never closed"]), Ok(None));
        assert!(read('"', &["\\q\""]).is_err());
        assert!(read('"', &["\\u12\""]).is_err());
    }
}
