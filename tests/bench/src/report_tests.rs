use super::*;
use crate::cases::Target;
use std::collections::BTreeMap;

fn case(forebay: f64, minimal: f64) -> Case {
    Case {
        group: "write",
        name: "1 MiB, 2 processes".into(),
        unit: Unit::Megabytes,
        target: Some(Target {
            against: Variant::Minimal,
            ratio: 0.9,
        }),
        samples: BTreeMap::from([
            (Variant::Minimal, vec![minimal; 5]),
            (Variant::Forebay, vec![forebay; 5]),
        ]),
    }
}

#[test]
fn a_target_is_as_good_as_its_worst_case() {
    let cases = [case(95.0, 100.0), case(80.0, 100.0)];
    assert_eq!(cases[0].met(), Some(true));
    assert_eq!(cases[1].met(), Some(false));
    let text = verdicts(&cases);
    assert_eq!(
        text,
        "target MISSED: write 1 MiB against minimal at least 0.9: 1 of 2 cases, worst 0.80\n"
    );
    assert!(verdicts(&cases[..1]).starts_with("target met: "));
}

#[test]
fn a_variant_that_was_not_measured_is_a_dash() {
    let text = table(&[case(95.0, 100.0)]);
    let row = text.lines().nth(1).expect("a row below the head");
    assert!(row.contains("    -  "), "{row}");
    assert!(row.contains("0.95"), "{row}");
    assert!(row.ends_with("met"), "{row}");
}

#[test]
fn sections_are_replaced_and_the_rest_stays() {
    let page = "a\n<!-- x:begin -->\nold\n<!-- x:end -->\nb\n";
    let once = replace_section(page, "x", "new\n").expect("the markers are there");
    assert_eq!(once, "a\n<!-- x:begin -->\nnew\n<!-- x:end -->\nb\n");
    assert_eq!(
        replace_section(&once, "x", "new").as_deref(),
        Ok(once.as_str())
    );
    assert!(replace_section(page, "y", "new").is_err());
}
