/* SPDX-License-Identifier: Apache-2.0 */
/* The faults: reads them from the configuration and the fault file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/loopback/loopback.h"

static const struct {
    const char *key;
    size_t offset;
} fields[] = {
    {"delay_ms", offsetof(struct faults, delay_ms)},
    {"lose_every", offsetof(struct faults, lose_every)},
    {"fail_every", offsetof(struct faults, fail_every)},
    {"give_up_every", offsetof(struct faults, give_up_every)},
    {"no_abort", offsetof(struct faults, no_abort)},
    {"late_ms", offsetof(struct faults, late_ms)},
    {"hold_chunk", offsetof(struct faults, hold_chunk)},
    {"flip_chunk", offsetof(struct faults, flip_chunk)},
    {"disconnect_delay_ms", offsetof(struct faults, disconnect_delay_ms)},
    {"refuse_group", offsetof(struct faults, refuse_group)},
    {"refuse_registration", offsetof(struct faults, refuse_registration)},
    {"hang_group", offsetof(struct faults, hang_group)},
};
#define N_FIELDS (sizeof fields / sizeof *fields)

static bool set(struct faults *faults, unsigned field, const char *text)
{
    char *end;
    unsigned long number = strtoul(text, &end, 10);
    uint32_t value = (uint32_t)number;

    if (!strcmp(text, "yes"))
        value = 1;
    else if (!strcmp(text, "no"))
        value = 0;
    else if (end == text || *end || number > UINT32_MAX)
        return false;
    memcpy((char *)faults + fields[field].offset, &value, sizeof value);
    return true;
}

enum rdt_status faults_configure(struct transport *transport, struct rdt_error *err)
{
    const struct rdt_host *host = &transport->host;
    const char *sided = host->config(host->ctx, "sided");
    const char *file = host->config(host->ctx, "fault_file");
    const char *ordered = host->config(host->ctx, "ordered");
    const char *version = host->config(host->ctx, "version");
    const char *devices = host->config(host->ctx, "devices");

    if (sided && !strcmp(sided, "one"))
        transport->sides = RDT_ONE_SIDED;
    else if (sided && !strcmp(sided, "two"))
        transport->sides = RDT_TWO_SIDED;
    else if (sided && !strcmp(sided, "both"))
        transport->sides = RDT_ONE_SIDED | RDT_TWO_SIDED;
    else
        return rdt_error_set(err, RDT_INVALID, "sided = %s: expected one, two or both", sided ? sided : "");

    transport->on_devices = devices && !strcmp(devices, "yes");
    transport->says_so = ordered && !strcmp(ordered, "yes");
    transport->ordered = transport->says_so || (ordered && !strcmp(ordered, "unsaid"));
    if (!transport->ordered && ordered && strcmp(ordered, "no"))
        return rdt_error_set(err, RDT_INVALID, "ordered = %s: expected yes, no or unsaid", ordered);

    if (version && strlen(version) >= sizeof transport->version)
        return rdt_error_set(err, RDT_INVALID, "version: it is too long");
    (void)snprintf(transport->version, sizeof transport->version, "%s", version ? version : "1.0");
    if (file && strlen(file) >= sizeof transport->fault_file)
        return rdt_error_set(err, RDT_INVALID, "fault_file: the path is too long");
    (void)snprintf(transport->fault_file, sizeof transport->fault_file, "%s", file ? file : "");

    for (unsigned i = 0; i < N_FIELDS; i++) {
        const char *text = host->config(host->ctx, fields[i].key);

        if (text && !set(&transport->faults, i, text))
            return rdt_error_set(err, RDT_INVALID, "%s = %s: expected a number", fields[i].key, text);
    }
    return RDT_OK;
}

/* Returns the faults as they are set now. A malformed line is skipped, because the test may be writing the file. */
struct faults faults_now(const struct transport *transport)
{
    struct faults faults = transport->faults;
    char line[128];
    FILE *file = *transport->fault_file ? fopen(transport->fault_file, "re") : NULL;

    while (file && fgets(line, sizeof line, file)) {
        char *value = strchr(line, '=');

        if (!value)
            continue;
        *value++ = 0;
        value[strcspn(value, "\n")] = 0;
        for (unsigned i = 0; i < N_FIELDS; i++)
            if (!strcmp(line, fields[i].key))
                (void)set(&faults, i, value);
    }
    if (file)
        (void)fclose(file);
    return faults;
}
