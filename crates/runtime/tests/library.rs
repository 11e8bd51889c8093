//! The page about the library shows what the documentation of the crate runs.

/// The first block that begins with `fence`.
fn block(text: &str, fence: &str) -> String {
    let (_, rest) = text.split_once(fence).expect("a block");
    rest.split_once("```").expect("its end").0.to_owned()
}

#[test]
fn the_page_shows_the_example_that_is_run() {
    let comments: String = include_str!("../src/lib.rs")
        .lines()
        .map_while(|line| line.strip_prefix("//!"))
        .map(|line| format!("{}\n", line.strip_prefix(' ').unwrap_or(line)))
        .collect();
    let page = include_str!("../../../docs/library.md");
    assert_eq!(block(page, "```rust\n"), block(&comments, "```\n"));
}
