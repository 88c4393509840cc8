/* SPDX-License-Identifier: Apache-2.0 */
/* Options structs begin with their size in the version of rdt.h that the caller was compiled with. */
#include "options.h"

#include <string.h>

#include "proto/wire_limits.h"

enum rdt_status options_copy(void *options_p, size_t bytes, const void *given, struct rdt_error *err)
{
    const unsigned char *from = given;
    size_t have;

    memset(options_p, 0, bytes);
    if (!given)
        return RDT_OK;
    memcpy(&have, given, sizeof have);
    if (have < sizeof have)
        return rdt_error_set(err, RDT_INVALID, "the options' struct_size is %zu: initialise them with RDT_INIT", have);
    for (size_t i = bytes; i < have; i++) {
        if (from[i] != 0)
            return rdt_error_set(err, RDT_UNSUPPORTED, "an option is set that librdt %s does not know", RDT_VERSION);
    }
    memcpy(options_p, given, have < bytes ? have : bytes);
    return RDT_OK;
}

enum rdt_status options_check_text(const char *text, size_t max_bytes, const char *option, struct rdt_error *err)
{
    if (text && strnlen(text, max_bytes + 1) > max_bytes)
        return rdt_error_set(err, RDT_INVALID, "%s is longer than %zu bytes", option, max_bytes);
    return RDT_OK;
}

enum rdt_status options_check_out(const void *out, const char *name, struct rdt_error *err)
{
    return out ? RDT_OK : rdt_error_set(err, RDT_INVALID, "%s is NULL, so there is no place for the result", name);
}

enum rdt_status options_check_ref(const struct rdt_ref *ref, struct rdt_error *err)
{
    if (!ref)
        return rdt_error_set(err, RDT_INVALID, "the ref is NULL");
    if (ref->id_bytes == 0 || ref->id_bytes > RDT_MAX_ID_BYTES)
        return rdt_error_set(err, RDT_INVALID, "the ref's id has %u bytes, not 1 to %u", ref->id_bytes, RDT_MAX_ID_BYTES);
    if (options_check_text(ref->tenant, sizeof ref->tenant - 1, "the ref's tenant", err) != RDT_OK)
        return RDT_INVALID;
    return options_check_text(ref->address, sizeof ref->address - 1, "the ref's address", err);
}
