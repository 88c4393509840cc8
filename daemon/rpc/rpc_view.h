/* SPDX-License-Identifier: Apache-2.0 */
/* One object, or one name, as a row of a reply with everything that rdtctl shows. The row points into the view and into the
 * daemon's tables, so it must be packed before they change. */
#ifndef DAEMON_RPC_VIEW_H
#define DAEMON_RPC_VIEW_H

#include "daemon/rpc/rpc_call.h"

struct object_view {
    Rdt__Pb__ObjectInfo info;
    char ref[RDT_REF_TEXT_BYTES];
    char id[3 * RDT_MAX_ID_BYTES + 1];
    char stored_file[40];
};
void object_view_fill(struct object_view *view, struct object *object); /* except holders: see rpc_holders.h */

struct name_view {
    Rdt__Pb__NameInfo info;
    char ref[RDT_REF_TEXT_BYTES];
    char name[3 * RDT_MAX_ID_BYTES + 1];
};
void name_view_fill(struct name_view *view, const struct name *name);

#endif
