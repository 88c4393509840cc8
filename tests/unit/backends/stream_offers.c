/* SPDX-License-Identifier: Apache-2.0 */
/* backends/stream: which addresses of a peer's offer are dialled, and which greetings of its connections are taken. */
#include <criterion/criterion.h>
#include <stdio.h>

#include "backends/common/address.h"
#include "backends/stream/stream.h"

TestSuite(stream_offers, .timeout = 60);

static const char *link_at; /* this node's end of the peer link */

static void say_link(void *conn_ctx, char *text_p, size_t size)
{
    (void)snprintf(text_p, size, "%s", link_at);
}

static enum rdt_status offered(const char *text)
{
    struct transport transport = {.host = {.struct_size = sizeof transport.host, .conn_address = link_at ? say_link : NULL}};
    struct sockaddr_storage address;
    struct rdt_error err;

    cr_assert(address_parse(text, &address), "%s", text);
    return listen_may_dial(&transport, NULL, &address, &err);
}

Test(stream_offers, address_that_only_a_machine_itself_or_its_wire_has_must_be_of_the_kind_of_the_link)
{
    static const struct {
        const char *link, *offer;
        enum rdt_status status;
    } rows[] = {
        {"10.0.0.1", "10.0.0.2", RDT_OK},
        {"10.0.0.1", "192.168.7.7", RDT_OK}, /* a network for data */
        {"10.0.0.1", "2001:db8::7", RDT_OK},
        {"10.0.0.1", "127.0.0.1", RDT_PROTOCOL},
        {"10.0.0.1", "127.9.9.9", RDT_PROTOCOL},
        {"10.0.0.1", "::1", RDT_PROTOCOL},
        {"10.0.0.1", "::ffff:127.0.0.1", RDT_PROTOCOL},
        {"10.0.0.1", "169.254.169.254", RDT_PROTOCOL},
        {"10.0.0.1", "::ffff:169.254.169.254", RDT_PROTOCOL},
        {"10.0.0.1", "fe80::1", RDT_PROTOCOL},
        {"127.0.0.1", "127.0.0.2", RDT_OK},
        {"::1", "127.0.0.1", RDT_OK},
        {"127.0.0.1", "10.0.0.2", RDT_OK},
        {"127.0.0.1", "169.254.169.254", RDT_PROTOCOL},
        {"169.254.3.3", "169.254.4.4", RDT_OK},
        {"fe80::1", "127.0.0.1", RDT_PROTOCOL},
        {"", "127.0.0.1", RDT_OK}, /* there is no link */
        {NULL, "127.0.0.1", RDT_OK},
    };

    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        link_at = rows[i].link;
        cr_assert_eq(offered(rows[i].offer), rows[i].status, "link at %s, offer of %s", link_at ? link_at : "?", rows[i].offer);
    }
}

Test(stream_offers, address_that_no_machine_has_is_refused)
{
    static const char *const none[] = {"0.0.0.0", "0.1.2.3", "224.0.0.1", "255.255.255.255", "::", "ff02::1", "::ffff:0.0.0.0"};

    for (unsigned i = 0; i < sizeof none / sizeof none[0]; i++) {
        link_at = i % 2 ? "10.0.0.1" : "";
        cr_assert_eq(offered(none[i]), RDT_PROTOCOL, "%s", none[i]);
    }
}

/* A thread of the peer stood still with the greeting of its first connection, and others replaced theirs thousands of times. */
Test(stream_offers, greeting_that_thousands_have_overtaken_is_taken_once)
{
    struct numbers numbers = {0};

    for (uint32_t number = 1; number < NUMBERS_BEHIND; number++)
        cr_assert(numbers_take(&numbers, number) && !numbers_take(&numbers, number), "%u", number);
    cr_assert(NUMBERS_BEHIND > 4000 && numbers_take(&numbers, 0) && !numbers_take(&numbers, 0));
    cr_assert(numbers_take(&numbers, NUMBERS_BEHIND + 7) && numbers_take(&numbers, NUMBERS_BEHIND) &&
              !numbers_take(&numbers, 7) && !numbers_take(&numbers, NUMBERS_BEHIND));
    numbers = (struct numbers){0};
    cr_assert(numbers_take(&numbers, UINT32_MAX) && numbers_take(&numbers, UINT32_MAX - NUMBERS_BEHIND + 1) &&
              !numbers_take(&numbers, UINT32_MAX - NUMBERS_BEHIND) && !numbers_take(&numbers, UINT32_MAX));
}

/* It has the token, and numbers of its own. */
Test(stream_offers, second_dialler_is_refused)
{
    struct numbers numbers = {0};

    cr_assert(numbers_take(&numbers, 1000000) && numbers_take(&numbers, 1000001 + NUMBERS_BEHIND - 1));
    cr_assert(!numbers_take(&numbers, 0) && !numbers_take(&numbers, 999999) && !numbers_take(&numbers, UINT32_MAX - 1) &&
              !numbers_take(&numbers, 1000001 + 2 * NUMBERS_BEHIND));
    cr_assert(numbers_take(&numbers, 1000001) && numbers_take(&numbers, 1000001 + 2 * NUMBERS_BEHIND - 1));
}
