//! Lines by which our own recipe says why it failed. What installs packages runs code of others, which may print the same
//! lines: that a build failed is the engine's to say, and these only help to name what to look at.

/// Beginning of every such line.
pub const MARK: &str = "moltis-build:";

/// What the lines of a failed build say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Markers {
    /// Packages that cannot be installed.
    pub packages: Vec<String>,
    /// The lists of packages cannot be fetched.
    pub lists: bool,
    /// There is no room left, or nearly none.
    pub full: bool,
}

impl Markers {
    /// Takes note of a line. `known` are the packages that were asked for: no other is ever named.
    pub fn read(&mut self, line: &str, known: &[String]) {
        let Some(said) = line.trim().strip_prefix(MARK) else { return };
        match said.trim().split_once(' ') {
            Some(("package", name)) if self.is_new(name, known) => self.packages.push(name.to_owned()),
            None if said.trim() == "lists" => self.lists = true,
            None if said.trim() == "full" => self.full = true,
            _ => {}
        }
    }

    fn is_new(&self, name: &str, known: &[String]) -> bool {
        let is_in = |names: &[String]| names.iter().any(|known| known == name);
        is_in(known) && !is_in(&self.packages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_asked_for_is_named() {
        let known = ["git".to_owned(), "tree".to_owned()];
        let mut markers = Markers::default();
        for line in [
            "moltis-build: package tree",
            "moltis-build: package tree ",
            "moltis-build: package rm",
            "E: moltis-build: package git",
            "moltis-build: lists",
            "moltis-build: fulll",
            "moltis-build:",
        ] {
            markers.read(line, &known);
        }
        assert_eq!(markers, Markers { packages: vec!["tree".into()], lists: true, full: false });
    }
}
