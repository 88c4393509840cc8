/* One object, or one name, as a row of a reply with everything that rdtctl shows. A row is valid until object_view_fini. */
#ifndef DAEMON_RPC_VIEW_H
#define DAEMON_RPC_VIEW_H

#include "daemon/rpc/rpc_call.h"

struct object_view {
    Rdt__Pb__ObjectInfo info;
    char ref[RDT_REF_TEXT_BYTES];
    char id[3 * RDT_MAX_ID_BYTES + 1];
    Rdt__Pb__HoldInfo *holds, **hold_list; /* NULL without holders */
    char (*names)[3 * RDT_MAX_ID_BYTES + 1];
    char (*copies)[33]; /* uuids of nodes */
    char why[8][96], *why_list[8];
};
void object_view_fill(struct object_view *view, const struct rpc *rpc, struct object *object, bool with_holders);
void object_view_fini(struct object_view *view);

struct name_view {
    Rdt__Pb__NameInfo info;
    char ref[RDT_REF_TEXT_BYTES];
    char name[3 * RDT_MAX_ID_BYTES + 1];
};
void name_view_fill(struct name_view *view, const struct name *name);

#endif
