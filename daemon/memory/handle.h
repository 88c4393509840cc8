/* SPDX-License-Identifier: Apache-2.0 */
/* The kinds of handles by which device memory travels between processes. A new kind is a value of enum rdt_import_kind
 * (rdt_backend.h), the same value of RegionKind (rdt.proto) and of enum rdt_shared_kind (rdt_devices.h), and a row of the table
 * in handle.c, for a plug-in and a mapper that know it. All else goes by the row: librdt passes on what there is, and the
 * journal records the kind. */
#ifndef DAEMON_HANDLE_H
#define DAEMON_HANDLE_H

#include "daemon/memory/region.h"

struct handle_kind {
    bool in_chunks; /* a descriptor for each chunk of the memory, so an import may come in several messages */
    /* Whether the import has what the plug-in needs, before it is asked. INVALID. */
    enum rdt_status (*check_import)(const struct rdt_import *import, struct rdt_error *err);
    bool (*check_export)(const struct rdt_export *exported);                       /* false: the plug-in has a bug */
    void (*show)(const struct rdt_export *exported, struct region_share *share_p); /* fills in the message */
};

/* NULL: there is no such kind of handle for device memory. */
const struct handle_kind *handle_kind(int kind);

#endif
