//! Sizes as people write them.

/// Parses `4096`, `64k`, `1M`, `1MiB`, `2GiB`; units are powers of 1024.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        unit => return Err(format!("'{text}': unknown unit '{unit}'; use k, M or G")),
    };
    digits
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(factor))
        .filter(|n| *n > 0)
        .ok_or_else(|| format!("'{text}' is not a size; write for example 47008 or 1M"))
}

/// Formats a block size exactly: `1 MiB`, `47008 B`.
pub fn block_name(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 20 && b % (1 << 20) == 0 => format!("{} MiB", b >> 20),
        b if b >= 1 << 10 && b % (1 << 10) == 0 => format!("{} KiB", b >> 10),
        b => format!("{b} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse_size("47008"), Ok(47008));
        assert_eq!(parse_size("4k"), Ok(4096));
        assert_eq!(parse_size("1MiB"), Ok(1 << 20));
        assert!(parse_size("0").is_err());
        assert!(parse_size("5x").is_err());
        assert!(parse_size("99999999999999G").is_err());
        assert_eq!(block_name(1 << 20), "1 MiB");
        assert_eq!(block_name(47008), "47008 B");
        assert_eq!(block_name(4096), "4 KiB");
    }
}
