/* SPDX-License-Identifier: Apache-2.0 */
/* A journal that an rdtd wrote whose version of it was 1, before sessions had records. journal_v1.txt has the bytes of its
 * header, its extents and its records, each row of 32 that are not all zero with its place. That daemon had been killed
 * while clients held these: the detached objects "small" of 100 bytes and "large" of 100,000, each in a region, whose memory
 * this test makes anew; and "large" had been published twice as "weights". */
#include <ctype.h>
#include <sys/stat.h>

#include "tests/integration/faults/recovery.h"

TestSuite(recovery_versions, .timeout = SUITE_SECONDS(60));

#define FIXTURE "tests/integration/faults/journal_v1.txt"
#define ROW 32u
#define FIRST_REGION (16u + 1u)
#define FILE_BYTES ((off_t)16 << 30) /* nearly all of it is a hole */
#define UUID_AT 24
#define VERSION_AT 8

static uint8_t nibble(char hex)
{
    return (uint8_t)(isdigit((unsigned char)hex) ? hex - '0' : hex - 'a' + 10);
}

static int read_fixture(uint8_t uuid_p[16])
{
    FILE *file = fopen(FIXTURE, "re");
    int fd = memfd_create("journal", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    char hex[2 * ROW + 1];
    uint8_t row[ROW];
    unsigned long at;

    must(file && fd >= 0);
    while (fscanf(file, "%lx %64s", &at, hex) == 2) {
        must(strlen(hex) == 2 * ROW);
        for (unsigned i = 0; i < ROW; i++)
            row[i] = (uint8_t)(nibble(hex[2 * i]) << 4 | nibble(hex[2 * i + 1]));
        must(pwrite(fd, row, ROW, (off_t)at) == ROW);
    }
    fclose(file);
    must(ftruncate(fd, FILE_BYTES) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
    must(pread(fd, uuid_p, 16, UUID_AT) == 16);
    return fd;
}

/* The node that it was. */
static void write_uuid(const uint8_t uuid[16])
{
    char path[200];

    (void)snprintf(state_dir, sizeof state_dir, "%s/old", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    must(mkdir(state_dir, 0700) == 0);
    (void)snprintf(path, sizeof path, "%s/node_uuid", state_dir);
    FILE *file = fopen(path, "we");
    must(file);
    for (unsigned i = 0; i < 16; i++)
        fprintf(file, "%02x", uuid[i]);
    fprintf(file, "\n");
    fclose(file);
}

static int region(size_t room, size_t bytes, uint32_t seed)
{
    int fd = memfd_create("region", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    char *memory = malloc(bytes);

    fill_pattern(memory, bytes, seed);
    must(fd >= 0 && ftruncate(fd, (off_t)room) == 0 && pwrite(fd, memory, bytes, 0) == (ssize_t)bytes);
    must(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
    free(memory);
    return fd;
}

/* Gives the keeper what the earlier daemon had given it. */
static void store(int journal)
{
    const uint64_t ids[3] = {KEEPER_JOURNAL, FIRST_REGION, FIRST_REGION + 1};
    const int fds[3] = {journal, region(4096, 100, 7), region(102400, 100000, 8)};
    int link = keeper_dial(&keeper);
    struct keeper_message message;

    must(keeper_greet(link, &message) == KEEPER_READY);
    keeper_send(link, KEEPER_STORE, ids, fds, 3);
    close(link);
    close(fds[1]);
    close(fds[2]);
}

static void must_hold(rdt *conn, const struct rdt_ref *ref, size_t bytes, uint32_t seed)
{
    rdt_object *object = fetch_one(conn, ref, RDT_FETCH_AUTO);

    must(tensor_of(object, 0).shape[0] == (int64_t)bytes && holds_pattern(tensor_of(object, 0).data, bytes, seed));
    rdt_release(object);
}

Test(recovery_versions, journal_of_version_1_is_read_and_becomes_ours)
{
    struct rdt_ref ref, name;
    struct node_status status;
    uint32_t version;
    uint8_t uuid[16];
    int journal = read_fixture(uuid);
    rdt *conn;

    must(pread(journal, &version, sizeof version, VERSION_AT) == sizeof version && version == 1);
    write_uuid(uuid);
    keeper_start(&keeper);
    store(journal);
    start();
    must(memcmp(node.uuid_bytes, uuid, 16) == 0);
    for (unsigned round = 0; round < 2; round++) {
        conn = node_client(&node, "reader");
        status = node_now(&node);
        must(status.objects == 2 && status.regions == 2);
        must_ok(rdt_ref_from_id("small", 5, &ref, &err));
        must_ok(rdt_ref_set_owner(conn, &ref, "0", &err)); /* the user of that daemon's clients */
        must_hold(conn, &ref, 100, 7);
        name = name_ref("weights");
        must_ok(rdt_ref_set_owner(conn, &name, "0", &err));
        must_hold(conn, &name, 100000, 8);
        name.after = 1;
        must_hold(conn, &name, 100000, 8); /* it is version 2 */
        rdt_close(conn);
        must(pread(journal, &version, sizeof version, VERSION_AT) == sizeof version && version == 4);
        if (round == 0)
            again(SIGKILL); /* what was written over it can be read, too */
    }
    close(journal);
    node_stop(&node);
    keeper_stop(&keeper, SIGTERM);
}
