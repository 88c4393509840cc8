/* SPDX-License-Identifier: Apache-2.0 */
/* rdt_lookup with nodes_ns between nodes in network namespaces: who has what is asked each time, so it survives frozen, killed
 * and restarted nodes. */
#include <criterion/criterion.h>
#include <string.h>

#include "client/rdt_info.h"
#include "client/rdt_many.h"
#include "tests/integration/nodes/nodes_fixture.h"

TestSuite(lookup_nodes, .timeout = 120);

#define N 4
#define KEYS 12u
#define SOON (SEC / 2)
#define PATIENT (50 * SEC) /* LONG may be above the minute that is possible */

static rdt *conn[N];
static struct rdt_ref refs[KEYS + 1];
static char names[KEYS + 1][8];
static struct rdt_key keys[KEYS + 1];
static char unasked[256];

static void begin_blocks(void)
{
    static const char *const flags[] = {"--peer-timeout=20s", NULL};

    begin_with(N, &(struct cluster_options){.no_ucx = true, .stream = true, .table = true, .flags = flags});
    for (unsigned i = 0; i < N; i++)
        conn[i] = i == 0 ? owner : i == 1 ? reader : node_client(&c.node[i], "engine");
    for (unsigned k = 0; k <= KEYS; k++) {
        (void)snprintf(names[k], sizeof names[k], "b%u", k);
        keys[k] = (struct rdt_key){names[k], strlen(names[k])};
    }
}

static void put_block(unsigned node, unsigned key)
{
    uint8_t *data = malloc(128 * KIB);
    struct rdt_put_options options = RDT_INIT(options);
    struct rdt_tensor tensor = VECTOR(RDT_U8, 128 * KIB, data);
    struct rdt_ref ref;

    fill_pattern(data, 128 * KIB, key);
    options.id = names[key];
    options.id_bytes = strlen(names[key]);
    options.flags = RDT_PUT_EVICTABLE | RDT_PUT_SNAPSHOT;
    must_ok(rdt_put(conn[node], &tensor, 1, &options, &ref, &err));
    free(data);
}

static void note_unasked(void *arg, const char *node, const struct rdt_error *why)
{
    size_t at = strlen(unasked);

    (void)arg;
    (void)snprintf(unasked + at, sizeof unasked - at, "%s:%s ", node, rdt_status_name(why->status));
}

/* How many are found by node 0. */
static size_t look(bool prefix, int64_t nodes_ns, int64_t lease_ns)
{
    struct rdt_lookup_options options = RDT_INIT(options);
    size_t n;

    options.prefix = prefix;
    options.nodes_ns = nodes_ns;
    options.lease_ns = lease_ns;
    options.on_unasked = note_unasked;
    unasked[0] = '\0';
    must_ok(rdt_lookup(conn[0], keys, KEYS + 1, &options, refs, &n, &err));
    return n;
}

static void flush_all(void)
{
    for (unsigned i = 0; i < N; i++)
        must_ok(rdt_flush_cache(conn[i], false, NULL, NULL, &err));
}

static bool is_empty(unsigned node)
{
    struct rdt_ref there[KEYS];
    size_t n;

    must_ok(rdt_flush_cache(conn[node], false, NULL, NULL, &err));
    must_ok(rdt_lookup(conn[node], keys, KEYS, NULL, there, &n, &err));
    return n == 0;
}

static void end_blocks(void)
{
    must_ok(rdt_lease_end(conn[0], refs, KEYS + 1, &err));
    for (unsigned i = 0; i < N; i++)
        wait_until(LONG, is_empty(i));
    for (unsigned i = 2; i < N; i++)
        rdt_close(conn[i]);
    end((const char *const[]){"cannot connect", "is lost", "is down", NULL});
}

Test(lookup_nodes, prefix_of_all_nodes_is_leased_and_fetched)
{
    begin_blocks();
    for (unsigned k = 0; k < KEYS; k++)
        put_block(k % N, k);
    must(look(true, 0, LONG) == 1);
    must_ok(rdt_lease_end(conn[0], refs, KEYS + 1, &err));
    must(look(true, PATIENT, LONG) == KEYS && unasked[0] == '\0' && refs[KEYS].generation == 0);
    flush_all(); /* they are leased */
    for (unsigned k = 0; k < KEYS; k++)
        fetch_pattern(conn[0], &refs[k], 128 * KIB, k, NULL);
    end_blocks();
}

Test(lookup_nodes, frozen_node_costs_its_time_once_for_all_keys)
{
    begin_blocks();
    for (unsigned k = 0; k < KEYS; k++)
        put_block(k % N, k);
    node_freeze(&c.node[3]);
    int64_t before = now_ns();
    must(look(false, SOON, SEC / 10) == KEYS - KEYS / N && strcmp(unasked, "n3:TIMED_OUT ") == 0);
    must(now_ns() - before >= SOON);
    must_ok(rdt_lease_end(conn[0], refs, KEYS + 1, &err));
    node_thaw(&c.node[3]);
    must(look(false, PATIENT, SEC / 10) == KEYS && unasked[0] == '\0');
    end_blocks();
}

Test(lookup_nodes, killed_node_is_named_and_its_block_is_no_part)
{
    begin_blocks();
    put_block(1, 0);
    put_block(3, 1);
    put_block(2, 1);
    put_block(3, 2);
    must(look(true, PATIENT, 0) == 3);
    struct rdt_ref lost = refs[2];
    node_kill(&c.node[3], SIGKILL);
    wait_until(LONG, (look(true, PATIENT, 0), strcmp(unasked, "n3:PEER_LOST ") == 0));
    must(look(true, PATIENT, 0) == 2);
    fetch_pattern(conn[0], &refs[1], 128 * KIB, 1, NULL);
    struct rdt_fetch_options options = within(LONG);
    rdt_object *object;
    must_refuse(RDT_PEER_LOST, "n3", rdt_fetch(conn[0], &lost, 1, &options, &object, &err));
    rdt_close(conn[3]);
    cluster_restart(&c, 3);
    cluster_meet(&c);
    conn[3] = node_client(&c.node[3], "engine");
    must(look(true, PATIENT, 0) == 2 && unasked[0] == '\0');
    put_block(3, 2);
    must(look(true, PATIENT, 0) == 3);
    end_blocks();
}

/* A block that is replaced or evicted without a lease between look-up and fetch. */
Test(lookup_nodes, block_without_a_lease_may_be_gone)
{
    struct rdt_lookup_options options = RDT_INIT(options);
    struct rdt_fetch_options soon = within(LONG);
    rdt_object *object;

    begin_blocks();
    put_block(1, 0);
    options.nodes_ns = PATIENT;
    must_ok(rdt_lookup(conn[0], keys, 1, &options, refs, NULL, &err));
    must(refs[0].generation != 0);
    flush_all();
    must_refuse(RDT_FREED, "was evicted", rdt_fetch(conn[0], &refs[0], 1, &soon, &object, &err));
    must_ok(rdt_lookup(conn[0], keys, 1, &options, refs, NULL, &err));
    must(refs[0].generation == 0);
    end_blocks();
}
