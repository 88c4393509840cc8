/* SPDX-License-Identifier: Apache-2.0 */
/* Files in storage_dir that are damaged, forged or somebody else's, a disk that is full, a file that is cut off while it is
 * served, other users, and other nodes. */
#include "tests/integration/faults/storage.h"

#include <errno.h>
#include <grp.h>
#include <sched.h>
#include <sys/mount.h>

#include "client/rdt_info.h"
#include "tests/support/cluster.h"
#include "tests/support/keeper.h"
#include "tests/support/program.h"
#include "tests/support/raw.h"

TestSuite(storage_files, .timeout = SUITE_SECONDS(240));

static char object_file[300], record_file[300], good[300];

static void find_files(void)
{
    DIR *dir = opendir(store);
    const struct dirent *entry;

    must(dir);
    while ((entry = readdir(dir))) {
        const char *end = strrchr(entry->d_name, '.');
        if (end && strcmp(end, ".safetensors") == 0)
            (void)snprintf(object_file, sizeof object_file, "%.100s/%.120s", store, entry->d_name);
        if (end && strcmp(end, ".name") == 0)
            (void)snprintf(record_file, sizeof record_file, "%.100s/%.120s", store, entry->d_name);
    }
    (void)closedir(dir);
}

static void change(const char *path, long at, int xor)
{
    int fd, byte = 0;

    must(chmod(path, 0600) == 0 && (fd = open(path, O_RDWR | O_CLOEXEC)) >= 0);
    must(pread(fd, &byte, 1, at) == 1);
    byte ^= xor;
    must(pwrite(fd, &byte, 1, at) == 1 && close(fd) == 0 && chmod(path, 0400) == 0);
}

static void resize(const char *path, off_t by)
{
    struct stat st;

    must(stat(path, &st) == 0 && chmod(path, 0600) == 0 && truncate(path, st.st_size + by) == 0 && chmod(path, 0400) == 0);
}

/* Each returns the text of the line in the log. */
static const char *cut_off(void)
{
    resize(object_file, -1);
    return "bytes of tensors, and should have";
}

static const char *longer(void)
{
    resize(object_file, 1);
    return "bytes of tensors, and should have";
}

static const char *empty(void)
{
    must(chmod(object_file, 0600) == 0 && truncate(object_file, 0) == 0 && chmod(object_file, 0400) == 0);
    return "it is cut off";
}

static const char *huge_header(void)
{
    change(object_file, 6, 0xff);
    return "its header claims";
}

static const char *odd_header(void)
{
    change(object_file, 0, 8);
    return "invalid length";
}

static const char *not_ours(void)
{
    change(object_file, 8, 1);
    return "not a file that this rdtd has written";
}

static const char *other_version(void)
{
    change(object_file, 33, '1' ^ '2'); /* {"__metadata__":{"rdtd":"1 */
    return "not a file that this rdtd has written";
}

static const char *wrong_checksum(void)
{
    change(object_file, 40, 1);
    return "its checksum is wrong";
}

static const char *flipped_fact(void)
{
    change(object_file, 110, 'A' ^ 'B');
    return "is ignored";
}

static const char *other_generation(void)
{
    char path[300];

    (void)snprintf(path, sizeof path, "%.100s/0000000000000007.safetensors", store);
    must(rename(object_file, path) == 0);
    return "it is the file of another object";
}

static const char *anybody_can_write(void)
{
    must(chmod(object_file, 0666) == 0);
    return "its mode is 0666";
}

static const char *second_name(void)
{
    char path[300];

    (void)snprintf(path, sizeof path, "%.100s/link", store);
    must(link(object_file, path) == 0);
    return "it must be 0400, and one";
}

static const char *symbolic_link(void)
{
    must(unlink(object_file) == 0 && symlink(good, object_file) == 0);
    return "it is a symbolic link";
}

static const char *fifo(void)
{
    must(unlink(object_file) == 0 && mkfifo(object_file, 0400) == 0);
    return "it is not a regular file";
}

static const char *folder(void)
{
    must(unlink(object_file) == 0 && mkdir(object_file, 0400) == 0);
    return "it is not a regular file";
}

static const char *other_users(void)
{
    if (geteuid() != 0)
        return cut_off();
    must(chown(object_file, 65534, 65534) == 0);
    return "it belongs to uid 65534";
}

static const char *foreign(void)
{
    char path[300];

    (void)snprintf(path, sizeof path, "%.100s/model.safetensors", store);
    write_file(path, "somebody's");
    must(unlink(object_file) == 0);
    return "rdtd does not write files with such names";
}

static const char *damaged_record(void)
{
    change(record_file, 80, 1);
    return "its checksum is wrong";
}

static const char *record_of_another_name(void)
{
    char path[300];

    (void)snprintf(path, sizeof path, "%.100s/%064d.name", store, 0);
    must(rename(record_file, path) == 0);
    return "it is the record of another name";
}

static const char *record_without_object(void)
{
    must(unlink(object_file) == 0);
    return "is missing or was not usable";
}

static const char *(*const damages[])(void) = {
    cut_off,
    longer,
    empty,
    huge_header,
    odd_header,
    not_ours,
    other_version,
    wrong_checksum,
    flipped_fact,
    other_generation,
    anybody_can_write,
    second_name,
    symbolic_link,
    fifo,
    folder,
    other_users,
    foreign,
    damaged_record,
    record_of_another_name,
    record_without_object,
};

static void clear(void)
{
    char command[300];

    (void)snprintf(command, sizeof command, "rm -rf '%.150s'/*", store);
    must(system(command) == 0);
}

/* None of them harms the daemon, or another name beside it. */
Test(storage_files, bad_files_are_left_alone_with_a_line_in_the_log)
{
    struct rdt_ref name = name_ref("weights"), ref;
    rdt_object *object;
    const char *text;
    rdt *conn;

    choose_store();
    (void)snprintf(good, sizeof good, "%.100s.good", store);
    for (size_t i = 0; i < sizeof damages / sizeof damages[0]; i++) {
        char command[700];

        conn = start_client("trainer");
        (void)publish_stored(conn, "weights", MIB, 1);
        node_kill(&node, SIGKILL);
        find_files();
        (void)snprintf(command, sizeof command, "cp -p '%.250s' '%.250s'", object_file, good);
        must(system(command) == 0);
        text = damages[i]();
        start();
        cr_assert(node_log_has(&node, text), "damage %zu: the log has no \"%s\"", i, text);
        rdt_close(conn);
        conn = node_client(&node, "sampler");
        must_be(RDT_TIMED_OUT, try_fetch(conn, &name, RDT_FETCH_AUTO, 50 * MSEC, &object, &err));
        ref = name_ref("fine"); /* and the directory still serves */
        (void)publish_stored(conn, "fine", MIB, 2);
        must_have(conn, &ref, MIB, 2);
        rdt_close(conn);
        node_kill(&node, SIGKILL);
        clear();
        (void)unlink(good);
    }
    remove_store();
}

/* ---- a disk that is full ---- */

static void mount_disk(void)
{
    choose_store();
    if (geteuid() != 0 || unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("rdt-disk", store, "tmpfs", 0, "mode=0700,size=4m") != 0) {
        remove_store();
        cr_skip_test("a disk of its own needs root and a mount namespace");
    }
}

Test(storage_files, full_disk_is_an_error_that_names_the_file_and_loses_nothing)
{
    static const char *const declared[] = {"No space left on device", NULL};
    struct rdt_ref name = name_ref("weights"), ref;

    mount_disk();
    rdt *conn = start_client("trainer");
    cr_assert_eq(publish_stored(conn, "weights", MIB, 1), 1u);
    ref = put_snapshot(conn, NULL, 8 * MIB, 0, 2);
    must_ok(rdt_publish(conn, "weights", &ref, NULL, NULL, &err));
    must_refuse(RDT_SYSTEM, "No space left on device", rdt_store(conn, &name, LONG, NULL, 0, &err));
    must_refuse(RDT_SYSTEM, store, rdt_store(conn, &ref, LONG, NULL, 0, &err));
    must_have(conn, &name, 8 * MIB, 2);
    cr_assert_eq(count_files(".tmp"), 0u);
    must_ok(rdt_free(conn, &ref, false, &err));
    cr_assert_eq(publish_stored(conn, "weights", 2 * MIB, 3), 3u);
    conn = restart(conn, SIGKILL, "sampler");
    must_have(conn, &name, 2 * MIB, 3);
    must_ok(rdt_unpublish(conn, &name, &err));
    must_be_empty();
    rdt_close(conn);
    node_end(&node, declared);
    must(umount2(store, MNT_DETACH) == 0);
    remove_store();
}

/* ---- bytes that change ---- */

static struct rdt_daemon_status counters(rdt *conn)
{
    struct rdt_daemon_status status = RDT_INIT(status);

    must_ok(rdt_daemon_status(conn, &status, &err));
    return status;
}

static void change_last_byte(void)
{
    struct stat st;

    find_files();
    must(stat(object_file, &st) == 0);
    change(object_file, (long)st.st_size - 7, 0x10);
}

static void remove_damaged(void)
{
    char command[300];

    (void)snprintf(command, sizeof command, "rm -f '%.150s'/*.damaged", store);
    must(system(command) == 0);
}

/* Every reader gets the error, nobody the bytes, and other objects are served. */
static void must_be_damaged(rdt *conn, const char *name)
{
    enum rdt_fetch_mode modes[] = {RDT_FETCH_AUTO, RDT_FETCH_COPY, RDT_FETCH_SHARE};
    struct rdt_ref ref = name_ref(name), other;
    struct rdt_error why;
    rdt_object *object;

    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        must(try_fetch(conn, &ref, modes[i], LONG, &object, &why) == RDT_DAMAGED);
        cr_assert(strstr(why.msg, "tensor 0") && strstr(why.msg, store) && strstr(why.msg, "put the object again"), "%s",
                  why.msg);
    }
    cr_assert_eq(count_files(".damaged"), 1u);
    cr_assert_eq(counters(conn).storage_damaged, 1u);
    (void)publish_stored(conn, "fine", 2 * MIB, 2);
    other = name_ref("fine");
    must_have(conn, &other, 2 * MIB, 2);
    (void)publish_stored(conn, name, 2 * MIB, 5); /* the next version of the same name */
    must_have(conn, &ref, 2 * MIB, 5);
}

Test(storage_files, changed_byte_of_a_restored_file_is_an_error_that_names_it)
{
    static const char *const declared[] = {".damaged", NULL};
    struct rdt_ref name = name_ref("weights"), other = name_ref("fine");

    rdt *conn = start_client("trainer");
    (void)publish_stored(conn, "weights", 9 * MIB, 1);
    node_kill(&node, SIGKILL);
    rdt_close(conn);
    change_last_byte();
    conn = start_client("sampler");
    must_be_damaged(conn, "weights");
    must_ok(rdt_unpublish(conn, &name, &err));
    must_ok(rdt_unpublish(conn, &other, &err));
    must_be_empty();
    remove_damaged();
    end(conn, declared);
}

/* Says that so many starts in a row ended while they restored the file. */
static void forge_note(unsigned n, const char *file)
{
    char path[200];

    (void)snprintf(path, sizeof path, "%s/storage.restoring", store);
    FILE *note = fopen(path, "we");
    must(note && fprintf(note, "%u %s\n", n, strrchr(file, '/') + 1) > 0 && fclose(note) == 0);
}

static void start_after(unsigned n, char *file)
{
    node_kill(&node, SIGKILL);
    find_files();
    forge_note(n, file);
    start();
    cr_assert_eq(count_files(".restoring"), 0);
}

/* One start that ended there may have been killed for another reason. */
Test(storage_files, file_that_ended_two_starts_in_a_row_is_set_aside)
{
    static const char *const declared[] = {".damaged", "is ignored", NULL};
    struct rdt_ref name = name_ref("weights");
    char *files[] = {object_file, record_file};

    for (unsigned i = 0; i < 2; i++) {
        rdt *conn = start_client("trainer");
        (void)publish_stored(conn, "weights", 2 * MIB, 1);
        rdt_close(conn);
        start_after(1, files[i]);
        conn = node_client(&node, "sampler");
        must_have(conn, &name, 2 * MIB, 1);
        rdt_close(conn);
        start_after(2, files[i]);
        cr_assert_eq(node_log_count(&node, "2 starts in a row ended while they restored"), 1);
        cr_assert_eq(count_files(".damaged"), 1);
        conn = node_client(&node, "trainer");
        (void)publish_stored(conn, "fine", 2 * MIB, 2);
        struct rdt_ref fine = name_ref("fine");
        must_ok(rdt_unpublish(conn, &fine, &err));
        rdt_close(conn);
        node_stop(&node);
        node_check_log(&node, declared);
        char command[600];
        (void)snprintf(command, sizeof command, "rm -f '%.150s'/*.damaged '%.150s'/*.name '%.150s'/*.safetensors", store, store,
                       store);
        must(system(command) == 0);
    }
    remove_store();
}

/* The keeper has the descriptor of the damaged file. */
Test(storage_files, damaged_file_stays_an_error_for_the_next_daemon)
{
    static const char *const declared[] = {".damaged", NULL};
    static char flag[200];
    struct test_keeper keeper = {0};
    struct rdt_error why;
    rdt_object *object;

    keeper_start(&keeper);
    (void)snprintf(flag, sizeof flag, "--keeper=%s", keeper.socket);
    rdt *conn = start_client("trainer");
    struct rdt_ref ref = put_snapshot(conn, "weights", 9 * MIB, RDT_PUT_DETACHED | RDT_PUT_STORED, 1);
    must_ok(rdt_store(conn, &ref, LONG, NULL, 0, &err));
    node_kill(&node, SIGKILL);
    rdt_close(conn);
    change_last_byte();
    more_flags[0] = flag;
    conn = start_client("reader");
    must(try_fetch(conn, &ref, RDT_FETCH_AUTO, LONG, &object, &why) == RDT_DAMAGED);
    conn = restart(conn, SIGKILL, "reader of the next daemon");
    must(try_fetch(conn, &ref, RDT_FETCH_AUTO, LONG, &object, &why) == RDT_DAMAGED);
    must_say(strstr(why.msg, "weights") && strstr(why.msg, ".damaged"), "%s", why.msg);
    must_ok(rdt_free(conn, &ref, false, &err));
    must_be_empty();
    rdt_close(conn);
    node_stop(&node);
    node_check_log(&node, declared);
    keeper_stop(&keeper, SIGTERM);
    remove_damaged();
    remove_store();
}

/* Nobody is charged for them. */
Test(storage_files, few_damaged_files_are_kept)
{
    static const char *const declared[] = {".damaged", NULL};
    struct rdt_ref name = name_ref("weights");
    rdt_object *object;
    char path[300];
    rdt *conn;

    start();
    node_end(&node, declared);
    for (unsigned i = 0; i < 20; i++) {
        int fd;
        (void)snprintf(path, sizeof path, "%.150s/%016x.damaged", store, 1000 - i);
        fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0400);
        must(fd >= 0 && write(fd, path, 100) == 100 && close(fd) == 0);
    }
    start();
    conn = node_client(&node, "trainer");
    cr_assert_eq(count_files(".damaged"), 16u);
    cr_assert_eq(counters(conn).storage_damaged_bytes, 1600u);
    (void)publish_stored(conn, "weights", 9 * MIB, 1);
    node_kill(&node, SIGKILL);
    rdt_close(conn);
    change_last_byte();
    start();
    conn = node_client(&node, "sampler");
    must_be(RDT_DAMAGED, try_fetch(conn, &name, RDT_FETCH_AUTO, LONG, &object, &err));
    cr_assert_eq(count_files(".damaged"), 16u);
    cr_assert_gt(counters(conn).storage_damaged_bytes, 9 * MIB);
    must_ok(rdt_unpublish(conn, &name, &err));
    must_be_empty();
    remove_damaged();
    rdt_close(conn);
    node_end(&node, declared);
    remove_store();
}

/* A small object is read at the start. */
Test(storage_files, changed_byte_of_a_small_object_keeps_it_from_being_restored)
{
    static const char *const declared[] = {"have changed since they were stored", "is missing or was not usable", NULL};
    struct rdt_ref name = name_ref("weights");
    rdt_object *object;

    rdt *conn = start_client("trainer");
    (void)publish_stored(conn, "weights", 1000, 1);
    node_kill(&node, SIGKILL);
    rdt_close(conn);
    change_last_byte();
    conn = start_client("sampler");
    must_be(RDT_TIMED_OUT, try_fetch(conn, &name, RDT_FETCH_AUTO, 50 * MSEC, &object, &err));
    cr_assert(node_log_has(&node, "tensor 0 have changed"));
    rdt_close(conn);
    clear();
    node_end(&node, declared);
    remove_store();
}

Test(storage_files, changed_byte_of_a_file_that_memory_was_given_up_for_is_an_error)
{
    static const char *const declared[] = {".damaged", NULL};
    struct rdt_ref name = name_ref("weights"), other = name_ref("fine");
    void *room;

    more_flags[0] = "--memory-limit=33554432";
    rdt *conn = start_client("trainer");
    (void)publish_stored(conn, "weights", 9 * MIB, 1);
    must_ok(rdt_alloc(conn, 24 * MIB, &room, &err));
    must_ok(rdt_dealloc(conn, room, &err));
    cr_assert_eq(counters(conn).spilled_objects, 1u);
    change_last_byte();
    must_be_damaged(conn, "weights");
    must_ok(rdt_unpublish(conn, &name, &err));
    must_ok(rdt_unpublish(conn, &other, &err));
    must_be_empty();
    remove_damaged();
    end(conn, declared);
}

static int scrub(const char *expected)
{
    struct program program;

    program_run(&program, (const char *[]){"rdtctl", "--socket", socket_path, "scrub", NULL}, NULL);
    must_say(strstr(program.out, expected), "%s%s", program.out, program.err);
    int status = program.status;
    program_free(&program);
    return status;
}

Test(storage_files, scrub_finds_changed_bytes_and_writes_what_is_in_memory_again)
{
    static const char *const declared[] = {"have changed since they were stored", NULL};
    struct rdt_ref name = name_ref("weights");
    rdt_object *object;

    rdt *conn = start_client("trainer");
    (void)publish_stored(conn, "weights", 3 * MIB, 1);
    cr_assert_eq(scrub("1 files are as they were stored (3.0 MiB read), 0 are damaged"), 0);
    change_last_byte();
    cr_assert_eq(scrub("0 files are as they were stored (3.0 MiB read), 1 are damaged"), 1);
    must_have(conn, &name, 3 * MIB, 1);
    must_ok(rdt_store(conn, &name, LONG, NULL, 0, &err)); /* waits until the file is there again */
    cr_assert_eq(scrub("1 files are as they were stored"), 0);
    remove_damaged();
    conn = restart(conn, SIGKILL, "sampler");
    must_have(conn, &name, 3 * MIB, 1);
    change_last_byte(); /* nobody reads the disk again, but a scrub does */
    cr_assert_eq(scrub("1 are damaged"), 1);
    must_be(RDT_DAMAGED, try_fetch(conn, &name, RDT_FETCH_AUTO, LONG, &object, &err));
    must_ok(rdt_unpublish(conn, &name, &err));
    must_be_empty();
    remove_damaged();
    end(conn, declared);
}

/* How often the daemon has the file open. */
static unsigned open_count(const char *file)
{
    char path[64], link[400], target[300];
    const struct dirent *entry;
    unsigned n = 0;
    ssize_t length;
    DIR *dir;

    (void)snprintf(path, sizeof path, "/proc/%d/fd", (int)node.pid);
    must((dir = opendir(path)));
    while ((entry = readdir(dir))) {
        (void)snprintf(link, sizeof link, "%s/%s", path, entry->d_name);
        length = readlink(link, target, sizeof target - 1);
        target[length > 0 ? length : 0] = '\0';
        n += strcmp(target, file) == 0;
    }
    (void)closedir(dir);
    return n;
}

/* A scrub is given up while it reads a file. A fetch needs that file's check at that moment, and the next scrub begins. */
Test(storage_files, scrub_that_is_cancelled_harms_nobody)
{
    struct rdt_ref name = name_ref("weights");
    struct raw raw;
    rdt *conn = start_client("trainer");

    (void)publish_stored(conn, "weights", 48 * MIB, 1);
    conn = restart(conn, SIGKILL, "sampler");
    find_files();
    raw_connect(&raw, node.socket);
    raw_hello(&raw);
    Rdt__Pb__Scrub message = MESSAGE(scrub, .timeout_ns = -1);
    Rdt__Pb__CancelRequest cancel =
        MESSAGE(cancel_request, .request_id = raw_send(&raw, RDT_MSG_SCRUB, &message.base, NULL, 0));
    wait_until(LONG, open_count(object_file) == 2 || counters(conn).storage_checked > 0);
    (void)raw_send(&raw, RDT_MSG_CANCEL_REQUEST, &cancel.base, NULL, 0);
    (void)raw_send(&raw, RDT_MSG_SCRUB, &message.base, NULL, 0);
    rdt_request *request = start_as(conn, &name, NULL);
    do
        must(raw_next(&raw));
    while (raw.frame.request_id != raw.last_id);
    Rdt__Pb__ScrubReply *reply = rdt__pb__scrub_reply__unpack(NULL, raw.frame.length, raw.frame.payload);
    must_say(reply && reply->checked == 1 && reply->failed == 0, "the second scrub");
    rdt__pb__scrub_reply__free_unpacked(reply, NULL);
    must_ok(rdt_wait(conn, &request, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(request);
    must_have(conn, &name, 48 * MIB, 1);
    must_ok(rdt_unpublish(conn, &name, &err));
    must_be_empty();
    raw_close(&raw);
    end(conn, NULL);
}

/* ---- a file that becomes shorter ---- */

/* Whoever may write in the directory, which is the daemon's user and root, can do that. The daemon answers with an error. */
Test(storage_files, file_that_is_cut_off_while_it_is_served_fails_its_copies_only)
{
    struct rdt_ref name = name_ref("weights"), other = name_ref("other");
    struct rdt_tensor target = VECTOR(RDT_U8, 4 * MIB, NULL);
    const struct rdt_tensor *targets = &target;
    rdt_object *object;
    rdt *conn = start_client("trainer");

    (void)publish_stored(conn, "weights", 4 * MIB, 1);
    again(SIGKILL);
    find_files();
    rdt_close(conn);
    conn = node_client(&node, "sampler");
    (void)publish_stored(conn, "other", MIB, 2);
    must_have(conn, &name, 4 * MIB, 1); /* its checksums are right */
    must(chmod(object_file, 0600) == 0 && truncate(object_file, MIB) == 0);
    target.data = alloc_memory(conn, 4 * MIB); /* so that the daemon copies */
    struct rdt_fetch_options options = {.struct_size = sizeof options,
                                        .mode = RDT_FETCH_COPY,
                                        .timeout_ns = LONG,
                                        .targets = &targets,
                                        .target_counts = (const size_t[]){1}};
    must_refuse(RDT_SYSTEM, "stored file that could not be read", rdt_fetch(conn, &name, 1, &options, &object, &err));
    must_have(conn, &other, MIB, 2);
    must_ok(rdt_dealloc(conn, target.data, &err));
    must_ok(rdt_unpublish(conn, &name, &err));
    must_ok(rdt_unpublish(conn, &other, &err));
    must_be_empty();
    end(conn, NULL);
}

/* ---- other users and other nodes ---- */

static int stranger(struct actor *self, void *arg)
{
    struct rdt_ref mine = name_ref("mine"), ours = name_ref("ours");
    char folder[160];
    rdt_object *object;
    rdt *conn;

    (void)snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(socket_path, '/') - socket_path), socket_path);
    must(chdir(folder) == 0); /* the socket may lie behind folders of root's */
    must(setgroups(0, NULL) == 0 && setresgid(12345, 12345, 12345) == 0 && setresuid(12345, 12345, 12345) == 0);
    struct rdt_connect_options options = {.struct_size = sizeof options, .socket = "s", .timeout_ns = LONG};
    must_ok(rdt_connect(&options, &conn, &err));
    mine.any_owner = ours.any_owner = 0;
    must_be(RDT_TIMED_OUT, try_fetch(conn, &mine, RDT_FETCH_AUTO, 50 * MSEC, &object, &err));
    must_ok(try_fetch(conn, &ours, RDT_FETCH_AUTO, LONG, &object, &err));
    must_go_by("local/share", object); /* what the header says of the object, its readers may know */
    must(holds_pattern(tensor_of(object, 0).data, MIB, 2));
    must_refuse(RDT_DENIED, "belongs to uid 0", rdt_store(conn, &ours, LONG, NULL, 0, &err));
    must(open(object_file, O_RDONLY | O_CLOEXEC) < 0 && errno == EACCES);
    rdt_release(object);
    rdt_close(conn);
    return 0;
}

Test(storage_files, other_users_see_what_they_saw_before)
{
    struct rdt_publish_options publish = RDT_INIT(publish);
    static char memory[MIB];
    struct rdt_ref ref, mine = name_ref("mine"), ours = name_ref("ours");
    struct actor actor;

    need_root();
    rdt *conn = start_client("trainer");
    (void)publish_stored(conn, "mine", MIB, 1);
    fill_pattern(memory, MIB, 2);
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = RDT_PUT_SNAPSHOT};
    options.visibility = publish.visibility = RDT_VISIBLE_TO_ALL;
    must_ok(rdt_put(conn, &VECTOR(RDT_U8, MIB, memory), 1, &options, &ref, &err));
    must_ok(rdt_publish(conn, "ours", &ref, &publish, NULL, &err));
    must_ok(rdt_store(conn, &ref, LONG, NULL, 0, &err));
    again(SIGKILL);
    find_files();
    rdt_close(conn);
    actor_start(&actor, stranger, NULL);
    actor_wait(&actor);
    conn = node_client(&node, "trainer");
    must_ok(rdt_unpublish(conn, &mine, &err));
    must_ok(rdt_unpublish(conn, &ours, &err));
    must_be_empty();
    end(conn, NULL);
}

Test(storage_files, other_node_fetches_what_was_restored)
{
    static struct cluster cluster;
    struct cluster_options options = {.no_meeting = true, .stream = true};
    char flag[200];
    const char *flags[] = {flag, NULL};
    rdt_object *object;

    choose_store();
    (void)snprintf(flag, sizeof flag, "--storage-dir=%s", store);
    options.flags_of[0] = flags;
    cluster_start(&cluster, 2, &options);
    rdt *conn = node_client(&cluster.node[0], "trainer");
    (void)publish_stored(conn, "weights", 5 * MIB, 1);
    node_kill(&cluster.node[0], SIGKILL);
    cluster_restart(&cluster, 0);
    rdt_close(conn);
    conn = node_client(&cluster.node[1], "sampler");
    struct rdt_ref name = name_ref("weights");
    (void)snprintf(name.address, sizeof name.address, "%s", cluster.node[0].address);
    for (unsigned round = 0; round < 2; round++) {
        object = fetch_one(conn, &name, RDT_FETCH_AUTO);
        cr_assert(holds_pattern(tensor_of(object, 0).data, 5 * MIB, 1));
        rdt_release(object);
    }
    must_ok(rdt_unpublish(conn, &name, &err));
    must_be_empty();
    rdt_close(conn);
    node_stop(&cluster.node[0]);
    node_stop(&cluster.node[1]);
    remove_store();
}
