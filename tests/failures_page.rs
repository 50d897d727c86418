//! FAILURES.md names tests, and so does the list of attacks: each of them exists, and each failure and
//! attack that concerns us has some.

use std::fs;
use std::path::Path;

/// How many reports the page is about.
const FAILURES: usize = 35;

fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The page's parts: its headings of the third order, each with what follows.
fn failures(page: &str) -> Vec<(&str, &str)> {
    let parts = page.split("\n### ").skip(1);
    parts.map(|part| part.split_once('\n').unwrap()).collect()
}

/// The items of a part that begin with this word, in one line.
fn item(part: &str, label: &str) -> String {
    let begin = format!("- {label}: ");
    let mut found = Vec::new();
    let mut inside = false;
    for line in part.lines() {
        if let Some(text) = line.strip_prefix(&begin) {
            inside = true;
            found.push(text);
        } else if line.starts_with("  ") && inside {
            found.push(line.trim());
        } else {
            inside = false;
        }
    }
    found.join(" ")
}

/// Whether there is such a test.
fn exists(name: &str) -> bool {
    let (place, name) = name.split_once("::").expect("FILE::FUNCTION or lab::CASE");
    if place == "lab" {
        let case = top().join("tests/lab/cases").join(format!("{name}.sh"));
        return fs::read_to_string(case).is_ok_and(|case| case.contains("\n# lab: "));
    }
    if place == "fuzz" {
        let target = top().join("tests/fuzz/fuzz_targets");
        return target.join(format!("{name}.rs")).is_file();
    }
    let source = fs::read_to_string(top().join(place)).unwrap_or_default();
    let mut lines = source.lines().map(str::trim);
    // The attribute stands before the function, perhaps with others between.
    let mut is_test = false;
    lines.any(|line| {
        if line == "#[test]" || line.starts_with("#[tokio::test") {
            is_test = true;
        } else if line.contains("fn ") {
            let this = line
                .trim_start_matches("async ")
                .strip_prefix("fn ")
                .and_then(|rest| rest.strip_prefix(name))
                .is_some_and(|rest| rest.starts_with('('));
            return std::mem::take(&mut is_test) && this;
        }
        false
    })
}

#[test]
fn every_failure_has_its_parts_and_every_test_it_names_exists() {
    let page = fs::read_to_string(top().join("FAILURES.md")).unwrap();
    let failures = failures(&page);
    assert_eq!(failures.len(), FAILURES);
    let mut missing = Vec::new();
    for (number, (heading, part)) in (1..).zip(&failures) {
        assert!(heading.starts_with(&format!("{number}. ")), "{heading}");
        let elsewhere = item(part, "Elsewhere");
        assert!(elsewhere.contains('#'), "{heading}: it names no source");
        let here = item(part, "Here");
        assert!(!here.is_empty(), "{heading}");
        let tests = item(part, "Tests");
        if here.starts_with("does not concern rdcp: ") {
            assert_eq!(tests, "none", "{heading}");
            continue;
        }
        let names = tests.split('`').skip(1).step_by(2).map(str::to_owned);
        let names: Vec<_> = names.collect();
        assert!(!names.is_empty(), "{heading}: nothing guards it");
        missing.extend(names.into_iter().filter(|name| !exists(name)));
    }
    assert_eq!(missing, Vec::<String>::new(), "no such tests");
}

#[test]
fn every_attack_is_guarded_by_tests_that_exist() {
    let page = fs::read_to_string(top().join("tests/hostile/README.md")).unwrap();
    let rows = page.lines().filter(|line| line.starts_with("| ")).skip(1);
    let mut missing = Vec::new();
    let mut attacks = 0;
    for row in rows {
        attacks += 1;
        let guards = row.trim_end_matches(" |").rsplit(" | ").next().unwrap();
        let names = guards.split('`').skip(1).step_by(2);
        let names: Vec<_> = names.filter(|name| name.contains("::")).collect();
        let is_impossible = guards.starts_with("not possible: ");
        assert!(is_impossible || !names.is_empty(), "nothing guards: {row}");
        let gone = names.into_iter().filter(|name| !exists(name));
        missing.extend(gone.map(str::to_owned));
    }
    assert!(attacks > 20, "{attacks} attacks");
    assert_eq!(missing, Vec::<String>::new(), "no such tests");
}

#[test]
fn a_test_that_is_not_there_is_found_out() {
    let here = "tests/failures_page.rs";
    assert!(exists(&format!(
        "{here}::a_test_that_is_not_there_is_found_out"
    )));
    // A function that is no test, one that is longer, a file and a case that are not there.
    for name in ["exists", "a_test_that_is_not_there", "nothing"] {
        assert!(!exists(&format!("{here}::{name}")), "{name}");
    }
    assert!(!exists("tests/nowhere.rs::exists") && !exists("lab::nowhere"));
}
