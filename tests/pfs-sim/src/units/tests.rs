use super::*;

#[test]
fn sizes() {
    for (text, want) in [
        ("0", 0),
        ("4096", 4096),
        ("64K", 65536),
        ("1m", 1 << 20),
        ("10MiB", 10 << 20),
        ("1.5G", 3 << 29),
        ("2TB", 2 << 40),
    ] {
        assert_eq!(size(text), Ok(want), "{text}");
    }
    for text in ["", "K", "ten", "-1", "1e40", "99999999T", "nan"] {
        assert!(size(text).is_err(), "{text}");
    }
    assert!(rate("0").is_err());
}

#[test]
fn times_and_shares() {
    assert_eq!(time("200us"), Ok(Duration::from_micros(200)));
    assert_eq!(time("0"), Ok(Duration::ZERO));
    assert!(time("5").is_err());
    assert_eq!(share("10%"), Ok(0.1));
    assert_eq!(share("0.25"), Ok(0.25));
    assert!(share("101%").is_err());
    assert!(share("-1%").is_err());
}
