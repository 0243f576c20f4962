/* SPDX-License-Identifier: Apache-2.0
 *
 * What the switch program and user space share: the values of its maps, and the numbers that both
 * must know. netns/switch.py holds the same layouts for Python; a test compares the two through the
 * type information (BTF) of the compiled object.
 */
#ifndef MRC_SWITCH_H
#define MRC_SWITCH_H

#include <linux/bpf.h>
#include <linux/types.h>

/* Classes of the HTB qdisc behind the program, as skb->priority names them: 1:10 and 1:20. */
#define CLASS_CONTROL 0x00010010
#define CLASS_DATA 0x00010020

/* BTH 12, METH 4, TSETH 4, RETH 16, ImmDt 4: what a trimmed packet keeps of its UDP payload, and
 * where the payload that may be corrupted starts. */
#define MRC_HEADER_BYTES 40
/* A UDP payload shorter than this is not trimmed: cutting it would not even halve it. */
#define TRIM_PAYLOAD_BYTES_MIN 80

/* What the middlebox does to UDP source ports. Ports from 49152 up stay from 49152 up. */
#define PORT_REWRITE_XOR 0x0155

/* The upper half of skb->mark belongs to the program while a packet passes a second time. */
#define GUARD_MASK 0xffff0000
#define GUARD_DUPLICATE 0x4d520000
#define GUARD_TRIMMED 0x4d540000

/* The queue is kept in bytes << QUEUE_SHIFT, so that fractions drained are not lost. */
#define QUEUE_SHIFT 24

#define FLAG_BLACKHOLE 1
#define FLAG_ONLY_DATA 2
#define FLAG_ONLY_CONTROL 4
#define FLAG_LAST_HOP 8
#define FLAG_MARKS_OFF 16
#define FLAG_REWRITE_SOURCE_PORT 32

/* Written by user space, read by the program, at any time. A packet may see half of an update. */
struct switch_config {
	__u64 rate_bps;
	__u64 drain; /* rate_bps in (bytes << QUEUE_SHIFT) a nanosecond; 0: no queue */
	__u32 queue_bytes_max;
	__u32 ecn_min_bytes;
	__u32 ecn_max_bytes;
	__u32 trim_bytes;
	__u32 packet_bytes_max;
	__u32 loss_ppm;
	__u32 ev_loss_ppm;
	__u32 corrupt_ppm;
	__u32 duplicate_ppm;
	__u16 ev_source_port;
	__u8 flags;
	__u8 dscp_trimmable;
	__u8 dscp_trimmable_retx;
	__u8 dscp_trimmed;
	__u8 dscp_trimmed_lasthop;
	__u8 dscp_control;
	__u8 reserved[4];
};

/* Written by the program; user space writes it once, with `random`, before the program runs. */
struct switch_state {
	struct bpf_spin_lock lock; /* for the queue; the counters and `random` are atomic */
	__u32 reserved;
	__u64 random; /* of SplitMix64 */
	__u64 queue;  /* bytes << QUEUE_SHIFT as of queue_ns */
	__u64 queue_ns;
	__u64 queue_drain; /* `drain` as of the last packet */
	__u64 queue_bytes_max; /* the most that were in it */
	__u64 packets;
	__u64 bytes;
	__u64 control_packets;
	__u64 marked;
	__u64 trimmed;
	__u64 tail_dropped;
	__u64 lost;
	__u64 blackholed;
	__u64 oversized;
	__u64 ev_dropped;
	__u64 corrupted;
	__u64 duplicated;
	__u64 rewritten;
};

#endif
