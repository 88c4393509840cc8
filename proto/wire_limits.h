/* SPDX-License-Identifier: Apache-2.0 */
/* Bounds that each end of a socket checks before it trusts a number from the other end. */
#ifndef PROTO_LIMITS_H
#define PROTO_LIMITS_H

#include <stdbool.h>
#include <stdint.h>

#include "rdt_ref.h"

#define RDT_PROTOCOL_MIN 1
#define RDT_PROTOCOL_MAX 1

#define RDT_MAX_FRAME_BYTES (16u << 20)   /* payload of one frame */
#define RDT_MAX_FRAME_FDS 64u             /* fds of one frame */
#define RDT_MAX_ANSWER_FDS 4096u          /* fds of the answer to one fetch, in as many frames as they take */
#define RDT_MAX_KEPT_REGIONS 1024u        /* regions on devices that one client keeps mapped without a hold */
#define RDT_MAX_DECODED_BYTES (96u << 20) /* heap of one decoded message: protobuf-c may expand a small message a lot */
#define RDT_MAX_ID_BYTES RDT_ID_MAX_BYTES /* of an object, and of a published name */
#define RDT_MAX_TENANT_BYTES 32u
#define RDT_MAX_NAME_BYTES 64u            /* transports, clients, groups */
#define RDT_MAX_ADDRESS_BYTES 64u         /* "host:port" */
#define RDT_MAX_METADATA_BYTES (8u << 20) /* user metadata of one object */
#define RDT_MAX_TENSORS 131072u           /* tensors of one object */
#define RDT_MAX_NDIM 32u                  /* dimensions of one tensor */
#define RDT_MAX_DIMS (2u << 20)           /* dimensions of all tensors of one object */
#define RDT_MAX_RUN_TENSORS 16384u        /* tensors of all lists in runs in one message, which take a few bytes each */
#define RDT_MAX_RUN_DIMS 65536u           /* dimensions of all tensors of one such list */
#define RDT_MAX_FETCH_REFS 16384u         /* refs of one fetch */
#define RDT_MAX_RELEASED_HOLDS 1024u      /* holds in one release, */
#define RDT_MAX_RELEASED_REGIONS 16u      /* after which so many regions stay mapped */
#define RDT_MAX_TARGET_REGIONS 4096u      /* regions in which the targets of one object lie */
#define RDT_MAX_PUBLISH_NAMES 1024u       /* names that are published at once */
#define RDT_MAX_VERSION_PIECES 16384u     /* objects of a version of many ranks: whole parts, and pieces of those that grow */
#define RDT_MAX_MANY_BYTES (8u << 20)     /* tensors of all objects that are put in one message */
#define RDT_MAX_GROUP_MEMBERS 1024u
#define RDT_MAX_PAGE 1024u                    /* rows of one list reply */
#define RDT_BUSY_POLL_MAX_NS 1000000u         /* polling of either end before it sleeps */
#define RDT_INLINE_MAX_BYTES (32u << 10)      /* an object up to this size travels in messages to and from a client */
#define RDT_PEER_INLINE_MAX_BYTES (64u << 10) /* an object up to this size travels in the reply of its owner's daemon */

/* Ids, versions and epochs, wherever they come from: a client, another node, etcd, a stored file, the journal. They only grow,
 * so what is learned from outside may be at most the half: then this node can still count on from it for ever. */
#define RDT_MAX_NUMBER ((UINT64_C(1) << 60) - 1)
#define RDT_MAX_LEARNED (RDT_MAX_NUMBER / 2)
/* A generation has the boot's number in its upper half. */
#define RDT_MAX_GENERATION ((uint64_t)INT64_MAX - 1)

static inline bool rdt_number_is_valid(uint64_t number) /* 0: none */
{
    return number <= RDT_MAX_NUMBER;
}

static inline bool rdt_generation_is_valid(uint64_t generation)
{
    return generation > 0 && generation <= RDT_MAX_GENERATION;
}

#endif
