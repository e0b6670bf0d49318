//! C++ text as tokens.

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Word,
    /// White space or a comment.
    Space,
    /// A line that begins with `#`.
    Directive,
    /// A literal, or a sign.
    Other,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Token<'a> {
    pub(crate) kind: Kind,
    pub(crate) text: &'a str,
}

/// Cuts C++ text into tokens; all of them together are the text.
pub(crate) fn tokens(source: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::with_capacity(source.len() / 4);
    let mut rest = source;
    let mut at_line_start = true;
    while let Some(first) = rest.chars().next() {
        let (kind, len) = match first {
            '#' if at_line_start => (Kind::Directive, rest.find('\n').unwrap_or(rest.len())),
            c if c.is_whitespace() => (Kind::Space, while_len(rest, char::is_whitespace)),
            c if is_word_start(c) => match string_prefix(rest) {
                Some(len) => (Kind::Other, len),
                None => (Kind::Word, while_len(rest, is_word)),
            },
            c if c.is_ascii_digit() => (Kind::Other, number_len(rest)),
            '"' | '\'' => (Kind::Other, quoted_len(rest, first)),
            _ if rest.starts_with("//") => (Kind::Space, rest.find('\n').unwrap_or(rest.len())),
            _ if rest.starts_with("/*") => {
                (Kind::Space, rest.get(2..).and_then(|r| r.find("*/")).map_or(rest.len(), |end| end + 4))
            }
            c => (Kind::Other, c.len_utf8()),
        };
        let (text, behind) = rest.split_at(len);
        if kind == Kind::Space {
            at_line_start = text.contains('\n') || (at_line_start && !text.contains('/'));
        } else {
            at_line_start = false;
        }
        tokens.push(Token { kind, text });
        rest = behind;
    }
    tokens
}

fn is_word_start(c: char) -> bool {
    c.is_alphabetic() || c == '_' || c == '$'
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '$'
}

fn while_len(text: &str, is: impl Fn(char) -> bool) -> usize {
    text.find(|c| !is(c)).unwrap_or(text.len())
}

/// The length of a number, with its separators and the signs of its exponent.
fn number_len(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut len = 1;
    while len < bytes.len() {
        let (last, this) = (bytes[len - 1], bytes[len]);
        let is_part = this.is_ascii_alphanumeric()
            || this == b'.'
            || this == b'_'
            || (this == b'\'' && bytes.get(len + 1).is_some_and(u8::is_ascii_alphanumeric))
            || (matches!(this, b'+' | b'-')
                && matches!(last, b'e' | b'E' | b'p' | b'P')
                && !text.starts_with("0x"));
        if !is_part {
            break;
        }
        len += 1;
    }
    len
}

/// The length of a literal in quotes, from the opening one on.
fn quoted_len(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The length of a string or character with a prefix, such as `L"text"` or `R"(text)"`; none if it is a word.
fn string_prefix(text: &str) -> Option<usize> {
    let prefix = while_len(text, is_word);
    let quote = text[prefix..].chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let (word, literal) = text.split_at(prefix);
    match word {
        "R" | "LR" | "uR" | "UR" | "u8R" if quote == '"' => {
            let delimiter = literal[1..].split('(').next()?;
            let end = format!("){delimiter}\"");
            Some(literal.find(&end).map_or(text.len(), |at| prefix + at + end.len()))
        }
        "L" | "u" | "U" | "u8" => Some(prefix + quoted_len(literal, quote)),
        _ => None,
    }
}
