//! Breaks each rule once; the checker must find it and show a trace.

use forebay_protocol::{Rules, check, named};

/// Each rule, and a configuration in which it matters.
const TABLE: &[(&str, &str)] = &[
    ("epoch_above_seen", "publish-2"),
    ("refresh_before_append", "crash-2"),
    ("touch_before_append", "torn-3"),
    ("touch_before_append", "round-torn-3"),
    ("touch_whatever_epoch", "torn-again-3"),
    ("touch_after_append", "publish-3"),
    ("own_batch_in_order", "alone-2"),
    ("restart_reads_own_layout", "crash-3"),
    ("restart_touches", "crash-3"),
    ("announcement_touches", "publish-3"),
    ("announcement_removed_last", "publish-2"),
    ("second_look", "torn-3"),
    ("wait_for_announcement", "publish-2"),
    ("publish_does_not_wait", "publish-2"),
    ("vanished_layout_lists_again", "lock-3"),
    ("term_listed_again", "round-crash-2"),
    ("term_only_after_end", "round-both-2"),
    ("domain_listed_again", "round-both-2"),
    ("lease_checked", "round-pause-2"),
    ("done_under_lease", "round-pause-2"),
    ("lapsed_gives_up", "round-pause-2"),
    ("base_after_done", "lock-3"),
    ("reclaim_after_base", "lock-3"),
    ("reclaim_after_forget", "adopt-2"),
    ("adoption_leaves_layouts", "adopt-2"),
    ("alone_stops_at_foreign", "alone-2"),
    ("alone_stops_at_own", "alone-2"),
    ("no_new_cut", "truncate-2"),
    ("plan_is_finished_first", "round-crash-2"),
    ("cut_before_plan", "round-both-2"),
    ("drain_never_creates", "unlink-2"),
    ("domain_synced_before_done", "power-round-3"),
    ("cut_synced_before_plan", "power-round-2"),
    ("size_synced_before_base", "power-grow-2"),
    ("alone_synced_before_record", "power-alone-2"),
    ("alone_end_synced", "power-alone-2"),
    ("forget_synced_before_reclaim", "power-reclaim-2"),
    ("fsync_syncs_log", "power-2"),
    ("clean_store_ends_announcements", "power-2"),
    ("sealed_before_repeated", "seal-2"),
    ("nothing_behind_a_seal", "seal-2"),
    ("seal_is_remembered", "seal-2"),
    ("restart_heeds_seal", "seal-crash-2"),
    ("growth_is_published", "grow-2"),
    ("round_sets_size", "grow-2"),
];

const LAST_STEPS: usize = 4;

/// A model that finds nothing wrong is worth something only if it finds what is wrong.
#[test]
fn every_broken_rule_is_found() {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let mut unseen = Vec::new();
    for (rule, name) in TABLE {
        let mut config = named(name).unwrap_or_else(|| panic!("no configuration {name}"));
        config.rules = Rules::without(rule).unwrap_or_else(|| panic!("no rule {rule}"));
        let report = check(&config, threads);
        let Some(trace) = report.failures.first() else {
            println!("{rule}: NOT FOUND in {name}, {} states", report.unique);
            unseen.push(*rule);
            continue;
        };
        println!(
            "{rule}: found in {name} after {} states, {} steps: {}",
            report.unique,
            trace.steps.len(),
            trace.property
        );
        let first = trace.steps.len().saturating_sub(LAST_STEPS);
        trace.steps[first..]
            .iter()
            .for_each(|step| println!("    {step}"));
    }
    assert!(unseen.is_empty(), "broken and not found: {unseen:?}");
}

/// Every rule is in the table.
#[test]
fn every_rule_is_in_the_table() {
    for rule in Rules::NAMES {
        assert!(
            TABLE.iter().any(|(name, _)| name == rule),
            "{rule} is never broken"
        );
    }
}
