/* daemon/account: one account an owner, as long as somebody refers to it. */
#include <criterion/criterion.h>

#include "daemon/account.h"

TestSuite(account, .timeout = 60);

Test(account, one_for_each_owner_until_last_leaves)
{
    const struct owner me = {.uid = 1000}, guest = {.uid = 1000, .tenant = "guest"}, other = {.uid = 1001};
    struct accounts accounts;
    struct account *a, *b, *c;

    accounts_init(&accounts);
    a = account_get(&accounts, &me);
    b = account_get(&accounts, &guest);
    c = account_get(&accounts, &other);
    cr_assert(a && b && c && a != b && b != c && a != c);
    cr_assert(owner_equal(&b->owner, &guest));
    cr_assert_eq(account_get(&accounts, &me), a);
    a->used[USAGE_OBJECTS] = 7;
    account_unref(a);
    cr_assert_eq(map_count(&accounts.by_owner), 3u);
    cr_assert_eq(account_ref(a)->used[USAGE_OBJECTS], 7u, "it is the same as long as it lasts");
    account_unref(a);
    account_unref(a);
    cr_assert_eq(map_count(&accounts.by_owner), 2u);
    a = account_get(&accounts, &me);
    cr_assert_eq(a->used[USAGE_OBJECTS], 0u);
    account_unref(a);
    account_unref(b);
    account_unref(c);
    account_unref(NULL);
    cr_assert_eq(map_count(&accounts.by_owner), 0u);
    accounts_fini(&accounts);
}
