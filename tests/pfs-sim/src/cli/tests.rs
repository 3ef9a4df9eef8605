use super::*;

fn parse(args: &[&str]) -> Cli {
    Cli::try_parse_from(["pfs-sim", "/mnt"].iter().chain(args)).expect("arguments")
}

fn refused(args: &[&str], word: &str) {
    let said = match Cli::try_parse_from(["pfs-sim", "/mnt"].iter().chain(args)) {
        Err(e) => e.to_string(),
        Ok(cli) => cli.settings().expect_err("refused"),
    };
    assert!(said.contains(word), "{args:?}: {said}");
}

#[test]
fn the_command_line_is_sound() {
    use clap::CommandFactory;
    Cli::command().debug_assert();
}

#[test]
fn slow_osts() {
    let cli = parse(&["--osts", "6", "--slow", "1=10M", "--slow", "3-4,0=1M"]);
    let all = cli.settings().expect("settings");
    let rates: Vec<u64> = all.iter().map(|ost| ost.bandwidth >> 20).collect();
    assert_eq!(rates, [1, 10, 100, 1, 1, 100]);
    refused(&["--slow", "3"], "which OSTs");
    refused(&["--slow", "x=1M"], "which OSTs");
    refused(&["--slow", "4-2=1M"], "which OSTs");
    refused(&["--osts", "4", "--slow", "4=1M"], "the last is 3");
}

#[test]
fn bad_numbers_are_named() {
    refused(&["--osts", "0"], "1 to 65535");
    refused(&["--queue", "0"], "at least 1");
    refused(&["--stripe-size", "100K"], "multiple of 64K");
    refused(&["--stripe-count", "0"], "from 1 on");
    refused(&["--max-request", "1K"], "64K to 16M");
    refused(&["--bandwidth", "0"], "never finish");
    refused(&["--latency", "5"], "us, ms or s");
    assert_eq!(parse(&["--stripe-count", "all"]).stripe_count, ANY);
}
