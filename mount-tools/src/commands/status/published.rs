//! Finds data that a node has published and that the canonical files do not have yet. The store no longer
//! lists such data; the shared directory below the backing does.
//!
//! The backing may hang, and a thread that hangs there would keep this command from ending. So a separate
//! process reads the shared directory (this program once more, with `--published-by`). It gets [`PATIENCE`];
//! if it hangs, it is killed and not waited for.

use super::backing;
use crate::checks;
use crate::daemon::wiring;
use crate::exit_codes::{Code, Failure, Result};
use crate::output;
use crate::process::Watched;
use forebay_fs::Backing;
use layout_index::sharing::peers::{self, SurveyedFile};
use layout_index::{FileId, Intro, NodeId};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// Must be less than root waits for a process that asks as another user (`owner.rs`).
const PATIENCE: Duration = Duration::from_secs(3);

/// A killed process ends within this time, unless it hangs.
const END: Duration = Duration::from_millis(200);

/// A file whose canonical file lacks some of what this node has published.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Published {
    pub id: FileId,
    pub bytes: u64,
    /// End of the last of these bytes.
    pub end: u64,
    /// Why these numbers cannot be known exactly.
    pub problems: Vec<String>,
}

/// A canonical file that was found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Canonical {
    pub id: FileId,
    /// Path below the backing.
    pub path: PathBuf,
    pub size: u64,
    pub uid: u32,
}

type Files = Result<Vec<Published>, String>;

/// Returns what `node` has published over `backing`, and the canonical files that could be found in time. The
/// error says why this cannot be known.
pub fn by(node: NodeId, backing: &Path) -> Result<(Vec<Published>, Vec<Canonical>), String> {
    let cannot = |e: std::io::Error| e.to_string();
    let mut child = Command::new("/proc/self/exe")
        .args(["status", "--published-by", &node.0.to_string(), "--backing"])
        .arg(backing)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(cannot)?;
    let deadline = Instant::now() + PATIENCE;
    let (send, heard) = channel();
    let said = child.stdout.take();
    std::thread::spawn(move || {
        let lines = said
            .into_iter()
            .flat_map(|said| BufReader::new(said).lines());
        // If a line cannot be sent, the caller has given up.
        lines
            .map_while(|line| line.ok())
            .try_for_each(|line| send.send(line).map_err(drop))
            .unwrap_or_default();
    });
    let next = || {
        let left = deadline.saturating_duration_since(Instant::now());
        heard.recv_timeout(left).ok()
    };
    let files = next().map(|line| serde_json::from_str::<Files>(&line));
    let canonicals = next().and_then(|line| serde_json::from_str(&line).ok());
    // The child has printed everything, or it hangs where perhaps no signal ends it. In that case it is left
    // to the system.
    child.kill().map_err(cannot)?;
    if Watched::new(child.id()).is_none_or(|child| child.wait(END)) {
        child.try_wait().map_err(cannot)?;
    }
    match files {
        Some(Ok(files)) => Ok((files?, canonicals.unwrap_or_default())),
        Some(Err(e)) => Err(e.to_string()),
        None => Err(format!(
            "the backing {} does not answer within {PATIENCE:?}",
            backing.display()
        )),
    }
}

/// Runs in the separate process. Prints one line as soon as it knows what is published, and another one with
/// the canonical files.
pub fn tell(node: NodeId, dir: &Path) -> Result<Code> {
    let (files, backing) = match find_published(node, dir) {
        Ok(Some((files, backing))) => (Ok(files), Some(backing)),
        Ok(None) => (Ok(Vec::new()), None),
        Err(failure) => (Err(failure.message), None),
    };
    let published: Files = files.as_ref().map_err(Clone::clone).map(|files| {
        let files = files.iter().map(published);
        files.collect()
    });
    output::print_json(&published, false)?;
    let canonicals: Vec<Canonical> = match (&files, &backing) {
        (Ok(files), Some(backing)) => {
            let found = files.iter().filter_map(|file| canonical(backing, file));
            found.collect()
        }
        _ => Vec::new(),
    };
    output::print_json(&canonicals, false)?;
    Ok(Code::Ok)
}

fn find_published(node: NodeId, dir: &Path) -> Result<Option<(Vec<SurveyedFile>, Backing)>> {
    let dir = checks::bare_backing(dir)?;
    let me = nix::unistd::geteuid();
    // A node only uses a shared directory that its own user owns.
    let others = |meta: std::fs::Metadata| !me.is_root() && meta.uid() != me.as_raw();
    if std::fs::symlink_metadata(dir.join(".forebay")).is_ok_and(others) {
        return Ok(None);
    }
    let backing = wiring::open_backing(&dir)?;
    let Some(shared_dir) = backing::open_shared_dir(&backing)? else {
        return Ok(None);
    };
    let files = peers::published_by(&shared_dir, node);
    let files = files.map_err(|e| Failure::failed(format!("the shared directory: {e}")))?;
    Ok(Some((files, backing)))
}

fn published(file: &SurveyedFile) -> Published {
    let ends = file.layouts.iter().map(|l| l.end);
    Published {
        id: file.id,
        bytes: file.layouts.iter().map(|l| l.undrained).sum(),
        end: ends.max().unwrap_or(0),
        problems: file.problems.clone(),
    }
}

/// Finds the canonical file by its handle, which only root may use. A search through the backing would take
/// longer than the answer is worth.
fn canonical(backing: &Backing, file: &SurveyedFile) -> Option<Canonical> {
    if file.handle.is_empty() || !nix::unistd::geteuid().is_root() {
        return None;
    }
    let hint = Intro {
        handle: file.handle.clone(),
        ..Intro::default()
    };
    let found = backing.find(file.id, &hint).ok()??;
    let path = backing.relative_path(found.as_fd()).ok()??;
    let meta = std::fs::File::from(found).metadata().ok()?;
    Some(Canonical {
        id: file.id,
        path,
        size: meta.size(),
        uid: meta.uid(),
    })
}
