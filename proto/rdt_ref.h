/* SPDX-License-Identifier: Apache-2.0 */
/* The portable name of an object, or of the versions that are published under a name. Installed. It grants no
 * rights. It is a plain value, which may be copied, sent and stored. */
#ifndef RDT_REF_H
#define RDT_REF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rdt_status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RDT_REF_TEXT_BYTES 768   /* enough for any ref as text, its terminating zero included */
#define RDT_REF_PACKED_BYTES 320 /* enough for any ref as bytes */

struct rdt_ref {
    uint8_t node[16]; /* uuid of the node that owns the object; all zero: the node at `address`, or the daemon that is asked */
    uint64_t generation; /* tells objects apart that had the same id; 0: whichever is under the id now */
    uint64_t after;      /* of a name: the version that was read last; 0: any will do */
    uint32_t uid;        /* with tenant: the owner whose name space the id is in */
    uint8_t any_owner;   /* 1: uid and tenant are not given, the caller's own apply */
    uint8_t is_name;     /* 1: id is a published name, and the ref means its newest version above `after`; generation is 0 */
    uint8_t id_bytes;    /* 1..128 */
    char tenant[33];     /* "" is the unnamed one */
    char address[65];    /* "host:port" of the node's peer link, or its name; "" when the asked daemon must know the node */
    char id[129];        /* any bytes; also zero-terminated, for ids that are text */
};

/* A ref for an id on the caller's own node and in the caller's own name space. rdt_fetch can wait for it
 * before anyone has put the object. RDT_INVALID: empty, or longer than 128 bytes. */
enum rdt_status rdt_ref_from_id(const void *id, size_t id_bytes, struct rdt_ref *ref_p, struct rdt_error *err);

/* A ref for the versions that are published under a name (rdt_publish): every call that waits for an object
 * or fetches it takes the newest version above `after`, or waits for the next. `near` is any ref of the node
 * where the name is (of an object there, of another name), and gives its address and whose name it is; NULL:
 * the caller's own name space, and the node that has the name: the caller's own, or any node of the node table (rdt-network(7),
 * DIRECTORY). A reader's loop:
 *
 *     for (uint64_t version = 0;; version = info.version) {
 *         rdt_ref_from_name("weights", version, &near, &ref, &err);
 *         rdt_fetch(c, &ref, 1, NULL, &object, &err); rdt_object_info(object, &info); ...; rdt_release(object);
 *     }
 *
 * RDT_INVALID: empty, or longer than 128 bytes. */
enum rdt_status rdt_ref_from_name(const char *name, uint64_t after, const struct rdt_ref *near, struct rdt_ref *ref_p,
                                  struct rdt_error *err);

/* Makes the ref refer to the node at that address, whichever node that is: "host:port" of its peer
 * link, or the name that it has in the nodes file of the daemon that is asked. RDT_INVALID: empty, or longer
 * than 64 bytes. */
enum rdt_status rdt_ref_set_address(struct rdt_ref *ref, const char *address, struct rdt_error *err);

/* Writes the ref as text: "rdt:NODE/ID?g=GENERATION&a=ADDRESS&u=UID&t=TENANT", NODE 32 hex digits, ID with %XX for anything
 * outside A-Z a-z 0-9 . _ ~ -, each part after the ID only if it is set; a name always has "v=AFTER" instead of
 * the generation. text_p has RDT_REF_TEXT_BYTES. */
void rdt_ref_to_text(const struct rdt_ref *ref, char *text_p);

/* Reads the text above, or a bare id ("weights"), as rdt_ref_from_id does.
 * RDT_INVALID says which part is wrong. */
enum rdt_status rdt_ref_from_text(const char *text, struct rdt_ref *ref_p, struct rdt_error *err);

/* Writes the ref as bytes, which are the same on every machine. packed_p has RDT_REF_PACKED_BYTES; returns the
 * number of bytes written. */
size_t rdt_ref_pack(const struct rdt_ref *ref, uint8_t *packed_p);
enum rdt_status rdt_ref_unpack(const void *packed, size_t bytes, struct rdt_ref *ref_p, struct rdt_error *err);

bool rdt_ref_equal(const struct rdt_ref *a, const struct rdt_ref *b);

#ifdef __cplusplus
}
#endif
#endif
