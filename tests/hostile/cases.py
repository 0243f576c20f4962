"""Every hostile or broken input that must have its test, and the tests that it has.

Where a case was tested beside what it concerns, it is named there and not repeated here;
`test_cases` checks that what is named exists.
"""

from __future__ import annotations

CASES: dict[str, tuple[str, ...]] = {
    "PSN wrap with late packets from before it": (
        "hostile/test_packets.py::test_packets_from_before_the_wrap_are_duplicates_after_it",
        "hostile/test_packets.py::test_originals_from_before_the_wrap_lose_to_their_retransmissions",
        "hostile/test_packets.py::test_sacks_from_before_the_wrap_are_old_news_after_it",
        "proto/test_wrap.py::test_psn_wraps",
        "engine/test_wrap.py::test_every_byte_arrives_across_the_wrap_under_loss",
    ),
    "SACKs reordered": (
        "proto/test_acknowledgements.py::test_sacks_that_overtake_each_other",
        "proto/test_acknowledgements.py::test_transfer_survives_a_bad_return_path",
    ),
    "SACKs replayed": (
        "hostile/test_sacks.py::test_replays_change_nothing",
        "proto/test_acknowledgements.py::test_repeated_sack_changes_nothing_more",
        "proto/test_acknowledgements.py::test_replayed_sacks_do_not_spoil_the_round_trip",
        "proto/test_acknowledgements.py::test_stale_sack_is_counted_and_harmless",
    ),
    "SACKs forged beyond what was sent": (
        "hostile/test_sacks.py::test_forgeries_beyond_what_was_sent_change_nothing",
        "hostile/test_sacks.py::test_count_of_bytes_beyond_what_was_sent_is_forgotten_with_the_next",
        "hostile/test_sacks.py::test_one_count_of_bytes_that_cannot_be_does_not_slow_the_transfer",
        "proto/test_acknowledgements.py::test_impossible_sack",
        "proto/test_acknowledgements.py::test_impossible_nack",
        "proto/test_acknowledgements.py::test_impossible_transport_ack",
    ),
    "SACKs contradicting each other": (
        "hostile/test_sacks.py::test_sack_that_takes_bits_back_is_not_believed",
        "hostile/test_sacks.py::test_two_bitmaps_for_one_trigger_add_up",
        "hostile/test_sacks.py::test_count_that_contradicts_the_bitmap_loses_nothing",
        "hostile/test_sacks.py::test_nack_contradicts_what_a_sack_had",
        "hostile/test_sacks.py::test_sack_contradicts_a_nack",
    ),
    "all SACKs of 300 ms lost": ("proto/test_timeouts.py::test_silence_of_all_blames_nobody",),
    "the last SACK of a message lost": (
        "proto/test_timeouts.py::test_last_acknowledgement_lost",
        "proto/test_timeouts.py::test_last_transport_ack_lost",
    ),
    "a peer that never reads": (
        "engine/test_messages.py::test_a_receiver_that_does_not_read_stops_the_sender",
        "engine/test_faults.py::test_an_unread_immediate_queue_slows_the_peer_and_stays_bounded",
    ),
    "a peer that dies at every step of the handshake": (
        "hostile/test_peers.py::test_death_in_the_handshake_is_told_and_leaves_nothing",
        "hostile/test_peers.py::test_death_before_the_last_word_of_the_handshake",
        "hostile/test_peers.py::test_death_at_every_step_of_a_locked_handshake",
        "hostile/test_peers.py::test_death_right_after_the_handshake_is_a_lost_peer",
    ),
    "a peer that dies in a transfer": (
        "hostile/test_peers.py::test_death_in_a_transfer_ends_every_wait_at_once",
        "hostile/test_peers.py::test_process_killed_in_a_transfer_is_noticed_at_once",
        "hostile/test_peers.py::test_silence_of_the_rendezvous_alone_stops_no_transfer",
        "proto/test_timeouts.py::test_peer_that_dies_in_the_middle",
        "engine/test_lifecycle.py::test_a_silent_network_ends_with_the_retry_budget_and_names_the_paths",
        "cli/test_commands.py::test_a_killed_transfer_is_resumed",
    ),
    "a peer that dies in closing": (
        "hostile/test_peers.py::test_death_in_closing_is_no_error",
        "hostile/test_peers.py::test_both_close_at_once",
    ),
    "close while the window is full": (
        "hostile/test_peers.py::test_close_under_a_full_window_waits_for_every_byte",
        "hostile/test_peers.py::test_close_under_a_full_window_ends_with_the_retry_budget",
        "hostile/test_peers.py::test_abort_under_a_full_window_is_immediate",
        "hostile/test_peers.py::test_receiver_that_closes_under_a_full_window_ends_the_write",
        "proto/test_endpoint.py::test_destroying_with_timers_running",
    ),
    "0-byte writes": (
        "hostile/test_bounds.py::test_packet_without_a_byte_is_dropped_and_not_answered",
        "proto/test_segmentation.py::test_nothing_cannot_be_sent",
        "engine/test_writes.py::test_an_empty_write_is_refused",
    ),
    "2^32 - 1-byte writes": ("hostile/test_volume.py::test_longest_message_arrives_whole",),
    "and one more": ("proto/test_segmentation.py::test_a_message_of_33_bits",),
    "r_key of a closed region": (
        "proto/test_memory.py::test_deregistered_region_is_closed_at_once",
        "proto/test_memory.py::test_deregistering_during_a_transfer_ends_it",
        "engine/test_writes.py::test_a_deregistered_region_refuses_writes",
    ),
    "address + length past 2^64": (
        "hostile/test_bounds.py::test_packet_past_the_last_address_is_refused",
        "hostile/test_bounds.py::test_immediate_of_a_message_that_began_before_the_region_is_refused",
        "hostile/test_bounds.py::test_run_past_the_last_address_ends_there",
        "hostile/test_bounds.py::test_last_address_may_be_written",
        "hostile/test_bounds.py::test_write_that_would_end_past_the_last_address_is_not_posted",
        "hostile/test_bounds.py::test_region_past_the_last_address_is_no_region",
        "hostile/test_bounds.py::test_region_up_to_the_last_address_is_one",
        "proto/test_segmentation.py::test_what_may_not_be_posted",
    ),
    "a path late by 2,000 packets": (
        "hostile/test_packets.py::test_ev_that_is_two_thousand_packets_late",
        "hostile/test_packets.py::test_plane_that_is_two_thousand_packets_late",
    ),
    "alternate-packet loss for a whole window": (
        "hostile/test_packets.py::test_every_other_packet_of_a_window_is_sent_again_once",
        "hostile/test_packets.py::test_every_other_packet_of_the_widest_window_is_sent_again_once",
    ),
    "a clock that jumps back 10 s": (
        "hostile/test_clock.py::test_clock_that_jumps_back_is_no_event",
        "hostile/test_clock.py::test_clock_that_jumps_back_does_not_stop_the_timers",
        "hostile/test_clock.py::test_clock_that_jumps_ahead_costs_a_timeout_at_most",
        "hostile/test_clock.py::test_clock_that_stands_still_measures_nothing",
    ),
    "a process stopped for 60 s": (
        "hostile/test_clock.py::test_sender_stopped_for_a_minute_goes_on_where_it_was",
        "hostile/test_clock.py::test_receiver_stopped_for_a_minute_costs_timeouts_only",
        "hostile/test_clock.py::test_receiver_stopped_beyond_the_retry_budget_is_given_up",
        "cli/test_faulty_transfers.py::test_a_side_that_stands_still_for_a_while_goes_on",
    ),
    "EIO on the first GSO send": (
        "hostile/test_kernel.py::test_eio_on_the_first_segmented_send_costs_no_packet",
        "udp/test_errors.py::test_gso_stays_off_for_that_destination_only",
        "udp/test_errors.py::test_real_einval_on_a_segmented_run_falls_back",
    ),
    "EINVAL from a route": (
        "hostile/test_kernel.py::test_ev_that_the_kernel_refuses_leaves_with_the_reason",
        "hostile/test_kernel.py::test_kernel_that_refuses_everything_is_named_in_the_error",
        "hostile/test_kernel.py::test_kernel_that_refuses_everything_is_given_up_in_time",
        "udp/test_errors.py::test_einval_that_singles_get_too_does_not_turn_gso_off",
        "udp/test_errors.py::test_routes_and_interfaces_that_go_away_are_outcomes",
    ),
    "EMSGSIZE in mid-transfer": (
        "hostile/test_kernel.py::test_mtu_that_shrinks_for_a_while_stops_the_transfer_for_as_long",
        "hostile/test_kernel.py::test_mtu_that_shrinks_for_good_ends_the_transfer_with_the_reason",
        "udp/test_errors.py::test_larger_than_the_device_takes_is_too_big",
    ),
    "ENOBUFS": (
        "hostile/test_kernel.py::test_enobufs_costs_retransmissions_only",
        "udp/test_errors.py::test_each_errno_has_its_outcome",
    ),
    "a flood of junk during a transfer": (
        "hostile/test_flood.py::test_flood_of_junk_stops_neither_transfers_nor_timers",
        "engine/test_faults.py::test_junk_at_the_receiving_port_moves_nothing_but_counters",
        "proto/test_untrusted.py::test_junk_changes_nothing",
    ),
    "64 descriptors only": (
        "hostile/test_descriptors.py::test_sixty_four_are_enough_for_a_transfer_with_the_default_paths",
        "hostile/test_descriptors.py::test_more_paths_than_descriptors_is_told_with_limit_and_remedy",
        "hostile/test_descriptors.py::test_connecting_without_enough_descriptors_leaves_none_open",
        "hostile/test_descriptors.py::test_listener_without_enough_descriptors_refuses_and_goes_on",
        "hostile/test_descriptors.py::test_what_this_kernel_can_do_is_not_judged_without_descriptors",
    ),
    "source ports taken": (
        "hostile/test_addresses.py::test_evs_take_the_source_ports_that_others_left",
        "hostile/test_addresses.py::test_too_few_free_source_ports_is_told_with_the_range",
        "hostile/test_addresses.py::test_source_port_taken_since_it_was_chosen_is_replaced",
        "hostile/test_addresses.py::test_source_ports_that_are_always_taken_are_given_up",
        "udp/test_ports.py::test_ports_in_use_are_skipped",
    ),
    "wildcard receiver with two addresses": (
        "hostile/test_addresses.py::test_wildcard_receiver_answers_from_the_address_that_was_asked",
    ),
    "IPv4-mapped peers": (
        "hostile/test_addresses.py::test_peer_reached_by_its_mapped_address_is_an_ipv4_peer",
        "hostile/test_addresses.py::test_mapped_plane_of_ours_is_refused_with_what_to_write",
        "hostile/test_addresses.py::test_mapped_plane_of_a_peer_is_refused_with_the_reason",
        "udp/test_address.py::test_addresses_that_would_fail_or_go_astray_later_are_refused",
    ),
    "link-local with scope": (
        "hostile/test_addresses.py::test_link_local_peer_is_reached_by_address_and_scope",
        "hostile/test_addresses.py::test_one_link_local_address_on_two_links_makes_two_planes",
        "hostile/test_addresses.py::test_link_local_plane_without_scope_is_refused_with_what_to_write",
    ),
    "uvloop and plain asyncio alike": (
        "hostile/test_loops.py::test_both_loops_come_to_the_same_end",
    ),
    "cancellation at every await": (
        "hostile/test_cancellation.py::test_connecting_side_can_be_cancelled_at_every_await",
        "hostile/test_cancellation.py::test_listening_side_can_be_cancelled_at_every_await",
        "hostile/test_cancellation.py::test_listener_can_be_closed_at_every_step_of_a_handshake",
        "engine/test_lifecycle.py::test_a_cancelled_write_leaves_nothing_and_the_queue_pair_works",
        "engine/test_hostile.py::test_cancelling_a_close_leaks_no_socket",
    ),
    "a million packets one way with flat memory": (
        "hostile/test_volume.py::test_million_packets_cost_no_memory",
        "cli/test_faulty_transfers.py::test_memory_does_not_grow_with_the_file",
    ),
}
"""From a case to its tests, each a file below `tests` and the name of a function in it."""
