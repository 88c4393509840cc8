/* SPDX-License-Identifier: Apache-2.0 */
/* Evictable objects, and CACHE_FLUSH, LOOKUP and LEASE_END of clients that send what librdt does not: what is refused, what
 * ends leases and what does not, and that everything that was charged is given back. */
#include <grp.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/rdt_many.h"
#include "proto/layout.h"
#include "tests/integration/hostile/protocol_fixture.h"

TestSuite(hostile_cache, .timeout = 120);

#define MOST RDT_MAX_FETCH_REFS
#define STRANGER 12345
#define HOUR (3600 * SEC)

static const char *const what[] = {"objects", "regions", "fds", "heap", "bytes"};
enum { N_WHAT = sizeof what / sizeof what[0] };

static rdt *engine;
static struct raw raw;
static uint64_t used[N_WHAT]; /* at the beginning */

static void count_used(uint64_t *used_p)
{
    for (unsigned i = 0; i < N_WHAT; i++)
        used_p[i] = raw_used(&raw, what[i]);
}

static void begin_cache(const char *const *flags)
{
    begin(&(struct node_options){.flags = flags});
    engine = node_client(&node, "engine");
    greeted(&raw);
    count_used(used);
}

static bool all_is_given_back(void)
{
    uint64_t now[N_WHAT];

    count_used(now);
    return memcmp(now, used, sizeof now) == 0;
}

static void end_cache(void)
{
    wait_until(LONG, all_is_given_back());
    raw_close(&raw);
    rdt_close(engine);
    end();
}

static enum rdt_status put_block(rdt *conn, const char *id, size_t bytes, uint32_t flags, int64_t ttl_ns, struct rdt_ref *ref_p)
{
    struct rdt_put_options options = {
        .struct_size = sizeof options, .flags = RDT_PUT_SNAPSHOT | flags, .id = id, .id_bytes = strlen(id), .ttl_ns = ttl_ns};
    uint8_t *data = malloc(bytes);
    struct rdt_tensor tensor = VECTOR(RDT_U8, bytes, data);
    struct rdt_error why;

    fill_pattern(data, bytes, 1);
    enum rdt_status status = rdt_put(conn, &tensor, 1, &options, ref_p, &why);
    free(data);
    return status;
}

static struct rdt_ref put_evictable(const char *id, size_t bytes)
{
    struct rdt_ref ref;

    must_be(RDT_OK, put_block(engine, id, bytes, RDT_PUT_EVICTABLE, 0, &ref));
    return ref;
}

/* LOOKUP of n ids that are all this one. */
static Rdt__Pb__LookupReply *look(struct raw *at, const char *id, uint32_t n, bool prefix, int64_t lease_ns)
{
    uint32_t *id_bytes = calloc(n, sizeof *id_bytes), length = (uint32_t)strlen(id);
    uint8_t *ids = malloc((size_t)n * length + 1);

    for (uint32_t i = 0; i < n; i++) {
        id_bytes[i] = length;
        memcpy(ids + (size_t)i * length, id, length);
    }
    Rdt__Pb__Lookup lookup = MESSAGE(lookup, .ids = {(size_t)n * length, ids}, .id_bytes = id_bytes, .n_id_bytes = n,
                                     .prefix = prefix, .lease_ns = lease_ns);
    uint64_t number = raw_send(at, RDT_MSG_LOOKUP, &lookup.base, NULL, 0);
    free(ids);
    free(id_bytes);
    return (Rdt__Pb__LookupReply *)raw_reply(at, number, &rdt__pb__lookup_reply__descriptor);
}

static uint64_t look_for(struct raw *at, const char *id, int64_t lease_ns)
{
    Rdt__Pb__LookupReply *reply = look(at, id, 1, false, lease_ns);
    must(reply->n_generation == 1);
    uint64_t generation = reply->generation[0];

    rdt__pb__lookup_reply__free_unpacked(reply, NULL);
    return generation;
}

static void end_leases(struct raw *at, uint64_t generation, uint32_t n)
{
    uint64_t *generations = calloc(n, sizeof *generations);

    for (uint32_t i = 0; i < n; i++)
        generations[i] = generation;
    Rdt__Pb__LeaseEnd message = MESSAGE(lease_end, .generation = generations, .n_generation = n);
    uint64_t number = raw_send(at, RDT_MSG_LEASE_END, &message.base, NULL, 0);
    free(generations);
    must(raw_next(at) && at->frame.request_id == number && at->frame.flags == FRAME_REPLY);
}

/* How many objects that evicts. */
static uint64_t flush(struct raw *at)
{
    Rdt__Pb__CacheFlush message = MESSAGE(cache_flush, .all = false);
    Rdt__Pb__CacheFlushReply *reply = (Rdt__Pb__CacheFlushReply *)raw_reply(
        at, raw_send(at, RDT_MSG_CACHE_FLUSH, &message.base, NULL, 0), &rdt__pb__cache_flush_reply__descriptor);
    uint64_t n = reply->objects;

    rdt__pb__cache_flush_reply__free_unpacked(reply, NULL);
    return n;
}

/* ---- what is refused ---- */

static void refuses_lookup(size_t bytes, const uint32_t *id_bytes, size_t n, int64_t lease_ns, enum rdt_status expected,
                           const char *text)
{
    static uint8_t ids[1024];
    Rdt__Pb__Lookup lookup =
        MESSAGE(lookup, .ids = {bytes, ids}, .id_bytes = (uint32_t *)id_bytes, .n_id_bytes = n, .lease_ns = lease_ns);

    (void)raw_send(&raw, RDT_MSG_LOOKUP, &lookup.base, NULL, 0);
    refuses(&raw, expected, text);
}

Test(hostile_cache, lists_that_lie_are_refused)
{
    static uint32_t ones[MOST + 1];
    static uint64_t generations[MOST + 1];

    begin_cache((const char *const[]){"--set=daemon.detached_ttl_max=1h", NULL});
    refuses_lookup(3, (const uint32_t[]){2, 2}, 2, 0, RDT_INVALID, "the ids have 3 bytes, and 4 are said");
    refuses_lookup(5, (const uint32_t[]){2, 2}, 2, 0, RDT_INVALID, "the ids have 5 bytes, and 4 are said");
    refuses_lookup(2, (const uint32_t[]){2, 0}, 2, 0, RDT_INVALID, "id 1 has 0 bytes");
    refuses_lookup(2, (const uint32_t[]){RDT_MAX_ID_BYTES + 1}, 1, 0, RDT_INVALID, "id 0 has");
    refuses_lookup(1, (const uint32_t[]){UINT32_MAX, 2}, 2, 0, RDT_INVALID, "id 0 has 4294967295 bytes");
    refuses_lookup(2, (const uint32_t[]){2}, 1, -1, RDT_LIMIT, "below 0");
    refuses_lookup(2, (const uint32_t[]){2}, 1, INT64_MIN, RDT_LIMIT, "below 0");
    refuses_lookup(2, (const uint32_t[]){2}, 1, HOUR + 1, RDT_LIMIT, "detached_ttl_max");
    refuses_lookup(2, (const uint32_t[]){2}, 1, INT64_MAX, RDT_LIMIT, "detached_ttl_max");
    refuses_lookup(1, ones, MOST + 1, 0, RDT_LIMIT, "16385 ids");
    Rdt__Pb__LeaseEnd message = MESSAGE(lease_end, .generation = generations, .n_generation = MOST + 1);
    (void)raw_send(&raw, RDT_MSG_LEASE_END, &message.base, NULL, 0);
    refuses(&raw, RDT_LIMIT, "16385 leases");
    ping_works(&raw);
    end_cache();
}

Test(hostile_cache, empty_lists_are_answered)
{
    begin_cache(NULL);
    Rdt__Pb__LookupReply *reply = look(&raw, "x", 0, true, HOUR);
    must(reply->n_generation == 0);
    rdt__pb__lookup_reply__free_unpacked(reply, NULL);
    end_leases(&raw, 0, 0);
    must(flush(&raw) == 0);
    end_cache();
}

/* ---- leases ---- */

/* An id that is named thousands of times is leased as often, and costs no more than once. */
Test(hostile_cache, each_of_many_leases_is_ended_by_itself)
{
    begin_cache(NULL);
    struct rdt_ref ref = put_evictable("block", 1000);
    uint64_t heap = raw_used(&raw, "heap");
    Rdt__Pb__LookupReply *reply = look(&raw, "block", MOST, true, HOUR);
    must(reply->n_generation == MOST);
    for (uint32_t i = 0; i < MOST; i++)
        must(reply->generation[i] == ref.generation);
    rdt__pb__lookup_reply__free_unpacked(reply, NULL);
    must(raw_used(&raw, "heap") < heap + 1024);
    must(flush(&raw) == 0);
    end_leases(&raw, ref.generation, MOST - 1);
    must(flush(&raw) == 0);
    end_leases(&raw, ref.generation, 1);
    must(look_for(&raw, "block", 0) == ref.generation);
    must(flush(&raw) == 1);
    must(look_for(&raw, "block", 0) == 0);
    end_leases(&raw, ref.generation, MOST); /* they are passed over */
    end_cache();
}

/* More ends than leases, of objects that are not leased or not there, end no other hold. */
Test(hostile_cache, ends_without_leases_end_nothing)
{
    begin_cache(NULL);
    struct rdt_ref ref = put_evictable("block", 100000), plain;
    must_be(RDT_OK, put_block(engine, "plain", 1000, 0, 0, &plain));
    rdt_object *object = fetch_one(bystander, &ref, RDT_FETCH_AUTO);
    end_leases(&raw, ref.generation, MOST);
    end_leases(&raw, plain.generation, MOST);
    end_leases(&raw, UINT64_MAX, 10);
    must(flush(&raw) == 0);
    must(holds_pattern(tensor_of(object, 0).data, 100000, 1));
    must_ok(rdt_free(engine, &plain, false, &err));
    rdt_release(object);
    uint64_t n = 0;
    wait_until(LONG, (n += flush(&raw)) == 1);
    end_cache();
}

Test(hostile_cache, lease_outlives_its_session_and_ends_by_itself)
{
    struct raw other;

    begin_cache(NULL);
    struct rdt_ref ref = put_evictable("long", 1000), brief = put_evictable("brief", 1000);
    greeted(&other);
    must(look_for(&other, "long", HOUR) == ref.generation);
    must(look_for(&other, "brief", SEC / 10) == brief.generation);
    raw_close(&other);
    uint64_t n = 0;
    wait_until(LONG, (n += flush(&raw)) > 0);
    must(n == 1 && look_for(&raw, "brief", 0) == 0 && look_for(&raw, "long", 0) == ref.generation);
    must_ok(rdt_free(engine, &ref, true, &err)); /* force ends leases */
    must(look_for(&raw, "long", HOUR) == 0);
    end_cache();
}

/* What was asked for, and not waited for, is given back. */
Test(hostile_cache, clients_that_leave_in_the_middle_leave_nothing)
{
    static const uint8_t ids[MOST];
    static uint32_t ones[MOST];
    static uint64_t generations[MOST];
    Rdt__Pb__Lookup lookup = MESSAGE(lookup, .ids = {MOST, (uint8_t *)ids}, .id_bytes = ones, .n_id_bytes = MOST);
    Rdt__Pb__LeaseEnd ends = MESSAGE(lease_end, .generation = generations, .n_generation = MOST);
    Rdt__Pb__CacheFlush message = MESSAGE(cache_flush, .all = false);

    begin_cache(NULL);
    for (uint32_t i = 0; i < MOST; i++)
        ones[i] = 1;
    for (unsigned i = 0; i < 30; i++) {
        struct raw other;
        char id[32];
        (void)snprintf(id, sizeof id, "block-%u", i);
        (void)put_evictable(id, 1000);
        greeted(&other);
        for (unsigned k = 0; k < 5; k++) {
            (void)raw_send(&other, RDT_MSG_LOOKUP, &lookup.base, NULL, 0);
            (void)raw_send(&other, RDT_MSG_LEASE_END, &ends.base, NULL, 0);
            (void)raw_send(&other, RDT_MSG_CACHE_FLUSH, &message.base, NULL, 0);
        }
        raw_close(&other);
    }
    (void)flush(&raw);
    end_cache();
}

/* ---- loads ---- */

enum { BLOCK = 1000 };

/* LOAD_MANY of n objects that are all this one, each to offset i * step of a region, which is there or not. */
static uint64_t load(struct raw *at, uint64_t generation, uint32_t n, uint64_t region, uint64_t region_generation,
                     uint64_t step)
{
    Rdt__Pb__TensorList list = RDT__PB__TENSOR_LIST__INIT;
    Rdt__Pb__RegionUse use = MESSAGE(region_use, .region = region, .generation = region_generation);
    struct layout *layout = layout_create(n, n);
    uint64_t *generations = calloc(n + 1u, sizeof *generations);

    for (uint32_t i = 0; i < n; i++) {
        generations[i] = generation;
        layout->dtype[i] = RDT_U8;
        layout->ndim[i] = 1;
        layout->first_dim[i] = i;
        layout->shape[i] = BLOCK;
        layout->strides[i] = 1;
        layout->region[i] = 0;
        layout->offset[i] = i * step;
    }
    layout_to_wire(layout, true, NULL, &list);
    Rdt__Pb__LoadMany message =
        MESSAGE(load_many, .generation = generations, .n_generation = n, .targets = &list, .region = &use);
    uint64_t number = raw_send(at, RDT_MSG_LOAD_MANY, &message.base, NULL, 0);
    free(layout);
    free(generations);
    return number;
}

static void refuses_load(const Rdt__Pb__LoadMany *message, enum rdt_status expected, const char *text)
{
    (void)raw_send(&raw, RDT_MSG_LOAD_MANY, &message->base, NULL, 0);
    refuses(&raw, expected, text);
}

/* How many of the blocks have been loaded. */
static uint32_t n_loaded(struct raw *at, uint64_t number, uint32_t n)
{
    Rdt__Pb__LoadManyReply *reply = (Rdt__Pb__LoadManyReply *)raw_reply(at, number, &rdt__pb__load_many_reply__descriptor);
    uint32_t loaded = reply->n_status == 0 ? n : 0;

    for (size_t i = 0; i < reply->n_status; i++)
        loaded += reply->status[i] == RDT_OK;
    rdt__pb__load_many_reply__free_unpacked(reply, NULL);
    return loaded;
}

Test(hostile_cache, loads_that_lie_are_refused)
{
    static uint64_t generations[MOST + 1];
    static uint32_t counts[] = {1, 1, UINT32_MAX};
    Rdt__Pb__RegionUse use = RDT__PB__REGION_USE__INIT;
    uint64_t region_generation;
    int fd;

    begin_cache(NULL);
    struct rdt_ref ref = put_evictable("block", BLOCK), plain;
    must_be(RDT_OK, put_block(bystander, "plain", BLOCK, 0, 0, &plain));
    uint64_t region = raw_alloc(&raw, 1 << 20, &fd, &region_generation);
    use.region = region;
    use.generation = region_generation;
    refuses_load(&(Rdt__Pb__LoadMany)MESSAGE(load_many, .generation = generations, .n_generation = 1), RDT_INVALID, "columns");
    refuses_load(&(Rdt__Pb__LoadMany)MESSAGE(load_many, .generation = generations, .n_generation = 2, .region = &use,
                                             .count = counts, .n_count = 1),
                 RDT_INVALID, "columns");
    refuses_load(&(Rdt__Pb__LoadMany)MESSAGE(load_many, .generation = generations, .n_generation = MOST + 1, .region = &use),
                 RDT_LIMIT, "16385 objects");
    refuses_load(&(Rdt__Pb__LoadMany)MESSAGE(load_many, .generation = generations, .n_generation = 3, .region = &use,
                                             .count = counts, .n_count = 3),
                 RDT_INVALID, "has 0 targets, and its objects have 4294967297");
    use.generation++;
    refuses_load(&(Rdt__Pb__LoadMany)MESSAGE(load_many, .generation = generations, .n_generation = 1, .region = &use),
                 RDT_NOT_FOUND, "");
    Rdt__Pb__RegionUse good = MESSAGE(region_use, .region = region, .generation = region_generation), *more[] = {&use};
    refuses_load(&(Rdt__Pb__LoadMany)MESSAGE(load_many, .generation = generations, .n_generation = 1, .region = &good,
                                             .more_regions = more, .n_more_regions = 1),
                 RDT_NOT_FOUND, "");
    Rdt__Pb__RefList none = MESSAGE(ref_list, .n_id_bytes = 0);
    refuses_load(&(Rdt__Pb__LoadMany)MESSAGE(load_many, .refs = &none, .more_regions = more, .n_more_regions = 1), RDT_INVALID,
                 "columns");
    (void)load(&raw, ref.generation, 2, region, region_generation, (1 << 20) - BLOCK + 1);
    refuses(&raw, RDT_INVALID, "target 1 ends at byte 1048577 of region 0, which has 1048576");
    (void)load(&raw, ref.generation, 2, region, region_generation, UINT64_MAX);
    refuses(&raw, RDT_INVALID, "");
    (void)load(&raw, ref.generation, 1, region + 1000, region_generation, 0);
    refuses(&raw, RDT_NOT_FOUND, "");
    must(n_loaded(&raw, load(&raw, ref.generation, 0, region, region_generation, 0), 0) == 0);
    must(n_loaded(&raw, load(&raw, ref.generation, 3, region, region_generation, 2000), 3) == 3);
    must(n_loaded(&raw, load(&raw, UINT64_MAX, 3, region, region_generation, 2000), 3) == 0);
    must(n_loaded(&raw, load(&raw, plain.generation, 3, region, region_generation, 2000), 3) == 3); /* of the same user */
    must(flush(&raw) == 1);                                                                         /* nothing holds it */
    must(n_loaded(&raw, load(&raw, ref.generation, 3, region, region_generation, 2000), 3) == 0);
    must_ok(rdt_free(bystander, &plain, false, &err));
    close(fd);
    raw_close(&raw);
    greeted(&raw);
    end_cache();
}

/* Also while the daemon copies into their memory. */
Test(hostile_cache, clients_that_leave_in_a_load_hold_nothing)
{
#ifdef __SANITIZE_THREAD__
    cr_skip_test("targets overlap, so two threads write the same bytes of the client that wants it so");
#endif
    begin_cache(NULL);
    struct rdt_ref ref = put_evictable("block", BLOCK);
    for (unsigned i = 0; i < 60; i++) {
        uint64_t region_generation;
        struct raw other;
        int fd;
        greeted(&other);
        uint64_t region = raw_alloc(&other, 1 << 20, &fd, &region_generation);
        close(fd);
        for (unsigned k = 0; k < 4; k++) {
            Rdt__Pb__CancelRequest cancel = MESSAGE(
                cancel_request, .request_id = load(&other, ref.generation, MOST, region, region_generation, i % 2 ? 1 : 0));
            if (k % 2)
                (void)raw_send(&other, RDT_MSG_CANCEL_REQUEST, &cancel.base, NULL, 0);
        }
        raw_close(&other);
    }
    uint64_t n = 0;
    wait_until(LONG, (n += flush(&raw)) == 1);
    end_cache();
}

/* ---- other users ---- */

static void become_stranger(void)
{
    must(setgroups(0, NULL) == 0 && setresgid(STRANGER, STRANGER, STRANGER) == 0);
    must(setresuid(STRANGER, STRANGER, STRANGER) == 0);
}

static int try_as_stranger(struct actor *self, void *arg)
{
    Rdt__Pb__CacheFlush all = MESSAGE(cache_flush, .all = true);
    Rdt__Pb__Cache cache = RDT__PB__CACHE__INIT;
    uint64_t generation;
    struct raw mine;

    become_stranger();
    actor_recv(self, &generation, sizeof generation);
    raw_connect(&mine, node.socket);
    raw_hello(&mine);
    must(look_for(&mine, "block", HOUR) == 0);
    uint64_t region_generation;
    int fd;
    uint64_t region = raw_alloc(&mine, 1 << 20, &fd, &region_generation);
    must(n_loaded(&mine, load(&mine, generation, 3, region, region_generation, 2000), 3) == 0);
    close(fd);
    end_leases(&mine, generation, MOST);
    must(flush(&mine) == 0);
    (void)raw_send(&mine, RDT_MSG_CACHE_FLUSH, &all.base, NULL, 0);
    refuses(&mine, RDT_DENIED, "may evict the objects of other users");
    Rdt__Pb__CacheReply *reply = (Rdt__Pb__CacheReply *)raw_reply(&mine, raw_send(&mine, RDT_MSG_CACHE, &cache.base, NULL, 0),
                                                                  &rdt__pb__cache_reply__descriptor);
    must(reply->n_owners == 0 && reply->more == 0); /* not even how many others there are */
    rdt__pb__cache_reply__free_unpacked(reply, NULL);
    raw_close(&mine);
    return 0;
}

Test(hostile_cache, others_find_end_and_evict_nothing)
{
    struct actor stranger;

    need_root();
    begin(NULL);
    must(chmod(node.dir, 0755) == 0);
    actor_start(&stranger, try_as_stranger, NULL);
    engine = node_client(&node, "engine");
    greeted(&raw);
    count_used(used);
    struct rdt_ref ref = put_evictable("block", 1000);
    must(look_for(&raw, "block", HOUR) == ref.generation);
    actor_send(&stranger, &ref.generation, sizeof ref.generation);
    actor_wait(&stranger);
    must(flush(&raw) == 0); /* it is still leased */
    end_leases(&raw, ref.generation, 1);
    must(flush(&raw) == 1);
    end_cache();
}

/* ---- what takes the place of what ---- */

Test(hostile_cache, evictable_and_other_objects_replace_each_other)
{
    struct rdt_ref ref, before;

    begin_cache(NULL);
    before = put_evictable("block", 5000);
    must_be(RDT_OK, put_block(engine, "block", 70000, RDT_PUT_REPLACE, 0, &ref));
    must(look_for(&raw, "block", 0) == ref.generation && ref.generation != before.generation);
    must(flush(&raw) == 0); /* it is not evictable any more */
    must_be(RDT_OK, put_block(engine, "block", 70000, RDT_PUT_REPLACE | RDT_PUT_EVICTABLE, 0, &ref));
    must_be(RDT_OK, put_block(engine, "block", 2000, RDT_PUT_REPLACE | RDT_PUT_EVICTABLE, SEC / 10, &ref));
    wait_until(LONG, look_for(&raw, "block", 0) == 0); /* its time has passed */
    must_be(RDT_OK, put_block(engine, "block", 2000, RDT_PUT_EVICTABLE | RDT_PUT_DETACHED, HOUR, &ref));
    must_be(RDT_EXISTS, put_block(engine, "block", 2000, RDT_PUT_EVICTABLE, 0, &before));
    must_be(RDT_INVALID, put_block(engine, "other", 2000, RDT_PUT_EVICTABLE | RDT_PUT_STORED, 0, &before));
    must(flush(&raw) == 1);
    end_cache();
}

/* A reader, a lease and a forced free in the middle of evictions: each object is whole or gone. */
Test(hostile_cache, evictions_never_take_what_is_held)
{
    enum { N = 400, BYTES = 100000 };
    struct rdt_ref leased, read, freed;

    begin_cache((const char *const[]){"--set=daemon.cache_limit=4MiB", NULL});
    leased = put_evictable("leased", BYTES);
    read = put_evictable("read", BYTES);
    must(look_for(&raw, "leased", HOUR) == leased.generation);
    rdt_object *object = fetch_one(bystander, &read, RDT_FETCH_AUTO);
    for (unsigned i = 0; i < N; i++) {
        char id[32];
        (void)snprintf(id, sizeof id, "block-%u", i);
        freed = put_evictable(id, BYTES);
        if (i % 7 == 0)
            must_ok(rdt_free(engine, &freed, i % 2, &err));
    }
    must(holds_pattern(tensor_of(object, 0).data, BYTES, 1));
    must(look_for(&raw, "leased", 0) == leased.generation && look_for(&raw, "read", 0) == read.generation);
    must(look_for(&raw, "block-1", 0) == 0);
    must_be(RDT_LIMIT, put_block(engine, "large", 5 * MIB, RDT_PUT_EVICTABLE, 0, &freed));
    rdt_release(object);
    end_leases(&raw, leased.generation, 1);
    (void)flush(&raw);
    wait_until(LONG, flush(&raw) == 0 && look_for(&raw, "read", 0) == 0);
    end_cache();
}

/* ---- the end of the daemon ---- */

Test(hostile_cache, daemon_stops_in_the_middle_of_a_flush)
{
    enum { N = 20000 };
    static struct rdt_value values[N];
    static struct rdt_ref refs[N];
    static uint8_t data[100];
    struct rdt_tensor tensor = VECTOR(RDT_U8, sizeof data, data);
    Rdt__Pb__CacheFlush message = MESSAGE(cache_flush, .all = true);
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = RDT_PUT_SNAPSHOT | RDT_PUT_EVICTABLE};
    struct raw other;

    begin_cache(NULL);
    for (unsigned i = 0; i < N; i++)
        values[i] = (struct rdt_value){.tensors = &tensor, .count = 1};
    must_ok(rdt_put_many(engine, values, N, &options, refs, NULL, &err));
    greeted(&other);
    for (unsigned i = 0; i < 20; i++)
        (void)raw_send(&other, RDT_MSG_CACHE_FLUSH, &message.base, NULL, 0);
    raw_close(&other); /* the flushes go on without it */
    node_stop(&node);
    raw_close(&raw);
    rdt_close(engine);
    rdt_close(bystander);
    node_check_log(&node, declared);
}

/* ---- what evictions cannot give ---- */

/* Small objects have no region of their own. */
Test(hostile_cache, regions_that_no_eviction_gives_evict_nothing)
{
    enum { N = 50 };
    enum rdt_status status = RDT_OK;
    struct rdt_error why;
    void *memory;

    begin_cache((const char *const[]){"--set=limits.owner_max_regions=40", NULL});
    for (unsigned i = 0; i < N; i++) {
        char id[32];
        (void)snprintf(id, sizeof id, "block-%u", i);
        (void)put_evictable(id, 1000);
    }
    for (unsigned i = 0; i < 60 && status == RDT_OK; i++)
        status = rdt_alloc(engine, 4096, &memory, &why);
    must_say(status == RDT_LIMIT, "%s", rdt_status_name(status));
    must(flush(&raw) == N); /* all are still there */
    rdt_close(engine);
    engine = node_client(&node, "engine");
    end_cache();
}
