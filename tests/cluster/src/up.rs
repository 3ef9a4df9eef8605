//! Makes a cluster: all of it, or nothing.

use crate::failure::{Failure, Result, doing};
use crate::keeper::{self, Started, Tie};
use crate::network;
use crate::node::OnNode;
use crate::spec::{Bind, Plan};
use crate::state::{self, Lock, Network, Place, State};
use crate::teardown;
use std::os::unix::fs::symlink;

/// The event that ends the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// The command `down`.
    UntilDown,
    /// The end of this process.
    WithThisProcess,
}

/// Makes the cluster and returns when all daemons answer. `interrupted` is called between the
/// steps. On any failure everything that was made until then is removed again.
pub fn up(plan: &Plan, hold: Hold, interrupted: &dyn Fn() -> bool) -> Result<Vec<Tie>> {
    let place = &plan.place;
    let made_directory = make_directory(place)?;
    let _lock = Lock::take(place)?;
    refuse_second(place)?;
    let mut making = Making {
        plan,
        hold,
        interrupted,
        state: State::new(plan, made_directory)?,
        ties: Vec::new(),
    };
    let Err(failure) = making.state.save(place).and_then(|()| making.all()) else {
        return Ok(making.ties);
    };
    match teardown::clear(place, &making.state, false, making.ties) {
        Ok(()) => Err(failure),
        Err(problem) => Err(Failure::new(
            failure.code,
            format!("{failure}; what was made is not all gone: {problem}"),
        )),
    }
}

/// Returns whether the directory had to be made.
fn make_directory(place: &Place) -> Result<bool> {
    match std::fs::create_dir(&place.0) {
        Ok(()) => return Ok(true),
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(doing("make", &place.0)(e)),
    }
    let free = state::is_free(&place.0).map_err(doing("look into", &place.0))?;
    if free || place.file().exists() {
        return Ok(false);
    }
    Err(Failure::usage(format!(
        "{} has other things in it; name a directory for the cluster alone (--dir)",
        place.display()
    )))
}

fn refuse_second(place: &Place) -> Result<()> {
    let Some(there) = State::load_if_any(place)? else {
        return Ok(());
    };
    let what = match there.complete {
        true => format!("a cluster of {} nodes", there.nodes.len()),
        false => "a cluster that was never finished".to_owned(),
    };
    Err(Failure::failed(format!(
        "{0} has {what} already; take it down (forebay-cluster down --dir {0}) or name another directory (--dir)",
        place.display()
    )))
}

struct Making<'a> {
    plan: &'a Plan,
    hold: Hold,
    interrupted: &'a dyn Fn() -> bool,
    state: State,
    ties: Vec<Tie>,
}

impl Making<'_> {
    fn all(&mut self) -> Result<()> {
        self.files()?;
        let own = self.plan.network == Network::Own;
        if own {
            let started = self.keeper(keeper::SWITCH, &[])?;
            self.state.switch = Some(started.keeper.process);
            self.hold(started)?;
        }
        for index in 0..self.plan.nodes {
            let binds = self.plan.binds.iter().filter(|bind| bind.node == index);
            let binds: Vec<&Bind> = binds.collect();
            let started = self.keeper(&self.state.nodes[index].name, &binds)?;
            self.state.nodes[index].keeper = Some(started.keeper.clone());
            self.hold(started)?;
        }
        network::connect(&self.state)?;
        for index in 0..self.plan.nodes {
            self.go_on()?;
            let daemon = OnNode::new(&self.plan.place, &self.state, index)?.start()?;
            self.state.nodes[index].daemon = Some(daemon);
            self.save()?;
        }
        self.go_on()?;
        self.state.complete = true;
        self.save()
    }

    fn files(&self) -> Result<()> {
        let place = &self.plan.place;
        let mut dirs = vec![place.runtime(), place.mpi(), place.logs()];
        for node in &self.state.nodes {
            dirs.push(place.node_runtime(&node.name));
        }
        for dir in dirs {
            std::fs::create_dir_all(&dir).map_err(doing("make", &dir))?;
        }
        let hosts = network::hosts(self.plan.network, self.plan.nodes);
        std::fs::write(place.hosts(), hosts).map_err(doing("write", &place.hosts()))?;
        let launcher = place.launcher();
        symlink(&self.plan.program, &launcher).map_err(doing("make", &launcher))
    }

    fn keeper(&self, name: &str, binds: &[&Bind]) -> Result<Started> {
        self.go_on()?;
        let own = self.plan.network == Network::Own;
        keeper::start(&self.plan.program, &self.plan.place, name, own, binds)
    }

    /// Records the keeper before it may outlive this process: from then on another program can end
    /// it.
    fn hold(&mut self, started: Started) -> Result<()> {
        self.save()?;
        match self.hold {
            Hold::UntilDown => started.stay(),
            Hold::WithThisProcess => {
                self.ties.push(started.tie());
                Ok(())
            }
        }
    }

    fn save(&self) -> Result<()> {
        self.state.save(&self.plan.place)
    }

    fn go_on(&self) -> Result<()> {
        match (self.interrupted)() {
            false => Ok(()),
            true => Err(Failure::failed("interrupted")),
        }
    }
}
