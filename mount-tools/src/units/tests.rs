use super::*;

fn size(text: &str) -> Result<u64, String> {
    text.parse::<Size>().map(|s| s.0)
}

#[test]
fn sizes() {
    for (text, bytes) in [
        ("0", 0),
        ("4096", 4096),
        ("64KiB", 65536),
        ("64k", 65536),
        (" 1 MiB ", 1 << 20),
        ("1.5GiB", 3 << 29),
        ("2GB", 2_000_000_000),
        ("1tb", 1_000_000_000_000),
    ] {
        assert_eq!(size(text), Ok(bytes), "{text}");
    }
}

#[test]
fn wrong_sizes_name_the_text_and_the_remedy() {
    for text in [
        "",
        "MiB",
        "12 parsecs",
        "1.2.3",
        "-5",
        "99999999999999TiB",
        "1e400",
    ] {
        let message = size(text).unwrap_err();
        assert!(
            message.contains(&format!("\"{text}\"")) && message.contains("64MiB"),
            "{message}"
        );
    }
}

#[test]
fn times() {
    let time = |text: &str| text.parse::<Span>().map(|s| s.0);
    assert_eq!(time("10s"), Ok(Duration::from_secs(10)));
    assert_eq!(time("1.5"), Ok(Duration::from_millis(1500)));
    assert_eq!(time("2m 30s"), Ok(Duration::from_secs(150)));
    for text in ["soon", "-1", "5 parsecs", ""] {
        assert!(time(text).unwrap_err().contains("is not a time"), "{text}");
    }
}

#[test]
fn fractions() {
    let part = |text: &str| text.parse::<Fraction>().map(|f| f.0);
    assert_eq!(part("0.75"), Ok(0.75));
    assert_eq!(part("75%"), Ok(0.75));
    assert_eq!(part("1"), Ok(1.0));
    for text in ["0", "1.1", "101%", "-3", "half"] {
        assert!(part(text).is_err(), "{text}");
    }
}

#[test]
fn shown_with_three_digits() {
    for (n, text) in [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.98 KiB"),
        (1536, "1.50 KiB"),
        (10 << 20, "10.0 MiB"),
        (256 << 20, "256 MiB"),
        (1 << 60, "1024 PiB"),
    ] {
        assert_eq!(bytes(n), text);
    }
    assert_eq!(seconds(12.4), "12s");
    assert_eq!(seconds(200.0), "3m 20s");
    assert_eq!(seconds(7500.0), "2h 5m");
    assert_eq!(seconds(90_000.0), "1d 1h");
}
