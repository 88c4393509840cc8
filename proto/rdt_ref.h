/* SPDX-License-Identifier: Apache-2.0 */
/* A ref: the portable name of an object, or of the versions that are published under a name. Installed. A ref grants no
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

#define RDT_ID_MAX_BYTES 128u    /* the longest id of an object, and the longest published name: the one length of all keys */
#define RDT_REF_TEXT_BYTES 768   /* enough for any ref as text, its terminating zero included */
#define RDT_REF_PACKED_BYTES 320 /* enough for any ref as bytes */

struct rdt_ref {
    uint8_t node[16];    /* uuid of the object's node; all zero: the node at `address`, or that of the daemon that is asked */
    uint64_t generation; /* distinguishes successive objects of the same id; 0: the object that has the id now */
    uint64_t after;      /* of a name: the version that was read last; 0: any version */
    uint32_t uid;        /* with tenant: the owner in whose name space the id is */
    uint8_t any_owner;   /* 1: uid and tenant are not given; the caller's own apply */
    uint8_t is_name;     /* 1: id is a published name, and the ref means its newest version above `after`; generation is 0 */
    uint8_t id_bytes;    /* 1..RDT_ID_MAX_BYTES */
    char tenant[33];     /* "" is the unnamed tenant */
    char address[65];    /* "host:port" of the node's peer link, or its name; "": the daemon must already know the node */
    char id[129];        /* RDT_ID_MAX_BYTES and a zero: any bytes; also zero-terminated, for ids that are text */
};

/* Makes a ref for an id on the caller's own node and in the caller's own name space. rdt_fetch can wait for the id before
 * anyone has put the object. RDT_INVALID: empty, or longer than RDT_ID_MAX_BYTES. */
enum rdt_status rdt_ref_from_id(const void *id, size_t id_bytes, struct rdt_ref *ref_p, struct rdt_error *err);

/* Makes a ref for the versions that are published under a name (rdt_publish): every call that fetches or awaits an object
 * takes the newest version above `after`, or waits for the next one. `near` is any ref of the node where the name lives (of
 * an object there, or of another name), and supplies its address and owner. NULL: the name is in the caller's own name space,
 * on the caller's own node or, where there is a node table, on the node that has it (rdt-network(7), DIRECTORY). A reader's
 * loop:
 *
 *     for (uint64_t version = 0;; version = info.version) {
 *         rdt_ref_from_name("weights", version, &near, &ref, &err);
 *         rdt_fetch(c, &ref, 1, NULL, &object, &err); rdt_object_info(object, &info); ...; rdt_release(object);
 *     }
 *
 * RDT_INVALID: empty, or longer than RDT_ID_MAX_BYTES. */
enum rdt_status rdt_ref_from_name(const char *name, uint64_t after, const struct rdt_ref *near, struct rdt_ref *ref_p,
                                  struct rdt_error *err);

/* Makes the ref refer to the node at that address, whichever node it is: "host:port" of its peer link, or its name in the
 * nodes file of the daemon that receives the request. RDT_INVALID: empty, or longer than 64 bytes. */
enum rdt_status rdt_ref_set_address(struct rdt_ref *ref, const char *address, struct rdt_error *err);

/* Writes the ref as text: "rdt:NODE/ID?g=GENERATION&a=ADDRESS&u=UID&t=TENANT". NODE is 32 hex digits; ID has %XX for every
 * byte outside A-Z a-z 0-9 . _ ~ -; each part after the ID is present only if it is set. A name always has "v=AFTER" instead
 * of the generation. text_p has RDT_REF_TEXT_BYTES. */
void rdt_ref_to_text(const struct rdt_ref *ref, char *text_p);

/* Reads the text above. A bare id ("weights") is read as rdt_ref_from_id does. RDT_INVALID: the sentence says which part is
 * wrong. */
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
