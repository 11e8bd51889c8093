//! The list of known failures, which only shrinks: what is on it has to fail, and what is not has to pass.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::{Asked, Case, Went};

/// Before the name of a case whose result is chance.
const CHANCE: &str = "? ";

/// Names of cases, one a line; `#` begins a remark.
#[derive(Default)]
pub struct Known {
    file: PathBuf,
    text: String,
    fail: BTreeSet<String>,
    chance: BTreeSet<String>,
}

impl Known {
    /// What a file lists.
    pub fn read(file: &Path) -> Self {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let mut known = Self { file: file.to_owned(), ..Self::default() };
        for line in text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
            match line.strip_prefix(CHANCE) {
                Some(name) => known.chance.insert(name.to_owned()),
                None => known.fail.insert(line.to_owned()),
            };
        }
        known.text = text;
        known
    }

    /// Whether it went as the list has it.
    pub fn expects(&self, case: &Case) -> bool {
        let fails = self.fail.contains(&case.name);
        match case.went {
            _ if self.chance.contains(&case.name) => true,
            Went::Passed | Went::Excluded(_) => !fails,
            Went::Failed(_) => fails,
        }
    }

    fn without(&self, names: &BTreeSet<&str>) -> String {
        self.text.lines().filter(|line| !names.contains(line)).map(|line| format!("{line}\n")).collect()
    }
}

/// Says how it went, and whether all is as it has to be.
pub fn judge(cases: &[Case], known: Known, asked: &Asked) -> bool {
    let (mut passed, mut applying, mut listed, mut chance) = (0_usize, 0_usize, 0_usize, 0_usize);
    let mut excluded: BTreeMap<&str, usize> = BTreeMap::new();
    let mut wrong = Vec::new();
    let mut better = BTreeSet::new();
    let mut seen = BTreeSet::new();
    let mut all = BTreeSet::new();
    for Case { name, went } in cases {
        let by_chance = known.chance.contains(name);
        all.insert(name.as_str());
        match went {
            Went::Excluded(why) => {
                *excluded.entry(why).or_default() += 1;
                if asked.verbose {
                    println!("---- {name}\n  left out with those that {why}");
                }
                continue;
            }
            _ if !seen.insert(name.as_str()) => wrong.push(format!("{name}: two cases have this name")),
            Went::Passed | Went::Failed(_) if by_chance => chance += 1,
            Went::Passed => {
                passed += 1;
                if known.fail.contains(name) {
                    better.insert(name.as_str());
                }
            }
            Went::Failed(_) if known.fail.contains(name) => listed += 1,
            Went::Failed(what) => wrong.push(format!("{name}: fails, and is no known failure\n{what}")),
        }
        applying += 1;
        if let (true, Went::Failed(what)) = (asked.verbose, went) {
            println!("---- {name}\n{what}");
        }
    }
    if asked.shed && !better.is_empty() {
        std::fs::write(&known.file, known.without(&better)).unwrap();
        println!("{} taken off {}", better.len(), known.file.display());
    } else {
        wrong.extend(better.iter().map(|name| format!("{name}: passes now: take it off the list")));
    }
    if asked.every == 1 && asked.only.is_none() {
        // Whether one of chance applies is chance, too.
        let gone = known.fail.iter().filter(|name| !seen.contains(name.as_str()));
        let gone = gone.chain(known.chance.iter().filter(|name| !all.contains(name.as_str())));
        wrong.extend(gone.map(|name| format!("{name}: on the list, and no case that applies")));
    }
    if applying == 0 {
        wrong.push("no case ran".to_owned());
    }
    for text in &wrong {
        println!("WRONG {text}");
    }
    let left: Vec<String> = excluded.iter().map(|(why, count)| format!("{count} {why}")).collect();
    if !left.is_empty() {
        println!("excluded: {}", left.join("; "));
    }
    let left: usize = excluded.values().sum();
    println!(
        "row: cases={applying} passed={passed} known={listed} chance={chance} excluded={left} wrong={}",
        wrong.len()
    );
    wrong.is_empty()
}
