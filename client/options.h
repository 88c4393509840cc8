/* Options structs of callers that were compiled against another version of rdt.h. */
#ifndef CLIENT_OPTIONS_H
#define CLIENT_OPTIONS_H

#include <stddef.h>

#include "rdt.h"

/* Copies what both versions know into *options_p (of `bytes`), and zeroes the rest; given NULL: all zero. INVALID:
 * struct_size was not set. UNSUPPORTED: something is set that this version does not know. */
enum rdt_status options_copy(void *options_p, size_t bytes, const void *given, struct rdt_error *err);

/* INVALID, naming the option, unless text is NULL or has at most max_bytes. */
enum rdt_status options_check_text(const char *text, size_t max_bytes, const char *option, struct rdt_error *err);

#endif
