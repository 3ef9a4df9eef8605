use super::*;
use clap::CommandFactory;
use layout_index::policy::Drain;

#[test]
fn the_command_line_is_sound() {
    Cli::command().debug_assert();
}

#[test]
fn every_command_shows_examples_and_the_program_its_exit_codes() {
    let mut cli = Cli::command();
    assert!(cli.render_long_help().to_string().contains("Exit codes:"));
    let own = |c: &&mut clap::Command| c.get_name() != "help";
    for command in cli.get_subcommands_mut().filter(own) {
        let help = command.render_long_help().to_string();
        let name = command.get_name();
        assert!(help.contains("Examples:"), "{name}");
        assert!(help.contains(&format!("forebay {name}")), "{name}");
    }
}

#[test]
fn every_command_that_reports_has_json() {
    for command in Cli::command().get_subcommands() {
        let has = command.get_arguments().any(|a| a.get_id() == "json");
        assert_eq!(has, command.get_name() != "mount", "{}", command.get_name());
    }
}

#[test]
fn mount_takes_its_options_in_the_usual_ways() {
    let cli = Cli::try_parse_from([
        "forebay",
        "mount",
        "/s",
        "--store",
        "/n",
        "--ost",
        "/a",
        "--ost",
        "/b",
        "-o",
        "ro,noatime",
        "-o",
        "allow_other",
        "--drain",
        "on-close",
        "--drain-rate=10MiB",
        "--verify",
    ])
    .unwrap();
    let Command::Mount(args) = cli.command else {
        panic!("not a mount");
    };
    assert_eq!(args.options, ["ro", "noatime", "allow_other"]);
    assert_eq!(args.keys.ost.len(), 2);
    assert_eq!(args.keys.drain, Some(Drain::OnClose));
    assert_eq!(args.keys.drain_rate, Some(Size(10 << 20)));
    assert_eq!(args.keys.verify, Some(true));
}

#[test]
fn wrong_values_are_named() {
    for (option, value) in [
        ("--drain", "sometimes"),
        ("--stripe", "12 parsecs"),
        ("--high-watermark", "2"),
        ("--attr-timeout", "soon"),
        ("--locks", "tight"),
    ] {
        let error = Cli::try_parse_from(["forebay", "mount", "/s", option, value]).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(value) && text.contains(option), "{text}");
        assert_eq!(error.exit_code(), exit_codes::Code::Usage as i32);
    }
}
