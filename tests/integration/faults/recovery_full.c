/* SPDX-License-Identifier: Apache-2.0 */
/* A journal that is nearly full, or full: what one user does not get another one still gets, and what has no record works
 * until the daemon ends. The test makes the journal full by an extent without records, which the daemon that runs does not
 * know to be free, and the next one does. */
#include "client/rdt_info.h"
#include "daemon/persist/journal.h"
#include "tests/integration/faults/recovery.h"

TestSuite(recovery_full, .timeout = SUITE_SECONDS(120));

#define STRANGER 12345
#define END_AT 16 /* in the header */
#define HEADER_BYTES 4096u
#define UNIT_BYTES (64u << 10)
#define FREE_MAGIC 0x65657266u
#define HOARD 24u       /* objects; with their records, 12 MiB of bookkeeping each: more than "little" */
#define MANY_NAMES 600u /* more than an extent has slots for them */

static rdt *client_of(uid_t uid)
{
    must(seteuid(uid) == 0);
    rdt *conn = node_client(&node, "client");
    must(seteuid(0) == 0);
    return conn;
}

/* Leaves so many bytes at the end of the daemon's journal. */
static void fill_journal(uint64_t left)
{
    struct {
        uint32_t magic, slot_bytes;
        uint64_t bytes;
    } extent = {.magic = FREE_MAGIC};
    uint64_t end, last = HEADER_BYTES + (JOURNAL_FILE_BYTES - HEADER_BYTES - left) / UNIT_BYTES * UNIT_BYTES;
    char path[64], to[64];
    int fd = -1;

    for (int i = 3; i < 256 && fd < 0; i++) {
        (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)node.pid, i);
        ssize_t n = readlink(path, to, sizeof to - 1);
        if (n > 0 && (to[n] = '\0', strncmp(to, "/memfd:rdtd-journal", 19) == 0))
            fd = open(path, O_RDWR | O_CLOEXEC);
    }
    must(fd >= 0 && pread(fd, &end, sizeof end, END_AT) == sizeof end && end < last);
    extent.bytes = last - end;
    must(pwrite(fd, &extent, sizeof extent, (off_t)end) == sizeof extent);
    must(pwrite(fd, &last, sizeof last, END_AT) == sizeof last);
    close(fd);
}

static enum rdt_status put_metadata(rdt *conn, const char *id, size_t metadata_bytes, struct rdt_ref *ref_p,
                                    struct rdt_error *why)
{
    void *metadata = calloc(1, metadata_bytes);
    struct rdt_put_options options = {.struct_size = sizeof options,
                                      .id = id,
                                      .id_bytes = strlen(id),
                                      .metadata = metadata,
                                      .metadata_bytes = metadata_bytes,
                                      .flags = RDT_PUT_DETACHED};
    enum rdt_status status = rdt_put(conn, &VECTOR(RDT_U8, 3, "abc"), 1, &options, ref_p, why);

    free(metadata);
    return status;
}

static struct rdt_daemon_status daemon_status(rdt *conn)
{
    struct rdt_daemon_status status = RDT_INIT(status);

    must_ok(rdt_daemon_status(conn, &status, &err));
    return status;
}

/* Publishes until a name gets no record, and returns that one's number. */
static unsigned publish_until_full(rdt *conn, const struct rdt_ref *ref)
{
    struct rdt_daemon_status before = daemon_status(conn), now;
    char name[32];

    for (unsigned i = 0; i < MANY_NAMES; i++) {
        (void)snprintf(name, sizeof name, "name-%u", i);
        must_ok(rdt_publish(conn, name, ref, NULL, NULL, &err));
        now = daemon_status(conn);
        if (now.kept_names == before.kept_names + i) {
            must_say(now.unkept_objects == before.unkept_objects + 1, "the name without a record is not counted");
            return i;
        }
    }
    fail("each of %u names has got a record", MANY_NAMES);
}

Test(recovery_full, user_who_fills_the_journal_leaves_the_last_eighth_to_the_others)
{
    struct rdt_ref hoard[HOARD], ref, named;
    char id[32];

    need_root();
    begin();
    rdt *conn = client_of(0);
    rdt *stranger = client_of(STRANGER);
    for (unsigned i = 0; i < HOARD; i++) {
        (void)snprintf(id, sizeof id, "hoard-%u", i);
        must_ok(put_metadata(conn, id, 4 * MIB, &hoard[i], &err));
    }
    fill_journal(JOURNAL_FILE_BYTES / 8);
    must_refuse(RDT_LIMIT, "its last eighth is for users that have few", put_metadata(conn, "one more", MIB, &ref, &err));
    unsigned n = publish_until_full(conn, &hoard[0]);
    must_ok(put_metadata(stranger, "the stranger's", MIB, &ref, &err));
    must_ok(rdt_publish(stranger, "the stranger's name", &ref, NULL, NULL, &err));
    rdt_close(conn);
    rdt_close(stranger);
    again(SIGKILL);
    stranger = client_of(STRANGER);
    rdt_release(fetch_one(stranger, &ref, RDT_FETCH_AUTO));
    named = name_ref("the stranger's name");
    rdt_release(fetch_one(stranger, &named, RDT_FETCH_AUTO));
    conn = client_of(0);
    for (unsigned i = 0; i < HOARD; i++)
        rdt_release(fetch_one(conn, &hoard[i], RDT_FETCH_AUTO));
    cr_assert_eq(daemon_status(conn).kept_names, n + 1, "and the stranger's");
    rdt_close(conn);
    rdt_close(stranger);
    end();
}

Test(recovery_full, what_has_no_record_works_until_the_daemon_ends_and_is_counted_and_logged)
{
    struct rdt_ref ref, early, late, named;
    struct rdt_stat stat;
    rdt_object *object;
    void *memory;
    char name[32];

    begin();
    rdt *conn = node_client(&node, "client");
    early = put_detached(conn, "early", 300, 0, 1);
    fill_journal(0);
    must_refuse(RDT_LIMIT, "has no room for", put_metadata(conn, "large", MIB, &ref, &err));
    (void)snprintf(name, sizeof name, "name-%u", publish_until_full(conn, &early));
    cr_assert(node_log_has(&node, "the journal has no room for the record of a name"));
    named = name_ref(name);
    rdt_release(fetch_one(conn, &named, RDT_FETCH_AUTO));

    must_ok(rdt_alloc(conn, MIB, &memory, &err)); /* its region gets no record, so the object gets none */
    fill_pattern(memory, MIB, 2);
    struct rdt_put_options options = {.struct_size = sizeof options, .id = "late", .id_bytes = 4, .metadata = memory};
    options.metadata_bytes = 50; /* its own record has the size of the early one's, and gets room */
    options.flags = RDT_PUT_DETACHED;
    must_ok(rdt_put(conn, &VECTOR(RDT_U8, MIB, memory), 1, &options, &late, &err));
    object = fetch_one(conn, &late, RDT_FETCH_AUTO);
    cr_assert(holds_pattern(tensor_of(object, 0).data, MIB, 2));
    rdt_release(object);
    cr_assert_eq(daemon_status(conn).unkept_objects, 2);
    rdt_close(conn);
    again(SIGKILL);
    conn = node_client(&node, "client");
    must_have(conn, &early, "early", 300, 1);
    must_refuse(RDT_FREED, "ended before the last restart", rdt_stat(conn, &late, &stat, &err));
    late = put_detached(conn, "late", MIB, 0, 3); /* there is room again */
    must_have(conn, &late, "late", MIB, 3);
    cr_assert_eq(daemon_status(conn).unkept_objects, 0);
    rdt_close(conn);
    end();
}
