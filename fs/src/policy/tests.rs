use super::*;
use layout_index::policy::{Absorb, Drain};

fn said(pairs: &[(Key, &str)]) -> FilePolicy {
    let mut policy = FilePolicy::default();
    for (key, value) in pairs {
        policy.set(*key, value).unwrap();
    }
    policy
}

fn rule(number: usize, glob: &str, policy: FilePolicy) -> Rule {
    Rule {
        number,
        line: 10 * number,
        glob: glob.into(),
        policy,
    }
}

fn attributes(own: &[(Key, &str)], inherited: &[(Key, &str)]) -> Attributes {
    let mut attributes = Attributes {
        own: said(own),
        ..Attributes::default()
    };
    for (key, value) in inherited {
        attributes.inherit(*key, &said(&[(*key, value)]), "run7");
    }
    attributes
}

/// The decision about `drain` of `ckpt/f`.
fn drain(policies: &Policies, attributes: &Attributes) -> (String, Source) {
    let decisions = policies.decide(Some(Path::new("ckpt/f")), attributes);
    let decision = decisions.into_iter().find(|d| d.key == Key::Drain).unwrap();
    let differs = policies.differs(Some(Path::new("ckpt/f")), attributes);
    // `differs`, which is what is done, agrees with `decide`, which is what is shown.
    let expected = match decision.source {
        Source::CommandLine | Source::Config | Source::Default => None,
        _ => Some(decision.value.parse::<Drain>().unwrap()),
    };
    assert_eq!(differs.drain, expected);
    (decision.value, decision.source)
}

/// S10.1: the command line, the file's attribute, the directory's, the first rule, the configuration, the
/// default. Each is removed in turn, and the next one decides.
#[test]
fn the_order_of_precedence() {
    let never = said(&[(Key::Drain, "never")]);
    let mut policies = Policies {
        command_line: said(&[(Key::Drain, "on-close")]),
        rules: Rules::new(vec![
            rule(1, "other/**", never),
            rule(2, "ckpt/*", said(&[(Key::Absorb, "off")])),
            rule(3, "**", said(&[(Key::Drain, "immediate")])),
            rule(4, "ckpt/f", never),
        ])
        .unwrap(),
        config: never,
        config_file: None,
    };
    let both = attributes(&[(Key::Drain, "never")], &[(Key::Drain, "immediate")]);
    let word = |value: &str, source: Source| (value.to_owned(), source);

    assert_eq!(
        drain(&policies, &both),
        word("on-close", Source::CommandLine)
    );
    policies.command_line = FilePolicy::default();
    assert_eq!(drain(&policies, &both), word("never", Source::File));
    let inherited = attributes(&[], &[(Key::Drain, "on-close")]);
    assert_eq!(
        drain(&policies, &inherited),
        word("on-close", Source::Directory("run7".into()))
    );
    // Rule 1 is for other files, rule 2 does not set the key, and rule 4 comes too late.
    let third = Source::Rule {
        number: 3,
        line: 30,
        glob: "**".into(),
    };
    assert_eq!(
        drain(&policies, &Attributes::default()),
        word("immediate", third)
    );
    policies.rules = Rules::default();
    assert_eq!(
        drain(&policies, &Attributes::default()),
        word("never", Source::Config)
    );
    policies.config = FilePolicy::default();
    assert_eq!(
        drain(&policies, &Attributes::default()),
        word("immediate", Source::Default)
    );
}

#[test]
fn each_key_is_decided_for_itself() {
    let policies = Policies {
        command_line: said(&[(Key::Keep, "true")]),
        rules: Rules::new(vec![
            rule(1, "*.h5", said(&[(Key::Close, "publish")])),
            rule(
                2,
                "*",
                said(&[(Key::Close, "defer-next"), (Key::Fsync, "local")]),
            ),
        ])
        .unwrap(),
        ..Policies::default()
    };
    let attributes = attributes(&[(Key::Absorb, "off")], &[(Key::Subfiles, "always")]);
    let decisions = policies.decide(Some(Path::new("a.h5")), &attributes);
    let values: Vec<_> = decisions.iter().map(|d| d.value.as_str()).collect();
    let all = [
        "off",
        "immediate",
        "publish",
        "local",
        "always",
        "true",
        "60s",
    ];
    assert_eq!(values, all);
    let differs = policies.differs(Some(Path::new("a.h5")), &attributes);
    assert_eq!(differs.absorb, Some(Absorb::Off));
    assert_eq!(differs.keep, None, "the mount has that one itself");
    assert_eq!(differs.drain, None);
}

/// A file without a name has no path for a rule to match.
#[test]
fn rules_need_a_path() {
    let policies = Policies {
        rules: Rules::new(vec![rule(1, "**", said(&[(Key::Drain, "never")]))]).unwrap(),
        ..Policies::default()
    };
    assert!(policies.differs(None, &Attributes::default()).is_empty());
    let path = Some(Path::new("f"));
    assert!(!policies.differs(path, &Attributes::default()).is_empty());
}
