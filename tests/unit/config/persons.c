/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/config/persons: whose user ids are whose, by files like /etc/subuid and /etc/passwd. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <uv.h>

#include "daemon/base/owner_work.h"
#include "daemon/config/persons.h"

static const char users[] = "root:x:0:0:root:/root:/bin/sh\n"
                            "dockremap:x:998:998::/:/bin/false\n"
                            "+nis\n"
                            "nothing\n"
                            "alice:x:1000:1000::/home/alice:/bin/sh\n"
                            "bob::1001:1001::/home/bob:/bin/sh";

static char dir[256], subuid[280], passwd[280], log_path[280];
static struct persons persons;

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");

    cr_assert(file && fputs(text, file) >= 0 && fclose(file) == 0);
}

static void setup(void)
{
    (void)snprintf(dir, sizeof dir, "%.200s/persons.XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    cr_assert(mkdtemp(dir));
    (void)snprintf(subuid, sizeof subuid, "%s/subuid", dir);
    (void)snprintf(passwd, sizeof passwd, "%s/passwd", dir);
    (void)snprintf(log_path, sizeof log_path, "%s/log", dir);
    write_text(passwd, users);
    cr_assert(freopen(log_path, "w", stderr));
}

static void teardown(void)
{
    (void)unlink(subuid);
    (void)unlink(passwd);
    (void)unlink(log_path);
    (void)rmdir(dir);
}

TestSuite(persons, .init = setup, .fini = teardown, .timeout = 120);

static void begin(const char *text)
{
    write_text(subuid, text);
    persons_init(&persons, subuid, passwd, NULL);
}

static bool logged(const char *text)
{
    static char all[8192];
    FILE *file = fopen(log_path, "r");
    size_t n = file ? fread(all, 1, sizeof all - 1, file) : 0;

    cr_assert(file && fclose(file) == 0);
    all[n] = '\0';
    return strstr(all, text);
}

static void is(uint32_t uid, uint32_t person)
{
    cr_expect_eq(persons_find(&persons, uid), person, "uid %u is of %u and not of %u", uid, persons_find(&persons, uid),
                 person);
}

Test(persons, all_ids_of_a_users_ranges_are_the_users)
{
    begin("bob:165536:65536\n# a comment\n\nalice:100000:65536\n1002:300000:10\nalice:400000:1\n");
    is(1000, 1000);
    is(99999, 99999);
    is(100000, 1000);
    is(165535, 1000);
    is(165536, 1001);
    is(231071, 1001);
    is(231072, 231072);
    is(300009, 1002);
    is(300010, 300010);
    is(400000, 1000);
    is(400001, 400001);
    is(0, 0);
    is(UINT32_MAX, UINT32_MAX);
    cr_assert_not(logged("ignored"));
    persons_fini(&persons);
}

/* A name service knows the name; the file does not. */
Test(persons, name_that_is_not_in_passwd_is_a_person_without_its_own_id)
{
    begin("carol:500000:10\ndave:600000:10\ncarol:200000:10\n");
    is(500009, 500000);
    is(200000, 500000);
    is(600001, 600000);
    persons_fini(&persons);
}

/* An engine gives its ids to different users. Where the range of a user overlaps such a range, it counts. */
Test(persons, ids_of_container_engines_are_persons_of_their_own)
{
    begin("root:100000:65536\n0:700000:10\ndockremap:200000:10\ncontainers:2147483647:2147483648\nkubelet:65536:10\n"
          "alice:100000:10\n");
    is(100009, 1000);
    is(100010, 100010);
    is(700000, 700000);
    is(200001, 200001);
    is(2147483648, 2147483648);
    is(65537, 65537);
    persons_fini(&persons);
}

Test(persons, overlap_is_of_the_range_that_begins_first)
{
    begin("alice:100000:100\nbob:100050:100\nbob:100010:5\nbob:100000:100\n1002:4294967290:4294967295\n");
    is(100012, 1000);
    is(100099, 1000);
    is(100100, 1001);
    is(100149, 1001);
    is(100150, 100150);
    is(4294967290, 1002);
    is(UINT32_MAX, 1002);
    persons_fini(&persons);
}

Test(persons, lines_that_mean_nothing_are_ignored_and_named_once)
{
    begin("alice:100000:65536\nalice\nalice:1:\n:5:5\nbob:-1:3\nbob:5000000000:1\nbob:300000:0\nbob:300000:10:10\nbob:200000:"
          "5\n");
    is(100000, 1000);
    is(5, 5);
    is(300000, 300000);
    is(200004, 1001);
    cr_assert(logged("line 2: \"alice\" is not a name, a user id and a number of user ids"));
    cr_assert_not(logged("line 3"));
    persons_fini(&persons);
}

Test(persons, without_files_everybody_is_themselves)
{
    (void)unlink(passwd);
    persons_init(&persons, subuid, passwd, NULL);
    is(100000, 100000);
    is(0, 0);
    cr_assert_not(logged("subuid"));
    persons_fini(&persons);
}

Test(persons, file_that_cannot_be_read_is_named)
{
    cr_assert_eq(mkdir(subuid, 0700), 0);
    persons_init(&persons, subuid, passwd, NULL);
    is(100000, 100000);
    cr_assert(logged("cannot read") && logged(subuid));
    persons_fini(&persons);
    (void)rmdir(subuid);
}

Test(persons, huge_file_counts_up_to_a_bound)
{
    FILE *file = fopen(subuid, "w");

    cr_assert(file);
    for (unsigned i = 0; i < 400000; i++)
        (void)fprintf(file, "user%u:%u:10\n", i / 2, 1000000 + 10 * i);
    cr_assert_eq(fclose(file), 0);
    persons_init(&persons, subuid, passwd, NULL);
    is(1000019, 1000000);
    is(2000001, 2000000);
    is(1000000 + 10 * 399999, 1000000 + 10 * 399999);
    cr_assert(logged("the rest is ignored"));
    persons_fini(&persons);
}

/* ---- reading again ---- */

static void on_closed(void *arg)
{
    *(bool *)arg = true;
}

static void wait_for(uv_loop_t *loop, uint32_t uid, uint32_t person)
{
    uint64_t until_ns = uv_hrtime() + UINT64_C(60000000000);

    while (persons_find(&persons, uid) != person && uv_hrtime() < until_ns)
        (void)uv_run(loop, UV_RUN_NOWAIT);
    is(uid, person);
}

Test(persons, changed_file_is_read_again_by_a_thread)
{
    struct owner_work *threads;
    uv_loop_t loop;
    bool closed = false;

    cr_assert_eq(uv_loop_init(&loop), 0);
    cr_assert_eq(owner_work_create(&loop, 1, &threads, NULL), RDT_OK);
    write_text(subuid, "alice:100000:10\n");
    persons_init(&persons, subuid, passwd, threads);
    is(100000, 1000);
    write_text(subuid, "bob:100000:10\nalice:200000:10\n");
    is(100000, 1000); /* the next look finds that it has changed, a second later */
    wait_for(&loop, 100000, 1001);
    is(200000, 1000);
    (void)unlink(subuid);
    (void)unlink(passwd);
    persons_read_again(&persons);
    persons_read_again(&persons);
    wait_for(&loop, 100000, 100000);
    persons.owner_work = NULL;
    owner_work_close(threads, on_closed, &closed);
    while (!closed)
        (void)uv_run(&loop, UV_RUN_ONCE);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(uv_loop_close(&loop), 0);
    persons_fini(&persons);
}
