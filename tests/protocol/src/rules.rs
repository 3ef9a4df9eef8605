//! The rules of the protocol that can be broken one at a time.
//!
//! A model that finds nothing wrong proves little until it is seen to find what is wrong. Every rule here is a sentence of
//! `docs/decisions/0008-many-nodes.md` (or of its repairs, see the README); the tests switch each one off and demand a trace.

macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Which rules hold. `Rules::default()` is the protocol.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Rules {
            $($(#[$doc])* pub $name: bool,)*
        }

        impl Default for Rules {
            fn default() -> Self {
                Self { $($name: true,)* }
            }
        }

        impl Rules {
            /// The names of all rules, for the command line.
            pub const NAMES: &[&str] = &[$(stringify!($name),)*];

            /// The protocol without the rule of that name, or `None` if there is no such rule.
            pub fn without(name: &str) -> Option<Self> {
                let mut rules = Self::default();
                match name {
                    $(stringify!($name) => rules.$name = false,)*
                    _ => return None,
                }
                Some(rules)
            }
        }
    };
}

rules! {
    /// An epoch is above every epoch that the refresh before it saw.
    epoch_above_seen,
    /// The epoch is chosen in a refresh that follows the choice of bytes, not in an older one.
    refresh_before_append,
    /// The refresh of a publish is followed by a stamp, before the batch: whoever then finds the batch, and began before its
    /// node had seen what it saw, looks again.
    stamp_before_append,
    /// So it is whatever epoch the batches of others have that were seen, also one below its own.
    stamp_whatever_epoch,
    /// A batch is followed by a stamp.
    stamp_after_append,
    /// From the append on, a node's own bytes lie where their epoch says, not on top of its view until the store forgets them.
    own_batch_in_order,
    /// A restart looks into its own layout for what it had published.
    restart_reads_own_layout,
    /// A restart that finds a layout of its own stamps: it may have died before it did.
    restart_stamps,
    /// A deferred close leaves an intent, and a stamp after it.
    intent_is_stamped,
    /// Intents go only after the batch is there.
    intent_removed_last,
    /// A refresh looks at the stamp again, after it has read.
    second_look,
    /// A refresh waits for intents of others.
    wait_for_intent,
    /// The refresh of a publish does not: two nodes would wait for each other.
    publish_does_not_wait,
    /// A layout that was listed and is gone when it is opened means: list again.
    vanished_layout_lists_again,
    /// A term is checked again after its link was made.
    term_listed_again,
    /// A term is taken only when the one before it ended or its holder is dead.
    term_only_after_end,
    /// A domain is checked again (plan unfinished, domain not done) after its link was made.
    domain_listed_again,
    /// Writers of the canonical file look at their lease.
    lease_checked,
    /// A done mark is made only under the lease.
    done_under_lease,
    /// Who finds its lease lapsed gives up what it held, even if the next heartbeat succeeds.
    lapsed_gives_up,
    /// The base comes after all domains are done.
    base_after_done,
    /// Layouts and subfiles go only after the base that covers them.
    reclaim_after_base,
    /// A layout goes only after the store has forgotten what it says is published.
    reclaim_after_forget,
    /// Adoption removes subfiles of a dead node, and never its layout, which says how far it had published.
    adoption_leaves_layouts,
    /// A holder drains alone only while its view has no batch of another node beyond the base.
    alone_stops_at_foreign,
    /// The same for a batch of its own, and for a publish of its own that is under way.
    alone_stops_at_own,
    /// An unfinished plan is finished without a new cut.
    no_new_cut,
    /// While a plan is unfinished no other is made.
    plan_is_finished_first,
    /// The canonical file is cut before the plan is made.
    cut_before_plan,
    /// Drain never creates the file.
    drain_never_creates,
    /// A domain is synced before its done mark.
    domain_synced_before_done,
    /// A cut of the canonical file is synced before the plan.
    cut_synced_before_plan,
    /// The size of the canonical file is synced before the base.
    size_synced_before_base,
    /// Draining alone, a stripe is synced before the store forgets it.
    alone_synced_before_record,
    /// Draining alone, that the store has forgotten everything is synced before anybody is told that nothing is owed.
    alone_end_synced,
    /// A layout goes only after it is synced that the store has forgotten what it holds.
    forget_synced_before_reclaim,
    /// An fsync syncs the log.
    fsync_syncs_log,
    /// Intents of a store that has nothing more of the file are ended by its next start.
    clean_store_ends_intents,
    /// A layout with an append that did not come back is sealed before the same batch goes to another.
    sealed_before_repeated,
    /// Nothing is read behind a seal.
    nothing_behind_a_seal,
    /// What was read there before is forgotten when the seal is seen.
    seal_is_remembered,
    /// A restart takes nothing behind a seal for published.
    restart_heeds_seal,
    /// A batch carries growth that has no bytes.
    growth_is_published,
    /// A round sets the size of the canonical file.
    round_sets_size,
}
