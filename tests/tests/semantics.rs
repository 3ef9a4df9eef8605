//! docs/SEMANTICS.md and the tests must speak of the same promises: a test names every number of that page, and
//! every number in a test is on that page.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("the workspace").to_owned()
}

/// Returns all words like `S1` and `S1.2` in a text.
fn numbers(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let chars: Vec<char> = text.chars().collect();
    for (i, c) in chars.iter().enumerate() {
        let inside_word = i > 0 && (chars[i - 1].is_alphanumeric() || "_:.".contains(chars[i - 1]));
        if *c != 'S' || inside_word {
            continue;
        }
        let digits = |from: usize| {
            chars[from..]
                .iter()
                .take_while(|c| c.is_ascii_digit())
                .count()
        };
        let whole = digits(i + 1);
        if whole == 0 {
            continue;
        }
        let mut end = i + 1 + whole;
        if chars.get(end) == Some(&'.') && digits(end + 1) > 0 {
            end += 1 + digits(end + 1);
        }
        if chars
            .get(end)
            .is_none_or(|c| !c.is_alphanumeric() && *c != '_')
        {
            found.insert(chars[i..end].iter().collect());
        }
    }
    found
}

/// Returns the promises, and whether each is kept yet, from the lines that define them.
fn promised() -> BTreeMap<String, bool> {
    let text = std::fs::read_to_string(root().join("docs/SEMANTICS.md")).expect("read SEMANTICS");
    text.lines()
        .filter_map(|line| {
            let rest = line.strip_prefix("**S").or(line.strip_prefix("| S"))?;
            let number = rest.split(['*', ' ']).next()?;
            Some((format!("S{number}"), !line.contains("*(not yet)*")))
        })
        .collect()
}

/// Returns the numbers that tests name, with one file that names each.
fn named() -> BTreeMap<String, PathBuf> {
    let mut named = BTreeMap::new();
    let mut todo = vec![root()];
    while let Some(path) = todo.pop() {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if path.is_dir() {
            if name == "target" || (name.starts_with('.') && path != root()) {
                continue;
            }
            let entries = std::fs::read_dir(&path).expect("list the sources");
            todo.extend(entries.map(|entry| entry.expect("entry").path()));
        } else if name.ends_with(".rs") && name != "semantics.rs" {
            let text = std::fs::read_to_string(&path).expect("read a source");
            // Only tests count: test files, and other files that have tests in them.
            let is_test = path.components().any(|c| c.as_os_str() == "tests")
                || name.contains("tests")
                || text.contains("#[test]");
            if is_test {
                for number in numbers(&text) {
                    named.insert(number, path.clone());
                }
            }
        }
    }
    named
}

#[test]
fn every_promise_is_tested() {
    let named = named();
    let promised = promised();
    assert!(promised.len() > 40, "the promises were found: {promised:?}");
    let untested: Vec<&String> = promised
        .iter()
        .filter(|(number, kept)| **kept && !named.contains_key(*number))
        .map(|(number, _)| number)
        .collect();
    assert!(
        untested.is_empty(),
        "no test names {untested:?} of docs/SEMANTICS.md"
    );
}

#[test]
fn every_number_in_a_test_is_promised() {
    let promised = promised();
    let unknown: Vec<_> = named()
        .into_iter()
        .filter(|(number, _)| !promised.contains_key(number))
        .collect();
    assert!(unknown.is_empty(), "docs/SEMANTICS.md has no {unknown:?}");
}

#[test]
fn numbers_are_found_as_words() {
    let found = numbers("S1.10: and S5, see S8.2. Not ES6, S_IFMT, S3x or XS9; (S7.1)");
    let want = ["S1.10", "S5", "S7.1", "S8.2"].map(String::from);
    assert_eq!(found, BTreeSet::from(want));
}
