//! `check-protocol [--without RULE] [--threads N] [--limit STATES] [CONFIGURATION…]`: explores configurations and
//! prints counts, and traces of the properties that are broken.

use forebay_protocol::{Config, Rules, all, check_until, named};
use std::process::ExitCode;

const USAGE: &str =
    "check-protocol [--list] [--without RULE] [--threads N] [--limit STATES] [CONFIGURATION...]";

fn main() -> ExitCode {
    match run(std::env::args().skip(1)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("check-protocol: {message}");
            ExitCode::from(2)
        }
    }
}

fn run(mut args: impl Iterator<Item = String>) -> Result<bool, String> {
    let mut configs: Vec<Config> = Vec::new();
    let mut rules = Rules::default();
    let mut threads = 2;
    let mut limit = None;
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--help" | "-h" => {
                println!("{USAGE}");
                return Ok(true);
            }
            "--list" => {
                all()
                    .iter()
                    .for_each(|c| println!("{:24} {}", c.name, c.about));
                Rules::NAMES
                    .iter()
                    .for_each(|rule| println!("--without {rule}"));
                return Ok(true);
            }
            "--without" => {
                let name = args
                    .next()
                    .ok_or("--without needs the name of a rule: see --list")?;
                rules = Rules::without(&name)
                    .ok_or_else(|| format!("there is no rule '{name}': see --list"))?;
            }
            "--threads" => {
                let text = args.next().ok_or("--threads needs a number")?;
                threads = above_zero("--threads", &text)?;
            }
            "--limit" => {
                let text = args.next().ok_or("--limit needs a number")?;
                limit = Some(above_zero("--limit", &text)?);
            }
            name => configs
                .push(named(name).ok_or_else(|| format!("no configuration '{name}': see --list"))?),
        }
    }
    if configs.is_empty() {
        configs = all();
    }
    let mut passed = true;
    for mut config in configs {
        config.rules = rules;
        let report = check_until(&config, threads, limit);
        println!("{report}");
        report.failures.iter().for_each(|trace| print!("{trace}"));
        report
            .missing
            .iter()
            .for_each(|name| println!("never reached: {name}"));
        passed &= report.passed();
    }
    Ok(passed)
}

fn above_zero(option: &str, text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|&n| n > 0);
    number.ok_or_else(|| format!("{option} {text}: not a number above 0"))
}
