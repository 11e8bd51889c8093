//! Reads the little Rust that simple tests are written in: no types, no closures, no matching. What is not read is an
//! error, never a guess.

use std::collections::BTreeMap;

/// Why something was not read.
pub type Unread = String;

/// A piece of the text.
#[derive(Clone, Debug, PartialEq)]
pub enum Token {
    /// A name, or a word of the language.
    Name(String),
    /// Text, or bytes.
    Text(Vec<u8>),
    /// A number.
    Number(i128),
    /// A mark.
    Mark(&'static str),
    /// The name of a lifetime.
    Lifetime,
}

const MARKS: &[&str] = &[
    "..=", "...", "::", "->", "=>", "==", "!=", "<=", ">=", "&&", "||", "+=", "-=", "..", "(", ")", "[", "]",
    "{", "}", "<", ">", "=", "!", "&", "|", "+", "-", "*", "/", "%", "^", ".", ",", ";", ":", "#", "?", "@",
    "$", "~",
];

/// Cuts a file into pieces.
pub fn tokens(text: &str) -> Result<Vec<Token>, Unread> {
    let mut all = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if first.is_whitespace() {
            rest = &rest[first.len_utf8()..];
        } else if rest.starts_with("//") {
            rest = rest.split_once('\n').map_or("", |(_, rest)| rest);
        } else if rest.starts_with("/*") {
            rest = rest.split_once("*/").map_or("", |(_, rest)| rest);
        } else if let Some((token, left)) = literal(rest)? {
            all.push(token);
            rest = left;
        } else if first.is_alphabetic() || first == '_' {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            all.push(Token::Name(rest[..end].to_owned()));
            rest = &rest[end..];
        } else if first.is_ascii_digit() {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            all.push(Token::Number(number(&rest[..end])?));
            rest = &rest[end..];
        } else {
            let mark =
                MARKS.iter().find(|mark| rest.starts_with(**mark)).ok_or(format!("the mark {first:?}"))?;
            all.push(Token::Mark(mark));
            rest = &rest[mark.len()..];
        }
    }
    Ok(all)
}

fn number(text: &str) -> Result<i128, Unread> {
    let plain = text.replace('_', "");
    let (digits, base) = match plain.get(..2) {
        Some("0x") => (&plain[2..], 16),
        Some("0o") => (&plain[2..], 8),
        Some("0b") => (&plain[2..], 2),
        _ => (plain.as_str(), 10),
    };
    let end = digits.find(|c: char| !c.is_digit(base)).unwrap_or(digits.len());
    i128::from_str_radix(&digits[..end], base).map_err(|_| format!("the number {text}"))
}

/// Text, bytes or a character, if one begins here.
fn literal(rest: &str) -> Result<Option<(Token, &str)>, Unread> {
    let plain = rest.strip_prefix('b').or_else(|| rest.strip_prefix('c')).unwrap_or(rest);
    if let Some(raw) = plain.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if let Some(body) = raw[hashes..].strip_prefix('"') {
            let close = format!("\"{}", "#".repeat(hashes));
            let (content, left) = body.split_once(close.as_str()).ok_or("text without an end")?;
            return Ok(Some((Token::Text(content.as_bytes().to_vec()), left)));
        }
    }
    if let Some(body) = plain.strip_prefix('"') {
        let (content, left) = quoted(body, '"')?;
        return Ok(Some((Token::Text(content), left)));
    }
    if let Some(body) = plain.strip_prefix('\'') {
        let mut chars = body.chars();
        let (one, two) = (chars.next(), chars.next());
        if one == Some('\\') || two == Some('\'') {
            let (content, left) = quoted(body, '\'')?;
            let token = if plain.len() == rest.len() {
                Token::Text(content)
            } else {
                Token::Number(i128::from(*content.first().ok_or("an empty character")?))
            };
            return Ok(Some((token, left)));
        }
        let end = body.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(body.len());
        return Ok(Some((Token::Lifetime, &body[end..])));
    }
    Ok(None)
}

fn quoted(body: &str, close: char) -> Result<(Vec<u8>, &str), Unread> {
    let mut content = Vec::new();
    let mut chars = body.char_indices();
    while let Some((at, c)) = chars.next() {
        if c == close {
            return Ok((content, &body[at + 1..]));
        }
        if c != '\\' {
            content.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            continue;
        }
        let (_, escaped) = chars.next().ok_or("text without an end")?;
        match escaped {
            'n' => content.push(b'\n'),
            't' => content.push(b'\t'),
            'r' => content.push(b'\r'),
            '0' => content.push(0),
            '\\' | '"' | '\'' => content.push(escaped as u8),
            'x' => {
                let digits: String = chars.by_ref().take(2).map(|(_, c)| c).collect();
                content.push(u8::from_str_radix(&digits, 16).map_err(|_| "an escape".to_owned())?);
            }
            'u' => {
                let digits: String =
                    chars.by_ref().map(|(_, c)| c).take_while(|c| *c != '}').filter(|c| *c != '{').collect();
                let code = u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32);
                let c = code.ok_or("an escape")?;
                content.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            }
            '\n' => {
                while chars.as_str().starts_with(char::is_whitespace) {
                    chars.next();
                }
            }
            other => return Err(format!("the escape {other:?}")),
        }
    }
    Err("text without an end".into())
}

/// Something that has a value.
#[derive(Clone, Debug)]
pub enum Expr {
    /// Text or bytes.
    Text(Vec<u8>),
    /// A number.
    Number(i128),
    /// True or false.
    Truth(bool),
    /// A name, with what leads to it.
    Path(Vec<String>),
    /// A call of a function.
    Call(Box<Expr>, Vec<Expr>),
    /// A call of a method.
    Method(Box<Expr>, String, Vec<Expr>),
    /// A field.
    Field(Box<Expr>, String),
    /// An element.
    Index(Box<Expr>, Box<Expr>),
    /// `!` or `-`.
    Unary(&'static str, Box<Expr>),
    /// Two, and a mark between them.
    Binary(&'static str, Box<Expr>, Box<Expr>),
    /// A list or a tuple.
    List(Vec<Expr>),
    /// So many of the same.
    Repeat(Box<Expr>, Box<Expr>),
    /// A macro.
    Macro(String, Vec<Expr>),
    /// Statements.
    Block(Vec<Statement>),
    /// One or the other.
    If(Box<Expr>, Vec<Statement>, Option<Box<Expr>>),
    /// Once for each.
    For(Pattern, Box<Expr>, Vec<Statement>),
    /// Another value for a name.
    Assign(Box<Expr>, Box<Expr>),
    /// The end of a function.
    Return(Option<Box<Expr>>),
}

/// What a value is taken apart by.
#[derive(Clone, Debug)]
pub enum Pattern {
    /// A name.
    Name(String),
    /// Several.
    Tuple(Vec<Pattern>),
}

/// One of several that follow each other.
#[derive(Clone, Debug)]
pub enum Statement {
    /// A new name.
    Let(Pattern, Expr),
    /// Something done, and whether its value is the block's.
    Expr(Expr, bool),
}

/// A function.
pub struct Function {
    /// Its name.
    pub name: String,
    /// Names of what it is given.
    pub parameters: Vec<String>,
    /// Its body, unread.
    pub body: Vec<Token>,
    /// Whether it is a test.
    pub test: bool,
    /// Whether the suite leaves it out.
    pub ignored: bool,
    /// Whether it is for this system.
    pub here: bool,
}

/// A file of tests.
#[derive(Default)]
pub struct File {
    /// Its functions, in order.
    pub functions: Vec<Function>,
    /// Its constants.
    pub constants: BTreeMap<String, Vec<Token>>,
}

/// Reads pieces one after the other.
pub struct Reader<'a> {
    tokens: &'a [Token],
    at: usize,
}

/// Reads what stands outside of functions.
pub fn file(text: &str) -> Result<File, Unread> {
    let all = tokens(text)?;
    let mut file = File::default();
    Reader::new(&all).items(&mut file, true)?;
    Ok(file)
}

#[derive(Default)]
struct Attributes {
    test: bool,
    ignored: bool,
    here: bool,
}

impl<'a> Reader<'a> {
    /// From the first one on.
    pub fn new(tokens: &'a [Token]) -> Self {
        Self { tokens, at: 0 }
    }

    fn peek(&self) -> Option<&'a Token> {
        self.tokens.get(self.at)
    }

    fn next(&mut self) -> Option<&'a Token> {
        let token = self.tokens.get(self.at);
        self.at += 1;
        token
    }

    fn is(&self, mark: &str) -> bool {
        matches!(self.peek(), Some(Token::Mark(found)) if *found == mark)
    }

    fn take(&mut self, mark: &str) -> bool {
        let is = self.is(mark);
        self.at += usize::from(is);
        is
    }

    fn expect(&mut self, mark: &str) -> Result<(), Unread> {
        if self.take(mark) { Ok(()) } else { Err(format!("{mark:?} was due, not {:?}", self.peek())) }
    }

    fn word(&mut self, word: &str) -> bool {
        let is = matches!(self.peek(), Some(Token::Name(found)) if found == word);
        self.at += usize::from(is);
        is
    }

    fn name(&mut self) -> Result<String, Unread> {
        match self.next() {
            Some(Token::Name(name)) => Ok(name.clone()),
            other => Err(format!("a name was due, not {other:?}")),
        }
    }

    /// What stands between this mark and the one that closes it.
    fn group(&mut self) -> Result<&'a [Token], Unread> {
        let (begin, mut depth) = (self.at + 1, 0_usize);
        loop {
            match self.next() {
                Some(Token::Mark("(" | "[" | "{")) => depth += 1,
                Some(Token::Mark(")" | "]" | "}")) => depth -= 1,
                Some(_) => {}
                None => return Err("a group without an end".into()),
            }
            if depth == 0 {
                return Ok(&self.tokens[begin..self.at - 1]);
            }
        }
    }

    /// Goes past what ends with `;` or a block.
    fn skip_item(&mut self) -> Result<(), Unread> {
        loop {
            match self.peek() {
                None => return Ok(()),
                Some(Token::Mark(";")) => {
                    self.at += 1;
                    return Ok(());
                }
                Some(Token::Mark("{")) => {
                    self.group()?;
                    // `use a::{b};` goes on.
                    self.take(";");
                    return Ok(());
                }
                Some(Token::Mark("(" | "[")) => drop(self.group()?),
                Some(_) => self.at += 1,
            }
        }
    }

    fn attributes(&mut self) -> Result<Attributes, Unread> {
        let mut all = Attributes { here: true, ..Attributes::default() };
        while self.is("#") {
            self.at += 1;
            self.take("!");
            let content = self.group()?;
            let mut inner = Reader::new(content);
            match content.first() {
                Some(Token::Name(name)) if name == "test" => all.test = true,
                Some(Token::Name(name)) if name == "ignore" || name == "should_panic" => all.ignored = true,
                Some(Token::Name(name)) if name == "cfg" => {
                    inner.at = 1;
                    let condition = inner.group()?;
                    all.here &= Reader::new(condition).condition()?;
                }
                Some(Token::Name(name))
                    if name == "cfg_attr" && content.contains(&Token::Name("ignore".into())) =>
                {
                    inner.at = 1;
                    let condition = inner.group()?;
                    all.ignored |= Reader::new(condition).condition()?;
                }
                _ => {}
            }
        }
        Ok(all)
    }

    /// What holds of this system: Linux on glibc, with all that the suite can be built with but other systems' things.
    fn condition(&mut self) -> Result<bool, Unread> {
        let name = self.name()?;
        if self.is("(") {
            let inner = self.group()?;
            let mut reader = Reader::new(inner);
            let mut all = Vec::new();
            while reader.peek().is_some() {
                all.push(reader.condition()?);
                reader.take(",");
            }
            return match name.as_str() {
                "not" => Ok(!all.first().copied().unwrap_or(false)),
                "any" => Ok(all.contains(&true)),
                "all" => Ok(!all.contains(&false)),
                other => Err(format!("the condition {other}")),
            };
        }
        if self.take("=") {
            let Some(Token::Text(value)) = self.next() else { return Err(format!("the condition {name}")) };
            let value = String::from_utf8_lossy(value);
            return Ok(match name.as_str() {
                "target_os" => value == "linux",
                "target_family" => value == "unix",
                "target_env" => value == "gnu",
                "target_arch" => value == std::env::consts::ARCH,
                "target_pointer_width" => value == "64",
                "target_endian" => value == "little",
                "feature" => {
                    !["selinux", "smack", "feat_selinux", "test_risky_names"].contains(&value.as_ref())
                }
                _ => false,
            });
        }
        Ok(matches!(name.as_str(), "unix" | "true" | "test" | "debug_assertions"))
    }

    fn items(&mut self, file: &mut File, here: bool) -> Result<(), Unread> {
        while self.peek().is_some() {
            let attributes = self.attributes()?;
            while self.word("pub") {
                if self.is("(") {
                    self.group()?;
                }
            }
            let here = here && attributes.here;
            if self.word("fn") || (self.word("unsafe") && self.word("fn")) {
                let name = self.name()?;
                while !self.is("(") {
                    self.at += 1;
                    if self.peek().is_none() {
                        return Err(format!("the function {name}"));
                    }
                }
                let parameters = parameters(self.group()?);
                while !self.is("{") {
                    self.at += 1;
                    if self.peek().is_none() {
                        return Err(format!("the function {name}"));
                    }
                }
                let body = self.group()?.to_vec();
                let Attributes { test, ignored, .. } = attributes;
                file.functions.push(Function { name, parameters, body, test, ignored, here });
            } else if self.word("static") || self.word("const") {
                let begin = self.at;
                self.skip_to_semicolon()?;
                let all = &self.tokens[begin..self.at - 1];
                let equals = all.iter().position(|token| *token == Token::Mark("="));
                if let (Some(Token::Name(name)), Some(equals)) = (all.first(), equals)
                    && here
                {
                    file.constants.insert(name.clone(), all[equals + 1..].to_vec());
                }
            } else if self.word("mod") {
                self.name()?;
                if !self.take(";") {
                    let inner = self.group()?;
                    Reader::new(inner).items(file, here)?;
                }
            } else if self.word("use") {
                self.skip_to_semicolon()?;
            } else {
                self.skip_item()?;
            }
        }
        Ok(())
    }

    fn skip_to_semicolon(&mut self) -> Result<(), Unread> {
        loop {
            match self.peek() {
                None => return Err("no end of a statement".into()),
                Some(Token::Mark("(" | "[" | "{")) => drop(self.group()?),
                Some(Token::Mark(";")) => {
                    self.at += 1;
                    return Ok(());
                }
                Some(_) => self.at += 1,
            }
        }
    }

    /// Statements to the end.
    pub fn statements(&mut self) -> Result<Vec<Statement>, Unread> {
        let mut all = Vec::new();
        while self.peek().is_some() {
            if self.take(";") {
                continue;
            }
            let attributes = self.attributes()?;
            if self.word("use") {
                self.skip_to_semicolon()?;
                continue;
            }
            let statement = self.statement()?;
            if attributes.here {
                all.push(statement);
            }
        }
        Ok(all)
    }

    fn statement(&mut self) -> Result<Statement, Unread> {
        if self.word("let") || self.word("const") || self.word("static") {
            let pattern = self.pattern()?;
            if self.take(":") {
                self.skip_type();
            }
            self.expect("=")?;
            let value = self.expression()?;
            self.expect(";")?;
            return Ok(Statement::Let(pattern, value));
        }
        for word in ["fn", "match", "while", "loop", "struct", "unsafe", "macro_rules", "break", "continue"] {
            if matches!(self.peek(), Some(Token::Name(name)) if name == word) {
                return Err(format!("`{word}`"));
            }
        }
        let value = self.expression()?;
        let is_block = matches!(value, Expr::Block(_) | Expr::If(..) | Expr::For(..));
        let last = self.peek().is_none();
        if !self.take(";") && !is_block && !last {
            return Err(format!("a statement goes on with {:?}", self.peek()));
        }
        Ok(Statement::Expr(value, last))
    }

    fn pattern(&mut self) -> Result<Pattern, Unread> {
        while self.word("mut") || self.word("ref") || self.take("&") {}
        if self.is("(") {
            let inner = self.group()?;
            let mut reader = Reader::new(inner);
            let mut all = Vec::new();
            while reader.peek().is_some() {
                all.push(reader.pattern()?);
                reader.take(",");
            }
            return Ok(Pattern::Tuple(all));
        }
        let name = self.name()?;
        if self.is("(") || self.is("{") || self.is("::") {
            return Err(format!("the pattern {name}"));
        }
        Ok(Pattern::Name(name))
    }

    /// Goes past a type.
    fn skip_type(&mut self) {
        let mut angles = 0_i32;
        while let Some(token) = self.peek() {
            match token {
                Token::Mark("<") => angles += 1,
                Token::Mark(">") => angles -= 1,
                Token::Mark("=" | ";" | "," | ")" | "{") if angles == 0 => return,
                Token::Mark("(" | "[") => {
                    if self.group().is_err() {
                        return;
                    }
                    continue;
                }
                _ => {}
            }
            self.at += 1;
        }
    }

    fn block(&mut self) -> Result<Vec<Statement>, Unread> {
        if !self.is("{") {
            return Err(format!("a block was due, not {:?}", self.peek()));
        }
        let inner = self.group()?;
        Reader::new(inner).statements()
    }

    /// Several, with commas between them.
    fn list(tokens: &[Token]) -> Result<Vec<Expr>, Unread> {
        let mut reader = Reader::new(tokens);
        let mut all = Vec::new();
        while reader.peek().is_some() {
            reader.attributes()?;
            all.push(reader.expression()?);
            if !reader.take(",") && reader.peek().is_some() {
                return Err(format!("a list goes on with {:?}", reader.peek()));
            }
        }
        Ok(all)
    }

    /// A value.
    pub fn expression(&mut self) -> Result<Expr, Unread> {
        let left = self.binary(0)?;
        if self.take("=") {
            return Ok(Expr::Assign(Box::new(left), Box::new(self.expression()?)));
        }
        if self.take("+=") {
            let more = Expr::Binary("+", Box::new(left.clone()), Box::new(self.expression()?));
            return Ok(Expr::Assign(Box::new(left), Box::new(more)));
        }
        Ok(left)
    }

    fn binary(&mut self, least: u8) -> Result<Expr, Unread> {
        let mut left = self.unary()?;
        while let Some(Token::Mark(mark)) = self.peek() {
            let level = match *mark {
                ".." | "..=" => 1,
                "||" => 2,
                "&&" => 3,
                "==" | "!=" | "<" | ">" | "<=" | ">=" => 4,
                "|" => 5,
                "&" => 6,
                "+" | "-" => 7,
                "*" | "/" | "%" => 8,
                _ => break,
            };
            if level <= least {
                break;
            }
            self.at += 1;
            let right = self.binary(level)?;
            left = Expr::Binary(mark, Box::new(left), Box::new(right));
        }
        Ok(left)
    }

    fn unary(&mut self) -> Result<Expr, Unread> {
        // What a reference leads to is the same to us.
        while self.take("&") || self.take("&&") || self.take("*") {
            self.word("mut");
        }
        for mark in ["!", "-"] {
            if self.take(mark) {
                return Ok(Expr::Unary(mark, Box::new(self.unary()?)));
            }
        }
        let mut value = self.primary()?;
        loop {
            if self.take("?") {
                continue;
            }
            if self.word("as") {
                self.name()?;
                continue;
            }
            if self.is("[") {
                let inner = self.group()?;
                let mut reader = Reader::new(inner);
                let index = reader.expression()?;
                if reader.peek().is_some() {
                    return Err("an index".into());
                }
                value = Expr::Index(Box::new(value), Box::new(index));
                continue;
            }
            if self.is("(") && matches!(value, Expr::Path(_)) {
                value = Expr::Call(Box::new(value), Self::list(self.group()?)?);
                continue;
            }
            if !self.take(".") {
                return Ok(value);
            }
            let name = match self.next() {
                Some(Token::Name(name)) => name.clone(),
                Some(Token::Number(number)) => number.to_string(),
                other => return Err(format!("a field was due, not {other:?}")),
            };
            if self.take("::") {
                self.generics()?;
            }
            value = if self.is("(") {
                Expr::Method(Box::new(value), name, Self::list(self.group()?)?)
            } else {
                Expr::Field(Box::new(value), name)
            };
        }
    }

    fn generics(&mut self) -> Result<(), Unread> {
        self.expect("<")?;
        let mut depth = 1;
        while depth > 0 {
            match self.next() {
                Some(Token::Mark("<")) => depth += 1,
                Some(Token::Mark(">")) => depth -= 1,
                Some(_) => {}
                None => return Err("types without an end".into()),
            }
        }
        Ok(())
    }

    fn primary(&mut self) -> Result<Expr, Unread> {
        match self.peek() {
            Some(Token::Text(text)) => {
                self.at += 1;
                Ok(Expr::Text(text.clone()))
            }
            Some(Token::Number(number)) => {
                self.at += 1;
                Ok(Expr::Number(*number))
            }
            Some(Token::Mark("(")) => {
                let inner = self.group()?;
                let mut all = Self::list(inner)?;
                let one = all.len() == 1 && inner.last() != Some(&Token::Mark(","));
                Ok(if one { all.remove(0) } else { Expr::List(all) })
            }
            Some(Token::Mark("[")) => {
                let inner = self.group()?;
                let mut reader = Reader::new(inner);
                if reader.peek().is_some() && !matches!(inner.first(), Some(Token::Mark("#"))) {
                    let first = reader.expression()?;
                    if reader.take(";") {
                        return Ok(Expr::Repeat(Box::new(first), Box::new(reader.expression()?)));
                    }
                }
                Ok(Expr::List(Self::list(inner)?))
            }
            Some(Token::Mark("{")) => Ok(Expr::Block(self.block()?)),
            Some(Token::Name(name)) => self.named(name),
            other => Err(format!("a value was due, not {other:?}")),
        }
    }

    fn named(&mut self, name: &str) -> Result<Expr, Unread> {
        match name {
            "true" | "false" => {
                self.at += 1;
                return Ok(Expr::Truth(name == "true"));
            }
            "if" => {
                self.at += 1;
                if self.word("let") {
                    return Err("`if let`".into());
                }
                let condition = self.expression()?;
                let then = self.block()?;
                let otherwise = if !self.word("else") {
                    None
                } else if matches!(self.peek(), Some(Token::Name(word)) if word == "if") {
                    Some(Box::new(self.named("if")?))
                } else {
                    Some(Box::new(Expr::Block(self.block()?)))
                };
                return Ok(Expr::If(Box::new(condition), then, otherwise));
            }
            "for" => {
                self.at += 1;
                let pattern = self.pattern()?;
                if !self.word("in") {
                    return Err("`for`".into());
                }
                let over = self.expression()?;
                return Ok(Expr::For(pattern, Box::new(over), self.block()?));
            }
            "return" => {
                self.at += 1;
                let none = self.is(";") || self.peek().is_none();
                let value = if none { None } else { Some(Box::new(self.expression()?)) };
                return Ok(Expr::Return(value));
            }
            "match" | "unsafe" | "move" | "while" | "loop" | "async" => return Err(format!("`{name}`")),
            _ => {}
        }
        let mut path = vec![self.name()?];
        while self.take("::") {
            if self.is("<") {
                self.generics()?;
            } else {
                path.push(self.name()?);
            }
        }
        if self.is("!") && matches!(self.tokens.get(self.at + 1), Some(Token::Mark("(" | "[" | "{"))) {
            self.at += 1;
            let inner = self.group()?;
            let name = path.pop().unwrap_or_default();
            if name == "cfg" {
                return Ok(Expr::Truth(Reader::new(inner).condition()?));
            }
            if name == "vec" && inner.contains(&Token::Mark(";")) {
                let mut reader = Reader::new(inner);
                let first = reader.expression()?;
                if reader.take(";") {
                    return Ok(Expr::Repeat(Box::new(first), Box::new(reader.expression()?)));
                }
            }
            return Ok(Expr::Macro(name, Self::list(inner)?));
        }
        Ok(Expr::Path(path))
    }
}

fn parameters(tokens: &[Token]) -> Vec<String> {
    let mut reader = Reader::new(tokens);
    let mut all = Vec::new();
    while reader.peek().is_some() {
        while reader.word("mut") {}
        let Ok(name) = reader.name() else { return all };
        all.push(name);
        reader.take(":");
        reader.skip_type();
        reader.take(",");
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_found_and_read() {
        let text = "use a::{b, c};\nstatic X: &str = \"x\\n\";\n#[cfg(windows)]\n#[test]\nfn no() {}\n\
                    #[test]\nfn yes() { for (a, b) in [(\"1\", 2)] { new_ucmd!().arg(a).succeeds().stdout_is(X); } }\n\
                    fn given(input: &[&str], n: usize) { f(|x| x) }";
        let file = file(text).unwrap();
        let names: Vec<_> = file.functions.iter().map(|f| (f.name.as_str(), f.test, f.here)).collect();
        assert_eq!(names, [("no", true, false), ("yes", true, true), ("given", false, true)]);
        assert!(Reader::new(&file.functions[1].body).statements().is_ok());
        assert_eq!(file.functions[2].parameters, ["input", "n"]);
        assert!(Reader::new(&file.functions[2].body).statements().is_err());
        assert_eq!(file.constants["X"], [Token::Text(b"x\n".to_vec())]);
    }
}
