//! The by-util tests of the crate `coreutils` for the commands that the reference names: what each test does is read from its
//! source and done here, with our command in place of theirs.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use futures_util::StreamExt;

use crate::rust::{self, Expr, File, Function, Pattern, Reader, Statement, Unread};
use crate::world::{Call, HOME, Ran, Room, World, argv, shown};
use crate::{AT_ONCE, Asked, Case, Went};

/// The commands. `which` is no part of that crate.
const COMMANDS: [&str; 19] = [
    "echo", "cat", "ls", "mkdir", "rm", "cp", "mv", "pwd", "env", "head", "tail", "wc", "sort", "touch",
    "true", "false", "test", "basename", "dirname",
];

/// Time of one command.
const LIMIT: Duration = Duration::from_secs(20);

/// Longest wait that a test may ask for.
const MAX_WAIT: Duration = Duration::from_secs(2);

/// Most commands of one test.
const MAX_RUNS: u32 = 300;

/// Most steps of one test.
const MAX_STEPS: u32 = 200_000;

/// What a name stands for.
#[derive(Clone, Debug)]
enum Value {
    Nothing,
    Truth(bool),
    Number(i128),
    Text(Vec<u8>),
    List(Vec<Value>),
    /// A folder that commands run in, and the command that is tested there.
    Scene(Rc<Scene>),
    /// Its files.
    At(Rc<Scene>),
    /// A command that is being put together.
    Command(Rc<RefCell<Pending>>),
    /// One that ran.
    Ran(Rc<Done>),
    /// What is known of a file.
    About(Rc<std::fs::Metadata>),
    /// A file on the host that is open for more.
    Open(Rc<PathBuf>),
}

#[derive(Debug)]
struct Scene {
    /// Its folder below the home.
    folder: String,
    /// Its folder on the host.
    host: PathBuf,
    command: String,
}

#[derive(Debug)]
struct Pending {
    scene: Rc<Scene>,
    words: Vec<Vec<u8>>,
    env: Vec<(String, String)>,
    input: Vec<u8>,
    cwd: Option<String>,
}

#[derive(Debug)]
struct Done {
    command: String,
    scene: Rc<Scene>,
    ran: Ran,
}

/// Why a test goes no further.
enum Stop {
    Unread(Unread),
    Return(Value),
}

impl From<Unread> for Stop {
    fn from(what: Unread) -> Self {
        Self::Unread(what)
    }
}

impl From<&str> for Stop {
    fn from(what: &str) -> Self {
        Self::Unread(what.to_owned())
    }
}

type Done_<T = Value> = Result<T, Stop>;

/// Runs one test.
struct Machine<'a> {
    file: &'a File,
    command: &'a str,
    room: &'a Room,
    runtime: tokio::runtime::Handle,
    fixtures: &'a Path,
    names: RefCell<Vec<HashMap<String, Value>>>,
    scenes: Cell<u32>,
    runs: Cell<u32>,
    steps: Cell<u32>,
    failed: RefCell<Option<String>>,
}

/// How a name is bound to what it stands for.
fn same(one: &Value, other: &Value) -> Done_<bool> {
    Ok(match (one, other) {
        (Value::Truth(one), Value::Truth(other)) => one == other,
        (Value::Number(one), Value::Number(other)) => one == other,
        (Value::Text(one), Value::Text(other)) => one == other,
        (Value::List(one), Value::List(other)) => {
            let mut equal = one.len() == other.len();
            for (one, other) in one.iter().zip(other) {
                equal &= same(one, other)?;
            }
            equal
        }
        _ => return Err("a comparison of other things".into()),
    })
}

fn text(value: &Value) -> Done_<Vec<u8>> {
    match value {
        Value::Text(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string().into_bytes()),
        _ => Err("something in place of text".into()),
    }
}

fn string(value: &Value) -> Done_<String> {
    String::from_utf8(text(value)?).map_err(|_| "text that is not UTF-8".into())
}

fn truth(value: &Value) -> Done_<bool> {
    if let Value::Truth(truth) = value { Ok(*truth) } else { Err("something in place of a truth".into()) }
}

fn number(value: &Value) -> Done_<i128> {
    if let Value::Number(number) = value { Ok(*number) } else { Err("something in place of a number".into()) }
}

fn list(value: &Value) -> Done_<Vec<Value>> {
    if let Value::List(list) = value { Ok(list.clone()) } else { Err("something in place of a list".into()) }
}

fn texts(all: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Value {
    Value::List(all.into_iter().map(|one| Value::Text(one.as_ref().to_vec())).collect())
}

fn has(all: &[u8], part: &[u8]) -> bool {
    part.is_empty() || all.windows(part.len()).any(|window| window == part)
}

impl Scene {
    /// The path that a command knows a file by.
    fn inside(&self, path: &str) -> String {
        if path.starts_with('/') { path.to_owned() } else { format!("{HOME}/{}/{path}", self.folder) }
    }

    /// Where that lies on the host, through links that lead to where only commands see it.
    fn on_host(&self, path: &str, last_too: bool) -> Done_<PathBuf> {
        let mut todo: Vec<String> = self.inside(path).split('/').rev().map(str::to_owned).collect();
        let home = self.host.parent().unwrap_or(&self.host);
        let mut at: Vec<String> = Vec::new();
        let mut links = 0;
        while let Some(part) = todo.pop() {
            match part.as_str() {
                "" | "." => continue,
                ".." => drop(at.pop()),
                _ => at.push(part),
            }
            if at.len() <= 2 {
                continue;
            }
            let host = home.join(at[2..].join("/"));
            let more = !todo.iter().all(|part| part.is_empty());
            if let Ok(target) = std::fs::read_link(&host)
                && (more || last_too)
            {
                links += 1;
                if links > 40 {
                    return Ok(host);
                }
                at.pop();
                let target = target.to_string_lossy().into_owned();
                if target.starts_with('/') {
                    at.clear();
                }
                todo.extend(target.split('/').rev().map(str::to_owned));
            }
        }
        let inside: Vec<&str> = at.iter().map(String::as_str).collect();
        match inside.as_slice() {
            ["home", "sandbox", rest @ ..] => Ok(home.join(rest.join("/"))),
            _ => Err("a file outside of its folder".into()),
        }
    }
}

impl Machine<'_> {
    fn fail(&self, what: String) {
        // The first one says most; what follows is still read, so that it is known whether all of it can be.
        self.failed.borrow_mut().get_or_insert(what);
    }

    fn held(&self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.fail(what());
        }
    }

    fn scene(&self, command: &str) -> Done_<Rc<Scene>> {
        let number = self.scenes.get();
        self.scenes.set(number + 1);
        let folder = format!("s{number}");
        let host = self.room.home.join(&folder);
        copy_tree(&self.fixtures.join(command), &host)?;
        Ok(Rc::new(Scene { folder, host, command: command.to_owned() }))
    }

    fn pending(scene: &Rc<Scene>, command: &str) -> Value {
        Value::Command(Rc::new(RefCell::new(Pending {
            scene: Rc::clone(scene),
            words: vec![command.as_bytes().to_vec()],
            env: Vec::new(),
            input: Vec::new(),
            cwd: None,
        })))
    }

    fn block(&self, statements: &[Statement]) -> Done_ {
        self.names.borrow_mut().push(HashMap::new());
        let done = self.statements(statements);
        self.names.borrow_mut().pop();
        done
    }

    fn statements(&self, statements: &[Statement]) -> Done_ {
        let mut value = Value::Nothing;
        for statement in statements {
            value = match statement {
                Statement::Let(pattern, expr) => {
                    let made = self.eval(expr)?;
                    self.bind(pattern, made)?;
                    Value::Nothing
                }
                Statement::Expr(expr, last) => {
                    let made = self.eval(expr)?;
                    if *last { made } else { Value::Nothing }
                }
            };
        }
        Ok(value)
    }

    fn bind(&self, pattern: &Pattern, value: Value) -> Done_<()> {
        match pattern {
            Pattern::Name(name) => {
                if let Some(scope) = self.names.borrow_mut().last_mut() {
                    scope.insert(name.clone(), value);
                }
                Ok(())
            }
            Pattern::Tuple(parts) => {
                let values = list(&value)?;
                if values.len() != parts.len() {
                    return Err("a pattern that does not fit".into());
                }
                parts.iter().zip(values).try_for_each(|(part, value)| self.bind(part, value))
            }
        }
    }

    fn look_up(&self, name: &str) -> Option<Value> {
        self.names.borrow().iter().rev().find_map(|scope| scope.get(name).cloned())
    }

    fn set(&self, name: &str, value: Value) -> Done_<()> {
        for scope in self.names.borrow_mut().iter_mut().rev() {
            if let Some(found) = scope.get_mut(name) {
                *found = value;
                return Ok(());
            }
        }
        Err(Stop::Unread(format!("the name {name}")))
    }

    fn eval_all(&self, all: &[Expr]) -> Done_<Vec<Value>> {
        all.iter().map(|one| self.eval(one)).collect()
    }

    fn eval(&self, expr: &Expr) -> Done_ {
        self.steps.set(self.steps.get() + 1);
        if self.steps.get() > MAX_STEPS {
            return Err("more steps than a test takes".into());
        }
        Ok(match expr {
            Expr::Text(text) => Value::Text(text.clone()),
            Expr::Number(number) => Value::Number(*number),
            Expr::Truth(truth) => Value::Truth(*truth),
            Expr::List(all) => Value::List(self.eval_all(all)?),
            Expr::Repeat(one, count) => {
                let (one, count) = (self.eval(one)?, number(&self.eval(count)?)?);
                let count =
                    usize::try_from(count).ok().filter(|count| *count <= 1 << 20).ok_or("a long list")?;
                // Bytes that are alike are text.
                match one {
                    Value::Number(byte) if (0..256).contains(&byte) => Value::Text(vec![byte as u8; count]),
                    one => Value::List(vec![one; count]),
                }
            }
            Expr::Path(path) => self.path(path)?,
            Expr::Block(statements) => self.block(statements)?,
            Expr::If(condition, then, otherwise) => {
                if truth(&self.eval(condition)?)? {
                    self.block(then)?
                } else {
                    otherwise.as_ref().map_or(Ok(Value::Nothing), |otherwise| self.eval(otherwise))?
                }
            }
            Expr::For(pattern, over, body) => {
                for value in list(&self.eval(over)?)? {
                    self.names.borrow_mut().push(HashMap::new());
                    let done = self.bind(pattern, value).and_then(|()| self.block(body));
                    self.names.borrow_mut().pop();
                    done?;
                }
                Value::Nothing
            }
            Expr::Assign(left, right) => {
                let value = self.eval(right)?;
                match left.as_ref() {
                    Expr::Path(path) if path.len() == 1 => self.set(&path[0], value)?,
                    _ => return Err("an assignment".into()),
                }
                Value::Nothing
            }
            Expr::Return(value) => {
                let value = value.as_ref().map_or(Ok(Value::Nothing), |value| self.eval(value))?;
                return Err(Stop::Return(value));
            }
            Expr::Unary("!", value) => Value::Truth(!truth(&self.eval(value)?)?),
            Expr::Unary(_, value) => Value::Number(-number(&self.eval(value)?)?),
            Expr::Binary(mark, left, right) => self.binary(mark, left, right)?,
            Expr::Index(value, index) => {
                let at = usize::try_from(number(&self.eval(index)?)?).map_err(|_| "an index")?;
                list(&self.eval(value)?)?.get(at).cloned().ok_or("an index")?
            }
            Expr::Field(value, name) => self.field(&self.eval(value)?, name)?,
            Expr::Macro(name, arguments) => self.made(name, arguments)?,
            Expr::Call(function, arguments) => {
                let Expr::Path(path) = function.as_ref() else { return Err("a call".into()) };
                self.call(path, arguments)?
            }
            Expr::Method(value, name, arguments) => {
                let arguments = self.eval_all(arguments)?;
                // What changes a value in its place.
                if let (Expr::Path(path), "push_str" | "push" | "extend_from_slice", [more]) =
                    (value.as_ref(), name.as_str(), arguments.as_slice())
                    && path.len() == 1
                {
                    let changed = match self.look_up(&path[0]) {
                        Some(Value::Text(mut all)) => {
                            match more {
                                Value::Number(byte) => all.push(u8::try_from(*byte).map_err(|_| "a byte")?),
                                more => all.extend(text(more)?),
                            }
                            Value::Text(all)
                        }
                        Some(Value::List(mut all)) if name == "push" => {
                            all.push(more.clone());
                            Value::List(all)
                        }
                        _ => return Err("something that grows".into()),
                    };
                    self.set(&path[0], changed)?;
                    return Ok(Value::Nothing);
                }
                let value = self.eval(value)?;
                self.method(&value, name, &arguments)?
            }
        })
    }

    fn binary(&self, mark: &str, left: &Expr, right: &Expr) -> Done_ {
        let left = self.eval(left)?;
        if mark == "&&" || mark == "||" {
            let decided = truth(&left)? == (mark == "||");
            return if decided { Ok(left) } else { self.eval(right) };
        }
        let right = self.eval(right)?;
        Ok(match mark {
            "==" => Value::Truth(same(&left, &right)?),
            "!=" => Value::Truth(!same(&left, &right)?),
            "<" => Value::Truth(number(&left)? < number(&right)?),
            ">" => Value::Truth(number(&left)? > number(&right)?),
            "<=" => Value::Truth(number(&left)? <= number(&right)?),
            ">=" => Value::Truth(number(&left)? >= number(&right)?),
            ".." | "..=" => {
                let (begin, end) = (number(&left)?, number(&right)? + i128::from(mark == "..="));
                if end - begin > 100_000 {
                    return Err("a long range".into());
                }
                Value::List((begin..end).map(Value::Number).collect())
            }
            "+" if matches!(left, Value::Text(_)) => {
                let mut all = text(&left)?;
                all.extend(text(&right)?);
                Value::Text(all)
            }
            _ => {
                let (left, right) = (number(&left)?, number(&right)?);
                let done = match mark {
                    "+" => left.checked_add(right),
                    "-" => left.checked_sub(right),
                    "*" => left.checked_mul(right),
                    "/" => left.checked_div(right),
                    "%" => left.checked_rem(right),
                    "&" => Some(left & right),
                    "|" => Some(left | right),
                    _ => None,
                };
                Value::Number(done.ok_or("arithmetic")?)
            }
        })
    }

    fn path(&self, path: &[String]) -> Done_ {
        let name = path.last().map(String::as_str).unwrap_or_default();
        if path.len() == 1
            && let Some(value) = self.look_up(name)
        {
            return Ok(value);
        }
        if let Some(tokens) = self.file.constants.get(name) {
            return self.eval(&Reader::new(tokens).expression()?);
        }
        match path.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
            [.., "MAIN_SEPARATOR" | "MAIN_SEPARATOR_STR"] => Ok(Value::Text(b"/".to_vec())),
            [.., "u64" | "usize", "MAX"] => Ok(Value::Number(i128::from(u64::MAX))),
            _ => Err(Stop::Unread(format!("the name {}", path.join("::")))),
        }
    }

    fn field(&self, value: &Value, name: &str) -> Done_ {
        match (value, name) {
            (Value::Scene(scene), "fixtures") => Ok(Value::At(Rc::clone(scene))),
            (Value::Scene(scene), "util_name") => Ok(Value::Text(scene.command.clone().into_bytes())),
            (Value::At(scene), "subdir") => Ok(Value::Text(scene.inside("").trim_end_matches('/').into())),
            (Value::List(all), at) => {
                let at: usize = at.parse().map_err(|_| format!("the field {name}"))?;
                Ok(all.get(at).cloned().ok_or("a field")?)
            }
            _ => Err(Stop::Unread(format!("the field {name}"))),
        }
    }

    fn made(&self, name: &str, arguments: &[Expr]) -> Done_ {
        match name {
            "new_ucmd" => Ok(Self::pending(&self.scene(self.command)?, self.command)),
            "util_name" => Ok(Value::Text(self.command.as_bytes().to_vec())),
            "at_and_ucmd" => {
                let scene = self.scene(self.command)?;
                Ok(Value::List(vec![Value::At(Rc::clone(&scene)), Self::pending(&scene, self.command)]))
            }
            "at_and_ts" => {
                let scene = self.scene(self.command)?;
                Ok(Value::List(vec![Value::At(Rc::clone(&scene)), Value::Scene(scene)]))
            }
            "vec" => Ok(Value::List(self.eval_all(arguments)?)),
            "format" => self.format(arguments),
            "concat" => {
                let all: Vec<Vec<u8>> = self.eval_all(arguments)?.iter().map(text).collect::<Done_<_>>()?;
                Ok(Value::Text(all.concat()))
            }
            "println" | "eprintln" | "print" | "eprint" => Ok(Value::Nothing),
            "assert" => {
                let condition = arguments.first().ok_or("an assertion")?;
                let holds = truth(&self.eval(condition)?)?;
                self.held(holds, || format!("  does not hold: {}", brief(condition)));
                Ok(Value::Nothing)
            }
            "assert_eq" | "assert_ne" => {
                let [left, right, ..] = arguments else { return Err("an assertion".into()) };
                let (left, right) = (self.eval(left)?, self.eval(right)?);
                let holds = same(&left, &right)? == (name == "assert_eq");
                self.held(holds, || format!("  {name}: {}\n  and {}", seen(&left), seen(&right)));
                Ok(Value::Nothing)
            }
            _ => Err(Stop::Unread(format!("the macro {name}!"))),
        }
    }

    fn format(&self, arguments: &[Expr]) -> Done_ {
        let Some((Expr::Text(pattern), rest)) = arguments.split_first() else {
            return Err("a format without a pattern".into());
        };
        let pattern = String::from_utf8(pattern.clone()).map_err(|_| "a pattern")?;
        let (mut made, mut chars, mut next) = (Vec::new(), pattern.chars().peekable(), 0);
        while let Some(c) = chars.next() {
            match c {
                '{' if chars.peek() == Some(&'{') => {
                    chars.next();
                    made.push(b'{');
                }
                '}' => {
                    chars.next();
                    made.push(b'}');
                }
                '{' => {
                    let inner: String = chars.by_ref().take_while(|c| *c != '}').collect();
                    let value = if inner.is_empty() {
                        next += 1;
                        self.eval(rest.get(next - 1).ok_or("a pattern")?)?
                    } else if let Ok(at) = inner.parse::<usize>() {
                        self.eval(rest.get(at).ok_or("a pattern")?)?
                    } else if inner.chars().all(|c| c.is_alphanumeric() || c == '_') {
                        self.path(&[inner])?
                    } else {
                        return Err(Stop::Unread(format!("the pattern {{{inner}}}")));
                    };
                    made.extend(text(&value)?);
                }
                other => made.extend_from_slice(other.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        Ok(Value::Text(made))
    }

    fn call(&self, path: &[String], arguments: &[Expr]) -> Done_ {
        let words: Vec<&str> = path.iter().map(String::as_str).collect();
        if let [name] = words.as_slice()
            && let Some(function) = self.file.functions.iter().find(|f| f.name == *name && f.here && !f.test)
        {
            let values = self.eval_all(arguments)?;
            if values.len() != function.parameters.len() {
                return Err(Stop::Unread(format!("the function {name}")));
            }
            let body = Reader::new(&function.body).statements()?;
            let scope = function.parameters.iter().cloned().zip(values).collect();
            let outer = self.names.replace(vec![scope]);
            let done = self.block(&body);
            self.names.replace(outer);
            return match done {
                Err(Stop::Return(value)) => Ok(value),
                other => other,
            };
        }
        let values = self.eval_all(arguments)?;
        Ok(match (words.as_slice(), values.as_slice()) {
            ([.., "TestScenario", "new"], [command]) => Value::Scene(self.scene(&string(command)?)?),
            ([.., "String" | "OsString" | "PathBuf" | "OsStr" | "Path" | "str", "from" | "new"], [one]) => {
                Value::Text(text(one)?)
            }
            ([.., "from_utf8" | "from_utf8_lossy" | "from_bytes" | "from_vec"], [one]) => {
                Value::Text(text(one)?)
            }
            ([.., "String", "new"], []) => Value::Text(Vec::new()),
            ([.., "Vec", "new"], []) => Value::List(Vec::new()),
            (["Some" | "Ok"], [one]) => one.clone(),
            ([.., "Duration", "from_millis"], [one]) => one.clone(),
            ([.., "Duration", "from_secs"], [one]) => Value::Number(number(one)?.saturating_mul(1000)),
            ([.., "sleep"], [one]) => {
                let wait = Duration::from_millis(u64::try_from(number(one)?).unwrap_or(0));
                if wait > MAX_WAIT {
                    return Err("a long wait".into());
                }
                std::thread::sleep(wait);
                Value::Nothing
            }
            ([.., "Stdio", "null"], []) => Value::Nothing,
            ([.., "symlink"] | [.., "fs", "soft_link"], [target, link]) => {
                let link = self.host_of(&text(link)?)?;
                std::os::unix::fs::symlink(string(target)?, link).map_err(|e| Stop::Unread(e.to_string()))?;
                Value::Nothing
            }
            ([.., "metadata" | "symlink_metadata" | "read_link" | "read_to_string" | "read"], [path]) => {
                self.of_path(&text(path)?, words.last().copied().unwrap_or_default())?
            }
            ([.., "File", "create"], [path]) => {
                let path = self.host_of(&text(path)?)?;
                std::fs::write(&path, "").map_err(|e| Stop::Unread(e.to_string()))?;
                Value::Open(Rc::new(path))
            }
            ([.., "remove_file"], [path]) => {
                let path = self.host_of(&text(path)?)?;
                std::fs::remove_file(path).map_err(|e| Stop::Unread(e.to_string()))?;
                Value::Nothing
            }
            ([.., "create_dir" | "create_dir_all"], [path]) => {
                let path = self.host_of(&text(path)?)?;
                std::fs::create_dir_all(path).map_err(|e| Stop::Unread(e.to_string()))?;
                Value::Nothing
            }
            _ => return Err(Stop::Unread(format!("the function {}", path.join("::")))),
        })
    }

    fn method(&self, value: &Value, name: &str, arguments: &[Value]) -> Done_ {
        match value {
            Value::Scene(scene) => match (name, arguments) {
                ("ucmd", []) => Ok(Self::pending(scene, &scene.command)),
                ("cmd" | "ccmd", [command]) => Ok(Self::pending(scene, &string(command)?)),
                _ => Err(Stop::Unread(format!("the scene's {name}"))),
            },
            Value::At(scene) => at(scene, name, arguments),
            Value::Command(pending) => self.of_command(pending, name, arguments, value),
            Value::Ran(done) => self.of_ran(done, name, arguments, value),
            Value::About(about) => of_file(about, name, value),
            Value::Open(path) => of_open(path, name, arguments, value),
            Value::Text(path) if self.knows(path) && is_of_path(name) => self.of_path(path, name),
            Value::Text(all) => of_text(all, name, arguments),
            Value::List(all) => of_list(all, name, arguments),
            Value::Number(number) => match name {
                "to_string" => Ok(Value::Text(number.to_string().into_bytes())),
                "unwrap" | "into" | "clone" => Ok(value.clone()),
                "pow" => {
                    let [Value::Number(power)] = arguments else { return Err("a power".into()) };
                    let power = u32::try_from(*power).map_err(|_| "a power")?;
                    Ok(Value::Number(number.checked_pow(power).ok_or("a power")?))
                }
                _ => Err(Stop::Unread(format!("a number's {name}"))),
            },
            Value::Truth(_) | Value::Nothing => match name {
                "unwrap" | "expect" | "clone" => Ok(value.clone()),
                _ => Err(Stop::Unread(format!("{name} of nothing"))),
            },
        }
    }

    /// Whether a text is a path that a scene gave out.
    fn knows(&self, path: &[u8]) -> bool {
        path.starts_with(format!("{HOME}/s").as_bytes())
    }

    /// Where a path that a scene gave out lies on the host; the last part is not followed.
    fn host_of(&self, path: &[u8]) -> Done_<PathBuf> {
        if !self.knows(path) {
            return Err("a path of the machine".into());
        }
        let path = String::from_utf8(path.to_vec()).map_err(|_| "text that is not UTF-8")?;
        let scene = Scene { folder: String::new(), host: self.room.home.join("s"), command: String::new() };
        scene.on_host(&path, false)
    }

    fn of_path(&self, path: &[u8], name: &str) -> Done_ {
        let itself = self.host_of(path)?;
        let scene = Scene { folder: String::new(), host: self.room.home.join("s"), command: String::new() };
        let followed = scene.on_host(&String::from_utf8_lossy(path), true)?;
        let about = |found: std::io::Result<std::fs::Metadata>| {
            found.map_or(Value::Nothing, |found| Value::About(Rc::new(found)))
        };
        Ok(match name {
            "exists" => Value::Truth(followed.exists()),
            "is_file" => Value::Truth(followed.is_file()),
            "is_dir" => Value::Truth(followed.is_dir()),
            "is_symlink" => Value::Truth(itself.is_symlink()),
            "metadata" => about(std::fs::metadata(followed)),
            "symlink_metadata" => about(std::fs::symlink_metadata(itself)),
            "read_to_string" | "read" => {
                let content = std::fs::read(followed);
                Value::Text(content.unwrap_or_else(|_| b"(there is no such file)".to_vec()))
            }
            "read_link" => {
                let target = std::fs::read_link(itself).unwrap_or_default();
                Value::Text(target.to_string_lossy().into_owned().into_bytes())
            }
            _ => return Err(Stop::Unread(format!("a path's {name}"))),
        })
    }

    fn of_command(
        &self,
        pending: &Rc<RefCell<Pending>>,
        name: &str,
        arguments: &[Value],
        this: &Value,
    ) -> Done_ {
        match (name, arguments) {
            ("arg", [one]) => pending.borrow_mut().words.push(text(one)?),
            ("args", [Value::List(all)]) => {
                for one in all {
                    let word = text(one)?;
                    pending.borrow_mut().words.push(word);
                }
            }
            ("env", [name, value]) => {
                let pair = (string(name)?, string(value)?);
                pending.borrow_mut().env.push(pair);
            }
            ("pipe_in", [input]) => {
                let input = text(input)?;
                pending.borrow_mut().input = input;
            }
            ("pipe_in_fixture", [name]) => {
                let path = pending.borrow().scene.on_host(&string(name)?, true)?;
                pending.borrow_mut().input =
                    std::fs::read(path).map_err(|_| "a fixture that is not there")?;
            }
            ("set_stdin", [Value::Nothing]) | ("ignore_stdin_write_error", []) => {}
            ("timeout", [_]) => {}
            ("current_dir", [folder]) => {
                let folder = pending.borrow().scene.inside(&string(folder)?);
                let below = folder.strip_prefix(HOME).ok_or("a folder outside")?.trim_start_matches('/');
                pending.borrow_mut().cwd = Some(below.to_owned());
            }
            ("run", []) => return self.go(pending),
            ("succeeds", []) => {
                let done = self.go(pending)?;
                self.ended(&done, |code| code == 0, "0");
                return Ok(done);
            }
            ("fails", []) => {
                let done = self.go(pending)?;
                self.ended(&done, |code| code != 0, "not 0");
                return Ok(done);
            }
            ("fails_with_code", [code]) => {
                let (done, code) = (self.go(pending)?, number(code)?);
                self.ended(&done, |came| i128::from(came) == code, &code.to_string());
                return Ok(done);
            }
            _ => return Err(Stop::Unread(format!("a command's {name}"))),
        }
        Ok(this.clone())
    }

    fn ended(&self, done: &Value, good: impl Fn(i32) -> bool, expected: &str) {
        let Value::Ran(done) = done else { return };
        let ran = &done.ran;
        self.held(good(ran.code) && !ran.late, || {
            let errors = shown(&ran.stderr);
            format!(
                "  {}: status: expected {expected}\n  status: came     {} {errors}",
                done.command, ran.code
            )
        });
    }

    fn go(&self, pending: &Rc<RefCell<Pending>>) -> Done_ {
        self.runs.set(self.runs.get() + 1);
        if self.runs.get() > MAX_RUNS {
            return Err("more commands than a test runs".into());
        }
        let pending = pending.borrow();
        let words: Vec<String> = pending
            .words
            .iter()
            .map(|word| String::from_utf8(word.clone()).map_err(|_| "an argument that is not UTF-8".into()))
            .collect::<Done_<_>>()?;
        let command = words.join(" ").chars().take(200).collect();
        let mut env = vec![("LC_ALL".to_owned(), "C".to_owned())];
        env.extend(pending.env.iter().cloned());
        let call = Call {
            command: argv(words),
            cwd: pending.cwd.clone().unwrap_or_else(|| pending.scene.folder.clone()),
            env,
            input: pending.input.clone(),
            limit: LIMIT,
        };
        let ran = self.runtime.block_on(self.room.run(call));
        Ok(Value::Ran(Rc::new(Done { command, scene: Rc::clone(&pending.scene), ran })))
    }

    fn of_ran(&self, done: &Rc<Done>, name: &str, arguments: &[Value], this: &Value) -> Done_ {
        let Ran { code, stdout, stderr, .. } = &done.ran;
        let command = &done.command;
        let is = |stream: &str, came: &[u8], expected: &[u8]| {
            self.held(came == expected, || {
                let (expected, came) = (shown(expected), shown(came));
                format!("  {command}: {stream}: expected {expected}\n  {stream}: came     {came}")
            });
        };
        let with = |stream: &str, came: &[u8], part: &[u8], wanted: bool| {
            self.held(has(came, part) == wanted, || {
                let not = if wanted { "" } else { "not " };
                let (part, came) = (shown(part), shown(came));
                format!("  {command}: {stream}: {not}expected in it {part}\n  {stream}: came     {came}")
            });
        };
        match (name, arguments) {
            ("stdout_is" | "stdout_is_bytes" | "normalized_newlines_stdout_is", [one]) => {
                is("stdout", stdout, &text(one)?);
            }
            ("stderr_is" | "stderr_is_bytes", [one]) => is("stderr", stderr, &text(one)?),
            ("stdout_only" | "stdout_only_bytes", [one]) => {
                is("stdout", stdout, &text(one)?);
                is("stderr", stderr, b"");
            }
            ("stderr_only" | "stderr_only_bytes", [one]) => {
                is("stderr", stderr, &text(one)?);
                is("stdout", stdout, b"");
            }
            ("stdout_is_fixture" | "stdout_is_fixture_bytes" | "stdout_only_fixture", [name_of]) => {
                let path = done.scene.on_host(&string(name_of)?, true)?;
                is("stdout", stdout, &std::fs::read(path).map_err(|_| "a fixture that is not there")?);
                if name == "stdout_only_fixture" {
                    is("stderr", stderr, b"");
                }
            }
            ("no_stdout", []) => is("stdout", stdout, b""),
            ("no_stderr", []) => is("stderr", stderr, b""),
            ("no_output", []) => {
                is("stdout", stdout, b"");
                is("stderr", stderr, b"");
            }
            ("stdout_contains", [one]) => with("stdout", stdout, &text(one)?, true),
            ("stderr_contains", [one]) => with("stderr", stderr, &text(one)?, true),
            ("stdout_does_not_contain", [one]) => with("stdout", stdout, &text(one)?, false),
            ("stderr_does_not_contain", [one]) => with("stderr", stderr, &text(one)?, false),
            ("stdout_contains_line" | "stderr_contains_line", [one]) => {
                let (stream, came) =
                    if name.starts_with("stdout") { ("stdout", stdout) } else { ("stderr", stderr) };
                let line = text(one)?;
                let found = came.split(|byte| *byte == b'\n').any(|found| found == line);
                self.held(found, || format!("  {command}: {stream}: no line {}", shown(&line)));
            }
            ("usage_error", [one]) => {
                let first = format!("{}: {}\n", done.scene.command, string(one)?);
                let good =
                    stderr.starts_with(first.as_bytes()) && has(stderr, b"--help' for more information.");
                self.held(good, || format!("  {command}: stderr: came {}", shown(stderr)));
            }
            ("code_is", [one]) => {
                let expected = number(one)?;
                self.held(i128::from(*code) == expected, || {
                    format!("  {command}: status: expected {expected}\n  status: came     {code}")
                });
            }
            ("success", []) => self.held(*code == 0, || format!("  {command}: status: came {code}, not 0")),
            ("failure", []) => self.held(*code != 0, || format!("  {command}: status: came 0")),
            ("succeeded", []) => return Ok(Value::Truth(*code == 0)),
            ("code", []) => return Ok(Value::Number(i128::from(*code))),
            ("stdout_str" | "stdout_move_str" | "stdout" | "stdout_move_bytes" | "stdout_str_lossy", []) => {
                return Ok(Value::Text(stdout.clone()));
            }
            ("stderr_str" | "stderr_move_str" | "stderr" | "stderr_move_bytes", []) => {
                return Ok(Value::Text(stderr.clone()));
            }
            _ => return Err(Stop::Unread(format!("a result's {name}"))),
        }
        Ok(this.clone())
    }
}

fn is_of_path(name: &str) -> bool {
    ["exists", "is_file", "is_dir", "is_symlink", "metadata", "symlink_metadata", "read_link"].contains(&name)
}

fn of_open(path: &Path, name: &str, arguments: &[Value], this: &Value) -> Done_ {
    let done = |result: std::io::Result<()>| -> Done_ {
        result.map(|()| Value::Nothing).map_err(|e| Stop::Unread(format!("{name}: {e}")))
    };
    match (name, arguments) {
        ("unwrap", []) | ("expect", [_]) => Ok(this.clone()),
        ("write_all", [content]) => {
            let content = text(content)?;
            done(
                std::fs::OpenOptions::new()
                    .append(true)
                    .open(path)
                    .and_then(|mut file| std::io::Write::write_all(&mut file, &content)),
            )
        }
        ("set_len", [length]) => {
            let length = u64::try_from(number(length)?).map_err(|_| "a length")?;
            done(std::fs::OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(length)))
        }
        ("metadata", []) => {
            let found = std::fs::metadata(path);
            Ok(found.map_or(Value::Nothing, |found| Value::About(Rc::new(found))))
        }
        ("flush" | "sync_all", []) => Ok(Value::Nothing),
        _ => Err(Stop::Unread(format!("an open file's {name}"))),
    }
}

/// What a test does with the files of its folder.
fn at(scene: &Rc<Scene>, name: &str, arguments: &[Value]) -> Done_ {
    use std::os::unix::fs::{PermissionsExt, symlink};

    let names: Vec<String> = match (name, arguments) {
        ("write_bytes" | "append_bytes" | "write" | "append", [first, _]) => vec![string(first)?],
        ("set_mode" | "truncate", [first, ..]) => vec![string(first)?],
        _ => arguments.iter().map(string).collect::<Done_<_>>()?,
    };
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let host = |path: &str| scene.on_host(path, true);
    let done = |result: std::io::Result<()>| -> Done_ {
        result.map(|()| Value::Nothing).map_err(|e| Stop::Unread(format!("{name}: {e}")))
    };
    let content = || text(arguments.get(1).ok_or("what to write")?);
    match (name, names.as_slice()) {
        ("make_file", [path]) => {
            let path = host(path)?;
            std::fs::write(&path, "").map_err(|e| Stop::Unread(format!("{name}: {e}")))?;
            Ok(Value::Open(Rc::new(path)))
        }
        ("touch", [path]) => done(
            std::fs::OpenOptions::new()
                .create(true)
                .truncate(false)
                .append(true)
                .open(host(path)?)
                .and_then(|file| file.set_modified(std::time::SystemTime::now())),
        ),
        ("mkdir", [path]) => done(std::fs::create_dir(host(path)?)),
        ("mkdir_all", [path]) => done(std::fs::create_dir_all(host(path)?)),
        ("write" | "write_bytes", [path]) => done(std::fs::write(host(path)?, content()?)),
        ("append" | "append_bytes", [path]) => {
            let (path, content) = (host(path)?, content()?);
            done(
                std::fs::OpenOptions::new()
                    .append(true)
                    .create(true)
                    .open(path)
                    .and_then(|mut file| std::io::Write::write_all(&mut file, &content)),
            )
        }
        ("read" | "read_bytes", [path]) => match std::fs::read(host(path)?) {
            Ok(content) => Ok(Value::Text(content)),
            // A command should have made it.
            Err(_) => Ok(Value::Text(b"(there is no such file)".to_vec())),
        },
        ("file_exists", [path]) => Ok(Value::Truth(host(path)?.is_file())),
        ("dir_exists", [path]) => Ok(Value::Truth(host(path)?.is_dir())),
        ("symlink_exists" | "is_symlink", [path]) => {
            Ok(Value::Truth(scene.on_host(path, false)?.is_symlink()))
        }
        ("symlink_file" | "symlink_dir", [target, link]) => {
            done(symlink(scene.inside(target), scene.on_host(link, false)?))
        }
        ("relative_symlink_file" | "relative_symlink_dir", [target, link]) => {
            done(symlink(target, scene.on_host(link, false)?))
        }
        ("hard_link", [one, other]) => done(std::fs::hard_link(host(one)?, scene.on_host(other, false)?)),
        ("resolve_link" | "read_symlink", [path]) => {
            let Ok(target) = std::fs::read_link(scene.on_host(path, false)?) else {
                return Ok(Value::Text(Vec::new()));
            };
            let target = target.to_string_lossy().into_owned();
            let root = scene.inside("");
            Ok(Value::Text(target.strip_prefix(&root).unwrap_or(&target).as_bytes().to_vec()))
        }
        ("plus" | "plus_as_string", [path]) => Ok(Value::Text(scene.inside(path).into_bytes())),
        ("root_dir_resolved" | "as_string", []) => {
            Ok(Value::Text(scene.inside("").trim_end_matches('/').as_bytes().to_vec()))
        }
        ("remove", [path]) => done(std::fs::remove_file(scene.on_host(path, false)?)),
        ("rmdir", [path]) => done(std::fs::remove_dir(host(path)?)),
        ("rename", [one, other]) => {
            done(std::fs::rename(scene.on_host(one, false)?, scene.on_host(other, false)?))
        }
        ("copy", [one, other]) => done(std::fs::copy(host(one)?, host(other)?).map(drop)),
        ("set_mode", [path]) => {
            let mode = number(arguments.get(1).ok_or("a mode")?)?;
            let mode = u32::try_from(mode).map_err(|_| "a mode")?;
            done(std::fs::set_permissions(host(path)?, std::fs::Permissions::from_mode(mode)))
        }
        ("set_readonly", [path]) => {
            let path = host(path)?;
            let found = std::fs::metadata(&path).map_err(|_| "a file that is not there")?;
            let mode = found.permissions().mode() & !0o222;
            done(std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)))
        }
        ("metadata" | "symlink_metadata", [path]) => {
            let found = match name {
                "metadata" => std::fs::metadata(host(path)?),
                _ => std::fs::symlink_metadata(scene.on_host(path, false)?),
            };
            Ok(found.map_or(Value::Nothing, |found| Value::About(Rc::new(found))))
        }
        ("clone" | "as_ref", []) => Ok(Value::At(Rc::clone(scene))),
        _ => Err(Stop::Unread(format!("the files' {name}"))),
    }
}

fn of_file(about: &std::fs::Metadata, name: &str, this: &Value) -> Done_ {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    Ok(match name {
        "permissions" | "unwrap" | "expect" | "file_type" => this.clone(),
        "mode" => Value::Number(i128::from(about.permissions().mode())),
        "len" | "size" => Value::Number(i128::from(about.len())),
        "nlink" => Value::Number(i128::from(about.nlink())),
        "ino" => Value::Number(i128::from(about.ino())),
        "mtime" => Value::Number(i128::from(about.mtime())),
        "is_dir" => Value::Truth(about.is_dir()),
        "is_file" => Value::Truth(about.is_file()),
        "is_symlink" => Value::Truth(about.is_symlink()),
        "readonly" => Value::Truth(about.permissions().readonly()),
        _ => return Err(Stop::Unread(format!("a file's {name}"))),
    })
}

fn of_text(all: &[u8], name: &str, arguments: &[Value]) -> Done_ {
    let lossy = || String::from_utf8_lossy(all).into_owned();
    let same = || Value::Text(all.to_vec());
    Ok(match (name, arguments) {
        (
            "to_string" | "to_owned" | "as_str" | "as_bytes" | "clone" | "into" | "unwrap" | "as_ref"
            | "to_vec" | "as_os_str" | "as_path" | "to_str" | "to_string_lossy" | "into_owned" | "into_bytes"
            | "as_slice" | "display" | "into_os_string" | "to_path_buf" | "into_string" | "as_encoded_bytes",
            [],
        )
        | ("expect", [_]) => same(),
        ("contains", [part]) => Value::Truth(has(all, &text(part)?)),
        ("starts_with", [part]) => Value::Truth(all.starts_with(&text(part)?)),
        ("ends_with", [part]) => Value::Truth(all.ends_with(&text(part)?)),
        ("is_empty", []) => Value::Truth(all.is_empty()),
        ("len", []) => Value::Number(all.len() as i128),
        ("trim", []) => Value::Text(lossy().trim().into()),
        ("trim_end", []) => Value::Text(lossy().trim_end().into()),
        ("trim_start", []) => Value::Text(lossy().trim_start().into()),
        ("lines", []) => texts(lossy().lines()),
        ("split_whitespace", []) => texts(lossy().split_whitespace()),
        ("split", [mark]) => texts(lossy().split(string(mark)?.as_str())),
        ("replace", [from, to]) => Value::Text(lossy().replace(&string(from)?, &string(to)?).into()),
        ("repeat", [count]) => {
            let count = usize::try_from(number(count)?).map_err(|_| "a count")?;
            if count.saturating_mul(all.len()) > 16 << 20 {
                return Err("long text".into());
            }
            Value::Text(all.repeat(count))
        }
        ("join", [more]) => {
            let more = text(more)?;
            if more.starts_with(b"/") { Value::Text(more) } else { Value::Text([all, b"/", &more].concat()) }
        }
        _ => return Err(Stop::Unread(format!("a text's {name}"))),
    })
}

fn of_list(all: &[Value], name: &str, arguments: &[Value]) -> Done_ {
    let same_list = || Value::List(all.to_vec());
    Ok(match (name, arguments) {
        (
            "iter" | "into_iter" | "to_vec" | "clone" | "as_slice" | "copied" | "cloned" | "collect"
            | "as_ref",
            [],
        ) => same_list(),
        ("len" | "count", []) => Value::Number(all.len() as i128),
        ("is_empty", []) => Value::Truth(all.is_empty()),
        ("first" | "next", []) => all.first().cloned().ok_or("the first of none")?,
        ("last", []) => all.last().cloned().ok_or("the last of none")?,
        ("rev", []) => Value::List(all.iter().rev().cloned().collect()),
        ("enumerate", []) => Value::List(
            all.iter()
                .enumerate()
                .map(|(at, one)| Value::List(vec![Value::Number(at as i128), one.clone()]))
                .collect(),
        ),
        ("contains", [one]) => {
            let mut found = false;
            for other in all {
                found |= same(one, other)?;
            }
            Value::Truth(found)
        }
        ("join", [between]) => {
            let parts: Vec<Vec<u8>> = all.iter().map(text).collect::<Done_<_>>()?;
            Value::Text(parts.join(text(between)?.as_slice()))
        }
        ("concat", []) => {
            let parts: Vec<Vec<u8>> = all.iter().map(text).collect::<Done_<_>>()?;
            Value::Text(parts.concat())
        }
        _ => return Err(Stop::Unread(format!("a list's {name}"))),
    })
}

fn seen(value: &Value) -> String {
    match value {
        Value::Text(text) => shown(text),
        other => format!("{other:?}").chars().take(500).collect(),
    }
}

fn brief(expr: &Expr) -> String {
    format!("{expr:?}").chars().take(300).collect()
}

fn copy_tree(from: &Path, to: &Path) -> Done_<()> {
    let say = |e: std::io::Error| Stop::Unread(format!("{}: {e}", from.display()));
    std::fs::create_dir_all(to).map_err(say)?;
    for entry in std::fs::read_dir(from).into_iter().flatten().flatten() {
        let target = to.join(entry.file_name());
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => copy_tree(&entry.path(), &target)?,
            Ok(kind) if kind.is_symlink() => {
                let link = std::fs::read_link(entry.path()).map_err(say)?;
                std::os::unix::fs::symlink(link, target).map_err(say)?;
            }
            _ => drop(std::fs::copy(entry.path(), target).map_err(say)?),
        }
    }
    Ok(())
}

/// Runs all.
pub async fn run(asked: &Asked) -> Vec<Case> {
    let world = World::new(BTreeMap::new(), None);
    let tests = asked.source.join("tests");
    let mut cases = Vec::new();
    for command in COMMANDS {
        let path = tests.join(format!("by-util/test_{command}.rs"));
        let source = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let file = rust::file(&source).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let file = std::sync::Arc::new(file);
        let chosen: Vec<usize> = (0..file.functions.len())
            .filter(|at| file.functions[*at].test && at % asked.every == 0)
            .filter(|at| {
                let name = format!("{command}: {}", file.functions[*at].name);
                asked.only.as_deref().is_none_or(|part| name.contains(part))
            })
            .collect();
        let (world, tests) = (&world, &tests);
        let ran: Vec<Case> = futures_util::stream::iter(chosen)
            .map(|at| {
                let file = std::sync::Arc::clone(&file);
                async move {
                    let name = format!("{command}: {}", file.functions[at].name);
                    let went = went(world, &name, command, file, at, tests.join("fixtures")).await;
                    Case { name, went }
                }
            })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        cases.extend(ran);
    }
    cases
}

async fn went(
    world: &World,
    name: &str,
    command: &'static str,
    file: std::sync::Arc<File>,
    at: usize,
    fixtures: PathBuf,
) -> Went {
    let Function { ignored, here, .. } = &file.functions[at];
    if !here {
        return Went::Excluded("are for another system, or for what their suite is seldom built with");
    }
    if *ignored {
        return Went::Excluded("are skipped by their own suite");
    }
    let body = Reader::new(&file.functions[at].body).statements();
    if let Err(why) = body {
        tell_unread(name, &why);
        return Went::Excluded("are more than the reader of their source reads");
    }
    let room = world.room(name).await;
    let runtime = tokio::runtime::Handle::current();
    let name = name.to_owned();
    let (went, room) = tokio::task::spawn_blocking(move || {
        let machine = Machine {
            file: &file,
            command,
            room: &room,
            runtime,
            fixtures: &fixtures,
            names: RefCell::default(),
            scenes: Cell::default(),
            runs: Cell::default(),
            steps: Cell::default(),
            failed: RefCell::default(),
        };
        let body = body.unwrap_or_default();
        let went = match machine.block(&body) {
            Err(Stop::Unread(why)) => {
                tell_unread(&name, &why);
                Went::Excluded("are more than the reader of their source reads")
            }
            Ok(_) | Err(Stop::Return(_)) if machine.runs.get() == 0 => Went::Excluded("run no command"),
            Ok(_) | Err(Stop::Return(_)) => match machine.failed.take() {
                None => Went::Passed,
                Some(what) => Went::Failed(what),
            },
        };
        (went, room)
    })
    .await
    .unwrap();
    room.close().await;
    went
}

/// What the reader does not read is counted, and told to whoever wants to teach it more.
fn tell_unread(name: &str, why: &str) {
    if std::env::var_os("SUITES_UNREAD").is_some() {
        println!("unread {name}: {why}");
    }
}
