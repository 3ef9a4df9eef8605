//! Reads sizes, times and fractions as people write them, the same in the configuration file and on the
//! command line, and formats them for tables.

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

#[cfg(test)]
mod tests;

/// A number of bytes: `4096`, `64KiB`, `1.5 GiB`, `2GB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Size(pub u64);

/// A length of time: `500ms`, `10s`, `2m 30s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub Duration);

impl From<Span> for Duration {
    fn from(span: Span) -> Duration {
        span.0
    }
}

/// A part of a whole: `0.75` or `75%`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fraction(pub f64);

const UNITS: [(&str, u64); 14] = [
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("kib", 1 << 10),
    ("kb", 1000),
    ("m", 1 << 20),
    ("mib", 1 << 20),
    ("mb", 1_000_000),
    ("g", 1 << 30),
    ("gib", 1 << 30),
    ("gb", 1_000_000_000),
    ("t", 1 << 40),
    ("tib", 1 << 40),
    ("tb", 1_000_000_000_000),
];

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = |why: &str| format!("\"{text}\" is not a size ({why}); write it like 64MiB");
        let text = text.trim();
        let end = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let unit = unit.trim().to_ascii_lowercase();
        let Some((_, factor)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(wrong(&format!("unknown unit \"{unit}\"")));
        };
        if let Ok(whole) = number.parse::<u64>() {
            return match whole.checked_mul(*factor) {
                Some(bytes) => Ok(Size(bytes)),
                None => Err(wrong("too large")),
            };
        }
        let number: f64 = number.parse().map_err(|_| wrong("no number"))?;
        let bytes = number * *factor as f64;
        if bytes >= u64::MAX as f64 {
            return Err(wrong("too large"));
        }
        Ok(Size(bytes as u64))
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(seconds) = text.trim().parse::<f64>() {
            return Duration::try_from_secs_f64(seconds)
                .map(Span)
                .map_err(|e| format!("\"{text}\" is not a time ({e}); write it like 10s"));
        }
        humantime::parse_duration(text)
            .map(Span)
            .map_err(|e| format!("\"{text}\" is not a time ({e}); write it like 10s or 2m"))
    }
}

impl FromStr for Fraction {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let trimmed = text.trim();
        let (number, whole) = match trimmed.strip_suffix('%') {
            Some(percent) => (percent.trim(), 100.0),
            None => (trimmed, 1.0),
        };
        match number.parse::<f64>() {
            Ok(n) if n > 0.0 && n <= whole => Ok(Fraction(n / whole)),
            _ => Err(format!(
                "\"{text}\" is not a fraction above 0 and up to 1; write it like 0.75 or 75%"
            )),
        }
    }
}

/// Accepts strings and plain numbers, so that `drain-rate = 0` and `stripe = "1MiB"` both work.
struct Lenient<T>(std::marker::PhantomData<T>);

impl<T: FromStr<Err = String>> Visitor<'_> for Lenient<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number or a text like \"64MiB\", \"10s\" or \"75%\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, n: i64) -> Result<T, E> {
        n.to_string().parse().map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, n: u64) -> Result<T, E> {
        n.to_string().parse().map_err(E::custom)
    }

    fn visit_f64<E: de::Error>(self, n: f64) -> Result<T, E> {
        n.to_string().parse().map_err(E::custom)
    }
}

macro_rules! lenient {
    ($($name:ident)*) => {$(
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                d.deserialize_any(Lenient(std::marker::PhantomData))
            }
        }
    )*};
}
lenient!(Size Span Fraction);

/// `1.5 GiB`: three digits, binary units.
pub fn bytes(n: u64) -> String {
    const NAMES: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = n as f64;
    let mut unit = 0;
    // 999.5 would be shown as 1000.
    while value >= 999.5 && unit + 1 < NAMES.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{n} B"),
        _ if value < 9.995 => format!("{value:.2} {}", NAMES[unit]),
        _ if value < 99.95 => format!("{value:.1} {}", NAMES[unit]),
        _ => format!("{value:.0} {}", NAMES[unit]),
    }
}

pub fn rate(bytes_per_second: f64) -> String {
    format!("{}/s", bytes(bytes_per_second.max(0.0) as u64))
}

/// `1 file`, `2 files`.
pub fn files(n: usize) -> String {
    count(n, "file")
}

/// `1 OST`, `2 OSTs`.
pub fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// `2h 5m`, `3m 20s`, `12s`: the two largest units.
pub fn seconds(s: f64) -> String {
    let s = s.max(0.0).round() as u64;
    let (d, h, m, sec) = (s / 86_400, s / 3600 % 24, s / 60 % 60, s % 60);
    match (d, h, m) {
        (0, 0, 0) => format!("{sec}s"),
        (0, 0, _) => format!("{m}m {sec}s"),
        (0, _, _) => format!("{h}h {m}m"),
        _ => format!("{d}d {h}h"),
    }
}
