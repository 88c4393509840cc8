/* Every request of proto/messages.h has a handler: a forgotten line of the table in daemon/rpc/rpc.c is named here. */
#include <criterion/criterion.h>

#include "daemon/rpc/rpc.h"

Test(rpc, every_request_has_a_handler)
{
#define X(number, name, request, reply)                                          \
    if (RDT_MSG_##name != RDT_MSG_HELLO) /* conn.c's own: it makes the client */ \
        cr_expect(rpc_handles(RDT_MSG_##name), "no line for %s in the table of daemon/rpc/rpc.c", #name);
    RDT_MESSAGE_MAP(X)
#undef X
}

Test(rpc, hello_is_no_request_of_a_client)
{
    cr_expect_not(rpc_handles(RDT_MSG_HELLO));
}
