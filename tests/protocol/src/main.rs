//! `check-protocol [--without RULE] [--threads N] [--limit STATES] [CONFIGURATION…]`: explores configurations and
//! prints counts, and traces of the properties that are broken.

use forebay_protocol::{Config, Explored, Rules, all, check_until, named, order};
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
    let mut order_configs: Vec<order::Config> = Vec::new();
    let mut rules = Rules::default();
    let mut order_rules = order::Rules::default();
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
                order::all()
                    .iter()
                    .for_each(|c| println!("{:24} {}", c.name, c.about));
                Rules::NAMES
                    .iter()
                    .chain(order::Rules::NAMES)
                    .for_each(|rule| println!("--without {rule}"));
                return Ok(true);
            }
            "--without" => {
                let name = args
                    .next()
                    .ok_or("--without needs the name of a rule: see --list")?;
                match (Rules::without(&name), order::Rules::without(&name)) {
                    (Some(without), _) => rules = without,
                    (_, Some(without)) => order_rules = without,
                    _ => return Err(format!("there is no rule '{name}': see --list")),
                }
            }
            "--threads" => {
                let text = args.next().ok_or("--threads needs a number")?;
                threads = above_zero("--threads", &text)?;
            }
            "--limit" => {
                let text = args.next().ok_or("--limit needs a number")?;
                limit = Some(above_zero("--limit", &text)?);
            }
            name => match (named(name), order::named(name)) {
                (Some(config), _) => configs.push(config),
                (_, Some(config)) => order_configs.push(config),
                _ => return Err(format!("no configuration '{name}': see --list")),
            },
        }
    }
    if configs.is_empty() && order_configs.is_empty() {
        (configs, order_configs) = (all(), order::all());
    }
    let mut passed = true;
    for mut config in configs {
        config.rules = rules;
        passed &= explore(&config, threads, limit);
    }
    for mut config in order_configs {
        config.rules = order_rules;
        passed &= explore(&config, threads, limit);
    }
    Ok(passed)
}

fn explore(config: &impl Explored, threads: usize, limit: Option<usize>) -> bool {
    let report = check_until(config, threads, limit);
    println!("{report}");
    report.failures.iter().for_each(|trace| print!("{trace}"));
    report
        .missing
        .iter()
        .for_each(|name| println!("never reached: {name}"));
    report.passed()
}

fn above_zero(option: &str, text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|&n| n > 0);
    number.ok_or_else(|| format!("{option} {text}: not a number above 0"))
}
