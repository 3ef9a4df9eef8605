//! The rules of the protocol, which can be broken one at a time.
//!
//! A model that finds nothing wrong proves little until it has been seen to find something that is wrong. Every rule
//! here is a sentence of `docs/decisions/0008-many-nodes.md` (or of its repairs, see the README). The tests switch
//! each one off and require a trace.

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

            /// Returns the protocol without the rule of that name, or `None` if there is no such rule.
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
    /// A publish sets the change token between its refresh and the append of the batch: a reader that then finds the
    /// batch, and began its refresh before the node had seen what it saw, refreshes again.
    touch_before_append,
    /// It does so whatever epoch the seen batches of other nodes have, also one below its own.
    touch_whatever_epoch,
    /// After the append of a batch the change token is set.
    touch_after_append,
    /// From the append on, a node's own bytes are ordered by their epoch; they do not lie on top of its view until
    /// the store forgets them.
    own_batch_in_order,
    /// A restart reads its own layout to find out what it had published.
    restart_reads_own_layout,
    /// A restart that finds a layout of its own sets the change token: the node may have died before it did so.
    restart_touches,
    /// A deferred close makes an announcement and then sets the change token.
    announcement_touches,
    /// Announcements are removed only after the batch is there.
    announcement_removed_last,
    /// A refresh checks the change token again after it has read.
    second_look,
    /// A refresh waits for announcements of other nodes.
    wait_for_announcement,
    /// The refresh of a publish does not wait: two nodes would wait for each other.
    publish_does_not_wait,
    /// If a layout that was listed is gone when it is opened, the refresh lists again.
    vanished_layout_lists_again,
    /// A term is checked again after its link was made.
    term_listed_again,
    /// A term is taken only if the one before it has ended or its holder is dead.
    term_only_after_end,
    /// A domain is checked again (plan unfinished, domain not done) after its link was made.
    domain_listed_again,
    /// Writers of the canonical file check their lease.
    lease_checked,
    /// A done mark is made only under the lease.
    done_under_lease,
    /// A node that finds its lease lapsed gives up what it held, even if the next heartbeat succeeds.
    lapsed_gives_up,
    /// The base is written after all domains are done.
    base_after_done,
    /// Layouts and subfiles are removed only after the base that covers them is written.
    reclaim_after_base,
    /// A layout is removed only after the store has forgotten the bytes that the layout says are published.
    reclaim_after_forget,
    /// Adoption removes the subfiles of a dead node but never its layout, which says how far the node had published.
    adoption_leaves_layouts,
    /// A holder drains alone only while its view has no batch of another node beyond the base.
    alone_stops_at_foreign,
    /// The same for a batch of its own beyond the base, and for a publish of its own that is under way.
    alone_stops_at_own,
    /// An unfinished plan is finished without a new cut.
    no_new_cut,
    /// While a plan is unfinished no other plan is made.
    plan_is_finished_first,
    /// The canonical file is cut before the plan is made.
    cut_before_plan,
    /// A drain never creates the file.
    drain_never_creates,
    /// A domain is synced before its done mark.
    domain_synced_before_done,
    /// A cut of the canonical file is synced before the plan.
    cut_synced_before_plan,
    /// The size of the canonical file is synced before the base.
    size_synced_before_base,
    /// When a node drains alone, a stripe is synced before the store forgets it.
    alone_synced_before_record,
    /// When a node drains alone and the store has forgotten everything, it syncs its log before other nodes can find
    /// the file clean.
    alone_end_synced,
    /// A layout is removed only after the node has synced that its store has forgotten what the layout holds.
    forget_synced_before_reclaim,
    /// An fsync syncs the log.
    fsync_syncs_log,
    /// Announcements of a store that holds nothing more of the file are ended by its next start.
    clean_store_ends_announcements,
    /// A layout with an append that did not return is sealed before the same batch is appended to another layout.
    sealed_before_repeated,
    /// Nothing is read past a seal.
    nothing_behind_a_seal,
    /// Batches past a seal that were read before are forgotten when the seal is seen.
    seal_is_remembered,
    /// A restart treats nothing past a seal as published.
    restart_heeds_seal,
    /// A batch carries growth without bytes.
    growth_is_published,
    /// A round sets the size of the canonical file.
    round_sets_size,
}
