//! What the shared directory says of all nodes and files, for people: no store, no lease, nothing is
//! changed. What cannot be read is said, not skipped.

use crate::commons::{Commons, NodeRecord};
use crate::layout::{self, Base, LayoutId, Tail, View};
use crate::types::{Epoch, FileId, NodeId};
use std::io;

/// No layout gets this long.
const LONGEST: usize = 1 << 32;

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
    /// Nodes that have closed the file and not published it.
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
}

/// Looks at everything.
pub fn survey(commons: &Commons) -> io::Result<Survey> {
    let mut files = Vec::new();
    for id in commons.files()? {
        files.extend(survey_file(commons, id)?);
    }
    Ok(Survey {
        nodes: commons.nodes()?,
        files,
    })
}

/// One file; `None` if nothing is said of it any more.
pub fn survey_file(commons: &Commons, id: FileId) -> io::Result<Option<SurveyedFile>> {
    let Some(listing) = commons.list(id)? else {
        return Ok(None);
    };
    let mut file = SurveyedFile {
        id,
        handle: Vec::new(),
        layouts: Vec::new(),
        promised: listing.intents.iter().map(|i| i.owner.id).collect(),
        epoch: Epoch(0),
        holder: None,
        round: None,
        problems: Vec::new(),
    };
    file.promised.sort();
    file.promised.dedup();
    for name in &listing.strange {
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
        match commons.read_base(id, *term)?.map(|b| Base::decode(&b, id)) {
            Some(Ok(base)) => view.set_base(base),
            Some(Err(why)) => file.problems.push(format!("base {term:x} {why}")),
            None => {}
        }
    }
    if let Some(term) = listing.unfinished_plan()
        && let Some(bytes) = commons.read_plan(id, term)?
    {
        match layout::Plan::decode(&bytes, id) {
            Ok(plan) => {
                let done = listing.done.iter().filter(|(t, _)| *t == term).count();
                file.round = Some((done, plan.domains));
            }
            Err(why) => file.problems.push(format!("plan {term:x} {why}")),
        }
    }
    for (node, generation) in &listing.layouts {
        let end = listing.end_of((*node, *generation));
        survey_layout(commons, &view, &mut file, (*node, *generation), end)?;
    }
    Ok(Some(file))
}

fn survey_layout(
    commons: &Commons,
    view: &View,
    file: &mut SurveyedFile,
    (node, generation): (NodeId, u32),
    end: u64,
) -> io::Result<()> {
    let longest = LONGEST.min(end as usize);
    let Some(bytes) = commons.read_layout(file.id, node, generation, 0, longest)? else {
        return Ok(());
    };
    let id = LayoutId {
        file: file.id,
        node,
        generation,
    };
    let parsed = layout::parse(&bytes, 0, &id);
    if let Tail::Damaged { why, .. } = &parsed.tail {
        let name = commons.name_of(node);
        file.problems.push(format!("a layout of node {name} {why}"));
    }
    if file.handle.is_empty() {
        file.handle = parsed.handle;
    }
    let covered = view.base_upto(node, generation);
    let mut found = SurveyedLayout {
        node,
        generation,
        batches: 0,
        undrained: 0,
    };
    for (end, batch) in &parsed.batches {
        file.epoch = file.epoch.max(batch.head.epoch);
        if *end > covered {
            found.batches += 1;
            let strips = batch.strips().iter();
            found.undrained += strips.map(|s| s.total()).sum::<u64>();
        }
    }
    file.layouts.push(found);
    Ok(())
}
