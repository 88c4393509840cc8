/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/base/memory_room: reads the kernel's files about control groups, and counts bytes that are being allocated. */
#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/memory_room.h"

#define GIB (UINT64_C(1) << 30)

static char dir[] = "/tmp/rdt.XXXXXX", groups[64], name[128];

static void setup(void)
{
    cr_assert_not_null(mkdtemp(dir));
    snprintf(groups, sizeof groups, "%s/groups", dir);
}

static void teardown(void)
{
    char command[64];

    snprintf(command, sizeof command, "/bin/rm -rf %s", dir);
    cr_assert_eq(system(command), 0);
}

TestSuite(memory_room, .init = setup, .fini = teardown, .timeout = 60);

static void write_text(const char *below, const char *file, const char *text)
{
    char command[256], path[256];

    snprintf(command, sizeof command, "/bin/mkdir -p %s/%s", dir, below);
    cr_assert_eq(system(command), 0);
    snprintf(path, sizeof path, "%s/%s/%s", dir, below, file);
    FILE *out = fopen(path, "w");
    cr_assert_not_null(out);
    fputs(text, out);
    fclose(out);
}

Test(memory_room, limit_is_the_least_of_all_groups)
{
    write_text(".", "groups", "0::/pod/rdtd\n");
    cr_assert_eq(memory_group_limit_bytes(groups, dir), UINT64_MAX);
    write_text("pod/rdtd", "memory.max", "max\n");
    cr_assert_eq(memory_group_limit_bytes(groups, dir), UINT64_MAX);
    write_text("pod", "memory.max", "1073741824\n");
    cr_assert_eq(memory_group_limit_bytes(groups, dir), GIB);
    write_text("pod/rdtd", "memory.max", "4096\n");
    cr_assert_eq(memory_group_limit_bytes(groups, dir), 4096);
    write_text("pod", "memory.high", "2048\n");
    cr_assert_eq(memory_group_limit_bytes(groups, dir), 2048);
    write_text(".", "memory.max", "1024\n");
    cr_assert_eq(memory_group_limit_bytes(groups, dir), 1024);

    write_text(".", "groups", "5:cpu:/x\n4:cpuset,memory:/docker/1\n");
    write_text("memory", "memory.limit_in_bytes", "9223372036854771712\n");
    cr_assert_eq(memory_group_limit_bytes(groups, dir), UINT64_MAX);
    write_text("memory", "memory.limit_in_bytes", "2048\n"); /* a container sees its own group as the root */
    cr_assert_eq(memory_group_limit_bytes(groups, dir), 2048);
    cr_assert_eq(memory_group_limit_bytes("/nonexistent", dir), UINT64_MAX);
}

Test(memory_room, room_is_what_limit_and_use_leave)
{
    write_text(".", "groups", "0::/pod/rdtd\n");
    write_text("pod/rdtd", "memory.max", "1600\n");
    cr_assert_eq(memory_group_room_bytes(groups, dir, 1, 16, name), UINT64_MAX, "its use is not known");
    write_text("pod/rdtd", "memory.current", "1000\n");
    cr_assert_eq(memory_group_room_bytes(groups, dir, 1, 16, name), 500); /* a sixteenth is left */
    cr_assert_str_eq(name, "/pod/rdtd");
    write_text("pod/rdtd", "memory.stat", "anon 100\ninactive_file 30\nactive_file 20\nfile 70\n");
    cr_assert_eq(memory_group_room_bytes(groups, dir, 500, 16, name), 500);
    cr_assert_eq(memory_group_room_bytes(groups, dir, 501, 16, name), 550, "the file cache is not counted");
    write_text("pod", "memory.max", "3200\n");
    write_text("pod", "memory.current", "2990\n"); /* of the containers beside it */
    cr_assert_eq(memory_group_room_bytes(groups, dir, 1, 16, name), 10);
    cr_assert_str_eq(name, "/pod");
    write_text("pod", "memory.current", "3100\n");
    cr_assert_eq(memory_group_room_bytes(groups, dir, 1, 16, name), 0);

    write_text(".", "groups", "4:memory:/docker/1\n");
    write_text("memory", "memory.limit_in_bytes", "1600\n");
    write_text("memory", "memory.usage_in_bytes", "1400\n");
    write_text("memory", "memory.stat", "inactive_file 1000\ntotal_inactive_file 200\n");
    cr_assert_eq(memory_group_room_bytes(groups, dir, 101, 16, name), 300);
    cr_assert_str_eq(name, "/");
}

/* ---- taking ---- */

static struct memory_room room;

static void *take_half(void *arg)
{
    cr_assert_eq(memory_room_take(&room, GIB, true, NULL), RDT_OK);
    memory_room_taken(&room, GIB);
    return NULL;
}

Test(memory_room, bytes_that_others_take_are_waited_for)
{
    struct rdt_error err = {0};
    pthread_t thread;
    uint64_t all = 0;

    memory_room_init(&room);
    cr_assert_eq(memory_room_take(&room, UINT64_C(1) << 60, true, &err), RDT_NO_MEMORY);
    cr_assert(strstr(err.msg, "1152921504606846976 bytes do not fit"), "%s", err.msg);
    cr_assert_eq(sscanf(strpbrk(strstr(err.msg, " has "), "0123456789"), "%lu", &all), 1);
    cr_assert_eq(memory_room_take(&room, all - GIB / 2, true, &err), RDT_OK, "%s", err.msg); /* nothing is touched */
    cr_assert_eq(memory_room_take(&room, GIB, false, &err), RDT_OK, "%s", err.msg);          /* the loop waits for nobody */
    memory_room_taken(&room, GIB);
    cr_assert_eq(pthread_create(&thread, NULL, take_half, NULL), 0);
    for (unsigned i = 0; i < 50; i++) { /* it cannot get on yet, however long this takes */
        cr_assert_eq(pthread_tryjoin_np(thread, NULL), EBUSY);
        sched_yield();
    }
    memory_room_taken(&room, all - GIB / 2);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    memory_room_fini(&room);
}
