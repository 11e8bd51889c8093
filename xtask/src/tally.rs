//! Counting what passed, failed and could not run.

/// Counts and names over a whole run.
#[derive(Default)]
pub struct Tally {
    passed: u64,
    failed: Vec<String>,
    skipped: Vec<String>,
    /// Failed beside others and passed alone.
    unsteady: Vec<String>,
    /// What the failed ones said, shown once more at the end, where a log's reader looks first.
    said: Vec<String>,
}

/// Lines of one harness's failures that are shown again at the end.
const SAID: usize = 60;

impl Tally {
    /// So many passed.
    pub fn pass(&mut self, count: u64) {
        self.passed += count;
    }

    /// One failed.
    pub fn fail(&mut self, name: impl Into<String>) {
        self.failed.push(name.into());
    }

    /// One could not run, and why.
    pub fn skip(&mut self, name: impl Into<String>) {
        self.skipped.push(name.into());
    }

    /// One passed or failed.
    pub fn check(&mut self, name: &str, result: Result<(), String>) {
        match result {
            Ok(()) => {
                println!("pass  {name}");
                self.pass(1);
            }
            Err(text) => {
                println!("FAIL  {name}\n{}", indented(&text));
                self.said.push(format!("---- {name} ----"));
                self.said.extend(
                    text.lines().rev().take(SAID).map(str::to_owned).collect::<Vec<_>>().into_iter().rev(),
                );
                self.fail(name);
            }
        }
    }

    /// One that failed passed when it was tried again. It counts as passed, and is named at the end.
    pub fn passed_again(&mut self, name: &str) {
        if let Some(at) = self.failed.iter().position(|failed| failed == name) {
            self.unsteady.push(self.failed.remove(at));
            self.passed += 1;
        }
    }

    /// Takes in the output of one or more test harnesses; `false` when it names no result at all.
    pub fn harness(&mut self, program: &str, output: &str) -> bool {
        let mut seen = false;
        // Parts of other tests, which run them in processes of their own; their reason says so.
        let mut parts = 0;
        for line in output.lines() {
            if let Some(rest) = line.trim().strip_prefix("test result: ") {
                seen = true;
                self.pass(number_before(rest, " passed"));
                for name in 0..number_before(rest, " ignored").saturating_sub(std::mem::take(&mut parts)) {
                    self.skip(format!("{program}: an ignored test ({})", name + 1));
                }
            } else if [" ... ignored, run by ", " ... ignored, started by "]
                .iter()
                .any(|part| line.contains(part))
            {
                parts += 1;
            }
        }
        for name in failures(output) {
            self.fail(format!("{program}: {name}"));
        }
        let said = output.split_once("\nfailures:\n").map_or("", |(_, rest)| rest);
        let said = said.split("\nfailures:\n").next().unwrap_or_default();
        self.said.extend(said.lines().filter(|l| !l.trim().is_empty()).take(SAID).map(str::to_owned));
        seen
    }

    /// Prints what did not pass and, as the last line, the counts. A skip is a failure if everything must run.
    pub fn close(mut self, everything: bool) -> bool {
        if !self.skipped.is_empty() {
            println!("\ncould not run here:");
            for skip in &self.skipped {
                println!("  {skip}");
            }
        }
        if everything {
            let skipped = std::mem::take(&mut self.skipped);
            self.failed.extend(skipped.into_iter().map(|s| format!("skipped: {s}")));
        }
        if !self.unsteady.is_empty() {
            println!("\nfailed beside others and passed alone, each a fault to find:");
            for name in &self.unsteady {
                println!("  {name}");
            }
        }
        if !self.failed.is_empty() {
            println!("\nwhat they said:\n{}\n\nfailed:", indented(&self.said.join("\n")));
            for name in &self.failed {
                println!("  {name}");
            }
        }
        if self.passed == 0 && self.failed.is_empty() {
            self.failed.push("nothing ran".into());
            println!("\nnothing ran");
        }
        println!("\n{} passed, {} failed", self.passed, self.failed.len());
        self.failed.is_empty()
    }
}

/// The names of the tests that failed by a harness's output.
pub fn failures(output: &str) -> impl Iterator<Item = &str> {
    output.lines().filter_map(|line| {
        let name = line.strip_prefix("test ")?;
        name.split_once(" ... FAILED").map(|(name, _)| name.trim())
    })
}

fn number_before(text: &str, word: &str) -> u64 {
    let Some(end) = text.find(word) else { return 0 };
    text[..end].rsplit(|c: char| !c.is_ascii_digit()).next().and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// Text with each line moved to the right.
pub fn indented(text: &str) -> String {
    text.lines().map(|line| format!("      {line}")).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn harness_output_is_counted() {
        let mut tally = Tally::default();
        let text = "test a::b ... ok\ntest c ... FAILED\n\ntest result: FAILED. 3 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out\n";
        assert!(tally.harness("p", text));
        assert_eq!((tally.passed, tally.skipped.len()), (3, 1));
        assert_eq!(tally.failed, ["p: c"]);
        tally.passed_again("p: a::b");
        assert_eq!((tally.passed, tally.failed.len()), (3, 1));
        tally.passed_again("p: c");
        assert_eq!((tally.passed, tally.failed.len(), &tally.unsteady[..]), (4, 0, &["p: c".to_owned()][..]));
        assert!(!tally.harness("p", "nothing"));
        let text = "test c ... FAILED\n\nfailures:\n\n---- c ----\nwhy\n\nfailures:\n    c\n\ntest result: FAILED. 0 passed; 1 failed; 0 ignored\n";
        assert!(tally.harness("p", text));
        assert_eq!(tally.said, ["---- c ----", "why"]);
        let text = "test a ... ignored, run by the test above\ntest b ... ignored\n\ntest result: ok. 0 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out\n";
        assert!(tally.harness("q", text));
        assert_eq!(tally.skipped.len(), 2);
    }
}
