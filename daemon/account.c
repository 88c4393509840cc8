#include "daemon/account.h"

#include <assert.h>
#include <stdlib.h>

void accounts_init(struct accounts *accounts)
{
    map_init(&accounts->by_owner);
}

void accounts_fini(struct accounts *accounts)
{
    map_fini(&accounts->by_owner);
}

static size_t make_key(const struct owner *owner, uint8_t *key_p)
{
    size_t tenant = strlen(owner->tenant);

    memcpy(key_p, &owner->uid, 4);
    memcpy(key_p + 4, owner->tenant, tenant);
    return 4 + tenant;
}

struct account *account_get(struct accounts *accounts, const struct owner *owner)
{
    uint8_t key[sizeof((struct account *)0)->key];
    size_t key_bytes = make_key(owner, key);
    struct account *account = map_get(&accounts->by_owner, key, key_bytes);

    if (account)
        return account_ref(account);
    account = calloc(1, sizeof *account);
    if (!account)
        return NULL;
    account->owner = *owner;
    memcpy(account->key, key, key_bytes);
    account->accounts = accounts;
    account->refs = 1;
    if (!map_put(&accounts->by_owner, account->key, key_bytes, account)) {
        free(account);
        return NULL;
    }
    return account;
}

struct account *account_ref(struct account *account)
{
    account->refs++;
    return account;
}

void account_unref(struct account *account)
{
    if (!account)
        return;
    assert(account->refs > 0);
    if (--account->refs > 0 || !account->accounts)
        return;
    (void)map_remove(&account->accounts->by_owner, account->key, 4 + strlen(account->owner.tenant));
    free(account);
}
