/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon with a storage directory, without a keeper unless a test wants one, and how the next one is started. */
#ifndef TESTS_INTEGRATION_FAULTS_STORAGE_H
#define TESTS_INTEGRATION_FAULTS_STORAGE_H

#include <criterion/criterion.h>

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/integration/faults/next_daemon.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

static char store[160];
static const char *more_flags[4]; /* of the next starts */

static inline void choose_store(void)
{
    (void)snprintf(store, sizeof store, "%.100s/store.XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    must(mkdtemp(store) != NULL);
}

static void start(void)
{
    static char flag[200];
    static const char *flags[8];
    unsigned n = 0;

    if (store[0] == '\0')
        choose_store();
    (void)snprintf(flag, sizeof flag, "--storage-dir=%s", store);
    flags[n++] = flag;
    for (unsigned i = 0; i < 4 && more_flags[i]; i++)
        flags[n++] = more_flags[i];
    flags[n] = NULL;
    start_next(flags);
}

static inline rdt *start_client(const char *name)
{
    start();
    return node_client(&node, name);
}

/* The next daemon, and its client in the place of the last one's. */
static inline rdt *restart(rdt *conn, int signal, const char *name)
{
    again(signal);
    rdt_close(conn);
    return node_client(&node, name);
}

/* How many files with such an end there are. */
static inline unsigned count_files(const char *suffix)
{
    DIR *dir = opendir(store);
    const struct dirent *entry;
    unsigned n = 0;

    must(dir);
    while ((entry = readdir(dir))) {
        size_t length = strlen(entry->d_name), end = strlen(suffix);
        n += length > end && strcmp(entry->d_name + length - end, suffix) == 0;
    }
    (void)closedir(dir);
    return n;
}

static inline struct rdt_ref put_snapshot(rdt *conn, const char *id, size_t bytes, uint32_t flags, uint32_t seed)
{
    char *memory = malloc(bytes);

    fill_pattern(memory, bytes, seed);
    struct rdt_put_options options = {.struct_size = sizeof options,
                                      .id = id,
                                      .id_bytes = id ? strlen(id) : 0,
                                      .metadata = "metadata",
                                      .metadata_bytes = sizeof "metadata",
                                      .flags = RDT_PUT_SNAPSHOT | flags};
    struct rdt_ref ref = put_as(conn, &VECTOR(RDT_U8, bytes, memory), 1, &options);
    free(memory);
    return ref;
}

static inline void must_have(rdt *conn, const struct rdt_ref *ref, size_t bytes, uint32_t seed)
{
    rdt_object *object = fetch_one(conn, ref, RDT_FETCH_AUTO);
    size_t metadata_bytes;

    cr_assert(holds_pattern(tensor_of(object, 0).data, bytes, seed));
    cr_assert_str_eq(rdt_object_metadata(object, &metadata_bytes), "metadata");
    rdt_release(object);
}

/* Puts and publishes the next version, stored, and lets go of the object. */
static inline uint64_t publish_stored(rdt *conn, const char *name, size_t bytes, uint32_t seed)
{
    struct rdt_ref ref = put_snapshot(conn, NULL, bytes, RDT_PUT_STORED, seed);
    uint64_t version;

    must_ok(rdt_publish(conn, name, &ref, NULL, &version, &err));
    must_ok(rdt_free(conn, &ref, false, &err));
    ref = name_ref(name);
    must_ok(rdt_store(conn, &ref, LONG, NULL, 0, &err));
    return version;
}

static inline void must_be_empty(void)
{
    wait_until(LONG, count_files(".safetensors") == 0 && count_files(".name") == 0 && count_files(".tmp") == 0);
}

static inline void remove_store(void)
{
    char lock[200];

    (void)snprintf(lock, sizeof lock, "%s/storage.lock", store);
    (void)unlink(lock);
    must(rmdir(store) == 0);
}

static inline void end(rdt *conn, const char *const *declared)
{
    rdt_close(conn);
    node_end(&node, declared);
    remove_store();
}

#endif
