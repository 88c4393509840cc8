/* SPDX-License-Identifier: Apache-2.0 */
/* What client and daemon both know about a request: its row of RDT_REQUEST_MAP (proto/messages.h) as a struct. */
#ifndef PROTO_VERB_H
#define PROTO_VERB_H

#include <protobuf-c/protobuf-c.h>
#include <stdint.h>

enum verb_property {
    VERB_WAITS = 1 << 0,         /* it waits for an event, for as long as its timeout_ns says */
    VERB_CANCELLABLE = 1 << 1,   /* librdt sends CANCEL_REQUEST when its caller stops waiting for the answer */
    VERB_FOR_PEERS = 1 << 2,     /* another node may send it about an object of this node */
    VERB_ADMIN = 1 << 3,         /* only root and the daemon's own user may send it */
    VERB_NOT_DRAINING = 1 << 4,  /* answered SHUTTING_DOWN while the daemon shuts down */
    VERB_KEEPS_REQUEST = 1 << 5, /* the handler keeps the decoded request after it has returned */
    /* Sent again with the same id after the session was resumed at another daemon, if the answer was lost: it changes nothing,
     * or the daemon recognises what the first one has done. Any other request then ends with RESTARTED; but PUBLISH_PART of
     * a whole part asks for its version (PublishPart.again). */
    VERB_REPEATABLE = 1 << 6,
    VERB_SHOWS = 1 << 7, /* it only shows something and has no fields: rdt_info_json sends it, and so does Python */
    VERB_PLAIN = 1 << 8, /* its fields are numbers, texts and truths: rdt_request_json sends it, and so does Python */
};

struct verb {
    uint16_t type;    /* enum rdt_message */
    const char *name; /* "PUT" */
    const ProtobufCMessageDescriptor *request, *reply;
    unsigned properties; /* of enum verb_property */
    const char *unmet;   /* "the object was not put"; "" for a request that is answered at once */
};

/* The row of a type number, HELLO's included; NULL if there is no such request. */
const struct verb *verb_find(unsigned type);

/* The row with that name in lower case, such as "status", that has one of these properties; NULL if there is none. */
const struct verb *verb_named(const char *name, unsigned properties);

#endif
