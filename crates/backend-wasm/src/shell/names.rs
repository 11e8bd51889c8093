//! Names that stand for WASI modules. The shell knows commands by their names alone; so every name by which a module
//! could be meant, as it stands in a script or in a listed folder, is made known to it.

use std::collections::HashSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use bashkit::{Builtin, BuiltinContext, BuiltinRegistry, CommandResolver, ExecResult, async_trait};

use super::Switch;
use super::modules::{Program, Told};
use crate::module::Modules;
use crate::tree::Tree;
use crate::tree::lent::Seen;

/// What a module's file is called.
const SUFFIX: &str = ".wasm";

/// Most names that are made known, and most bytes of a file that are looked through for some.
const MAX_NAMES: usize = 4096;
const MAX_LOOKED_THROUGH: usize = 256 * 1024;

/// The names of one shell.
pub struct Named {
    registry: BuiltinRegistry,
    modules: Arc<Modules>,
    tree: Arc<Tree>,
    switch: Switch,
    home: String,
    known: Mutex<HashSet<String>>,
    told: Arc<Told>,
}

impl Named {
    /// With the names of the configuration.
    pub fn new(
        registry: BuiltinRegistry,
        modules: Arc<Modules>,
        tree: Arc<Tree>,
        switch: Switch,
        env: &[(String, String)],
    ) -> Arc<Self> {
        let home = env.iter().find(|(name, _)| name == "HOME").map(|(_, value)| value.clone());
        let known = Mutex::new(HashSet::new());
        let (home, told) = (home.unwrap_or_default(), Arc::new(Told::default()));
        let named = Self { registry, modules, tree, switch, home, known, told };
        for name in named.modules.names() {
            named.add(name.to_owned());
        }
        Arc::new(named)
    }

    /// Those in a script.
    pub fn script(&self, text: &str) {
        if !text.contains(SUFFIX) {
            return;
        }
        let apart = |c: char| c.is_whitespace() || "'\"`;|&()<>=,:{}[]#".contains(c) && c != '{' && c != '}';
        for word in text.split(apart).filter(|word| word.contains(SUFFIX)) {
            let word = word.trim_end_matches(['\\', '}']);
            if !word.ends_with(SUFFIX) {
                continue;
            }
            let in_home = ["~/", "$HOME/", "${HOME}/"].iter().find_map(|start| word.strip_prefix(start));
            match in_home {
                Some(below) => self.add(format!("{}/{below}", self.home)),
                None => self.add(word.to_owned()),
            }
        }
    }

    /// What a person should know of what ran.
    pub fn notes(&self) -> Vec<String> {
        self.told.notes()
    }

    /// Whether a module used up the memory.
    pub fn ran_out(&self) -> bool {
        self.told.ran_out()
    }

    fn add(&self, name: String) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_NAMES || !known.insert(name.clone()) {
            return;
        }
        let program = Program {
            modules: Arc::clone(&self.modules),
            tree: Arc::clone(&self.tree),
            switch: self.switch.clone(),
            told: Arc::clone(&self.told),
        };
        self.registry.insert_command(name, program);
    }
}

impl Seen for Named {
    fn listed(&self, directory: &Path, name: &str) {
        if name.ends_with(SUFFIX) {
            self.add(name.to_owned());
            self.add(format!("./{name}"));
            if let Some(whole) = directory.join(name).to_str() {
                self.add(whole.to_owned());
            }
        }
    }

    fn read(&self, content: &[u8]) {
        let start = &content[..content.len().min(MAX_LOOKED_THROUGH)];
        if let Ok(text) = std::str::from_utf8(start) {
            self.script(text);
        }
    }
}

/// Answers for every command that there is not.
pub struct Unknown;

impl CommandResolver for Unknown {
    fn resolve(&self, name: &str) -> Option<Arc<dyn Builtin>> {
        Some(Arc::new(NotThere(name.to_owned())))
    }
}

struct NotThere(String);

#[async_trait]
impl Builtin for NotThere {
    async fn execute(&self, _: BuiltinContext<'_>) -> bashkit::Result<ExecResult> {
        let name = &self.0;
        let hint = match name.as_str() {
            "python" | "python3" | "ruby" | "node" | "perl" => {
                format!(
                    " (name a WASI module for it: `wasm_commands = {{ {name} = \"/path/to/{name}.wasm\" }}`)"
                )
            }
            _ => String::new(),
        };
        Ok(ExecResult::err(format!("{name}: command not found in WASM sandbox{hint}\n"), 127))
    }
}
