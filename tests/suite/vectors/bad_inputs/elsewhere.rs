//! Rows that are not made here: those that other tests make, and those that nothing shows yet.

/// Rows whose input is a stream, a request, a disk or a crash, and the tests that make it.
pub(super) const SHOWN: &[(&str, &[&str])] = &[
    ("RF07", &["the_id_is_of_topic_and_data_only"]),
    ("PL01", &["a_payload_that_an_earlier_entry_names_is_refused"]),
    (
        "MV08",
        &[
            "every_schedule_keeps_one_holder_and_ends",
            "restarts_change_nothing",
            "nothing_sent_is_lost_and_nothing_is_signed_twice_under_kill_9",
        ],
    ),
    ("NT01", &["bad_lengths_are_refused_before_any_body", "a_declared_length_allocates_nothing"]),
    ("NT02", &["a_dripping_peer_times_out"]),
    (
        "NT03",
        &["streams_over_the_cap_are_dropped_and_their_places_come_back", "the_cap_over_all_peers_holds"],
    ),
    ("NT07", &["announcements_over_the_limit_go_nowhere"]),
    ("NT08", &["what_no_honest_node_passes_on_is_a_fault"]),
    // Faults of libraries, mended in the versions that a test demands.
    ("NT09", &["no_dependency_is_known_to_be_unsafe"]),
    ("NT10", &["no_dependency_is_known_to_be_unsafe"]),
    ("NT11", &["no_dependency_is_known_to_be_unsafe"]),
    ("CL02", &["no_dependency_is_known_to_be_unsafe"]),
    ("NT12", &["one_address_is_capped_and_freed_again"]),
    ("NT13", &["entries_out_of_order_are_not_what_was_asked_for", "whatever_comes_only_the_chain_passes"]),
    ("CS01", &["a_path_that_is_not_the_heads_lets_nothing_in"]),
    (
        "CS02",
        &[
            "whatever_comes_only_the_chain_passes",
            "another_branch_is_refused_at_its_first_checkpoint_at_the_latest",
        ],
    ),
    ("CS03", &["a_dropped_tombstone_is_made_up_for_by_whoever_has_it"]),
    ("AP01", &["other_hosts_are_refused", "check_14_strangers_at_the_local_door_are_refused"]),
    ("AP02", &["web_pages_are_refused"]),
    ("AP03", &["the_token_is_needed_and_stands_in_no_url"]),
    ("AP04", &["bodies_have_a_known_type"]),
    ("AP05", &["web_pages_are_refused"]),
    (
        "AP06",
        &[
            "refusals_are_problems_whatever_went_wrong",
            "an_endless_body_is_refused_at_the_limit",
            "a_streamed_body_that_drips_is_refused",
            "who_drips_is_told_and_shown_the_door",
        ],
    ),
    ("AP07", &["paths_are_clean"]),
    ("AP09", &["web_pages_are_refused", "check_14_strangers_at_the_local_door_are_refused"]),
    ("AP10", &["other_hosts_are_refused"]),
    ("VW05", &["a_large_file_goes_in_and_comes_out"]),
    ("CL01", &["what_a_terminal_acts_on_is_escaped", "check_36_words_of_others_stay_words_on_a_terminal"]),
    ("IM09", &["a_run_that_was_cut_off_goes_on", "what_a_crash_left_of_a_body_goes"]),
    ("ST01", &["damage_on_the_disk_is_found_and_never_served", "damaged_rows_are_told_by_reads_and_by_fsck"]),
    (
        "ST02",
        &[
            "a_write_that_fails_at_any_call_loses_nothing_and_reading_goes_on",
            "a_power_cut_before_any_call_loses_nothing_acknowledged",
        ],
    ),
    (
        "ST04",
        &[
            "a_lease_keeps_what_nothing_links_and_a_link_keeps_what_has_no_lease",
            "a_file_that_an_operation_in_flight_relies_on_is_not_unlinked",
        ],
    ),
    ("ST05", &["check_05_a_second_process_is_told_about_the_first"]),
    (
        "ST06",
        &[
            "check_04_a_key_that_others_may_read_is_refused",
            "links_directories_and_pipes_are_refused",
            "a_file_of_another_user_is_refused",
            "every_truncation_and_every_changed_byte_is_refused",
        ],
    ),
    ("ST07", &["an_older_database_put_back_in_place_signs_nothing"]),
];

/// Length of [`NOT_YET`]. It only ever goes down.
pub(super) const NOT_YET_COUNT: usize = 16;

/// Rows that nothing shows, and why.
pub(super) const NOT_YET: &[(&str, &str)] = &[
    ("EN08", "there is no secret scan"),
    ("NT04", "there is no bitswap"),
    ("NT05", "there is no bitswap"),
    ("NT06", "there is no bitswap"),
    ("AP08", "a test would need a second user"),
    ("VW01", "there is no viewer"),
    ("VW02", "there is no viewer"),
    ("VW03", "there is no viewer"),
    ("VW04", "there is no viewer"),
    ("IM01", "there are no archives"),
    ("IM02", "there are no archives"),
    ("IM03", "there are no archives"),
    ("IM04", "there are no archives"),
    ("IM05", "there are no archives"),
    ("IM07", "there are no archives"),
    ("IM08", "there are no archives"),
];
