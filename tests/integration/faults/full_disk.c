/* SPDX-License-Identifier: Apache-2.0 */
/* The disk is full that holds the node's uuid or the log: at the first start, at a restart, and while clients work. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include "tests/support/cluster.h"

TestSuite(full_disk, .timeout = 120);

static struct test_node node;
static char disk[64], filler[80], state[80];

/* A small disk, for this process and its daemons alone. */
static void mount_disk(const char *size)
{
    char options[64];

    (void)snprintf(disk, sizeof disk, "%.40s/disk.XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    must(mkdtemp(disk));
    (void)snprintf(options, sizeof options, "mode=0755,%s", size);
    if (geteuid() != 0 || unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("rdt-disk", disk, "tmpfs", 0, options) != 0) {
        (void)rmdir(disk);
        cr_skip_test("a disk of its own needs root and a mount namespace");
    }
    (void)snprintf(filler, sizeof filler, "%s/filler", disk);
    (void)snprintf(state, sizeof state, "%s/state", disk);
}

static void fill_disk(void)
{
    static const char page[4096] = "full";
    int fd = open(filler, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);

    must(fd >= 0);
    while (write(fd, page, sizeof page) > 0)
        continue;
    must(errno == ENOSPC);
    (void)close(fd);
}

static void unmount_disk(void)
{
    must(umount2(disk, MNT_DETACH) == 0 && rmdir(disk) == 0);
}

static void refuses_to_start(const char *path)
{
    int status = 0;

    must_say(!node_try_start(&node, &(struct node_options){.state_dir = state}, &status), "it started");
    cr_assert_eq(status, 1);
    cr_assert(node_log_has(&node, path) && node_log_has(&node, "No space left on device"));
    cr_assert(node_log_has(&node, "make room there, or give --state-dir DIR on another disk"));
}

static void serves(void)
{
    rdt *conn = node_client(&node, "client");
    struct rdt_ref ref = put_pattern(conn, NULL, 3 << 20, 1);

    fetch_pattern(conn, &ref, 3 << 20, 1, NULL);
    must_ok(rdt_free(conn, &ref, false, &err));
    rdt_close(conn);
}

Test(full_disk, first_start_names_the_place_and_the_remedy)
{
    mount_disk("size=20k"); /* uuid, plugin-crashes, lock */
    fill_disk();
    refuses_to_start(state);
    refuses_to_start("node_uuid"); /* half a file is not left behind, nor taken for a whole one */
    must(unlink(filler) == 0);
    node_start(&node, &(struct node_options){.state_dir = state});
    serves();
    node_end(&node, NULL);
    unmount_disk();
}

Test(full_disk, disk_without_room_for_another_file_is_named_too)
{
    char lock[96];

    mount_disk("size=64k,nr_inodes=2"); /* the root, and the folder */
    refuses_to_start(state);
    must(mount(NULL, disk, NULL, MS_REMOUNT, "nr_inodes=5") == 0); /* and lock, uuid, plugin-crashes */
    node_start(&node, &(struct node_options){.state_dir = state});
    node_end(&node, NULL);
    (void)snprintf(lock, sizeof lock, "%s/lock", state);
    must(rename(lock, filler) == 0);
    refuses_to_start(lock);
    unmount_disk();
}

Test(full_disk, restart_needs_no_space)
{
    char uuid[33];

    mount_disk("size=20k"); /* uuid, plugin-crashes, lock */
    node_start(&node, &(struct node_options){.state_dir = state});
    memcpy(uuid, node.uuid, sizeof uuid);
    node_end(&node, NULL);
    fill_disk();
    node_start(&node, &(struct node_options){.state_dir = state});
    cr_assert_str_eq(node.uuid, uuid);
    serves();
    node_end(&node, NULL);
    unmount_disk();
}

/* The socket, the state and the log are there. */
Test(full_disk, running_daemon_does_not_notice)
{
#ifdef __SANITIZE_THREAD__ /* which keeps a file there itself */
    mount_disk("size=4m");
#else
    mount_disk("size=256k");
#endif
    must(setenv("TMPDIR", disk, 1) == 0);
    node_start(&node, &(struct node_options){.log = "debug"});
    fill_disk();
    for (unsigned i = 0; i < 100; i++)
        serves(); /* and writes a log that nobody gets */
    must(unlink(filler) == 0);
    serves();
    node_end(&node, (const char *[]){"lines of the log are missing here", NULL});
    unmount_disk();
}
