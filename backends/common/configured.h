/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and checks keys of the configuration, for transports that listen. Every function may be called only
 * inside the plug-in's open or configured_speed. A malformed value is INVALID, with a sentence that names the key. */
#ifndef BACKENDS_CONFIGURED_H
#define BACKENDS_CONFIGURED_H

#include <netinet/in.h>
#include <stdint.h>

#include "rdt_backend.h"

/* Returns the value of a key, or "" if there is none; never NULL. */
const char *configured_text(const struct rdt_host *host, const char *key);

/* Stores the number that is the value of a key, from `least` to `most`. */
enum rdt_status configured_number(const struct rdt_host *host, const char *key, uint64_t least, uint64_t most,
                                  uint64_t *number_p, struct rdt_error *err);

/* Reads a number at the start of the text and returns what follows it. NULL: there is no number, or it is out
 * of range. */
const char *configured_digits(const char *text, uint64_t least, uint64_t most, uint64_t *number_p);

/* Stores the index of the value of a key in `words`, which ends with NULL. */
enum rdt_status configured_word(const struct rdt_host *host, const char *key, const char *const *words, unsigned *index_p,
                                struct rdt_error *err);

/* Writes the address to listen on: the key "listen" of the plug-in's section, otherwise the address of the peer link,
 * otherwise the first address of the interfaces. UNSUPPORTED: there is no such address; the sentence names `section`. */
enum rdt_status configured_listen(const struct rdt_host *host, const char *section, char text_p[INET6_ADDRSTRLEN],
                                  struct rdt_error *err);

/* Returns the number of threads that move bytes: `configured`, or a default for 0. */
unsigned configured_threads(uint64_t configured);

/* UNSUPPORTED: the daemon has no other nodes, so the transport must not open a port. Every transport of this
 * tree calls it in open, before it opens anything. */
enum rdt_status configured_peers(const struct rdt_host *host, struct rdt_error *err);

#endif
