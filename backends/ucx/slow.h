/* SPDX-License-Identifier: Apache-2.0 */
/* Judges from the list of lanes that UCX chose whether this machine has something faster. Uses no UCX. */
#ifndef BACKENDS_UCX_SLOW_H
#define BACKENDS_UCX_SLOW_H

#include <stdbool.h>
#include <stddef.h>

struct slow_rule {
    const char *least;      /* comma-separated transports, of which a lane must be one; "": the best that this machine has */
    const char *interfaces; /* comma-separated; "": any */
    const char *sys;        /* "/sys" */
};

/* Extracts the lanes from the output of ucp_ep_print_info, as "tcp/eth0, tcp/eth1". The lane of the connection manager moves
 * no bytes and is left out. */
void lanes_read_printed(const char *text, char *list_p, size_t size);

/* Appends a lane to the list, unless the list has it. */
void lanes_add(char *list, size_t size, const char *lane, size_t bytes);

/* Returns whether every lane uses TCP, which copies every byte to and from a segment; true for an empty list. */
bool lanes_copy(const char *list);

/* Return whether a lane can read memory without its owner's processor: that of another node by RDMA, or that of another
 * process on this machine by the kernel (cma). */
bool lanes_have_rdma(const char *list);
bool lanes_have_cma(const char *list);

/* True: these lanes are slow; why_p says why. An empty list, of which nothing is known, is never slow. */
bool lanes_are_slow(const struct slow_rule *rule, const char *list, char *why_p, size_t size);

#endif
