/* What UCX says of its lanes, judged without UCX: whether something faster is there that it did not take. */
#ifndef BACKENDS_UCX_SLOW_H
#define BACKENDS_UCX_SLOW_H

#include <stdbool.h>
#include <stddef.h>

struct slow_rule {
    const char *least;      /* comma-separated transports, one of which must carry bytes; "": whatever is the best here */
    const char *interfaces; /* comma-separated; "": any */
    const char *sys;        /* "/sys" */
};

/* The lanes in what ucp_ep_print_info printed, as "tcp/eth0, tcp/eth1"; the connection manager's carries no
 * bytes and is left out. */
void lanes_read_printed(const char *text, char *list_p, size_t size);

/* One more in the list, unless it is there. */
void lanes_add(char *list, size_t size, const char *lane, size_t bytes);

/* All of TCP: every byte is copied to and from a segment. An empty list is, too. */
bool lanes_copy(const char *list);

/* Lanes that remote memory can be read by, without its owner's processor: those of RDMA. */
bool lanes_have_rdma(const char *list);
bool lanes_have_cma(const char *list); /* the same of another process on this machine, by the kernel */

/* True: why_p says what is wrong with these lanes, and what to do. An empty list is never slow: nothing is known. */
bool lanes_are_slow(const struct slow_rule *rule, const char *list, char *why_p, size_t size);

#endif
