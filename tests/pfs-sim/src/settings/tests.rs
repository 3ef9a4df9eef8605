use super::*;
use Failure::{Edquot, Eio, Enospc, Erofs, Hang};

fn parse(json: &str) -> Result<Change, String> {
    let change: Change = serde_json::from_str(json).map_err(|e| e.to_string())?;
    change.check()?;
    Ok(change)
}

#[test]
fn commands_change_what_they_name() {
    let old = OstSettings::default();
    let change = parse(r#"{"ost":3,"bandwidth":"20M","fail":"hang"}"#).expect("a command");
    assert_eq!(change.ost, Some(Target::One(3)));
    let new = change.apply(&old).expect("applies");
    assert_eq!(new.bandwidth, 20 << 20);
    assert_eq!(new.fail, Hang);
    assert_eq!(new.latency_ns, old.latency_ns);
    let list = parse(r#"{"ost":[1,2],"queue":4}"#).expect("a list");
    assert_eq!(list.ost.expect("osts").numbers(3), Ok(vec![1, 2]));
    let all = parse(r#"{"ost":"all","latency":"1ms"}"#).expect("all");
    assert_eq!(all.ost.expect("osts").numbers(2), Ok(vec![0, 1]));
}

#[test]
fn bad_commands_are_named() {
    for (json, word) in [
        (r#"{"ost":3,"bandwith":"20M"}"#, "bandwith"),
        (r#"{"bandwidth":"20M"}"#, "no OST"),
        (r#"{"ost":3}"#, "nothing about"),
        (r#"{"reset":"world"}"#, "world"),
        (r#"{"ost":1,"fail":"maybe"}"#, "maybe"),
    ] {
        let error = parse(json).expect_err(json);
        assert!(error.contains(word), "{json}: {error}");
    }
    let old = OstSettings::default();
    for (json, word) in [
        (r#"{"ost":3,"bandwidth":"fast"}"#, "fast"),
        (r#"{"ost":3,"bandwidth":"0"}"#, "never finish"),
        (r#"{"ost":3,"queue":0}"#, "at least 1"),
    ] {
        let error = parse(json).expect(json).apply(&old).expect_err(json);
        assert!(error.contains(word), "{json}: {error}");
    }
    let far = Target::One(9).numbers(4).expect_err("too far");
    assert!(far.contains("no OST 9"), "{far}");
    assert!(Target::Word("some".into()).numbers(4).is_err());
}

#[test]
fn a_failure_is_for_writes_or_for_all() {
    assert_eq!(Eio.error(false), Some(Errno::EIO));
    assert_eq!(Erofs.error(false), None);
    assert_eq!(Erofs.error(true), Some(Errno::EROFS));
    assert_eq!(Edquot.error(true), Some(Errno::EDQUOT));
    assert_eq!(Enospc.error(true), Some(Errno::ENOSPC));
    assert_eq!(Hang.error(true), None);
}

/// A command that is serialised from the type is parsed to the same command.
#[test]
fn commands_survive_the_wire() {
    let change = Change {
        ost: Some(Target::all()),
        ..Change::default().bandwidth("1G").jitter("5%").fail(Edquot)
    };
    let text = serde_json::to_string(&change).expect("writes");
    assert_eq!(parse(&text), Ok(change));
}
