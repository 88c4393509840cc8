/* SPDX-License-Identifier: Apache-2.0 */
/* backends/common/address: addresses that a listener is bound to only if the configuration says so. */
#include <criterion/criterion.h>

#include "backends/common/address.h"

Test(address, every_spelling_of_every_address_is_a_wildcard)
{
    static const char *const wildcards[] = {"0.0.0.0",        "::",        "::0", "0::0", "0:0:0:0:0:0:0:0", "::0.0.0.0",
                                            "::ffff:0.0.0.0", "::ffff:0:0"};

    for (size_t i = 0; i < sizeof wildcards / sizeof *wildcards; i++)
        cr_assert(address_is_wildcard(wildcards[i]), "%s", wildcards[i]);
}

Test(address, others_are_none)
{
    static const char *const others[] = {"127.0.0.1", "0.0.0.1", "::1", "fe80::1", "::ffff:192.0.2.1", "", "localhost", "[::]"};

    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        cr_assert_not(address_is_wildcard(others[i]), "%s", others[i]);
}
