use super::*;

#[test]
fn every_choice_is_read_back_as_it_is_written() {
    for key in Key::ALL {
        assert_eq!(Key::parse(key.name()), Some(key));
        for choice in key.choices() {
            let mut policy = FilePolicy::default();
            policy.set(key, choice).unwrap();
            assert!(policy.has(key) && !policy.is_empty());
            assert_eq!(policy.text(key).as_deref(), Some(*choice));
            let mut copy = FilePolicy::default();
            copy.copy(key, &policy);
            assert_eq!(copy, policy);
        }
    }
    assert_eq!(Key::parse("stripe"), None);
}

#[test]
fn a_wrong_value_is_named_with_the_right_ones() {
    let mut policy = FilePolicy::default();
    for (key, value, right) in [
        (Key::Absorb, "of", "on, off or coherent"),
        (Key::Drain, "Never", "immediate, on-close or never"),
        (Key::Close, "", "defer, defer-next or publish"),
        (Key::Fsync, "local ", "publish or local"),
        (Key::Subfiles, "some\n", "auto, always or never"),
        (Key::Keep, "1", "true or false"),
    ] {
        let said = policy.set(key, value).unwrap_err();
        assert!(said.contains(right) && said.contains(key.name()), "{said}");
        assert!(!said.contains('\n'), "{said}");
    }
    let said = policy.set(Key::VisibilityTimeout, "1s").unwrap_err();
    assert!(said.contains("configuration file"), "{said}");
    assert!(policy.is_empty(), "a refused value leaves nothing behind");
}

#[test]
fn defaults_speak_of_every_key() {
    let defaults = FilePolicy::defaults();
    assert!(Key::ALL.into_iter().all(|key| defaults.has(key)));
}
