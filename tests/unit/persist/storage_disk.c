/* SPDX-License-Identifier: Apache-2.0 */
/* A disk that fails when a directory is to be written: files, and what the room remembers of them, are as they were. */
#include <criterion/criterion.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/persist/storage_impl.h"
#include "tests/support/check.h"

static atomic_uint n_failing; /* so many of the next fsyncs of a directory fail */

/* In place of libc's, for the daemon's objects in this program. */
int fsync(int fd)
{
    struct stat st;

    if (atomic_load(&n_failing) > 0 && fstat(fd, &st) == 0 && S_ISDIR(st.st_mode)) {
        atomic_fetch_sub(&n_failing, 1);
        errno = EIO;
        return -1;
    }
    return (int)syscall(SYS_fsync, fd);
}

static char path[160];
static int dir;

static void setup(void)
{
    (void)snprintf(path, sizeof path, "%.100s/disk.XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    must(mkdtemp(path) && (dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) >= 0);
}

TestSuite(storage_disk, .init = setup, .timeout = 60);

static const char *content_of(const char *name)
{
    static char text[STORAGE_MAX_NAME_BYTES];
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : 0;

    must(n >= 0);
    text[n] = '\0';
    if (fd >= 0)
        (void)close(fd);
    return text;
}

static unsigned count_files(void)
{
    DIR *all = opendir(path);
    unsigned n = 0;

    must(all);
    while (readdir(all))
        n++;
    (void)closedir(all);
    return n - 2; /* . and .. */
}

Test(storage_disk, file_before_stays_when_the_next_one_cannot_be_written)
{
    must_ok(storage_write_file(dir, "a.name", "one", 3, &err));
    atomic_store(&n_failing, 1);
    must_refuse(RDT_SYSTEM, "writing: ", storage_write_file(dir, "a.name", "two", 3, &err));
    cr_assert_str_eq(content_of("a.name"), "one");
    cr_assert_eq(count_files(), 1u);
    must_ok(storage_write_file(dir, "a.name", "three", 5, &err));
    cr_assert_str_eq(content_of("a.name"), "three");
    cr_assert_eq(count_files(), 1u);
    atomic_store(&n_failing, 1);
    must_be(RDT_SYSTEM, storage_write_file(dir, "new.name", "four", 4, &err));
    cr_assert_eq(count_files(), 1u, "what could not be written is there");
    must_ok(storage_remove_file(dir, "a.name", &err));
    must(close(dir) == 0 && rmdir(path) == 0);
}

/* ---- records of names ---- */

static uv_loop_t loop;
static struct accounts accounts;
static struct account *account;
static struct object_table table;
static struct storage storage;
static Rdt__Pb__StatusReply counts;
static struct object *objects[4];
static struct name *name;

static void begin(void)
{
    static const struct owner owner = {.uid = 1000};

    must(uv_loop_init(&loop) == 0);
    accounts_init(&accounts);
    account = account_get(&accounts, &owner);
    storage = (struct storage){.directory = path, .dir = dir, .accounts = &accounts, .objects = &table, .counts = &counts};
    map_init(&storage.stored);
    map_init(&storage.by_name);
    list_init(&storage.queue);
    list_init(&storage.dropped);
    must_ok(work_pool_create(&loop, 1, &storage.helper, &err));
    name = calloc(1, sizeof *name + OWNER_KEY_MAX_BYTES);
    *name = (struct name){.account = account, .published = true, .id_bytes = 7};
    name->key_bytes = (uint8_t)owner_key(name->key, &owner, (const uint8_t *)"weights", 7);
}

/* From here on there is a name of its own for each call. */
static void rename_it(unsigned i)
{
    uint8_t id[8];

    (void)snprintf((char *)id, sizeof id, "%07u", i);
    name->key_bytes = (uint8_t)owner_key(name->key, &account->owner, id, 7);
}

static void on_closed(void *arg) {}

static void end(void)
{
    work_pool_close(storage.helper, on_closed, NULL);
    must(uv_run(&loop, UV_RUN_DEFAULT) == 0 && uv_loop_close(&loop) == 0);
    storage_fini(&storage);
    for (unsigned i = 0; i < 4; i++)
        free(objects[i]);
    free(name);
    account_unref(account);
    accounts_fini(&accounts);
}

/* An object that is on the disk, or will be. */
static struct stored *store(uint64_t generation, bool durable)
{
    struct object *object = objects[generation] = calloc(1, sizeof *object);

    object->generation = generation;
    object->account = account;
    struct stored *stored = stored_new(&storage, generation, account, object, 100);
    must(stored);
    if (durable)
        stored_set_durable(stored);
    return stored;
}

static void publish(uint64_t version, uint64_t generation)
{
    name->version = version;
    name->object = objects[generation];
    storage_name_changed(&storage, name);
}

/* The version that the record on the disk says. */
static uint64_t recorded(void)
{
    char file[STORAGE_FILE_NAME_BYTES];
    uint8_t text[STORAGE_MAX_NAME_BYTES];
    const Rdt__Pb__NameRecord *record;
    struct arena arena;
    ssize_t n;

    storage_name_file(name->key, name->key_bytes, file);
    int fd = openat(dir, file, O_RDONLY | O_CLOEXEC);
    must(fd >= 0 && (n = read(fd, text, sizeof text)) > 0 && close(fd) == 0);
    arena_init(&arena, (size_t)4 * STORAGE_MAX_NAME_BYTES);
    must_ok(stored_name_parse(text, (size_t)n, &arena, &record, &err));
    uint64_t version = record->version;
    arena_fini(&arena);
    return version;
}

static void settle(const struct stored *stored)
{
    while (!list_empty(&stored->claims))
        (void)uv_run(&loop, UV_RUN_ONCE);
}

/* An object that was published first may be on the disk last. */
Test(storage_disk, version_that_could_not_be_recorded_lets_no_older_one_overtake_the_next)
{
    begin();
    struct stored *late = store(1, false);
    publish(4, 1);
    struct stored *failing = store(2, true);
    struct stored *newest = store(3, true);
    atomic_store(&n_failing, 1);
    publish(5, 2);
    publish(6, 3);
    settle(failing);
    settle(newest);
    cr_assert_eq(counts.stores_failed, 1u);
    cr_assert_eq(recorded(), 6u);
    stored_set_durable(late);
    stored_write_claims(late);
    settle(late);
    cr_assert_eq(recorded(), 6u);
    end();
}

/* One object may have very many names. */
Test(storage_disk, names_of_one_object_are_written_and_dropped_in_slices)
{
    enum { FEW = 1000, MANY = 30000 };
    struct deadlines deadlines;
    unsigned n_written = 0;

    begin();
    deadlines_init(&deadlines, &loop);
    table.deadlines = &deadlines;
    struct stored *stored = store(1, false);
    for (unsigned i = 0; i < FEW; i++) {
        rename_it(i);
        publish(1, 1);
    }
    stored_set_durable(stored);
    stored_write_claims(stored);
    cr_assert(slice_waits(&stored->write), "the records of all names were submitted in one turn");
    rename_it(FEW);
    publish(1, 1); /* a name that comes meanwhile */
    settle(stored);
    cr_assert_eq(storage.n_names, FEW + 1u);

    struct stored *failing = store(2, false);
    for (unsigned i = 0; i < MANY; i++) {
        rename_it(FEW + 1 + i);
        publish(1, 2);
    }
    stored_drop_claims(failing);
    cr_assert(!list_empty(&storage.dropped), "all were dropped in one turn");
    cr_assert(list_empty(&failing->claims));
    while (!list_empty(&storage.dropped))
        (void)uv_run(&loop, UV_RUN_NOWAIT);
    cr_assert_eq(map_count(&storage.by_name), FEW + 1u);
    for (unsigned i = 0; i <= FEW; i++) {
        char file[STORAGE_FILE_NAME_BYTES];
        rename_it(i);
        storage_name_file(name->key, name->key_bytes, file);
        n_written += content_of(file)[0] != '\0';
    }
    cr_assert_eq(n_written, FEW + 1u);
    deadlines_close(&deadlines, NULL);
    end();
}
