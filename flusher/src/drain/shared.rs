//! A file that other nodes may have a part in.
//!
//! ```text
//!             ┌─ nobody else has published, and the term is ours ─▶ straight from the log (alone)
//! unpublished ┤
//!             └─ else ─▶ subfiles ─▶ published ─▶ round: domains ─▶ canonical file ─▶ base
//! ```
//!
//! Terms, leases and what a kill at any step leaves: `docs/decisions/0008-many-nodes.md`. Nothing is
//! written to the canonical file without a look at the term right before it ([`Held::holds`]).

use super::round::{self, Round};
use super::subfiles::{self, Moved, Pace};
use super::{Halt, LOOK, Pulse, blocking, by_itself, joined, leave_to_itself, rejoin};
use crate::engine::Shared;
use crate::schedule::{Outcome, Scope};
use crate::settings::Subfiles;
use crate::together::Together;
use crate::trouble::{self, Trouble};
use layout_index::commons::TermAttempt;
use layout_index::peers::INLINE;
use layout_index::{File, FileId, Peers, StoreError, Wait};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// While others are at it.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Somebody who writes faster than it can be moved is left to the next job.
const PASSES: usize = 8;

/// A term of this node. Ends when the last who needs it lets go.
pub(crate) struct Held {
    peers: Arc<Peers>,
    file: FileId,
    pub term: u64,
}

impl Held {
    /// Whether this node may still write the canonical file. Asked right before each write.
    pub fn holds(&self) -> bool {
        self.peers.commons().holds(self.file, self.term)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let (peers, file, term) = (self.peers.clone(), self.file, self.term);
        let end = move || {
            let commons = peers.commons();
            let gone = match commons.holds(file, term) {
                true => commons.tidy(file, term),
                false => Ok(false),
            };
            let ended = gone.and_then(|gone| {
                if gone {
                    Ok(())
                } else {
                    commons.end_term(file, term)
                }
            });
            if let Err(error) = ended {
                tracing::warn!(%file, %error, "a term could not be ended; it ends with this node's lease");
            }
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(end)),
            Err(_) => end(),
        }
    }
}

pub(crate) async fn file(shared: Arc<Shared>, file: Arc<File>, scope: Scope) -> Outcome {
    let Some(together) = &shared.together else {
        return Outcome::Failed;
    };
    if file.is_unlinked() && !together.peers.has_part(&file) {
        together.remove_idle(&file);
        return Outcome::Clean;
    }
    together.add(&file, false);
    let ended = match shared.stuck.contains(file.id()) {
        true => beside(&shared, together, &file, scope).await,
        false => looked_after(&shared, &file, scope).await,
    };
    ended_with(&shared, together, &file, ended)
}

/// What comes of a step, whoever waited for it.
fn ended_with(
    shared: &Shared,
    together: &Together,
    file: &Arc<File>,
    ended: Result<Outcome, Halt>,
) -> Outcome {
    let outcome = match ended {
        Ok(outcome) => outcome,
        Err(Halt::Trouble(trouble)) => {
            trouble::stick(file, &trouble);
            if trouble.damaged {
                Outcome::Damaged
            } else {
                Outcome::Failed
            }
        }
        Err(Halt::Stopping) => Outcome::Stopped,
    };
    match outcome {
        Outcome::Clean | Outcome::Dirty | Outcome::Passed if together.remove_idle(file) => {
            file.clear_error();
            shared.canonicals.finished(file.id());
            Outcome::Clean
        }
        Outcome::Clean => Outcome::Passed,
        other => other,
    }
}

/// Does a step, for as long as it lives.
async fn looked_after(
    shared: &Arc<Shared>,
    file: &Arc<File>,
    scope: Scope,
) -> Result<Outcome, Halt> {
    let pulse = Arc::new(Pulse::default());
    let mut going = {
        let (shared, file, pulse) = (shared.clone(), file.clone(), pulse.clone());
        tokio::spawn(async move { step(&shared, &file, scope, &pulse).await })
    };
    loop {
        tokio::select! {
            ended = &mut going => return joined(ended)?,
            () = tokio::time::sleep(LOOK) => {}
        }
        if pulse.silent_for(shared.patience()).is_some() {
            let (there, this) = (shared.clone(), file.clone());
            leave_to_itself(shared, file, &trouble::name_of(file), pulse, async move {
                let ended = going.await.unwrap_or_else(|error| {
                    tracing::error!(file = %this.id(), %error, "a step of its drain broke off");
                    Err(Halt::Stopping)
                });
                if let Some(together) = &there.together {
                    ended_with(&there, together, &this, ended);
                }
            });
            return Ok(Outcome::Failed);
        }
    }
}

/// While a step of the file hangs: new data still goes where others see it, unless it is that which
/// hangs.
async fn beside(
    shared: &Arc<Shared>,
    together: &Together,
    file: &Arc<File>,
    scope: Scope,
) -> Result<Outcome, Halt> {
    if !file.is_clean() && !file.is_unlinked() {
        let publish = async {
            let _way = together.way(file).await;
            publish_on(shared, together, file, scope, Pace::Limited, Part::none()).await
        };
        match tokio::time::timeout(shared.patience(), publish).await {
            Ok(published) => published?,
            Err(_) => return Ok(Outcome::Failed),
        }
    }
    Ok(rejoin(shared, file).await)
}

async fn step(
    shared: &Arc<Shared>,
    file: &Arc<File>,
    scope: Scope,
    pulse: &Arc<Pulse>,
) -> Result<Outcome, Halt> {
    let Some(together) = &shared.together else {
        return Ok(Outcome::Failed);
    };
    let name = trouble::name_of(file);
    let peers = &together.peers;
    // Before the term: who has the way may need that.
    let way = together.way(file).await;
    let held = take_term(peers, file, &name).await?;
    if !watched_look(shared, file, &name, pulse).await? {
        return discard(shared, together, file, &name).await;
    }
    // No target may take more because they are full of what is published: the round makes room.
    let mut unpublished = None;
    if !file.is_clean() && !file.is_unlinked() {
        let alone =
            file.published_view().is_empty() && shared.subfiles_of(file) != Subfiles::Always;
        if let Some(held) = held.as_ref().filter(|_| alone) {
            let promises = peers.promises(file);
            let outcome =
                by_itself(shared, file, &name, scope, Some(held.clone()), Some(pulse)).await;
            if outcome == Outcome::Clean {
                keep(peers, file, &name, promises).await?;
            }
            let gone_on = !file.published_view().is_empty();
            let goes_on = matches!(outcome, Outcome::Dirty | Outcome::Passed);
            if !(goes_on && gone_on) {
                return Ok(outcome);
            }
        }
        let part = Part {
            held: held.as_ref(),
            step: Some(pulse),
        };
        unpublished = match publish_on(shared, together, file, scope, Pace::Limited, part).await {
            Err(Halt::Trouble(trouble)) => Some(trouble),
            other => {
                other?;
                None
            }
        };
    } else if peers.owes(file) {
        let promises = peers.promises(file);
        keep(peers, file, &name, promises).await?;
    }
    drop(way);
    let had_some = !file.published_view().is_empty();
    let round = round::go(shared, file, &name, held.clone(), pulse).await?;
    reclaim(peers, file, &name).await?;
    if held.is_none() && !peers.has_part(file) {
        // The last one to go clears up: whoever has the term does so when it ends.
        drop(take_term(peers, file, &name).await?);
    }
    let made_room = had_some && round != Round::Others;
    let is_all = unpublished.is_none() && scope == Scope::Everything;
    if let Some(trouble) = unpublished.filter(|_| !made_room) {
        return Err(Halt::Trouble(trouble));
    }
    if round == Round::Over && is_all {
        return Ok(Outcome::Passed);
    }
    if round == Round::Others {
        shared.sleep(LOOK_AGAIN).await;
    }
    Ok(Outcome::Dirty)
}

/// What a publication is part of.
#[derive(Clone, Copy)]
struct Part<'a> {
    /// The term, if its step has it.
    held: Option<&'a Arc<Held>>,
    step: Option<&'a Arc<Pulse>>,
}

impl Part<'_> {
    fn none() -> Self {
        Part {
            held: None,
            step: None,
        }
    }
}

async fn take_term(
    peers: &Arc<Peers>,
    file: &Arc<File>,
    name: &str,
) -> Result<Option<Arc<Held>>, Halt> {
    let (peers, file) = (peers.clone(), file.id());
    // Made where it is taken: if nobody waits for it any more, it ends at once.
    let taken = blocking(move || {
        let taken = peers.commons().take_term(file)?;
        Ok(match taken {
            TermAttempt::Mine(term) => Some(Arc::new(Held {
                peers,
                file,
                term: term.number,
            })),
            TermAttempt::Held(_) => None,
        })
    });
    taken.await?.map_err(|e| directory(name, &e))
}

async fn keep(
    peers: &Arc<Peers>,
    file: &Arc<File>,
    name: &str,
    promises: layout_index::peers::Promises,
) -> Result<(), Halt> {
    let (peers, file) = (peers.clone(), file.clone());
    blocking(move || peers.kept(&file, promises))
        .await?
        .map_err(|e| Halt::Trouble(trouble::store(name, "telling other nodes of", e)))
}

async fn reclaim(peers: &Arc<Peers>, file: &Arc<File>, name: &str) -> Result<(), Halt> {
    let (peers, file) = (peers.clone(), file.clone());
    blocking(move || peers.reclaim(&file).map(drop))
        .await?
        .map_err(|e| Halt::Trouble(trouble::store(name, "reclaiming what was published of", e)))
}

/// Refreshes the view. False when the canonical file is gone.
pub(super) async fn look(shared: &Arc<Shared>, file: &Arc<File>, name: &str) -> Result<bool, Halt> {
    let (there, file) = (shared.clone(), file.clone());
    let looked = blocking(move || {
        let Some(together) = &there.together else {
            return Ok(false);
        };
        let ask = || there.canonicals.look(&file);
        together.peers.refresh(&file, &ask, Wait::No)
    })
    .await?;
    match looked {
        Ok(_) => Ok(true),
        Err(StoreError::Gone(_)) => Ok(false),
        Err(e) => Err(Halt::Trouble(trouble::store(
            name,
            "looking at what nodes say of",
            e,
        ))),
    }
}

/// The same, where somebody looks whether it hangs.
pub(super) async fn watched_look(
    shared: &Arc<Shared>,
    file: &Arc<File>,
    name: &str,
    pulse: &Arc<Pulse>,
) -> Result<bool, Halt> {
    let _waiting = pulse.enter();
    look(shared, file, name).await
}

/// The canonical file is gone for certain.
async fn discard(
    shared: &Arc<Shared>,
    together: &Together,
    file: &Arc<File>,
    name: &str,
) -> Result<Outcome, Halt> {
    let (peers, gone) = (together.peers.clone(), file.clone());
    blocking(move || {
        gone.discard()?;
        peers.discard(&gone)
    })
    .await?
    .map_err(|e| Halt::Trouble(trouble::store(name, "dropping the data of", e)))?;
    tracing::info!(file = %file.id(), %name, "the canonical file is gone: what was not drained was dropped");
    shared.canonicals.finished(file.id());
    Ok(Outcome::Clean)
}

/// Puts everything that was written until now where other nodes see it.
pub(crate) async fn publish(
    shared: &Arc<Shared>,
    file: &Arc<File>,
    scope: Scope,
    pace: Pace,
) -> Result<(), Halt> {
    let Some(together) = &shared.together else {
        return Ok(());
    };
    together.add(file, false);
    let _hurry = (pace == Pace::Full).then(|| shared.hurry(file.id()));
    let _way = together.way(file).await;
    publish_on(shared, together, file, scope, pace, Part::none()).await
}

/// The same for who has the way.
async fn publish_on(
    shared: &Arc<Shared>,
    together: &Together,
    file: &Arc<File>,
    scope: Scope,
    pace: Pace,
    part: Part<'_>,
) -> Result<(), Halt> {
    let name = trouble::name_of(file);
    let mut crowded = false;
    let mut said = None;
    for _ in 0..PASSES {
        let moved = match crowded || file.in_log() > INLINE {
            true => Some(subfiles::move_out(shared, file, &name, scope, pace).await?),
            false => None,
        };
        let there = shared.clone();
        let (peers, this) = (together.peers.clone(), file.clone());
        let all = blocking(move || {
            let ask = || there.canonicals.look(&this);
            peers.publish(&this, &ask)
        })
        .await?;
        let all = match all {
            // Whoever drains it next drops what is left of it.
            Err(StoreError::Gone(_)) => return Ok(()),
            other => other.map_err(|e| Halt::Trouble(trouble::store(&name, "publishing", e)))?,
        };
        match moved {
            _ if all => return Ok(()),
            // What is left was written after this began.
            Some(Moved::Out) => return Ok(()),
            // There were few bytes, and then too many: another writer of this node. All of them are
            // left, also those that were there before.
            None => {
                crowded = true;
                continue;
            }
            Some(Moved::Not(errno)) => said = errno.or(said),
        }
        if straight(shared, together, file, &name, part).await? {
            return Ok(());
        }
    }
    // What keeps its drain says more than that nobody takes it.
    if let Some(error) = file.error() {
        return Err(Halt::Trouble(Trouble {
            errno: error.errno,
            message: error.message,
            damaged: false,
            away: false,
            passing: false,
        }));
    }
    // The job hears what the file system below has said, and nothing that only this program says.
    Err(Halt::Trouble(Trouble {
        errno: said.unwrap_or(libc::EIO),
        message: format!(
            "publishing {name}: no storage target takes its data; it stays in the store and is tried again"
        ),
        damaged: false,
        away: false,
        passing: false,
    }))
}

/// No target takes it, or the store is too full to say where it went: if nobody else has published
/// anything, the canonical file is the way. True when it has everything.
async fn straight(
    shared: &Arc<Shared>,
    together: &Together,
    file: &Arc<File>,
    name: &Arc<str>,
    part: Part<'_>,
) -> Result<bool, Halt> {
    let deadline = Instant::now() + shared.patience();
    while Instant::now() < deadline && !file.is_clean() {
        let taken = match part.held {
            Some(held) => Some(held.clone()),
            None => take_term(&together.peers, file, name).await?,
        };
        // A job of this file may be at it, and goes on as fast as it can now.
        let Some(held) = taken else {
            shared.sleep(LOOK_AGAIN).await;
            continue;
        };
        if !look(shared, file, name).await? || !file.published_view().is_empty() {
            return Ok(false);
        }
        let promises = together.peers.promises(file);
        let all = Scope::Everything;
        let outcome = by_itself(shared, file, name, all, Some(held), part.step).await;
        if outcome == Outcome::Clean {
            keep(&together.peers, file, name, promises).await?;
        }
        return Ok(outcome == Outcome::Clean);
    }
    Ok(file.is_clean())
}

pub(super) fn directory(name: &str, source: &std::io::Error) -> Halt {
    Halt::Trouble(Trouble {
        errno: source.raw_os_error().unwrap_or(libc::EIO),
        message: format!(
            "draining {name}: the shared directory does not work: {source}; the data stays where it is and is tried again"
        ),
        damaged: false,
        away: false,
        passing: false,
    })
}

/// The lease has run out: whoever took over goes on.
pub(super) fn lapsed(name: &str) -> Trouble {
    let error = StoreError::Unusable("this node's lease has run out meanwhile".to_owned());
    trouble::store(name, "draining", error)
}
