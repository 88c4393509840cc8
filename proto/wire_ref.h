/* The ref of the installed API to the wire's message and back. */
#ifndef PROTO_WIRE_REF_H
#define PROTO_WIRE_REF_H

#include "rdt.pb-c.h"
#include "rdt_ref.h"

/* Points the message into the ref, which must outlive it. */
void wire_ref_from(const struct rdt_ref *ref, Rdt__Pb__Ref *msg_p);

/* RDT_INVALID: no ref, an empty or overlong id, a node that is not 16 bytes (none is all zero), overlong tenant or address. */
enum rdt_status wire_ref_to(const Rdt__Pb__Ref *msg, struct rdt_ref *ref_p, struct rdt_error *err);

/* An id, or a name, as people read it in lists: what does not print is %XX. text_p takes three bytes for each, and one. */
void wire_ref_id_text(const void *id, size_t bytes, char *text_p);

#endif
