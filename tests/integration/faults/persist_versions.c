/* SPDX-License-Identifier: Apache-2.0 */
/* What earlier daemons left in their keepers and in their storage directories. persist_*.txt has it of a daemon that was killed
 * while `populate`'s client was there: of the file of each descriptor in the keeper (the journal, and memory), and of each file
 * in the directory, all rows of 32 bytes that are not zero, with their places. RDT_FIXTURE=FILE writes such a file of the
 * daemon in RDT_BUILD_DIR, which may be an older one's build. */
#include <criterion/criterion.h>

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/integration/faults/next_daemon.h"
#include "tests/support/keeper.h"

TestSuite(persist_versions, .timeout = SUITE_SECONDS(120));

#define ROW 32u
#define KEEPER_JOURNAL 1u
#define UUID_AT 24 /* in the journal */
#define BYTES ((size_t)40000)
#define MOST_FDS 64u

static const struct fixture {
    const char *path;
    bool stored_boxes; /* older files do not say what is a box */
} fixtures[] = {
    {"tests/integration/faults/persist_v2.txt", false}, /* a journal of version 2, and files without checksums */
    {"tests/integration/faults/persist_v3.txt", true},  /* a journal of version 3, and files with checksums */
};

static struct test_keeper keeper;
static bool with_keeper;
static char store[160];
static uint64_t kept_ids[MOST_FDS];
static int kept_fds[MOST_FDS];
static unsigned n_kept;

static void start(void)
{
    static char keeper_flag[200], store_flag[200];
    static const char *flags[3];

    (void)snprintf(store_flag, sizeof store_flag, "--storage-dir=%s", store);
    (void)snprintf(keeper_flag, sizeof keeper_flag, "--keeper=%s", keeper.socket);
    flags[0] = store_flag;
    flags[1] = with_keeper ? keeper_flag : NULL;
    start_next(flags);
}

/* ---- what the earlier daemon had ---- */

/* Mostly zeros, so that the fixture is short. */
static void mark(uint8_t *memory, size_t bytes, uint8_t seed)
{
    memset(memory, 0, bytes);
    memory[0] = memory[bytes / 2] = memory[bytes - 1] = seed;
}

static bool is_marked(const uint8_t *memory, size_t bytes, uint8_t seed)
{
    return memory[0] == seed && memory[1] == 0 && memory[bytes / 2] == seed && memory[bytes - 1] == seed;
}

static const struct {
    const char *id;
    size_t bytes;
    uint32_t flags;
    bool stored;
} objects[] = {
    {"small", 100, 0, false},
    {"live", BYTES, 0, false},
    {"sealed", BYTES, RDT_PUT_SNAPSHOT, false},
    {"promised", BYTES, RDT_PUT_IMMUTABLE, false},
    {"disk", BYTES, RDT_PUT_SNAPSHOT | RDT_PUT_STORED, true},
    {"diskette", 100, RDT_PUT_SNAPSHOT | RDT_PUT_STORED, true},
};
#define OBJECTS (sizeof objects / sizeof *objects)

static struct rdt_ref put_marked(rdt *conn, const char *id, size_t bytes, uint32_t flags, uint8_t seed)
{
    uint8_t *memory = malloc(bytes);

    must(memory);
    mark(memory, bytes, seed);
    struct rdt_put_options options = {.struct_size = sizeof options,
                                      .id = id,
                                      .id_bytes = strlen(id),
                                      .metadata = id,
                                      .metadata_bytes = strlen(id) + 1,
                                      .flags = flags};
    struct rdt_ref ref = put_as(conn, &VECTOR(RDT_U8, bytes, memory), 1, &options);
    free(memory);
    return ref;
}

static struct rdt_ref put_boxed(rdt *conn)
{
    int64_t global[2] = {4, 50}, start_at[2] = {2, 0}, shape[2] = {2, 50};
    struct rdt_shard shard = {"w", global, start_at};
    uint8_t memory[100];
    struct rdt_tensor tensor = {.data = memory, .dtype = RDT_U8, .ndim = 2, .shape = shape};

    mark(memory, sizeof memory, 9);
    struct rdt_put_options options = {.struct_size = sizeof options,
                                      .id = "boxed",
                                      .id_bytes = 5,
                                      .flags = RDT_PUT_SNAPSHOT | RDT_PUT_DETACHED | RDT_PUT_STORED,
                                      .metadata = "boxed",
                                      .metadata_bytes = 6,
                                      .shards = &shard};
    return put_as(conn, &tensor, 1, &options);
}

/* "weights" has two versions in memory; "model" has a stored version. */
static void populate(rdt *conn)
{
    struct rdt_ref ref = put_boxed(conn);

    must_ok(rdt_store(conn, &ref, LONG, NULL, 0, &err));
    for (uint8_t i = 0; i < OBJECTS; i++) {
        ref = put_marked(conn, objects[i].id, objects[i].bytes, objects[i].flags | RDT_PUT_DETACHED, (uint8_t)(i + 1));
        if (objects[i].stored)
            must_ok(rdt_store(conn, &ref, LONG, NULL, 0, &err));
        if (i < 2)
            must_ok(rdt_publish(conn, "weights", &ref, NULL, NULL, &err));
    }
    ref = put_marked(conn, "version", BYTES, RDT_PUT_SNAPSHOT | RDT_PUT_STORED, 8);
    must_ok(rdt_publish(conn, "model", &ref, NULL, NULL, &err));
    must_ok(rdt_store(conn, &ref, LONG, NULL, 0, &err));
    must_ok(rdt_free(conn, &ref, false, &err));
}

static void must_have(rdt *conn, struct rdt_ref ref, const char *metadata, size_t bytes, uint8_t seed)
{
    size_t n;

    must_ok(rdt_ref_set_owner(conn, &ref, "0", &err)); /* the user of that daemon's clients */
    rdt_object *object = fetch_one(conn, &ref, RDT_FETCH_AUTO);
    must_say(is_marked(tensor_of(object, 0).data, bytes, seed), "%s has other bytes", metadata);
    must_say(strcmp(rdt_object_metadata(object, &n), metadata) == 0, "%s has other metadata", metadata);
    rdt_release(object);
}

static void must_have_all(rdt *conn, bool boxes)
{
    struct rdt_ref ref;
    struct rdt_shard shard;

    for (uint8_t i = 0; i < OBJECTS; i++) {
        if (!with_keeper && !objects[i].stored)
            continue;
        must_ok(rdt_ref_from_id(objects[i].id, strlen(objects[i].id), &ref, &err));
        must_have(conn, ref, objects[i].id, objects[i].bytes, (uint8_t)(i + 1));
        must_ok(rdt_ref_set_owner(conn, &ref, "0", &err));
        struct rdt_stat stat = stat_of(conn, &ref);
        must_say(stat.detached && stat.snapshot == (objects[i].flags != 0), "%s promises something else", objects[i].id);
    }
    must_have(conn, name_ref("model"), "version", BYTES, 8);
    if (with_keeper) {
        must_have(conn, name_ref("weights"), "live", BYTES, 2);
        ref = name_ref("weights");
        ref.after = 1;
        must_have(conn, ref, "live", BYTES, 2); /* it is version 2 */
    }
    must_ok(rdt_ref_from_id("boxed", 5, &ref, &err));
    must_have(conn, ref, "boxed", 100, 9);
    must_ok(rdt_ref_set_owner(conn, &ref, "0", &err));
    if (!boxes)
        return;
    rdt_object *object = fetch_one(conn, &ref, RDT_FETCH_AUTO);
    must_ok(rdt_object_shard(object, 0, &shard, &err));
    must(strcmp(shard.key, "w") == 0 && shard.global_shape[0] == 4 && shard.start[0] == 2);
    rdt_release(object);
}

/* ---- a fixture is read ---- */

static uint8_t nibble(char hex)
{
    return (uint8_t)(isdigit((unsigned char)hex) ? hex - '0' : hex - 'a' + 10);
}

static void read_row(int fd, const char *line)
{
    char hex[2 * ROW + 1];
    uint8_t row[ROW];
    unsigned long at;

    must(sscanf(line, "%lx %64s", &at, hex) == 2 && strlen(hex) == 2 * ROW);
    for (unsigned i = 0; i < ROW; i++)
        row[i] = (uint8_t)(nibble(hex[2 * i]) << 4 | nibble(hex[2 * i + 1]));
    must(pwrite(fd, row, ROW, (off_t)at) == ROW);
}

static int make_memory(uint64_t id, off_t bytes)
{
    int fd = memfd_create("kept", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    must(fd >= 0 && n_kept < MOST_FDS && ftruncate(fd, bytes) == 0);
    must(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | (id == KEEPER_JOURNAL ? F_SEAL_SEAL : 0)) == 0);
    kept_ids[n_kept] = id;
    kept_fds[n_kept++] = fd;
    return fd;
}

static void close_file(int fd, off_t bytes)
{
    if (fd >= 0)
        must(ftruncate(fd, bytes) == 0 && fchmod(fd, 0400) == 0 && close(fd) == 0); /* the last row may be longer */
}

static void read_fixture(const char *path)
{
    FILE *file = fopen(path, "re");
    char line[300], name[100], to[300];
    unsigned long id;
    long bytes, stored_bytes = 0;
    int fd = -1, stored = -1;

    must(file);
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "kept %lu %ld", &id, &bytes) == 2) {
            fd = make_memory(id, bytes);
        } else if (sscanf(line, "stored %99s %ld", name, &bytes) == 2) {
            close_file(stored, stored_bytes);
            (void)snprintf(to, sizeof to, "%.150s/%s", store, name);
            fd = stored = open(to, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
            stored_bytes = bytes;
            must(fd >= 0);
        } else {
            read_row(fd, line);
        }
    }
    close_file(stored, stored_bytes);
    (void)fclose(file);
}

/* The node that it was. */
static void write_uuid(void)
{
    uint8_t uuid[16];
    char path[200];
    FILE *file;

    for (unsigned i = 0; i < n_kept; i++)
        if (kept_ids[i] == KEEPER_JOURNAL)
            must(pread(kept_fds[i], uuid, sizeof uuid, UUID_AT) == sizeof uuid);
    (void)snprintf(state_dir, sizeof state_dir, "%.100s/old.XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    must(mkdtemp(state_dir) != NULL);
    (void)snprintf(path, sizeof path, "%s/node_uuid", state_dir);
    must((file = fopen(path, "we")));
    for (unsigned i = 0; i < sizeof uuid; i++)
        fprintf(file, "%02x", uuid[i]);
    fprintf(file, "\n");
    (void)fclose(file);
}

static void give_to_keeper(void)
{
    struct keeper_message message;
    int link = keeper_dial(&keeper);

    must(keeper_greet(link, &message) == KEEPER_READY);
    for (unsigned i = 0; i < n_kept; i++)
        keeper_send(link, KEEPER_STORE, &kept_ids[i], &kept_fds[i], 1);
    close(link);
}

static void make_store(void)
{
    (void)snprintf(store, sizeof store, "%.100s/store.XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    must(mkdtemp(store) != NULL);
}

static void check_fixture(const struct fixture *fixture, bool keeper_too)
{
    with_keeper = keeper_too;
    make_store();
    read_fixture(fixture->path);
    write_uuid();
    socket_path[0] = '\0';
    if (with_keeper) {
        keeper_start(&keeper);
        give_to_keeper();
    }
    start();
    for (unsigned round = 0; round < 2; round++) {
        rdt *conn = node_client(&node, "reader");
        must_have_all(conn, with_keeper || fixture->stored_boxes);
        must_say(!node_log_has(&node, "is ignored") && !node_log_has(&node, "is lost"), "the daemon could not read all of it");
        rdt_close(conn);
        if (round == 0)
            again(SIGKILL); /* what was written over it can be read, too */
    }
    node_stop(&node);
    if (with_keeper)
        keeper_stop(&keeper, SIGTERM);
    while (n_kept > 0)
        close(kept_fds[--n_kept]);
}

Test(persist_versions, memory_and_files_of_earlier_daemons_are_read)
{
    for (size_t i = 0; i < sizeof fixtures / sizeof *fixtures; i++)
        check_fixture(&fixtures[i], true);
}

/* As after a reboot. */
Test(persist_versions, files_of_earlier_daemons_are_read)
{
    for (size_t i = 0; i < sizeof fixtures / sizeof *fixtures; i++)
        check_fixture(&fixtures[i], false);
}

/* ---- a fixture is written ---- */

static void write_rows(FILE *file, int fd)
{
    static const uint8_t zeros[ROW];
    uint8_t row[ROW];
    off_t at = 0;
    ssize_t n;

    for (; (at = lseek(fd, at, SEEK_DATA)) >= 0; at += ROW) {
        memset(row, 0, sizeof row);
        must((n = pread(fd, row, ROW, at)) >= 0);
        if (n == 0)
            return;
        if (memcmp(row, zeros, ROW) == 0)
            continue;
        fprintf(file, "%lx ", (unsigned long)at);
        for (unsigned i = 0; i < ROW; i++)
            fprintf(file, "%02x", row[i]);
        fprintf(file, "\n");
    }
}

static off_t bytes_of(int fd)
{
    struct stat st;

    must(fd >= 0 && fstat(fd, &st) == 0);
    return st.st_size;
}

static void write_kept(FILE *file)
{
    struct keeper_message message;
    int link = keeper_dial(&keeper), fds[KEEPER_MAX_IDS];
    unsigned n;

    must(keeper_greet(link, &message) == KEEPER_READY);
    keeper_send(link, KEEPER_FETCH, NULL, NULL, 0);
    do {
        must(keeper_recv(link, &message, fds, &n));
        for (unsigned i = 0; i < n; i++) {
            fprintf(file, "kept %lu %ld\n", (unsigned long)message.ids[i], (long)bytes_of(fds[i]));
            write_rows(file, fds[i]);
            close(fds[i]);
        }
    } while (n > 0);
    close(link);
}

static void write_stored(FILE *file)
{
    const struct dirent *entry;
    DIR *dir = opendir(store);

    must(dir);
    while ((entry = readdir(dir))) {
        int fd = entry->d_name[0] == '.' ? -1 : openat(dirfd(dir), entry->d_name, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            continue;
        fprintf(file, "stored %s %ld\n", entry->d_name, (long)bytes_of(fd));
        write_rows(file, fd);
        close(fd);
    }
    (void)closedir(dir);
}

Test(persist_versions, fixture_is_written_if_the_environment_names_it)
{
    FILE *file;
    rdt *conn;

    if (!getenv("RDT_FIXTURE"))
        return;
    with_keeper = true;
    make_store();
    keeper_start(&keeper);
    start();
    conn = node_client(&node, "producer");
    populate(conn);
    node_kill(&node, SIGKILL);
    must((file = fopen(getenv("RDT_FIXTURE"), "we")));
    write_kept(file);
    write_stored(file);
    must(fclose(file) == 0);
    rdt_close(conn);
    keeper_stop(&keeper, SIGTERM);
}
