//! Just enough JSON to read what the pages for clients say. Nothing here depends on other crates.

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    /// `null`, a number or a word, as it is written.
    Word(String),
    /// Text.
    Text(String),
    /// A list.
    List(Vec<Json>),
    /// An object, in its order.
    Object(Vec<(String, Json)>),
}

impl Json {
    /// Reads one value that is all of the text.
    pub fn read(text: &str) -> Result<Self, String> {
        let mut rest = text.trim();
        let value = value(&mut rest)?;
        if rest.trim().is_empty() { Ok(value) } else { Err(format!("more after the value: {rest:?}")) }
    }

    /// A field of an object.
    pub fn get(&self, name: &str) -> Option<&Self> {
        let Self::Object(fields) = self else { return None };
        fields.iter().find(|(field, _)| field == name).map(|(_, value)| value)
    }

    /// Text.
    pub fn text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    /// Everything in it, from the outside in.
    pub fn all(&self) -> Vec<&Self> {
        let mut all = vec![self];
        let mut at = 0;
        while let Some(next) = all.get(at).copied() {
            match next {
                Self::List(items) => all.extend(items),
                Self::Object(fields) => all.extend(fields.iter().map(|(_, value)| value)),
                Self::Word(_) | Self::Text(_) => {}
            }
            at += 1;
        }
        all
    }
}

fn value(rest: &mut &str) -> Result<Json, String> {
    *rest = rest.trim_start();
    match rest.chars().next() {
        Some('"') => text(rest).map(Json::Text),
        Some('[') => {
            let mut items = Vec::new();
            several(rest, ']', |rest| {
                items.push(value(rest)?);
                Ok(())
            })?;
            Ok(Json::List(items))
        }
        Some('{') => {
            let mut fields = Vec::new();
            several(rest, '}', |rest| {
                let name = text(rest)?;
                *rest = rest.trim_start();
                *rest = rest.strip_prefix(':').ok_or_else(|| format!("no : after {name:?}"))?;
                fields.push((name, value(rest)?));
                Ok(())
            })?;
            Ok(Json::Object(fields))
        }
        Some(_) => {
            let end = rest.find([',', ']', '}', ' ', '\n']).unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            *rest = after;
            if word.is_empty() {
                Err("a value is missing".to_owned())
            } else {
                Ok(Json::Word(word.to_owned()))
            }
        }
        None => Err("it ends in the middle".to_owned()),
    }
}

/// What stands between brackets, with commas between.
fn several(
    rest: &mut &str,
    close: char,
    mut one: impl FnMut(&mut &str) -> Result<(), String>,
) -> Result<(), String> {
    *rest = rest[1..].trim_start();
    if let Some(after) = rest.strip_prefix(close) {
        *rest = after;
        return Ok(());
    }
    loop {
        *rest = rest.trim_start();
        one(rest)?;
        *rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix(close) {
            *rest = after;
            return Ok(());
        }
        *rest = rest.strip_prefix(',').ok_or_else(|| format!("neither , nor {close} before {rest:?}"))?;
    }
}

fn text(rest: &mut &str) -> Result<String, String> {
    let mut chars = rest.strip_prefix('"').ok_or_else(|| format!("no text: {rest:?}"))?.char_indices();
    let mut text = String::new();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => {
                *rest = &rest[at + 2..];
                return Ok(text);
            }
            '\\' => match chars.next() {
                Some((_, 'n')) => text.push('\n'),
                Some((_, 't')) => text.push('\t'),
                Some((_, char @ ('"' | '\\' | '/'))) => text.push(char),
                Some((_, 'u')) => {
                    let digits: String = chars.by_ref().take(4).map(|(_, digit)| digit).collect();
                    let code = u32::from_str_radix(&digits, 16).map_err(|e| format!("\\u{digits}: {e}"))?;
                    text.push(char::from_u32(code).unwrap_or('\u{fffd}'));
                }
                other => return Err(format!("an escape that is not read here: {other:?}")),
            },
            char => text.push(char),
        }
    }
    Err("a text is not closed".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read() {
        let read = Json::read(r#" {"a": ["x\"\n\u0041", 1, true, {}], "b": {"c": "d"}} "#).unwrap();
        assert_eq!(read.get("b").and_then(|b| b.get("c")).and_then(Json::text), Some("d"));
        let Some(Json::List(items)) = read.get("a") else { panic!() };
        assert_eq!(items[0], Json::Text("x\"\nA".into()));
        assert_eq!((items.len(), read.all().len()), (4, 8));
        for wrong in ["{", "[1", "\"x", "{\"a\" 1}", "1 2", "", "[1,]"] {
            assert!(Json::read(wrong).is_err(), "{wrong}");
        }
    }
}
