//! The conformance suite of [`nodeyard_store::Tree`], which every backend must pass.
//!
//! Each behaviour is a test of its own for each backend, so a failure names both. What is covered:
//!
//! * `records`: create in every mode, and what each refuses; data, versions, conditional set and delete;
//!   children and their order; lists; the numbers of a stat and when each changes
//! * `sequences`: numbers count all children a record ever had; gaps; prefixes; several sessions
//! * `limits`: the largest record, one byte more, the largest multi, empty data, long and strange names, bad paths
//! * `multi`: all or nothing, the index of the failure, checks, operations that build on each other
//! * `order`: pipelined operations take effect in the order they were begun; reads see earlier writes;
//!   `sync` sees those of others
//! * `watches`: every change below, in order, nothing from beside or before; once-watches; events come
//!   before `sync` returns
//! * `sessions`: what dies with one, and when; closed handles; pinned handles
//! * `expiry` (backends whose sessions can end behind the handle's back): a new session follows, watchers
//!   see a gap and go on, pinned handles end
//! * `locks`: mutual exclusion under contention, fairness, time limits, cancellation, persistent and
//!   foreign contenders, elections
//! * `views`: exact after every kind of change, own writes at once, malformed and empty records
//! * `kazoo` (ZooKeeper): locks shared with Python in both directions
//! * `faults` (ZooKeeper): a view on servers that restart, lose connections, sessions and their leader
//! * `property`: random operations give the same results as a simple model in memory

mod backend;
mod expiry;
mod faults;
mod faulty;
mod kazoo;
mod limits;
mod locks;
mod model;
mod multi;
mod order;
mod property;
mod records;
mod sequences;
mod sessions;
mod views;
mod watches;

/// Makes a test of each behaviour, on a backend that is made by `$start`.
macro_rules! tests {
    ($start:path; $($topic:ident: $($behaviour:ident)*;)*) => {
        $(mod $topic {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $behaviour() {
                let backend = $start().await;
                crate::conformance::backend::within(crate::conformance::$topic::$behaviour(&backend)).await;
            })*
        })*
    };
}

macro_rules! every_behaviour {
    ($start:path) => {
        tests! {
            $start;
            records:
                a_created_record_reads_back
                every_mode_creates_what_it_says
                creating_twice_is_refused
                creating_without_parent_is_refused
                ephemerals_have_no_children
                set_counts_versions
                set_with_a_wrong_version_changes_nothing
                delete_with_a_wrong_version_changes_nothing
                delete_needs_an_empty_record
                what_is_missing_is_missing_for_everyone
                children_are_sorted
                lists_hold_the_records
                a_parent_counts_its_children
                a_recreated_record_starts_anew
                the_root_is_there;
            sequences:
                numbers_have_ten_digits_and_go_up
                a_name_can_be_the_number_alone
                every_child_counts
                deletes_do_not_turn_the_counter_back
                refused_creates_do_not_count
                sessions_never_get_the_same_number;
            limits:
                the_largest_record_fits
                one_byte_more_does_not
                a_multi_fits_as_a_whole
                names_may_be_strange
                deep_paths_work
                many_children_are_listed;
            multi:
                all_are_applied_at_once
                later_operations_see_earlier_ones
                one_failure_undoes_all
                the_first_failure_is_named
                a_check_guards_the_rest
                numbers_and_ephemerals_work_inside
                an_undone_multi_leaves_no_trace;
            order:
                pipelined_creates_keep_their_order
                a_read_sees_the_write_begun_before_it
                a_listing_sees_the_create_begun_before_it
                pipelined_sets_end_with_the_last
                sync_shows_what_others_have_written;
            watches:
                every_change_is_seen_in_order
                everything_below_is_watched
                neighbours_are_not_watched
                a_missing_record_can_be_watched
                only_later_changes_are_seen
                events_are_here_when_sync_returns
                every_watcher_sees_the_same
                a_multi_is_seen_in_its_order
                refused_writes_are_not_seen
                once_fires_for_create_change_and_delete
                once_tells_what_is_there_now
                closing_ends_a_watch;
            sessions:
                sessions_have_their_own_ids
                ephemerals_go_when_their_session_closes
                ephemerals_go_when_their_session_is_killed
                persistent_records_stay
                anyone_may_delete_an_ephemeral
                a_closed_handle_says_so
                others_do_not_notice_a_close
                a_pinned_handle_works_in_its_session
                a_handle_pinned_to_another_session_does_nothing;
            locks:
                one_at_a_time
                waiters_are_served_in_order
                a_try_that_fails_leaves_nothing
                tasks_of_one_session_exclude_each_other
                a_wait_that_times_out_leaves_nothing
                a_dropped_wait_leaves_nothing
                a_dropped_guard_releases
                a_release_is_awaited_without_standing_in_line
                an_adopted_contender_is_not_released
                a_killed_holder_wakes_the_next
                a_killed_waiter_is_skipped
                only_the_number_counts
                what_is_not_a_contender_is_ignored
                contenders_are_listed_in_order
                a_persistent_contender_outlives_its_session
                a_lock_that_is_taken_away_goes_to_the_next
                a_lock_of_something_gone_does_not_bring_it_back
                a_missing_directory_is_made
                a_lost_answer_is_looked_for
                a_contender_enters_once_while_others_make_the_parents
                a_lost_create_is_done_again
                a_lost_release_is_done_in_the_end
                a_guard_ends_with_its_session
                a_candidate_takes_over_from_a_killed_leader;
            views:
                loads_and_follows
                locks_show
                malformed_records_are_kept_apart
                empty_records_are_not_there_yet
                own_writes_show_at_once
                a_late_own_write_does_not_bring_a_record_back
                own_deletes_show_at_once
                a_late_read_does_not_undo_an_own_write
                a_late_read_does_not_undo_an_own_delete
                a_change_during_a_read_is_read_again
                what_cannot_be_listed_is_not_taken_for_empty
                what_cannot_be_read_is_read_again
                changes_name_what_changed
                a_nested_shape_is_followed
                exact_after_many_changes_of_few_records
                a_root_that_appears_later_is_followed;
            property:
                any_operations_do_what_the_model_does;
        }
    };
}

macro_rules! every_behaviour_of_expiring {
    ($start:path) => {
        every_behaviour!($start);
        tests! {
            $start;
            expiry:
                a_new_session_follows
                a_watcher_sees_a_gap_and_goes_on
                a_pinned_handle_ends
                a_broken_connection_is_not_the_end
                a_guard_ends
                a_wait_for_a_lock_goes_on
                a_wait_for_a_persistent_lock_goes_on
                a_leader_starts_over
                a_component_registers_again
                a_view_is_exact_again
                a_view_keeps_what_has_not_changed;
        }
    };
}

mod embedded {
    every_behaviour!(crate::conformance::backend::embedded);
}

mod socket {
    every_behaviour_of_expiring!(crate::conformance::backend::socket);
}

mod zookeeper {
    every_behaviour_of_expiring!(crate::conformance::backend::zookeeper);

    tests! {
        crate::conformance::backend::zookeeper;
        kazoo:
            kazoo_keeps_us_out
            we_keep_kazoo_out
            waiters_wake_in_turn
            our_death_wakes_kazoo
            kazoos_death_wakes_us
            persistent_contenders_are_respected
            both_count_without_losing_any;
    }
}

mod zookeeper_tls {
    every_behaviour_of_expiring!(crate::conformance::backend::zookeeper_tls);
}
