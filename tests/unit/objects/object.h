/* SPDX-License-Identifier: Apache-2.0 */
/* A table of objects over fake memory. */
#ifndef TESTS_UNIT_OBJECT_H
#define TESTS_UNIT_OBJECT_H

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/objects/client.h"
#include "daemon/objects/object_table.h"
#include "tests/support/fakes/fake_memory.h"

static struct node node;
static struct object_table table;
static struct client producer;
static struct region *region;
static const struct owner me = {.uid = 1000}, other = {.uid = 1001}, guest = {.uid = 1000, .tenant = "guest"};
static struct accounts accounts;
static struct account own = {.refs = 1};
static struct slabs slabs;

static inline void setup(void)
{
    fake_setup();
    node = (struct node){0};
    memset(node.uuid, 7, sizeof node.uuid);
    (void)snprintf(node.address, sizeof node.address, "192.0.2.1:7411");
    accounts_init(&accounts);
    slabs_init(&slabs, &fake.regions, NULL, "fake", &own);
    object_table_init(&table, &node, &accounts, &slabs, 1000);
    client_init(&producer, 5);
    producer.account = account_get(&accounts, &me);
    region = fake_region(4096, 5);
}

static inline void teardown(void)
{
    cr_assert_eq(map_count(&table.by_name), 0u, "a name is left");
    cr_assert_eq(table.by_generation.used, 0u, "an object is left");
    cr_assert_eq(producer.n_objects, 0u);
    cr_assert_eq(region->refs, 1u, "a reference is left");
    cr_assert_eq(region->pins, 0u);
    region_unref(region);
    slabs_fini(&slabs);
    fake_run();
    object_table_fini(&table);
    cr_assert(client_fini(&producer, UINT64_MAX));
    cr_assert_eq(producer.account->refs, 1u, "an object was not taken off its owner's account");
    account_unref(producer.account);
    cr_assert_eq(map_count(&accounts.by_owner), 0u, "an account is left");
    accounts_fini(&accounts);
    fake_teardown();
}

/* ---- putting ---- */

static inline struct layout *bytes_at(uint64_t offset, uint64_t bytes)
{
    struct layout *layout = layout_create(1, 1);

    cr_assert_not_null(layout);
    layout->dtype[0] = RDT_U8;
    layout->ndim[0] = 1;
    layout->first_dim[0] = 0;
    layout->region[0] = 0;
    layout->offset[0] = offset;
    layout->shape[0] = bytes;
    layout->strides[0] = 1;
    return layout;
}

static inline enum rdt_status try_put(const char *id, const struct owner *owner, Rdt__Pb__Visibility visibility,
                                      struct object **object_p, struct rdt_error *err)
{
    struct layout *layout = bytes_at(0, 4096);
    struct object_put put = {.account = account_get(&accounts, owner),
                             .id = (const uint8_t *)id,
                             .id_bytes = strlen(id),
                             .metadata = (const uint8_t *)"m",
                             .metadata_bytes = 1,
                             .layout = layout,
                             .regions = &region,
                             .n_regions = 1,
                             .visibility = visibility,
                             .transport = "",
                             .producer = &producer};
    enum rdt_status status = object_table_put(&table, &put, object_p, err);

    account_unref(put.account);
    if (status != RDT_OK)
        free(layout);
    return status;
}

static inline struct object *put_as(const char *id, const struct owner *owner, Rdt__Pb__Visibility visibility)
{
    struct object *object = NULL;
    struct rdt_error err = {0};

    cr_assert_eq(try_put(id, owner, visibility, &object, &err), RDT_OK, "%s", err.msg);
    return object;
}

static inline struct object *put(const char *id)
{
    return put_as(id, &me, RDT__PB__VISIBILITY__VISIBILITY_OWNER);
}

static inline struct rdt_ref ref_of(const char *id, uint64_t generation)
{
    struct rdt_ref ref = {.generation = generation, .any_owner = true, .id_bytes = (uint8_t)strlen(id)};

    memcpy(ref.id, id, strlen(id));
    return ref;
}

static inline enum rdt_status find_as(const char *id, uint64_t generation, const struct owner *requester)
{
    struct rdt_ref ref = ref_of(id, generation);
    struct object *object = NULL;
    struct rdt_error err = {0};
    enum rdt_status status = object_table_find(&table, &ref, requester, &object, &err);

    cr_assert(status != RDT_OK || object);
    cr_assert(status == RDT_OK || status == RDT_AGAIN || err.status == status, "no sentence for %s", rdt_status_name(status));
    return status;
}

#endif
