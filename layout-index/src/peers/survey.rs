//! What the shared directory says of all nodes and files, for people: no store, no lease, nothing is
//! changed. What cannot be read is said, not skipped.
//!
//! # Appends
//! A layout that ends within a batch is being appended to, or an append to it died (which was promised to
//! nobody), or it was cut, and with it what others had been promised. The first is seen by a second
//! look; the other two look the same and are said.

use crate::commons::{Commons, NodeRecord};
use crate::layout::{self, Base, LayoutId, Parsed, Tail, View};
use crate::types::{Epoch, FileId, NodeId};
use std::io;
use std::time::Duration;

/// No layout gets this long.
const LONGEST: usize = 1 << 32;

/// An append that takes longer has a target that hangs.
const APPENDING: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Survey {
    pub nodes: Vec<NodeRecord>,
    pub files: Vec<SurveyedFile>,
}

#[derive(Debug)]
pub struct SurveyedFile {
    pub id: FileId,
    /// The canonical file's, if a layout has it.
    pub handle: Vec<u8>,
    pub layouts: Vec<SurveyedLayout>,
    /// Nodes that have closed the file, or appended to it, and not published that.
    pub promised: Vec<NodeId>,
    pub epoch: Epoch,
    /// Who may drain now, if anybody does.
    pub holder: Option<NodeId>,
    /// A round is under way: domains that are done, and all.
    pub round: Option<(usize, u32)>,
    pub problems: Vec<String>,
}

#[derive(Debug)]
pub struct SurveyedLayout {
    pub node: NodeId,
    pub generation: u32,
    pub batches: usize,
    /// Bytes of the file that its batches have and the canonical file does not, overlaps counted
    /// for each.
    pub undrained: u64,
    /// The end of the last byte of the file that these batches have.
    pub end: u64,
    /// How long it is, if it ends within a batch.
    torn: Option<u64>,
}

/// Looks at everything.
pub fn survey(commons: &Commons) -> io::Result<Survey> {
    let mut files = Vec::new();
    let appenders = commons.appenders()?;
    let asked = Asked {
        appenders: &appenders,
        only: None,
    };
    let mut ids = commons.files()?;
    ids.extend(appenders.iter().map(|(file, _)| *file));
    ids.sort();
    ids.dedup();
    for id in ids {
        files.extend(survey_file(commons, id, asked));
    }
    let is_torn = |file: &SurveyedFile| file.layouts.iter().any(|l| l.torn.is_some());
    if files.iter().any(is_torn) {
        std::thread::sleep(APPENDING);
        let again = |file: SurveyedFile| match is_torn(&file) {
            true => survey_again(commons, &file, asked),
            false => Some(file),
        };
        files = files.into_iter().filter_map(again).collect();
    }
    Ok(Survey {
        nodes: commons.nodes()?,
        files,
    })
}

/// Files of which `node` has published something that their canonical files do not have, or of which that cannot
/// be told. An append that died was promised to no node, so it does not count. Layouts of other nodes are not read.
pub fn published_by(commons: &Commons, node: NodeId) -> io::Result<Vec<SurveyedFile>> {
    let asked = Asked {
        only: Some(node),
        ..Asked::default()
    };
    let mut files = Vec::new();
    for id in commons.files()? {
        files.extend(survey_file(commons, id, asked));
    }
    let has_some = |file: &SurveyedFile| file.layouts.iter().any(|l| l.batches > 0);
    files.retain(|file| has_some(file) || !file.problems.is_empty());
    Ok(files)
}

/// A file with layouts that ended within a batch: where they still end there, nobody appends.
fn survey_again(
    commons: &Commons,
    before: &SurveyedFile,
    asked: Asked<'_>,
) -> Option<SurveyedFile> {
    let mut file = survey_file(commons, before.id, asked)?;
    for layout in &file.layouts {
        let of = |l: &SurveyedLayout| (l.node, l.generation, l.torn);
        if let Some(len) = layout.torn
            && before.layouts.iter().any(|l| of(l) == of(layout))
        {
            let (name, ends) = (commons.name_of(layout.node), layout::ends_within(len));
            file.problems.push(format!(
                "a layout of node {name} {ends}: an append to it died, or it was cut"
            ));
        }
    }
    Some(file)
}

/// What is asked of each file.
#[derive(Clone, Copy, Default)]
struct Asked<'a> {
    /// Nodes that append to files.
    appenders: &'a [(FileId, NodeId)],
    /// Only what this node says.
    only: Option<NodeId>,
}

/// One file; `None` if nothing is said of it any more.
fn survey_file(commons: &Commons, id: FileId, asked: Asked<'_>) -> Option<SurveyedFile> {
    let only = asked.only;
    let mut file = SurveyedFile {
        id,
        handle: Vec::new(),
        layouts: Vec::new(),
        promised: Vec::new(),
        epoch: Epoch(0),
        holder: None,
        round: None,
        problems: Vec::new(),
    };
    let appenders = asked.appenders.iter().filter(|(of, _)| *of == id);
    file.promised = appenders.map(|(_, node)| *node).collect();
    let listing = match commons.list(id) {
        Ok(Some(listing)) => listing,
        Ok(None) => return (!file.promised.is_empty()).then_some(file),
        Err(e) => {
            file.problems.push(e.to_string());
            return Some(file);
        }
    };
    let is_meant = |node: NodeId| only.is_none_or(|only| only == node);
    if only.is_some() && !listing.layouts.iter().any(|(node, _)| is_meant(*node)) {
        return None;
    }
    file.promised
        .extend(listing.intents.iter().map(|i| i.owner.id));
    file.promised.sort();
    file.promised.dedup();
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
        let read = file.read(commons.read_base(id, *term));
        match read.map(|bytes| Base::decode(&bytes, id)) {
            Some(Ok(base)) => view.set_base(base),
            Some(Err(why)) => file.problems.push(format!("base {term:x} {why}")),
            None => {}
        }
    }
    if let Some(term) = listing.unfinished_plan()
        && let Some(bytes) = file.read(commons.read_plan(id, term))
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
        survey_layout(commons, &view, &mut file, (*node, *generation), seal);
    }
    Some(file)
}

impl SurveyedFile {
    /// What was read, if it was there and could be.
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
    commons: &Commons,
    view: &View,
    file: &mut SurveyedFile,
    (node, generation): (NodeId, u32),
    seal: Option<u64>,
) {
    let bytes = commons.read_layout(file.id, node, generation, 0, LONGEST);
    if let Ok(None) = bytes {
        return;
    }
    // One that cannot be read is there all the same.
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
        let name = commons.name_of(node);
        file.problems.push(format!("a layout of node {name} {why}"));
    }
    if file.handle.is_empty() {
        file.handle = parsed.handle;
    }
    let covered = view.base_upto(node, generation);
    // Behind a seal an append may have died, and that a batch is cut before it is said already.
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

/// What is wrong with a layout, seen whole: also what lies behind its seal, which nobody else reads.
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
    // One append may have come late; who seals a layout begins no other.
    let late = ends().filter(|end| *end > seal).count();
    (late > 1).then(|| format!("is sealed at byte {seal}, and {late} batches lie behind that"))
}

#[cfg(test)]
mod tests;
