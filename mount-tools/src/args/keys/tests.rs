use super::*;
use crate::args::Cli;
use clap::{Command, CommandFactory};
use std::fmt::Write;

const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/CONFIGURATION.md");
const HEAD: &str = "| key | default | meaning |\n|---|---|---|\n";

/// Set to anything to have the tables written instead of compared.
const WRITE: &str = "FOREBAY_WRITE_DOCS";

fn row(arg: &Arg) -> String {
    let name = arg.get_long().unwrap();
    let text = arg.get_long_help().or(arg.get_help()).unwrap().to_string();
    let (short, more) = text.split_once("\n\n").unwrap_or((&text, ""));
    let (short, default) = short
        .strip_suffix(']')
        .and_then(|short| short.rsplit_once(" [default: "))
        .unwrap_or((short, "required"));
    let dot = if more.is_empty() { "" } else { ". " };
    let more = more.replace("\n\n", " ");
    format!("| `{name}` | {default} | {short}{dot}{more} |\n")
}

/// The page with the tables as the declarations say, each under the heading of its section.
fn written(page: &str) -> String {
    let options = Keys::augment_args(Command::new("keys"));
    let mut tables: Vec<(&str, String)> = Vec::new();
    for arg in options.get_arguments() {
        let section = arg.get_help_heading().unwrap();
        if tables.last().is_none_or(|(last, _)| *last != section) {
            tables.push((section, HEAD.to_owned()));
        }
        write!(tables.last_mut().unwrap().1, "{}", row(arg)).unwrap();
    }
    let mut page = page.to_owned();
    for (section, table) in tables {
        let heading = format!("\n## {section}\n");
        let at = page.find(&heading);
        let at = at.unwrap_or_else(|| panic!("the page has no section \"{section}\""));
        let start = at + page[at..].find(HEAD).expect("a table of keys");
        let end = page[start..].find("\n\n").expect("text after the table");
        page.replace_range(start..start + end + 1, &table);
    }
    page
}

#[test]
fn the_page_about_configuration_says_what_the_declarations_say() {
    let page = std::fs::read_to_string(DOCS).unwrap();
    let right = written(&page);
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(DOCS, &right).unwrap();
        return;
    }
    let wrong: Vec<_> = right.lines().filter(|line| !page.contains(line)).collect();
    assert!(
        page == right,
        "docs/CONFIGURATION.md differs from the declarations; {WRITE}=1 and this test write it. These lines are missing:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn help_is_plain_text_and_names_defaults() {
    let mut cli = Cli::command();
    let mount = cli.find_subcommand_mut("mount").unwrap();
    for help in [mount.render_help(), mount.render_long_help()] {
        let help = help.to_string();
        assert!(!help.contains("](") && !help.contains("**"), "{help}");
        let help = one_line(&help);
        assert!(help.contains("immediate (soon after the write)"), "{help}");
        assert!(help.contains("[default: 60s]"), "{help}");
        assert!(help.contains("--keep[=<true|false>]"), "{help}");
    }
}
