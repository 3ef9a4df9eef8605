//! The content of the shared directory for all nodes and files, for status output: uses no store
//! and no lease, and changes nothing. Data that cannot be read is reported, not skipped.
//!
//! # Appends
//! If a layout ends within a batch, the batch is being appended; or its append died, and no node
//! was told that it is published; or the layout was cut, and published bytes were lost. The first
//! case shows in a second reading; the other two look the same and are reported.

use crate::sharing::layout::{self, Base, LayoutId, Parsed, Tail, View};
use crate::sharing::shared_dir::{NodeRecord, SharedDir};
use crate::types::{Epoch, FileId, NodeId};
use std::io;
use std::time::Duration;

/// No layout gets this long.
const LONGEST: usize = 1 << 32;

/// An append that takes longer is on a target that hangs.
const APPENDING: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Survey {
    pub nodes: Vec<NodeRecord>,
    pub files: Vec<SurveyedFile>,
}

#[derive(Debug)]
pub struct SurveyedFile {
    pub id: FileId,
    /// Handle of the canonical file, if a layout has it.
    pub handle: Vec<u8>,
    pub layouts: Vec<SurveyedLayout>,
    /// Nodes that have closed the file, or appended to it, and not published that.
    pub announced: Vec<NodeId>,
    pub epoch: Epoch,
    /// The node that may drain now, if there is one.
    pub holder: Option<NodeId>,
    /// A round under way: how many domains are done, and how many there are.
    pub round: Option<(usize, u32)>,
    pub problems: Vec<String>,
}

#[derive(Debug)]
pub struct SurveyedLayout {
    pub node: NodeId,
    pub generation: u32,
    pub batches: usize,
    /// Bytes of the file that its batches have and the canonical file does not. Overlapping bytes
    /// are counted once for each batch.
    pub undrained: u64,
    /// The end of the last byte of the file that these batches have.
    pub end: u64,
    /// Length of the layout, if it ends within a batch.
    torn: Option<u64>,
}

/// Surveys all nodes and files.
pub fn survey(shared_dir: &SharedDir) -> io::Result<Survey> {
    let mut files = Vec::new();
    let appenders = shared_dir.appenders()?;
    let asked = Asked {
        appenders: &appenders,
        only: None,
    };
    let mut ids = shared_dir.files()?;
    ids.extend(appenders.iter().map(|(file, _)| *file));
    ids.sort();
    ids.dedup();
    for id in ids {
        files.extend(survey_file(shared_dir, id, asked));
    }
    let is_torn = |file: &SurveyedFile| file.layouts.iter().any(|l| l.torn.is_some());
    if files.iter().any(is_torn) {
        std::thread::sleep(APPENDING);
        let again = |file: SurveyedFile| match is_torn(&file) {
            true => survey_again(shared_dir, &file, asked),
            false => Some(file),
        };
        files = files.into_iter().filter_map(again).collect();
    }
    Ok(Survey {
        nodes: shared_dir.membership().nodes()?,
        files,
    })
}

/// Returns files of which `node` has published something that their canonical files do not have, or
/// of which that cannot be determined. A batch whose append died does not count, because no node
/// was told that it is published. Layouts of other nodes are not read.
pub fn published_by(shared_dir: &SharedDir, node: NodeId) -> io::Result<Vec<SurveyedFile>> {
    let asked = Asked {
        only: Some(node),
        ..Asked::default()
    };
    let mut files = Vec::new();
    for id in shared_dir.files()? {
        files.extend(survey_file(shared_dir, id, asked));
    }
    let has_some = |file: &SurveyedFile| file.layouts.iter().any(|l| l.batches > 0);
    files.retain(|file| has_some(file) || !file.problems.is_empty());
    Ok(files)
}

/// Surveys a file again whose layouts ended within a batch: if one still ends at the same byte, no
/// append is under way.
fn survey_again(
    shared_dir: &SharedDir,
    before: &SurveyedFile,
    asked: Asked<'_>,
) -> Option<SurveyedFile> {
    let mut file = survey_file(shared_dir, before.id, asked)?;
    for layout in &file.layouts {
        let of = |l: &SurveyedLayout| (l.node, l.generation, l.torn);
        if let Some(len) = layout.torn
            && before.layouts.iter().any(|l| of(l) == of(layout))
        {
            let (name, ends) = (
                shared_dir.membership().name_of(layout.node),
                layout::ends_within(len),
            );
            file.problems.push(format!(
                "a layout of node {name} {ends}: an append to it died, or it was cut"
            ));
        }
    }
    Some(file)
}

/// What to report of each file.
#[derive(Clone, Copy, Default)]
struct Asked<'a> {
    /// Nodes that append to files.
    appenders: &'a [(FileId, NodeId)],
    /// Restricts the survey to this node's data.
    only: Option<NodeId>,
}

/// Surveys one file; `None` if the shared directory has nothing of it any more.
fn survey_file(shared_dir: &SharedDir, id: FileId, asked: Asked<'_>) -> Option<SurveyedFile> {
    let only = asked.only;
    let mut file = SurveyedFile {
        id,
        handle: Vec::new(),
        layouts: Vec::new(),
        announced: Vec::new(),
        epoch: Epoch(0),
        holder: None,
        round: None,
        problems: Vec::new(),
    };
    let appenders = asked.appenders.iter().filter(|(of, _)| *of == id);
    file.announced = appenders.map(|(_, node)| *node).collect();
    let listing = match shared_dir.list(id) {
        Ok(Some(listing)) => listing,
        Ok(None) => return (!file.announced.is_empty()).then_some(file),
        Err(e) => {
            file.problems.push(e.to_string());
            return Some(file);
        }
    };
    let is_meant = |node: NodeId| only.is_none_or(|only| only == node);
    if only.is_some() && !listing.layouts.iter().any(|(node, _)| is_meant(*node)) {
        return None;
    }
    file.announced
        .extend(listing.announcements.iter().map(|i| i.owner.id));
    file.announced.sort();
    file.announced.dedup();
    for name in listing.strange.iter().filter(|_| only.is_none()) {
        file.problems
            .push(format!("{name:?} is no name that a node gives"));
    }
    if let Some((term, owner)) = listing.terms.last_key_value()
        && !listing.ended.contains(term)
    {
        file.holder = Some(owner.id);
    }
    let mut view = View::default();
    if let Some(term) = listing.bases.last() {
        let read = file.read(shared_dir.read_base(id, *term));
        match read.map(|bytes| Base::decode(&bytes, id)) {
            Some(Ok(base)) => view.set_base(base),
            Some(Err(why)) => file.problems.push(format!("base {term:x} {why}")),
            None => {}
        }
    }
    if let Some(term) = listing.unfinished_plan()
        && let Some(bytes) = file.read(shared_dir.read_plan(id, term))
    {
        match layout::Plan::decode(&bytes, id) {
            Ok(plan) => {
                let done = listing.done.iter().filter(|(t, _)| *t == term).count();
                file.round = Some((done, plan.domains));
            }
            Err(why) => file.problems.push(format!("plan {term:x} {why}")),
        }
    }
    for (node, generation) in listing.layouts.iter().filter(|(node, _)| is_meant(*node)) {
        let seal = listing.seal_of((*node, *generation));
        survey_layout(shared_dir, &view, &mut file, (*node, *generation), seal);
    }
    Some(file)
}

impl SurveyedFile {
    /// Returns what was read, if it was there and readable. Notes an error as a problem.
    fn read(&mut self, read: io::Result<Option<Vec<u8>>>) -> Option<Vec<u8>> {
        match read {
            Ok(bytes) => bytes,
            Err(e) => {
                self.problems.push(e.to_string());
                None
            }
        }
    }
}

fn survey_layout(
    shared_dir: &SharedDir,
    view: &View,
    file: &mut SurveyedFile,
    (node, generation): (NodeId, u32),
    seal: Option<u64>,
) {
    let bytes = shared_dir.read_layout(file.id, node, generation, 0, LONGEST);
    if let Ok(None) = bytes {
        return;
    }
    // A layout that cannot be read is listed all the same.
    let bytes = file.read(bytes);
    let id = LayoutId {
        file: file.id,
        node,
        generation,
    };
    let parsed = layout::parse(bytes.as_deref().unwrap_or(&[]), 0, &id);
    if bytes.is_some()
        && let Some(why) = wrong(&parsed, seal)
    {
        let name = shared_dir.membership().name_of(node);
        file.problems.push(format!("a layout of node {name} {why}"));
    }
    if file.handle.is_empty() {
        file.handle = parsed.handle;
    }
    let covered = view.base_upto(node, generation);
    // An append past a seal may have died; and if a batch is cut before the seal, that has been
    // reported already.
    let torn = match parsed.tail {
        Tail::Incomplete if seal.is_none() => bytes.map(|bytes| bytes.len() as u64),
        _ => None,
    };
    let mut found = SurveyedLayout {
        node,
        generation,
        batches: 0,
        undrained: 0,
        end: 0,
        torn,
    };
    let counts = |end: u64| seal.is_none_or(|seal| end <= seal);
    for (end, batch) in parsed.batches.iter().filter(|(end, _)| counts(*end)) {
        file.epoch = file.epoch.max(batch.head.epoch);
        if *end > covered {
            found.batches += 1;
            let strips = batch.strips().iter();
            found.undrained += strips.map(|s| s.total()).sum::<u64>();
            let bounds = batch.bounds();
            found.end = found.end.max(bounds.map_or(0, |bounds| bounds.end));
        }
    }
    file.layouts.push(found);
}

/// Returns what is wrong with a layout that was read whole, including what lies past its seal,
/// which is read only here.
fn wrong(parsed: &Parsed, seal: Option<u64>) -> Option<String> {
    let behind = seal.unwrap_or(u64::MAX);
    if let Tail::Damaged { at, why } = &parsed.tail
        && *at < behind
    {
        return Some(why.clone());
    }
    let seal = seal?;
    let ends = || parsed.batches.iter().map(|(end, _)| *end);
    if seal > 0 && !ends().any(|end| end == seal) {
        return Some(layout::no_batch_ends_at(seal));
    }
    // One append may have been late; a node that seals a layout begins no other append to it.
    let late = ends().filter(|end| *end > seal).count();
    (late > 1).then(|| format!("is sealed at byte {seal}, and {late} batches lie behind that"))
}

#[cfg(test)]
mod tests;
