/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/base/node: the uuid stays, the boot id changes, and a damaged file is set aside. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/node.h"

static char parent[] = "/tmp/rdt.XXXXXX", dir[64], path[96], aside[128];
static struct rdt_error err;

static void setup(void)
{
    cr_assert_not_null(mkdtemp(parent));
    snprintf(dir, sizeof dir, "%s/state", parent);
    snprintf(path, sizeof path, "%s/node_uuid", dir);
    snprintf(aside, sizeof aside, "%s.damaged", path);
}

static void teardown(void)
{
    unlink(path);
    unlink(aside);
    rmdir(dir); /* fails, as does the next, if a temporary file is left */
    cr_assert_eq(rmdir(parent), 0);
}

TestSuite(node, .init = setup, .fini = teardown, .timeout = 20);

static void write_file(const char *text)
{
    mkdir(dir, 0700);
    FILE *file = fopen(path, "w");
    cr_assert_not_null(file);
    fputs(text, file);
    fclose(file);
}

Test(node, uuid_stays_and_boot_id_changes)
{
    struct node first, second;
    struct stat st;
    cr_assert_eq(node_load(dir, &first, &err), RDT_OK, "%s", err.msg);
    cr_assert_eq(first.uuid[6] >> 4, 4);
    cr_assert_eq(first.uuid[8] >> 6, 2);
    cr_assert_eq(stat(path, &st), 0);
    cr_assert_eq(st.st_mode & 0777, 0600);
    cr_assert_eq(node_load(dir, &second, &err), RDT_OK, "%s", err.msg);
    cr_assert_eq(memcmp(first.uuid, second.uuid, 16), 0);
    cr_assert_neq(memcmp(first.boot_id, second.boot_id, 16), 0);
    cr_assert_str_eq(second.address, "");
}

Test(node, file_and_hex_agree)
{
    struct node node;
    char text[33];
    write_file("0123456789abcdef0123456789ABCDEF");
    cr_assert_eq(node_load(dir, &node, &err), RDT_OK);
    cr_assert(node.damaged);
    write_file("0123456789abcdef0123456789abcdef");
    cr_assert_eq(node_load(dir, &node, &err), RDT_OK, "%s", err.msg);
    node_hex(node.uuid, text);
    cr_assert_str_eq(text, "0123456789abcdef0123456789abcdef");
}

Test(node, malformed_file_is_set_aside)
{
    static const char *const texts[] = {"",
                                        "\n",
                                        "short\n",
                                        "0123456789abcdef0123456789abcdeg\n",
                                        "0123456789abcdef0123456789abcdef\n\n",
                                        "0123456789abcdef0123456789abcdef0\n"};
    struct node node, again;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct stat st;
        write_file(texts[i]);
        cr_assert_eq(node_check(dir, &err), RDT_INVALID, "'%s'", texts[i]);
        cr_assert_not_null(strstr(err.msg, path));
        cr_assert_eq(node_load(dir, &node, &err), RDT_OK, "%s", err.msg);
        cr_assert(node.damaged && node.uuid[6] >> 4 == 4);
        cr_assert_eq(stat(path, &st), 0);
        cr_assert_eq((size_t)st.st_size, strlen(texts[i]), "it is kept until the uuid is known");
        node_renew(dir, &node);
        cr_assert_eq(stat(aside, &st), 0);
        cr_assert_eq((size_t)st.st_size, strlen(texts[i]));
        cr_assert_eq(node_load(dir, &again, &err), RDT_OK, "%s", err.msg);
        cr_assert(!again.damaged && memcmp(node.uuid, again.uuid, 16) == 0);
    }
}

static void make_fifo(void)
{
    cr_assert_eq(mkfifo(path, 0600), 0);
}

static void make_folder(void)
{
    cr_assert_eq(mkdir(path, 0700), 0);
}

static void make_dead_link(void)
{
    cr_assert_eq(symlink("/nonexistent/uuid", path), 0);
}

static void make_loop(void)
{
    cr_assert_eq(symlink("node_uuid", path), 0);
}

static void make_device(void)
{
    cr_assert_eq(symlink("/dev/zero", path), 0);
}

Test(node, what_is_no_file_is_set_aside)
{
    static void (*const make[])(void) = {make_fifo, make_folder, make_dead_link, make_loop, make_device};

    cr_assert_eq(mkdir(dir, 0700), 0);
    for (size_t i = 0; i < sizeof make / sizeof make[0]; i++) {
        struct node node, again;
        struct stat st;

        make[i]();
        cr_assert_eq(node_load(dir, &node, &err), RDT_OK, "%zu: %s", i, err.msg);
        cr_assert(node.damaged, "%zu", i);
        node_renew(dir, &node);
        cr_assert_eq(lstat(aside, &st), 0);
        cr_assert_not(S_ISREG(st.st_mode));
        cr_assert_eq(node_load(dir, &again, &err), RDT_OK, "%zu: %s", i, err.msg);
        cr_assert(!again.damaged && memcmp(node.uuid, again.uuid, 16) == 0);
        cr_assert_eq(unlink(path), 0);
        cr_assert_eq(remove(aside), 0);
    }
}

Test(node, file_that_cannot_be_set_aside_does_not_end_the_start)
{
    char inside[160];
    struct node node;

    write_file("short");
    (void)snprintf(inside, sizeof inside, "%s/x", aside);
    cr_assert(mkdir(aside, 0700) == 0 && mkdir(inside, 0700) == 0);
    cr_assert_eq(node_load(dir, &node, &err), RDT_OK, "%s", err.msg);
    node_renew(dir, &node);
    cr_assert(node.damaged && node.uuid[6] >> 4 == 4);
    cr_assert(rmdir(inside) == 0 && rmdir(aside) == 0);
}

Test(node, no_directory_is_a_new_node_each_time)
{
    struct node first, second;
    cr_assert_eq(node_load("", &first, &err), RDT_OK);
    cr_assert_eq(node_load("", &second, &err), RDT_OK);
    cr_assert_neq(memcmp(first.uuid, second.uuid, 16), 0);
}

Test(node, remedy_of_a_directory_that_may_not_be_written_is_said)
{
    char closed[] = "/tmp/rdt-node-XXXXXX", below[64];
    struct node node;

    if (geteuid() != 0)
        cr_skip_test("needs root, to become another user");
    cr_assert_not_null(mkdtemp(closed)); /* 0700 */
    (void)snprintf(below, sizeof below, "%s/state", closed);
    cr_assert_eq(seteuid(12345), 0);
    cr_expect_eq(node_load(below, &node, &err), RDT_SYSTEM);
    cr_expect(strstr(err.msg, "--state-dir DIR"), "%s", err.msg);
    cr_assert_eq(seteuid(0), 0);
    cr_assert_eq(rmdir(closed), 0);
}

Test(node, directory_that_cannot_be_made_is_named)
{
    struct node node;
    cr_assert_eq(node_load("/nonexistent/below/state", &node, &err), RDT_SYSTEM);
    cr_assert_not_null(strstr(err.msg, "/nonexistent/below/state"));
}
