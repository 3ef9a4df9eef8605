//! The command line: dispatches each command and prints its result.

mod args;
mod show;
#[cfg(test)]
mod tests;

use crate::cluster;
use crate::failure::{Code, Failure, Result};
use crate::keeper;
use crate::launcher;
use crate::mpi;
use crate::node::OnNode;
use crate::spec::{self, Plan, Spec};
use crate::state::{Place, State};
use crate::teardown::{self, Options};
use crate::up::{self, Hold};
use args::{Cli, Command, DownArgs, ExecArgs, RunArgs, UpArgs};
use clap::Parser;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

/// Runs the whole program.
pub fn main() -> ExitCode {
    let mut words = std::env::args_os();
    let called = words.next().unwrap_or_default();
    if Path::new(&called).file_name() == Some(launcher::NAME.as_ref()) {
        let words: Vec<OsString> = words.collect();
        return end(Err(launcher::run(&words)));
    }
    let cli = Cli::parse();
    end(run(&cli))
}

fn end(result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("forebay-cluster: {failure}");
            failure.code.into()
        }
    }
}

fn run(cli: &Cli) -> Result<()> {
    let place = || spec::state_directory(cli.dir.as_deref()).map(Place);
    match &cli.command {
        Command::Up(args) => up(cli, args),
        Command::Run(args) => Err(not_run(place().and_then(|place| start(&place, args)))),
        Command::Exec(args) => Err(not_run(place().and_then(|place| exec(&place, args)))),
        Command::Status(args) => show::status(&place()?, args.json),
        Command::Logs(args) => show::logs(&place()?, args.node, args.lines),
        Command::Kill(args) => {
            let place = place()?;
            cluster::kill(&place, args.node)?;
            say(&format!("the daemon of n{} is killed", args.node))
        }
        Command::Restart(args) => {
            let place = place()?;
            cluster::restart(&place, args.node)?;
            say(&format!("n{} is up again", args.node))
        }
        Command::Drain(args) => {
            let (place, wait) = (place()?, args.wait || args.timeout.is_some());
            if wait && io::stderr().is_terminal() {
                cluster::drain(&place, false, None)?;
                show::watch(&place, args.timeout)?;
            }
            cluster::drain(&place, wait, args.timeout)?;
            say(match wait {
                true => "all nodes are drained",
                false => "all nodes are draining",
            })
        }
        Command::Down(args) => down(&place()?, args),
        Command::Keep(args) => keeper::keep(&place()?, &args.name, args.own_network, &args.bind),
    }
}

/// Writes with `writeln!`, because `println!` panics when the reader of standard output is gone.
fn say(line: &str) -> Result<()> {
    let mut out = io::stdout();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(|e| Failure::failed(format!("cannot write to standard output: {e}")))
}

/// Set by SIGINT, SIGTERM and SIGHUP.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn interrupt(_: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// After this call these signals only set [`INTERRUPTED`], which `up` checks between its steps.
fn watch_signals() -> Result<()> {
    let action = SigAction::new(
        SigHandler::Handler(interrupt),
        SaFlags::SA_RESTART,
        SigSet::empty(),
    );
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        // SAFETY: the handler only stores a bool.
        unsafe { sigaction(signal, &action) }
            .map_err(|e| Failure::failed(format!("cannot wait for {signal}: {e}")))?;
    }
    Ok(())
}

fn up(cli: &Cli, args: &UpArgs) -> Result<()> {
    let spec = Spec {
        nodes: args.nodes,
        backing: Some(args.backing.clone()),
        mount: args.mount.clone(),
        dir: cli.dir.clone(),
        config: args.config.clone(),
        arguments: args.arguments.clone(),
        network: args.network,
        forebay: args.forebay.clone(),
        binds: Vec::new(),
        environment: Vec::new(),
    };
    let plan = Plan::of(&spec)?;
    watch_signals()?;
    up::up(&plan, Hold::UntilDown, &|| {
        INTERRUPTED.load(Ordering::Relaxed)
    })?;
    let names = match plan.nodes {
        1 => "node n0 is up".to_owned(),
        n => format!("{n} nodes are up (n0 to n{})", n - 1),
    };
    say(&format!(
        "{names}: {} on each, over {}; stores and logs are in {}",
        plan.mount.display(),
        plan.backing.display(),
        plan.place.display()
    ))
}

/// Replaces this process with the command; returns only if that fails, with the reason.
fn start(place: &Place, args: &RunArgs) -> Result<Failure> {
    let state = State::load(place)?;
    let nodes = mpi::choose(&state, &args.nodes)?;
    let (program, rest) = split(&args.command)?;
    let program = mpi::program(&state, args.mpi, program)?;
    let environment = mpi::environment(place, &state, &nodes)?;
    let on = OnNode::new(place, &state, nodes[0])?;
    let mut command = on.command(&program, &here()?)?;
    command.args(rest).envs(environment);
    Ok(cannot_start(&program, &command.exec()))
}

fn exec(place: &Place, args: &ExecArgs) -> Result<Failure> {
    let state = State::load(place)?;
    let (program, rest) = split(&args.command)?;
    let on = OnNode::new(place, &state, args.node)?;
    let mut command = on.command(program, &here()?)?;
    Ok(cannot_start(program, &command.args(rest).exec()))
}

fn split(command: &[OsString]) -> Result<(&OsString, &[OsString])> {
    command
        .split_first()
        .ok_or_else(|| Failure::usage("which command?"))
}

fn here() -> Result<std::path::PathBuf> {
    std::env::current_dir()
        .map_err(|e| Failure::failed(format!("the current directory is gone: {e}")))
}

fn cannot_start(program: &OsString, error: &io::Error) -> Failure {
    Failure::failed(format!(
        "cannot start {}: {error}",
        program.to_string_lossy()
    ))
}

fn not_run(result: Result<Failure>) -> Failure {
    let failure = result.unwrap_or_else(|failure| failure);
    Failure::new(Code::NotRun, failure.message)
}

fn down(place: &Place, args: &DownArgs) -> Result<()> {
    let options = Options {
        discard: args.discard,
        keep_logs: args.keep_logs,
        timeout: args.timeout,
    };
    match teardown::down(place, &options, Vec::new())? {
        None => say(&format!("nothing is up in {}", place.display())),
        Some(nodes) => {
            let what = match (nodes, args.discard) {
                (1, false) => "the node is down; everything is drained".to_owned(),
                (1, true) => "the node is down".to_owned(),
                (n, false) => format!("{n} nodes are down; everything is drained"),
                (n, true) => format!("{n} nodes are down"),
            };
            match args.keep_logs {
                true => say(&format!(
                    "{what}; their logs are in {}",
                    place.logs().display()
                )),
                false => say(&what),
            }
        }
    }
}
