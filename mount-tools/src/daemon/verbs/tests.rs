use super::*;

#[test]
fn directories_match_by_whole_names() {
    let below = |p: &str, d: &str| is_below(Path::new(p), Path::new(d));
    assert!(below("a/b/c", "a/b"));
    assert!(below("a/b", "a/b"));
    assert!(below("anything", ""));
    assert!(!below("a/bc", "a/b"));
    assert!(!below("b/a", "a"));
}

#[test]
fn no_timeout_is_no_deadline_and_a_huge_one_neither() {
    assert!(deadline(None).is_none());
    assert!(deadline(Some(0)).is_some_and(|d| d <= Instant::now()));
    // Half a billion years may or may not fit the clock; it must not panic.
    assert!(deadline(Some(u64::MAX)).is_none_or(|d| d > Instant::now()));
}
