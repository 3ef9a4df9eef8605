//! The rules of order by time, which can be broken one at a time.

rules! {
    /// Where bytes of several nodes overlap, the later write wins, not the later publication.
    order_by_time,
    /// A write gets a time above everything that its node has seen in reads.
    clock_follows_reads,
    /// A node registers as a writer and then lists the others: of two that register at once, one sees the other.
    link_before_list,
    /// A node that registers waits until all living writers know of it, before it writes.
    hello_acknowledged,
    /// The acknowledgement carries the time, so that what the new writer writes is newer.
    hello_carries_time,
    /// A node that drains alone stops when another writer registers.
    hello_stops_alone,
    /// A node drains alone only if no other writer is registered, dead ones included.
    alone_among_registered,
    /// A node stops draining alone when something of the file is published, its own bytes included.
    alone_stops_at_published,
    /// A read through a handle that also writes asks the other registered writers.
    reads_ask,
    /// It asks first, and then reads what is published: what is published in between is found.
    ask_before_refresh,
    /// What an answer says is void if it was drained before the read is over: something newer may be, too.
    drained_answers_void,
    /// A holder says which cut it intends, and then lists the writers.
    intent_before_list,
    /// A node that registers, and one that publishes, moves its clock beyond an intended cut.
    clock_follows_intent,
    /// A plan is made when all living writers have published up to the cut.
    plan_waits_for_marks,
    /// A plan covers nothing newer than its cut.
    plan_ends_at_cut,
    /// A base covers what was published when its plan was made, and not what an absent writer has published since.
    base_covers_what_was_taken,
    /// While a writer is absent, the times of what is drained are remembered.
    drained_times_kept,
    /// Views put bytes that are older than what was drained below it.
    view_heeds_drained,
    /// Plans, and nodes that drain alone, do too.
    drain_heeds_drained,
    /// A node stays registered until it has published everything.
    leaves_when_published,
    /// An announcement is removed after the publication.
    announcement_until_published,
    /// A read-only open asks the nodes that have announced something, before it reads what is published.
    read_only_asks_announcers,
    /// A node whose lease has lapsed answers no read before it has registered anew.
    reads_under_lease,
    /// A node whose lease had lapsed registers anew: writers may have come that it does not know of.
    wake_says_hello,
    /// So does a node that starts again.
    restart_says_hello,
}
