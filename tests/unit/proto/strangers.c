/* SPDX-License-Identifier: Apache-2.0 */
/* proto/strangers: which connection is closed to make room for a new one. */
#include <arpa/inet.h>
#include <criterion/criterion.h>

#include "strangers.h"

static struct strangers strangers;
static struct stranger all[20];

static struct stranger *come(unsigned i, const char *address, bool exempt)
{
    bool is6 = strchr(address, ':');
    struct sockaddr_storage at = {.ss_family = is6 ? AF_INET6 : AF_INET};

    if (is6)
        cr_assert_eq(inet_pton(AF_INET6, address, &((struct sockaddr_in6 *)&at)->sin6_addr), 1);
    else
        cr_assert_eq(inet_pton(AF_INET, address, &((struct sockaddr_in *)&at)->sin_addr), 1);
    strangers_source(&at, all[i].source);
    return strangers_admit(&strangers, &all[i], exempt);
}

static void setup(void)
{
    memset(all, 0, sizeof all);
    strangers_init(&strangers, 4, 2);
}

TestSuite(strangers, .init = setup);

Test(strangers, oldest_of_the_source_makes_room)
{
    cr_assert_null(come(0, "192.0.2.1", false));
    cr_assert_null(come(1, "192.0.2.1", false));
    cr_assert_null(come(2, "192.0.2.2", false));
    cr_assert_eq(come(3, "192.0.2.1", false), &all[0]);
    cr_assert_eq(come(4, "::ffff:192.0.2.1", false), &all[1], "the same address in another form");
    cr_assert_eq(strangers.n, 3);
}

Test(strangers, oldest_of_the_source_with_most_makes_room)
{
    cr_assert_null(come(0, "192.0.2.1", false));
    cr_assert_null(come(1, "2001:db8::1", false));
    cr_assert_null(come(2, "2001:db8::2", false));
    cr_assert_eq(come(3, "2001:db8::3", false), &all[1], "one network of 64 bits is one source");
    cr_assert_null(come(4, "192.0.2.3", false));
    cr_assert_eq(come(5, "192.0.2.4", false), &all[2]);
    cr_assert_eq(come(6, "192.0.2.5", false), &all[0], "all have as many");
    cr_assert_eq(strangers.n, 4);
}

Test(strangers, exempt_one_goes_last_among_those_with_as_many)
{
    cr_assert_null(come(0, "192.0.2.1", true));
    cr_assert_null(come(1, "192.0.2.2", false));
    cr_assert_null(come(2, "192.0.2.3", true));
    cr_assert_null(come(3, "192.0.2.4", false));
    cr_assert_eq(come(4, "192.0.2.5", false), &all[1]);
    cr_assert_eq(come(5, "192.0.2.6", true), &all[3]);
}

/* Silent connections of a node that is listed do not push out one that shakes hands. */
Test(strangers, source_with_most_makes_room_though_it_is_exempt)
{
    strangers_init(&strangers, 8, 2);
    cr_assert_null(come(0, "192.0.2.2", false));
    for (unsigned i = 1; i < 8; i++)
        cr_assert_null(come(i, "192.0.2.1", true));
    cr_assert_eq(come(8, "192.0.2.1", true), &all[1]);
    cr_assert_eq(come(9, "192.0.2.3", false), &all[2]);
    cr_assert_eq(strangers.n, 8);
}

Test(strangers, one_that_said_who_it_is_is_not_counted)
{
    cr_assert_null(come(0, "192.0.2.1", false));
    cr_assert_null(come(1, "192.0.2.1", false));
    strangers_remove(&strangers, &all[0]);
    strangers_remove(&strangers, &all[0]);
    cr_assert_null(come(2, "192.0.2.1", false));
    cr_assert_eq(strangers.n, 2);
}
