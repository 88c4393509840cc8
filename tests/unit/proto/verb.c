/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of RDT_REQUEST_MAP are consistent. The linker checks that each has a handler, because daemon/rpc/rpc.c names
 * them all. */
#include <criterion/criterion.h>

#include "proto/messages.h"
#include "proto/verb.h"

Test(verb, every_row_is_found_by_its_number){
#define X(number, NAME, REQUEST, REPLY, properties, unmet) \
    {                                                      \
        const struct verb *verb = verb_find(number);       \
        cr_assert_not_null(verb, "%s", #NAME);             \
        cr_expect_eq(verb->type, RDT_MSG_##NAME);          \
        cr_expect_str_eq(verb->name, #NAME);               \
    }
    RDT_MESSAGE_MAP(X)
#undef X
}

Test(verb, numbers_without_a_row_are_no_requests)
{
    cr_expect_null(verb_find(0));
    cr_expect_null(verb_find(49));
    cr_expect_null(verb_find(UINT16_MAX));
    cr_expect_null(verb_find(UINT32_MAX));
}

/* Otherwise its TIMED_OUT would be an empty sentence. */
Test(verb, requests_that_may_be_answered_late_say_what_did_not_happen)
{
#define X(number, NAME, request, reply, properties, unmet) \
    if ((properties) & (VERB_WAITS | VERB_CANCELLABLE))    \
        cr_expect_gt(sizeof unmet, 1, "%s", #NAME);
    RDT_MESSAGE_MAP(X)
#undef X
}

Test(verb, other_nodes_may_send_nothing_that_only_the_administrator_may)
{
#define X(number, NAME, request, reply, properties, unmet) \
    cr_expect(((properties) & (VERB_ADMIN | VERB_FOR_PEERS)) != (VERB_ADMIN | VERB_FOR_PEERS), "%s", #NAME);
    RDT_MESSAGE_MAP(X)
#undef X
}

/* rdt_info_json sends such a request empty, and waits as long as for any answer that comes at once. */
Test(verb, requests_that_show_something_have_no_fields_and_change_nothing)
{
    cr_expect_eq(verb_named("status", VERB_SHOWS), verb_find(RDT_MSG_STATUS));
    cr_expect_null(verb_named("close", VERB_SHOWS | VERB_PLAIN));
    cr_expect_null(verb_named("", VERB_SHOWS));
    for (unsigned type = 0; type < RDT_EVENT_FETCH_DONE; type++) {
        const struct verb *verb = verb_find(type);

        if (!verb || !(verb->properties & VERB_SHOWS))
            continue;
        cr_expect_eq(verb->request->n_fields, 0, "%s", verb->name);
        cr_expect_eq(verb->properties | VERB_ADMIN, (unsigned)(VERB_SHOWS | VERB_REPEATABLE | VERB_ADMIN), "%s", verb->name);
    }
}

/* rdt_request_json writes the fields of such a request from texts, and waits as long as for any answer that comes at once. */
Test(verb, fields_of_plain_requests_are_numbers_texts_and_truths)
{
    cr_expect_eq(verb_named("end_client", VERB_PLAIN), verb_find(RDT_MSG_END_CLIENT));
    for (unsigned type = 0; type < RDT_EVENT_FETCH_DONE; type++) {
        const struct verb *verb = verb_find(type);

        if (!verb || !(verb->properties & VERB_PLAIN))
            continue;
        cr_expect_eq(verb->properties & (VERB_WAITS | VERB_FOR_PEERS), 0u, "%s", verb->name);
        for (unsigned i = 0; i < verb->request->n_fields; i++) {
            const ProtobufCFieldDescriptor *field = &verb->request->fields[i];

            cr_expect(field->label == PROTOBUF_C_LABEL_NONE &&
                          (field->type == PROTOBUF_C_TYPE_UINT64 || field->type == PROTOBUF_C_TYPE_UINT32 ||
                           field->type == PROTOBUF_C_TYPE_BOOL || field->type == PROTOBUF_C_TYPE_STRING),
                      "%s.%s", verb->name, field->name);
        }
    }
}
