/* SPDX-License-Identifier: Apache-2.0 */
/* Options structs of callers that were compiled with another version of rdt.h. */
#ifndef CLIENT_OPTIONS_H
#define CLIENT_OPTIONS_H

#include <stddef.h>

#include "rdt.h"

/* Copies the members that both versions have into *options_p (of `bytes`), and zeroes the rest. NULL for `given` makes all of
 * it zero. Errors: INVALID (struct_size is not set), UNSUPPORTED (a member is set that this version does not have). */
enum rdt_status options_copy(void *options_p, size_t bytes, const void *given, struct rdt_error *err);

/* INVALID, naming the option, unless text is NULL or has at most max_bytes. */
enum rdt_status options_check_text(const char *text, size_t max_bytes, const char *option, struct rdt_error *err);

/* INVALID, naming it: the pointer to where a call writes its result is NULL. */
enum rdt_status options_check_out(const void *out, const char *name, struct rdt_error *err);

/* INVALID: the ref is NULL, or cannot be sent. */
enum rdt_status options_check_ref(const struct rdt_ref *ref, struct rdt_error *err);

#endif
