/* What the configuration says to a plug-in, checked: for transports that listen. What is wrong is INVALID, and the sentence names the key. */
#ifndef BACKENDS_CONFIGURED_H
#define BACKENDS_CONFIGURED_H

#include <netinet/in.h>
#include <stdint.h>

#include "rdt_backend.h"

/* Inside open only; never NULL. */
const char *configured_text(const struct rdt_host *host, const char *key);

enum rdt_status configured_number(const struct rdt_host *host, const char *key, uint64_t least, uint64_t most, uint64_t *number_p,
                                  struct rdt_error *err);

/* A number at the start of the text, and what follows it; NULL: there is none, or it is out of range. */
const char *configured_digits(const char *text, uint64_t least, uint64_t most, uint64_t *number_p);

/* One of the words, which NULL ends: its index. */
enum rdt_status configured_word(const struct rdt_host *host, const char *key, const char *const *words, unsigned *index_p,
                                struct rdt_error *err);

/* Where to listen: "listen" of the plug-in's own section, else where the peer link does, else the first address of the interfaces. section
 * is for the sentence. */
enum rdt_status configured_listen(const struct rdt_host *host, const char *section, char text_p[INET6_ADDRSTRLEN],
                                  struct rdt_error *err);

/* How many threads move bytes where the user has not said it (0). */
unsigned configured_threads(uint64_t said);

#endif
