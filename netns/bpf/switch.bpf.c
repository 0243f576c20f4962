// SPDX-License-Identifier: Apache-2.0
/*
 * One direction of a link of the testbed: a tc program (cls_bpf, direct action) that does to
 * packets what a switch port and a bad cable do. One instance, with maps of its own, per direction.
 *
 * At the egress of a switch port it stands at clsact, in front of an HTB qdisc with the classes of
 * switch.h, which paces; the queue that is measured here is a virtual one that drains at the same
 * rate. At the ingress of a port (direction host to switch) only the faults are of use.
 *
 * Order: faults (blackhole, size, loss, EV), changes (port, corruption, duplicate), then the queue
 * (trim, else tail drop, else mark). What the faults take never enters the queue. Thresholds are
 * compared with the queue as it would be with the packet in it.
 *
 * What is not IP, and IPv6 neighbour discovery, is of class control and touched by the blackhole
 * only. Packets that the kernel has yet to segment (GSO) may be lost and marked, but are never cut
 * or changed. Every packet that may be harmed takes one step of SplitMix64, whatever is configured.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <stdbool.h>
#include <stddef.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "switch.h"

#define ICMPV6 58
#define ND_FIRST 133 /* router solicitation */
#define ND_LAST 137  /* redirect */
#define IPV4_FRAGMENT 0x3fff /* More Fragments, and the offset */
#define ECN_MASK 3
#define MILLION 1000000
#define HEADERS_BYTES_MAX (ETH_HLEN + 60 + sizeof(struct tcphdr))
#define KEPT_UDP_BYTES (sizeof(struct udphdr) + MRC_HEADER_BYTES)

#define inline static __always_inline
#define count(counter, n) __sync_fetch_and_add(&(counter), (n))

char _license[] SEC("license") = "Apache-2.0";

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct switch_config);
} config SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct switch_state);
} state SEC(".maps");

/* What one pass works with: the maps' values and what the headers say. Lengths in bytes. */
struct pass {
	const struct switch_config *config;
	struct switch_state *state;
	__u32 transport;	 /* offset of the header behind IP */
	__u32 ip_bytes;		 /* IP header and all behind it */
	__u32 segment_bytes;	 /* the same of one packet on the wire: ip_bytes, but for GSO */
	__u32 udp_payload_bytes; /* 0: no whole UDP datagram, and none that may be changed */
	__u16 source_port;	 /* 0: not UDP, or a fragment */
	__u8 version;		 /* 4, 6, or 0: not IP */
	__u8 tos;		 /* DSCP and ECN */
	bool control;
	bool spared; /* from everything but the blackhole */
};

enum draw { DRAW_LOSS, DRAW_EV, DRAW_CORRUPT, DRAW_WHERE, DRAW_DUPLICATE, DRAW_MARK, DRAWS = 8 };

#define GOLDEN 0x9e3779b97f4a7c15ULL

/* The upper 32 bits of an output of SplitMix64; a packet has DRAWS of them, one per decision. */
inline __u32 draw(__u64 random, enum draw which)
{
	__u64 z = random + (which + 1) * GOLDEN;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
	return (z ^ (z >> 31)) >> 32;
}

inline bool chance(__u64 random, enum draw which, __u32 ppm)
{
	return ppm && ((__u64)draw(random, which) * MILLION >> 32) < ppm;
}

inline __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

/* A checksum in which one 16-bit word changed (RFC 1624). */
inline __u16 mended(__u16 check, __u16 old, __u16 new)
{
	return ~fold((__u64)(__u16)~check + (__u16)~old + new);
}

/* ---- headers -------------------------------------------------------------------------------- */

inline void read_transport(struct __sk_buff *skb, struct pass *p, __u8 protocol, __u32 ip_header)
{
	void *end = (void *)(long)skb->data_end;
	void *header = (void *)(long)skb->data + p->transport;
	__u32 rest = p->ip_bytes - ip_header;

	if (protocol == IPPROTO_UDP) {
		struct udphdr *udp = header;

		if ((void *)(udp + 1) > end)
			return;
		p->source_port = bpf_ntohs(udp->source);
		if (skb->gso_size)
			p->segment_bytes = ip_header + sizeof(*udp) + skb->gso_size;
		else if (bpf_ntohs(udp->len) == rest && rest > sizeof(*udp))
			p->udp_payload_bytes = rest - sizeof(*udp);
	} else if (protocol == IPPROTO_TCP) {
		struct tcphdr *tcp = header;

		if ((void *)(tcp + 1) > end)
			return;
		if (skb->gso_size)
			p->segment_bytes = ip_header + tcp->doff * 4 + skb->gso_size;
		else if (rest <= tcp->doff * 4)
			p->control = true;
	} else if (protocol == ICMPV6 && p->version == 6) {
		__u8 *kind = header;

		if ((void *)(kind + 1) <= end && *kind >= ND_FIRST && *kind <= ND_LAST)
			p->spared = p->control = true;
	}
}

/* Have the headers where they can be read directly; as a rule they are. */
inline void pull_headers(struct __sk_buff *skb)
{
	const __u32 linear = (void *)(long)skb->data_end - (void *)(long)skb->data;

	if (linear < HEADERS_BYTES_MAX && linear < skb->len)
		bpf_skb_pull_data(skb, skb->len < HEADERS_BYTES_MAX ? skb->len : HEADERS_BYTES_MAX);
}

/* Malformed headers leave the transport unread: such a packet is judged by its DSCP alone. */
inline void read_headers(struct __sk_buff *skb, struct pass *p)
{
	void *data = (void *)(long)skb->data;
	void *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;
	__u32 ip_header = 0, available = skb->len - sizeof(*eth);
	__u8 dscp, protocol = 0;

	p->spared = p->control = true;
	if ((void *)(eth + 1) > end)
		return;
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = (void *)(eth + 1);

		if ((void *)(ip + 1) > end || ip->version != 4 || ip->ihl < 5)
			return;
		p->version = 4;
		p->tos = ip->tos;
		p->ip_bytes = bpf_ntohs(ip->tot_len);
		ip_header = ip->ihl * 4;
		if (!(ip->frag_off & bpf_htons(IPV4_FRAGMENT)))
			protocol = ip->protocol;
	} else if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = (void *)(eth + 1);

		if ((void *)(ip + 1) > end || ip->version != 6)
			return;
		p->version = 6;
		p->tos = bpf_ntohs(*(__be16 *)ip) >> 4;
		p->ip_bytes = sizeof(*ip) + bpf_ntohs(ip->payload_len);
		ip_header = sizeof(*ip);
		protocol = ip->nexthdr;
	} else {
		return;
	}
	p->spared = false;
	dscp = p->tos >> 2;
	p->control = dscp == p->config->dscp_control || dscp == p->config->dscp_trimmed ||
		     dscp == p->config->dscp_trimmed_lasthop;
	p->transport = sizeof(*eth) + ip_header;
	p->segment_bytes = p->ip_bytes;
	if (p->ip_bytes >= ip_header && p->ip_bytes <= available)
		read_transport(skb, p, protocol, ip_header);
}

/* Write DSCP, ECN and the packet's length into its IP header. */
inline int write_ip(struct __sk_buff *skb, struct pass *p, __u8 tos, __u32 ip_bytes)
{
	__u16 words[6], old;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, words, sizeof(words)))
		return -1;
	if (p->version == 4) {
		old = words[0];
		words[0] = bpf_htons((bpf_ntohs(old) & 0xff00) | tos);
		words[5] = mended(words[5], old, words[0]);
		old = words[1];
		words[1] = bpf_htons(ip_bytes);
		words[5] = mended(words[5], old, words[1]);
	} else {
		words[0] = bpf_htons((bpf_ntohs(words[0]) & 0xf00f) | tos << 4);
		words[2] = bpf_htons(ip_bytes - sizeof(struct ipv6hdr));
	}
	return bpf_skb_store_bytes(skb, ETH_HLEN, words, sizeof(words), BPF_F_RECOMPUTE_CSUM);
}

/* ---- changes -------------------------------------------------------------------------------- */

/* Change one 16-bit word of a UDP datagram; its checksum follows, also one yet to be filled in. */
inline int change_word(struct __sk_buff *skb, struct pass *p, __u32 offset, __u16 mask)
{
	__u32 check = p->transport + offsetof(struct udphdr, check);
	__u16 old, new;

	if (bpf_skb_load_bytes(skb, offset, &old, sizeof(old)))
		return -1;
	new = old ^ mask;
	if (bpf_l4_csum_replace(skb, check, old, new, sizeof(new) | BPF_F_MARK_MANGLED_0))
		return -1;
	return bpf_skb_store_bytes(skb, offset, &new, sizeof(new), BPF_F_RECOMPUTE_CSUM);
}

/* Flip one bit of the payload behind the MRC headers, so that only the iCRC can tell. */
inline int corrupt(struct __sk_buff *skb, struct pass *p, __u32 where)
{
	__u32 words = (p->udp_payload_bytes - MRC_HEADER_BYTES) / 2;
	__u32 word = (__u64)(where >> 4) * words >> 28;
	__u32 start = p->transport + sizeof(struct udphdr) + MRC_HEADER_BYTES;

	return change_word(skb, p, start + 2 * word, 1 << (where & 15));
}

/* As a whole: a store of its upper half only, which the compiler may find, the kernel rejects. */
inline void set_guard(struct __sk_buff *skb, __u32 guard)
{
	*(volatile __u32 *)&skb->mark = (skb->mark & ~GUARD_MASK) | guard;
}

inline int duplicate(struct __sk_buff *skb, bool ingress)
{
	int error;

	set_guard(skb, GUARD_DUPLICATE);
	error = bpf_clone_redirect(skb, skb->ifindex, ingress ? BPF_F_INGRESS : 0);
	set_guard(skb, 0);
	return error;
}

/*
 * Whether the checksum is yet to be filled in by a device (CHECKSUM_PARTIAL), which no field says:
 * the helper leaves such a checksum alone when the payload changes, and changes any other.
 */
inline bool checksum_is_partial(struct __sk_buff *skb, __u32 check)
{
	__u16 before, after;

	if (bpf_skb_load_bytes(skb, check, &before, sizeof(before)) ||
	    bpf_l4_csum_replace(skb, check, 0, 1, sizeof(before)) ||
	    bpf_skb_load_bytes(skb, check, &after, sizeof(after)))
		return false;
	return before == after;
}

/* Cut a UDP datagram behind its MRC headers. On failure the packet is not fit to be forwarded. */
inline int trim(struct __sk_buff *skb, struct pass *p, __u8 dscp)
{
	__u32 ip_bytes = p->transport - ETH_HLEN + KEPT_UDP_BYTES;
	__u32 pseudo[10] = {}, udp[KEPT_UDP_BYTES / 4];
	struct udphdr *header = (void *)udp;
	bool partial;
	__s64 sum;

	if (bpf_skb_change_tail(skb, p->transport + KEPT_UDP_BYTES, 0))
		return -1;
	if (write_ip(skb, p, dscp << 2 | (p->tos & ECN_MASK), ip_bytes))
		return -1;
	partial = checksum_is_partial(skb, p->transport + offsetof(struct udphdr, check));

	if (p->version == 4) {
		if (bpf_skb_load_bytes(skb, ETH_HLEN + 12, pseudo, 8))
			return -1;
	} else {
		if (bpf_skb_load_bytes(skb, ETH_HLEN + 8, pseudo, 32))
			return -1;
	}
	pseudo[8] = bpf_htonl(KEPT_UDP_BYTES);
	pseudo[9] = bpf_htonl(IPPROTO_UDP);
	sum = bpf_csum_diff(0, 0, pseudo, sizeof(pseudo), 0);

	if (bpf_skb_load_bytes(skb, p->transport, udp, sizeof(udp)))
		return -1;
	header->len = bpf_htons(KEPT_UDP_BYTES);
	header->check = 0;
	if (partial) {
		header->check = fold((__u32)sum);
	} else {
		sum = bpf_csum_diff(0, 0, udp, sizeof(udp), sum);
		header->check = ~fold((__u32)sum);
		if (!header->check)
			header->check = 0xffff;
	}
	return bpf_skb_store_bytes(skb, p->transport, udp, sizeof(*header), BPF_F_RECOMPUTE_CSUM);
}

/* ---- the queue ------------------------------------------------------------------------------ */

enum verdict { FORWARD, TAIL_DROP, TRIM, MARK };

inline bool may_trim(const struct pass *p)
{
	const __u8 dscp = p->tos >> 2;

	return p->udp_payload_bytes >= TRIM_PAYLOAD_BYTES_MIN &&
	       (dscp == p->config->dscp_trimmable || dscp == p->config->dscp_trimmable_retx);
}

inline bool may_mark(const struct pass *p)
{
	return !p->control && (p->tos & ECN_MASK) && (p->tos & ECN_MASK) != ECN_MASK &&
	       !(p->config->flags & FLAG_MARKS_OFF) && p->config->ecn_max_bytes;
}

/* Probability rising from 0 at ecn_min_bytes to 1 at ecn_max_bytes, beyond which all are marked. */
inline bool is_marked(const struct switch_config *c, __u64 queue_bytes, __u32 random)
{
	if (queue_bytes >= c->ecn_max_bytes)
		return true;
	if (queue_bytes <= c->ecn_min_bytes)
		return false;
	return ((__u64)random * (c->ecn_max_bytes - c->ecn_min_bytes) >> 32) <
	       queue_bytes - c->ecn_min_bytes;
}

/* What is left of a queue after a while; after a long one the product might overflow. */
inline __u64 left_of(__u64 queue, __u64 elapsed_ns, __u64 drain)
{
	if (elapsed_ns >> 32 && elapsed_ns > queue / drain)
		return 0;
	return elapsed_ns * drain < queue ? queue - elapsed_ns * drain : 0;
}

inline enum verdict enqueue(struct pass *p, __u32 length, __u64 random)
{
	const struct switch_config *c = p->config;
	const bool trims = may_trim(p), marks = may_mark(p);
	const __u32 mark_draw = marks ? draw(random, DRAW_MARK) : 0;
	const __u64 now = bpf_ktime_get_ns();
	struct switch_state *s = p->state;
	enum verdict verdict = FORWARD;
	__u64 queue, with;

	bpf_spin_lock(&s->lock);
	queue = s->queue;
	if (now > s->queue_ns) {
		queue = left_of(queue, now - s->queue_ns, c->drain);
		s->queue_ns = now;
	}
	with = (queue >> QUEUE_SHIFT) + length;
	if (!p->control) {
		if (trims && c->trim_bytes && with > c->trim_bytes) {
			verdict = TRIM;
			length = p->transport + KEPT_UDP_BYTES;
		} else if (c->queue_bytes_max && with > c->queue_bytes_max) {
			verdict = TAIL_DROP;
			length = 0;
		} else if (marks && is_marked(c, with, mark_draw)) {
			verdict = MARK;
		}
	}
	s->queue = queue + ((__u64)length << QUEUE_SHIFT);
	s->queue_drain = c->drain;
	if (s->queue >> QUEUE_SHIFT > s->queue_bytes_max)
		s->queue_bytes_max = s->queue >> QUEUE_SHIFT;
	bpf_spin_unlock(&s->lock);
	return verdict;
}

/* ---- a packet ------------------------------------------------------------------------------- */

inline bool is_concerned(const struct pass *p)
{
	return !(p->config->flags & (p->control ? FLAG_ONLY_DATA : FLAG_ONLY_CONTROL));
}

/* Whether the faults take the packet away; if not, it may have been changed, or sent twice. */
inline bool apply_faults(struct __sk_buff *skb, struct pass *p, __u64 random, bool ingress)
{
	const struct switch_config *c = p->config;
	struct switch_state *s = p->state;

	if (c->packet_bytes_max && p->segment_bytes > c->packet_bytes_max) {
		count(s->oversized, 1);
		return true;
	}
	if (is_concerned(p)) {
		if (chance(random, DRAW_LOSS, c->loss_ppm)) {
			count(s->lost, 1);
			return true;
		}
		if (p->source_port && p->source_port == c->ev_source_port &&
		    chance(random, DRAW_EV, c->ev_loss_ppm)) {
			count(s->ev_dropped, 1);
			return true;
		}
	}
	if (p->udp_payload_bytes && !p->control) {
		if (c->flags & FLAG_REWRITE_SOURCE_PORT &&
		    !change_word(skb, p, p->transport, bpf_htons(PORT_REWRITE_XOR)))
			count(s->rewritten, 1);
		if (p->udp_payload_bytes >= MRC_HEADER_BYTES + 2 &&
		    chance(random, DRAW_CORRUPT, c->corrupt_ppm) &&
		    !corrupt(skb, p, draw(random, DRAW_WHERE)))
			count(s->corrupted, 1);
	}
	if (chance(random, DRAW_DUPLICATE, c->duplicate_ppm) && !duplicate(skb, ingress))
		count(s->duplicated, 1);
	return false;
}

/* Put the packet into the queue and do what becomes of it there; false: it is dropped. */
inline bool pass_queue(struct __sk_buff *skb, struct pass *p, __u64 random, bool *trimmed)
{
	const struct switch_config *c = p->config;
	struct switch_state *s = p->state;
	const __u8 dscp = c->flags & FLAG_LAST_HOP ? c->dscp_trimmed_lasthop : c->dscp_trimmed;

	switch (enqueue(p, skb->wire_len, random)) {
	case TAIL_DROP:
		count(s->tail_dropped, 1);
		return false;
	case TRIM:
		if (trim(skb, p, dscp)) {
			count(s->tail_dropped, 1);
			return false;
		}
		count(s->trimmed, 1);
		p->control = *trimmed = true;
		break;
	case MARK:
		if (!write_ip(skb, p, p->tos | ECN_MASK, p->ip_bytes))
			count(s->marked, 1);
		break;
	case FORWARD:
		break;
	}
	return true;
}

inline int handle(struct __sk_buff *skb, bool ingress)
{
	const __u32 guard = skb->mark & GUARD_MASK;
	bool trimmed = false;
	struct pass p = {};
	__u64 random = 0;
	__u32 zero = 0;

	p.config = bpf_map_lookup_elem(&config, &zero);
	p.state = bpf_map_lookup_elem(&state, &zero);
	if (!p.config || !p.state)
		return TC_ACT_OK;
	if (guard == GUARD_TRIMMED || guard == GUARD_DUPLICATE)
		set_guard(skb, 0);
	if (guard == GUARD_TRIMMED)
		return TC_ACT_OK;

	pull_headers(skb);
	read_headers(skb, &p);
	if (p.config->flags & FLAG_BLACKHOLE && is_concerned(&p)) {
		count(p.state->blackholed, 1);
		return TC_ACT_SHOT;
	}
	if (!p.spared)
		random = count(p.state->random, DRAWS * GOLDEN);
	if (!p.spared && guard != GUARD_DUPLICATE && apply_faults(skb, &p, random, ingress))
		return TC_ACT_SHOT;
	if (p.config->drain && !pass_queue(skb, &p, random, &trimmed))
		return TC_ACT_SHOT;

	count(p.state->packets, 1);
	count(p.state->bytes, skb->len);
	if (p.control)
		count(p.state->control_packets, 1);
	if (ingress)
		return TC_ACT_OK;
	skb->priority = p.control ? CLASS_CONTROL : CLASS_DATA;
	if (!trimmed)
		return TC_ACT_OK;
	/* HTB charges what a packet measured when it came here, so a trimmed one comes anew. */
	set_guard(skb, GUARD_TRIMMED);
	return bpf_redirect(skb->ifindex, 0);
}

SEC("tc")
int switch_egress(struct __sk_buff *skb)
{
	return handle(skb, false);
}

SEC("tc")
int switch_ingress(struct __sk_buff *skb)
{
	return handle(skb, true);
}
