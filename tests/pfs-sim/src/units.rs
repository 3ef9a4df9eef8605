//! Sizes, times and shares as people write them, on the command line and in control commands.

use std::time::Duration;

const SUFFIXES: [(char, u32); 4] = [('K', 10), ('M', 20), ('G', 30), ('T', 40)];

/// Parses `4096`, `64K`, `1M`, `1.5G`, `10MiB`; the letters are powers of 1024.
pub fn size(text: &str) -> Result<u64, String> {
    let bad = || format!("\"{text}\" is no size; write a number with K, M, G or T, such as 64K");
    let upper = text.trim().to_ascii_uppercase();
    let short = upper.strip_suffix("IB").unwrap_or(&upper);
    let short = short.strip_suffix('B').unwrap_or(short);
    let (digits, shift) = SUFFIXES
        .iter()
        .find_map(|(letter, shift)| Some((short.strip_suffix(*letter)?, *shift)))
        .unwrap_or((short, 0));
    if let Ok(whole) = digits.parse::<u64>() {
        return whole.checked_mul(1 << shift).ok_or_else(bad);
    }
    let number: f64 = digits.parse().map_err(|_| bad())?;
    let bytes = number * (1u64 << shift) as f64;
    if !(0.0..u64::MAX as f64).contains(&bytes) {
        return Err(bad());
    }
    Ok(bytes as u64)
}

/// Parses a size that is not zero.
pub fn rate(text: &str) -> Result<u64, String> {
    match size(text)? {
        0 => Err(format!(
            "a bandwidth of \"{text}\" would never finish; use the failure \"hang\" for that"
        )),
        rate => Ok(rate),
    }
}

/// Parses `200us`, `2ms`, `1s`, `0`.
pub fn time(text: &str) -> Result<Duration, String> {
    if text.trim() == "0" {
        return Ok(Duration::ZERO);
    }
    humantime::parse_duration(text.trim())
        .map_err(|e| format!("\"{text}\" is no time ({e}); write a number and us, ms or s"))
}

/// Parses `10%` or `0.1`; from 0 to 1.
pub fn share(text: &str) -> Result<f64, String> {
    let trimmed = text.trim();
    let share = match trimmed.strip_suffix('%') {
        Some(percent) => percent.parse::<f64>().map(|n| n / 100.0),
        None => trimmed.parse(),
    };
    match share {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err(format!("\"{text}\" is no share; write 0% to 100%")),
    }
}

#[cfg(test)]
mod tests;
