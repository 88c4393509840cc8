/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots in sealed memfds, in three special cases: the put times out, the daemon has no free descriptor, and the object
 * would be one huge page. */
#include <sys/resource.h>
#include <sys/stat.h>

#include "tests/integration/memory/snapshot.h"
#include "tests/support/cluster.h"

#define MADE_BYTES ((size_t)100000)

static bool is_asked_for(void)
{
    struct node_status status;

    node_status(&node, &status);
    return status.transfers_active == 1;
}

static uint32_t more_flags;

/* id: NULL: one of the daemon's. timeout_ns 0: none. */
static enum rdt_status put_within(const char *id, int64_t timeout_ns, uint32_t seed, struct rdt_ref *ref_p,
                                  struct rdt_error *err_p)
{
    struct rdt_put_options options = RDT_INIT(options);
    uint8_t *data = malloc(MADE_BYTES);
    enum rdt_status status;

    fill_pattern(data, MADE_BYTES, seed);
    options.flags = RDT_PUT_SNAPSHOT | more_flags;
    options.timeout_ns = timeout_ns;
    options.id = id;
    options.id_bytes = id ? strlen(id) : 0;
    status = rdt_put(conn, &VECTOR(RDT_U8, MADE_BYTES, data), 1, &options, ref_p, err_p);
    free(data);
    return status;
}

static void put_times_out(void)
{
    struct rdt_ref name = ref_named("late"), ref;
    rdt *reader;
    rdt_request *request;
    rdt_object *object;

    begin(NULL);
    reader = node_client(&node, "reader");
    must_ok(put_within(NULL, 0, 3, &ref, &err));
    must_ok(rdt_free(conn, &ref, false, &err));
    must_ok(rdt_wait_freed(conn, &ref, LONG, &err)); /* the next unsealed put uses its memory again */
    must_ok(rdt_fetch_start(reader, &name, 1, NULL, &request, &err));
    wait_until(LONG, is_asked_for());
    node_freeze(&node);
    cr_assert_eq(put_within("late", 50 * MSEC, 1, &ref, NULL), RDT_TIMED_OUT);
    node_thaw(&node);
    must_ok(put_within("late", LONG, 2, &ref, &err));
    must_ok(rdt_wait(reader, &request, 1, 1, LONG, NULL, NULL, &err));
    must_ok(rdt_request_take_object(request, &object, &err));
    must_hold(object, 0, MADE_BYTES, 2);
    rdt_release(object);
    rdt_request_destroy(request);
    rdt_close(reader);
    end();
}

Test(put_sealed_ends, put_that_timed_out_was_never_put)
{
    put_times_out();
}

Test(put_sealed_ends, unsealed_put_that_timed_out_was_never_put)
{
    more_flags = RDT_PUT_UNSEALED;
    put_times_out();
}

static unsigned lowest_free_fd(pid_t pid)
{
    char path[64];
    struct stat st;

    for (unsigned n = 0;; n++) {
        (void)snprintf(path, sizeof path, "/proc/%d/fd/%u", (int)pid, n);
        if (lstat(path, &st) < 0)
            return n;
    }
}

Test(put_sealed_ends, daemon_without_descriptors_refuses_the_put_and_nothing_else)
{
    struct rlimit old, low;
    struct rdt_ref ref, refused;
    struct rdt_error why;
    rdt_object *object;

    begin(NULL);
    must_ok(put_within(NULL, 0, 1, &ref, &err));
    must(prlimit(node.pid, RLIMIT_NOFILE, NULL, &old) == 0);
    low = old;
    low.rlim_cur = (rlim_t)lowest_free_fd(node.pid);
    must(prlimit(node.pid, RLIMIT_NOFILE, &low, NULL) == 0);
    must(put_within(NULL, 0, 2, &refused, &why) != RDT_OK);
    cr_assert_neq(why.status, RDT_DISCONNECTED, "%s", why.msg);
    must(prlimit(node.pid, RLIMIT_NOFILE, &old, NULL) == 0);
    object = fetch_one(conn, &ref, RDT_FETCH_SHARE);
    must_hold(object, 0, MADE_BYTES, 1);
    rdt_release(object);
    must_ok(put_within(NULL, 0, 3, &ref, &err));
    end();
}

/* Where there is no huge page it has none. */
Test(put_sealed_ends, one_huge_page_is_the_daemons_to_make)
{
    static const char *const flags[] = {"--set", "host.huge_pages=require", NULL};
    struct rdt_put_options options = RDT_INIT(options);
    uint8_t *data = calloc(1, 2 * MIB);
    struct rdt_error why;
    struct rdt_ref ref;
    enum rdt_status status;

    begin(&(struct node_options){.log = "trace", .flags = flags});
    options.flags = RDT_PUT_SNAPSHOT;
    must_ok(rdt_put(conn, &VECTOR(RDT_U8, 2 * MIB - 1, data), 1, &options, &ref, &err));
    must(!node_log_has(&node, "ALLOC from client"));
    status = rdt_put(conn, &VECTOR(RDT_U8, 2 * MIB, data), 1, &options, &ref, &why);
    must(node_log_has(&node, "ALLOC from client") && (status == RDT_OK || status == RDT_NO_MEMORY));
    free(data);
    end();
}
