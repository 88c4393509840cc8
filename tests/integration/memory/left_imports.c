/* SPDX-License-Identifier: Apache-2.0 */
/* Imported memory that its client has left behind, and that objects still use: the daemon keeps its pages, so its owner and the
 * node are charged for them, and what does not fit ends. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "tests/integration/limits/limits.h"

TestSuite(left_imports, .timeout = 240);

#define MOST 3

struct leaving {
    size_t bytes;     /* of the file */
    unsigned imports; /* of the whole file, each with an object of its own that stays for ten minutes */
    bool named;       /* the objects are not detached, but have names */
    bool sparse;
    int fd; /* the file, which the test has, too; 0: none */
};

static uint64_t node_bytes(void)
{
    struct node_status status;

    node_status(&node, &status);
    return status.memory_bytes;
}

static bool charged(uint64_t bytes)
{
    return used(0, "bytes") == bytes && node_bytes() == bytes;
}

static int make_file(size_t bytes)
{
    int fd = memfd_create("left", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    must(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    return fd;
}

static uint8_t *map_file(int fd, size_t bytes)
{
    uint8_t *addr = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    must(addr != MAP_FAILED);
    return addr;
}

/* Puts objects over a file of its own and tells their refs; releases the memory at the first step, and lives to the second. */
static int leave(struct actor *self, void *arg)
{
    const struct leaving *leaving = arg;
    rdt *client = node_client(&node, "leaving");
    int fd = leaving->fd > 0 ? leaving->fd : make_file(leaving->bytes);
    uint8_t *addr[MOST];

    for (unsigned i = 0; i < leaving->imports; i++) {
        char id[] = {(char)('a' + i), '\0'};
        struct rdt_put_options options = {
            .struct_size = sizeof options, .id = id, .id_bytes = 1, .flags = leaving->named ? 0 : RDT_PUT_DETACHED};
        struct rdt_ref ref;
        uint64_t version;
        addr[i] = map_file(fd, leaving->bytes);
        if (i == 0 && !leaving->sparse)
            fill_pattern(addr[i], leaving->bytes, 3);
        must_ok(rdt_import(client, fd, addr[i], leaving->bytes, &err));
        ref = put_as(client, &VECTOR(RDT_U8, leaving->bytes, addr[i]), 1, &options);
        if (leaving->named)
            must_ok(rdt_publish(client, id, &ref, NULL, &version, &err));
        actor_send(self, &ref, sizeof ref);
    }
    actor_await(self);
    for (unsigned i = 0; i < leaving->imports; i++) {
        must_ok(rdt_dealloc(client, addr[i], &err));
        must(munmap(addr[i], leaving->bytes) == 0);
    }
    must(close(fd) == 0);
    actor_await(self);
    rdt_close(client);
    return 0;
}

static void start_leaving(struct actor *actor, const struct leaving *leaving, struct rdt_ref *refs)
{
    actor_start_keeping(actor, leave, (void *)leaving, leaving->fd > 0 ? leaving->fd : -1);
    for (unsigned i = 0; i < leaving->imports; i++)
        actor_recv(actor, &refs[i], sizeof *refs);
}

Test(left_imports, memory_of_a_killed_client_is_charged_once_until_its_last_object_ends)
{
    struct leaving leaving = {.bytes = 12 * MIB, .imports = MOST};
    struct rdt_ref refs[MOST];
    struct actor actor;

    begin((const char *[]){"--memory-limit=64MiB", "--owner-max-bytes=16MiB", NULL});
    start_leaving(&actor, &leaving, refs);
    cr_assert(charged(0), "its client has it");
    actor_kill(&actor, SIGKILL);
    wait_until(LONG, charged(12 * MIB));
    for (unsigned i = 0; i < MOST; i++) {
        cr_assert(charged(12 * MIB));
        must_ok(rdt_free(conn, &refs[i], false, &err));
    }
    wait_until(LONG, charged(0));
    end(NULL);
}

Test(left_imports, released_memory_is_charged_while_its_client_lives)
{
    struct leaving leaving = {.bytes = 12 * MIB, .imports = 2};
    struct rdt_ref refs[MOST];
    struct actor actor;
    void *memory = NULL;

    begin((const char *[]){"--memory-limit=64MiB", "--owner-max-bytes=16MiB", NULL});
    start_leaving(&actor, &leaving, refs);
    actor_step(&actor);
    wait_until(LONG, charged(12 * MIB));
    must_refuse(RDT_LIMIT, "owner_max_bytes", rdt_alloc(conn, 8 * MIB, &memory, &err));
    must_ok(rdt_free(conn, &refs[0], false, &err));
    must_ok(rdt_free(conn, &refs[1], false, &err));
    wait_until(LONG, charged(0));
    actor_step(&actor);
    actor_wait(&actor);
    end(NULL);
}

/* What does not fit ends. A reader keeps what it has. */
static void ends(const struct leaving *leaving, const char *const *flags)
{
    struct rdt_ref refs[MOST];
    struct actor actor;
    rdt_object *object, *none;
    struct rdt_stat stat;

    begin(flags);
    start_leaving(&actor, leaving, refs);
    object = fetch_one(conn, &refs[0], RDT_FETCH_SHARE);
    actor_kill(&actor, SIGKILL);
    for (unsigned i = 0; i < leaving->imports; i++) {
        wait_until(LONG, rdt_stat(other, &refs[i], &stat, NULL) != RDT_OK || strcmp(stat.state, "live") != 0);
        must_refuse(RDT_OWNER_DIED, "does not fit owner_max_bytes or memory_limit",
                    try_fetch(other, &refs[i], RDT_FETCH_AUTO, LONG, &none, &err));
    }
    cr_assert(node_log_has(&node, "memory that a client imported and left behind do not fit"));
    cr_assert(holds_pattern(tensor_of(object, 0).data, leaving->bytes, 3));
    cr_assert(charged(0));
    rdt_release(object);
    must_ok(rdt_wait_freed(conn, &refs[0], LONG, &err));
    end((const char *[]){"left behind do not fit", NULL});
}

Test(left_imports, what_exceeds_the_owners_limit_ends_and_readers_keep_theirs)
{
    ends(&(struct leaving){.bytes = 24 * MIB, .imports = 2}, (const char *[]){"--owner-max-bytes=16MiB", NULL});
}

Test(left_imports, what_exceeds_memory_limit_ends_though_it_has_names)
{
    ends(&(struct leaving){.bytes = 24 * MIB, .imports = 2, .named = true}, (const char *[]){"--memory-limit=16MiB", NULL});
}

Test(left_imports, pages_that_others_add_later_or_remove_count)
{
    struct leaving leaving = {.bytes = 12 * MIB, .imports = 1, .sparse = true, .fd = make_file(12 * MIB)};
    uint8_t *addr = map_file(leaving.fd, leaving.bytes);
    struct rdt_ref refs[MOST];
    struct actor actor;

    begin((const char *[]){"--memory-limit=64MiB", NULL});
    start_leaving(&actor, &leaving, refs);
    actor_kill(&actor, SIGKILL);
    wait_until(LONG, used(0, "sessions") == 2);
    memset(addr, 1, 8 * MIB);
    wait_until(LONG, charged(8 * MIB));
    must(fallocate(leaving.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 3 * MIB) == 0);
    wait_until(LONG, charged(5 * MIB));
    must_ok(rdt_free(conn, &refs[0], false, &err));
    wait_until(LONG, charged(0)); /* it is the test's own now */
    must(munmap(addr, leaving.bytes) == 0 && close(leaving.fd) == 0);
    end(NULL);
}
