/* SPDX-License-Identifier: Apache-2.0 */
/* Files in storage_dir that are damaged, forged or somebody else's, a disk that is full, a file that is cut off while it is
 * served, other users, and other nodes. */
#include "tests/integration/faults/storage.h"

#include <errno.h>
#include <grp.h>
#include <sched.h>
#include <sys/mount.h>

#include "tests/support/cluster.h"

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

        start();
        conn = node_client(&node, "trainer");
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
    rdt *conn;

    mount_disk();
    start();
    conn = node_client(&node, "trainer");
    cr_assert_eq(publish_stored(conn, "weights", MIB, 1), 1u);
    ref = put_snapshot(conn, NULL, 8 * MIB, 0, 2);
    must_ok(rdt_publish(conn, "weights", &ref, NULL, NULL, &err));
    must_refuse(RDT_SYSTEM, "No space left on device", rdt_store(conn, &name, LONG, NULL, 0, &err));
    must_refuse(RDT_SYSTEM, store, rdt_store(conn, &ref, LONG, NULL, 0, &err));
    must_have(conn, &name, 8 * MIB, 2);
    cr_assert_eq(count_files(".tmp"), 0u);
    must_ok(rdt_free(conn, &ref, false, &err));
    cr_assert_eq(publish_stored(conn, "weights", 2 * MIB, 3), 3u);
    again(SIGKILL);
    rdt_close(conn);
    conn = node_client(&node, "sampler");
    must_have(conn, &name, 2 * MIB, 3);
    must_ok(rdt_unpublish(conn, &name, &err));
    must_be_empty();
    rdt_close(conn);
    node_end(&node, declared);
    must(umount2(store, MNT_DETACH) == 0);
    remove_store();
}

/* ---- a file that becomes shorter ---- */

/* Whoever may write in the directory, which is the daemon's user and root, can do that. The daemon answers with an error. */
Test(storage_files, file_that_is_cut_off_while_it_is_served_fails_its_copies_only)
{
    struct rdt_ref name = name_ref("weights"), other = name_ref("other");
    struct rdt_tensor target = VECTOR(RDT_U8, 4 * MIB, NULL);
    const struct rdt_tensor *targets = &target;
    struct rdt_fetch_options options = RDT_INIT(options);
    rdt_object *object;
    rdt *conn;

    start();
    conn = node_client(&node, "trainer");
    (void)publish_stored(conn, "weights", 4 * MIB, 1);
    again(SIGKILL);
    find_files();
    rdt_close(conn);
    conn = node_client(&node, "sampler");
    (void)publish_stored(conn, "other", MIB, 2);
    must(chmod(object_file, 0600) == 0 && truncate(object_file, MIB) == 0);
    target.data = alloc_memory(conn, 4 * MIB); /* so that the daemon copies */
    options.mode = RDT_FETCH_COPY;
    options.timeout_ns = LONG;
    options.targets = &targets;
    options.target_counts = (const size_t[]){1};
    must_refuse(RDT_SYSTEM, "stored file that could not be read", rdt_fetch(conn, &name, 1, &options, &object, &err));
    must_have(conn, &other, MIB, 2);
    must_ok(rdt_dealloc(conn, target.data, &err));
    must_ok(rdt_unpublish(conn, &name, &err));
    must_ok(rdt_unpublish(conn, &other, &err));
    must_be_empty();
    rdt_close(conn);
    node_end(&node, NULL);
    remove_store();
}

/* ---- other users and other nodes ---- */

static int stranger(struct actor *self, void *arg)
{
    struct rdt_connect_options options = RDT_INIT(options);
    struct rdt_ref mine = name_ref("mine"), ours = name_ref("ours");
    char folder[160];
    rdt_object *object;
    rdt *conn;

    (void)self;
    (void)arg;
    (void)snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(socket_path, '/') - socket_path), socket_path);
    must(chdir(folder) == 0); /* the socket may lie behind folders of root's */
    must(setgroups(0, NULL) == 0 && setresgid(12345, 12345, 12345) == 0 && setresuid(12345, 12345, 12345) == 0);
    options.socket = "s";
    options.timeout_ns = LONG;
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
    struct rdt_put_options options = RDT_INIT(options);
    static char memory[MIB];
    struct rdt_ref ref, mine = name_ref("mine"), ours = name_ref("ours");
    struct actor actor;
    rdt *conn;

    if (geteuid() != 0)
        cr_skip_test("to act as another user needs root");
    start();
    conn = node_client(&node, "trainer");
    (void)publish_stored(conn, "mine", MIB, 1);
    fill_pattern(memory, MIB, 2);
    options.flags = RDT_PUT_SNAPSHOT;
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
    rdt_close(conn);
    node_end(&node, NULL);
    remove_store();
}

Test(storage_files, other_node_fetches_what_was_restored)
{
    static struct cluster cluster;
    struct cluster_options options = {.no_meeting = true, .stream = true};
    struct rdt_ref name;
    char flag[200];
    const char *flags[] = {flag, NULL};
    rdt_object *object;
    rdt *conn;

    choose_store();
    (void)snprintf(flag, sizeof flag, "--storage-dir=%s", store);
    options.flags_of[0] = flags;
    cluster_start(&cluster, 2, &options);
    conn = node_client(&cluster.node[0], "trainer");
    (void)publish_stored(conn, "weights", 5 * MIB, 1);
    node_kill(&cluster.node[0], SIGKILL);
    cluster_restart(&cluster, 0);
    rdt_close(conn);
    conn = node_client(&cluster.node[1], "sampler");
    name = name_ref("weights");
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
