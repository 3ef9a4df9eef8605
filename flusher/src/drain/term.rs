//! The term of this node for a file: as long as it has the term, no other node writes the canonical
//! file.

use super::blocking;
use super::shared_file::SharedJob;
use crate::drain_error::DrainError;
use layout_index::sharing::shared_dir::TermAttempt;
use layout_index::{FileId, Peers};
use std::sync::Arc;

/// A term of this node. It ends when the last task that needs it drops it.
pub(crate) struct Held {
    peers: Arc<Peers>,
    file: FileId,
    pub term: u64,
}

impl Held {
    /// Whether this node may still write the canonical file. Must be called right before each
    /// write.
    pub fn holds(&self) -> bool {
        let terms = self.peers.shared_dir().terms();
        terms.holds_term(self.file, self.term)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let (peers, file, term) = (self.peers.clone(), self.file, self.term);
        let end = move || {
            let terms = peers.shared_dir().terms();
            let gone = match terms.holds_term(file, term) {
                true => terms.tidy(file, term),
                false => Ok(false),
            };
            let ended = gone.and_then(|gone| {
                if gone {
                    Ok(())
                } else {
                    terms.end_term(file, term)
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

/// Takes the file's term. `None` if another node has it.
pub(super) async fn take_term(job: &SharedJob) -> Result<Option<Arc<Held>>, DrainError> {
    let (peers, file) = (job.shared_files.peers.clone(), job.file.id());
    // The guard is made where the term is taken: if no task waits for the result any more, the term
    // ends at once.
    let taken = blocking(move || {
        let taken = peers.shared_dir().terms().take_term(file)?;
        Ok(match taken {
            TermAttempt::Mine(term) => Some(Arc::new(Held {
                peers,
                file,
                term: term.number,
            })),
            TermAttempt::Held(_) => None,
        })
    });
    taken.await?.map_err(job.shared_dir_error())
}
