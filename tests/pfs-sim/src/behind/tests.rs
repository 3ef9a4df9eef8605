use super::*;

#[test]
fn all_parts_or_none() {
    let behind = Behind::new(100);
    assert!(behind.take(1, &[(0, 60), (1, 100)]));
    assert!(!behind.take(1, &[(0, 40), (1, 1)]), "the second is full");
    assert!(behind.take(1, &[(0, 40)]), "the first was not charged");
    assert!(behind.take(2, &[(1, 100)]), "another client");
    behind.give_back(1, &[(0, 100), (1, 100)]);
    assert!(behind.take(1, &[(0, 100), (1, 100)]));
    assert!(!Behind::new(100).take(1, &[(0, 101)]));
}
