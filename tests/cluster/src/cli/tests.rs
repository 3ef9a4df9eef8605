use super::args::{Cli, Command};
use super::show;
use clap::{CommandFactory, Parser};

fn parse(line: &str) -> Result<Cli, clap::Error> {
    let words = line.split(' ');
    Cli::try_parse_from(["forebay-cluster"].into_iter().chain(words))
}

#[test]
fn the_definition_is_sound_and_every_command_has_an_example() {
    let mut cli = Cli::command();
    cli.build();
    cli.clone().debug_assert();
    for command in cli.get_subcommands().filter(|c| !c.is_hide_set()) {
        let name = command.get_name();
        if name == "help" {
            continue;
        }
        let text = command.get_after_help().expect(name).to_string();
        let example = format!("forebay-cluster {name}");
        assert!(text.contains(&example), "{name} has no example");
    }
}

#[test]
fn what_comes_after_the_dashes_is_not_ours() {
    let cli = parse("up 2 --backing /b --dir /s -- --drain never").unwrap();
    assert_eq!(cli.dir.unwrap(), std::path::Path::new("/s"));
    let Command::Up(up) = cli.command else {
        panic!("up")
    };
    assert_eq!(up.arguments, ["--drain", "never"]);
    for line in [
        "run --nodes 0,n2 -- mpirun -n 8 p --mpi x",
        "run --nodes 0,2 mpirun -n 8 p --mpi x",
    ] {
        let Command::Run(run) = parse(line).unwrap().command else {
            panic!("run")
        };
        assert_eq!(run.nodes, [0, 2], "{line}");
        assert_eq!(run.mpi, None, "{line}");
        assert_eq!(
            run.command,
            ["mpirun", "-n", "8", "p", "--mpi", "x"],
            "{line}"
        );
    }
    let Command::Exec(exec) = parse("exec n1 -- ls -l").unwrap().command else {
        panic!("exec")
    };
    assert_eq!((exec.node, exec.command.len()), (1, 2));
}

#[test]
fn bad_words_are_refused() {
    for line in [
        "up",
        "up two --backing /b",
        "up 2",
        "run",
        "run --mpi lam -- mpirun",
        "exec 1",
        "kill all",
        "down --discard --timeout 1m",
        "drain --timeout soon",
        "frobnicate",
    ] {
        let error = parse(line).err().unwrap_or_else(|| panic!("{line}"));
        assert_eq!(error.exit_code(), 2, "{line}");
    }
}

#[test]
fn sizes_have_three_digits() {
    for (count, text) in [
        (0, "0 B"),
        (999, "999 B"),
        (1024, "1.00 KiB"),
        (536_870_912, "512 MiB"),
        (47_008 * 1024, "45.9 MiB"),
        (u64::MAX, "16777216 TiB"),
    ] {
        assert_eq!(show::bytes(count), text);
    }
}
