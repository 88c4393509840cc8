/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors whose close takes very long or never returns. Only the user who sent them waits. */
#include <netinet/in.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "tests/integration/hostile/mute_fs.h"
#include "tests/integration/hostile/protocol_fixture.h"
#include "tests/support/keeper.h"

#define LARGE ((size_t)1 << 30)

/* ---- sockets that linger ---- */

struct stuck {
    int listener, reader, sock;
};

/* A connection whose other end does not read, with all the bytes that it takes and a linger of days. */
static void stuck_open(struct stuck *stuck)
{
    static const uint8_t bytes[65536];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct linger linger = {.l_onoff = 1, .l_linger = 1000000};
    socklen_t n = sizeof address;

    cr_assert((stuck->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) >= 0);
    cr_assert_eq(bind(stuck->listener, (struct sockaddr *)&address, sizeof address), 0);
    cr_assert_eq(listen(stuck->listener, 1), 0);
    cr_assert_eq(getsockname(stuck->listener, (struct sockaddr *)&address, &n), 0);
    cr_assert((stuck->sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) >= 0);
    cr_assert_eq(connect(stuck->sock, (struct sockaddr *)&address, sizeof address), 0);
    cr_assert((stuck->reader = accept4(stuck->listener, NULL, NULL, SOCK_CLOEXEC)) >= 0);
    while (send(stuck->sock, bytes, sizeof bytes, MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
        continue;
    cr_assert_eq(setsockopt(stuck->sock, SOL_SOCKET, SO_LINGER, &linger, sizeof linger), 0);
}

static void stuck_close(const struct stuck *stuck)
{
    (void)close(stuck->reader);
    (void)close(stuck->listener);
}

/* In a PING. The daemon stands still meanwhile, so that the message has the last descriptor: a close here would wait. */
static void send_ping_with(struct raw *raw, int take_fd)
{
    Rdt__Pb__Ping ping = RDT__PB__PING__INIT;

    (void)raw_send(raw, RDT_MSG_PING, &ping.base, &take_fd, 1);
    (void)close(take_fd);
}

static void send_urgent_with(struct raw *raw, int take_fd)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.header = {.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))}};
    struct iovec iov = {.iov_base = "", .iov_len = 1};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};

    memcpy(CMSG_DATA(&control.header), &take_fd, sizeof take_fd);
    if (sendmsg(raw->sock, &msg, MSG_NOSIGNAL | MSG_OOB) != 1)
        printf("skipped: this kernel has no urgent bytes in Unix sockets\n");
    (void)close(take_fd);
}

Test(hostile_close, lingering_socket_in_a_request_delays_nobody, .timeout = 120)
{
    struct stuck stuck;
    struct raw raw;

    begin_greeted(&raw);
    node_freeze(&node);
    stuck_open(&stuck);
    send_ping_with(&raw, stuck.sock);
    node_thaw(&node);
    cr_assert(raw_next(&raw));
    ping_works(&raw);
    others_are_well();
    raw_close(&raw);
    stuck_close(&stuck);
    end();
}

/* The kernel may drop an urgent byte, and its descriptors with it, inside recvmsg. */
Test(hostile_close, lingering_socket_with_an_urgent_byte_delays_nobody, .timeout = 120)
{
    struct stuck stuck;
    struct raw raw;

    begin_greeted(&raw);
    node_freeze(&node);
    stuck_open(&stuck);
    send_urgent_with(&raw, stuck.sock);
    cr_assert_eq(send(raw.sock, "", 1, MSG_NOSIGNAL), 1); /* it is dropped when something after it is read */
    node_thaw(&node);
    others_are_well();
    raw_close(&raw);
    others_are_well();
    stuck_close(&stuck);
    end();
}

/* The daemon does not read descriptors behind a message that breaks the protocol; closing the connection closes them. */
Test(hostile_close, lingering_sockets_left_in_a_connection_delay_nobody, .timeout = 120)
{
    enum { N = 20 };
    struct stuck stuck[N];
    struct raw raw;

    begin_greeted(&raw);
    node_freeze(&node);
    must(raw_frame(&raw, UINT32_MAX, RDT_MSG_PING, 0, 0, 4711, "", 0, NULL, 0));
    for (unsigned i = 0; i < N; i++) {
        stuck_open(&stuck[i]);
        send_ping_with(&raw, stuck[i].sock);
    }
    raw_close(&raw);
    node_thaw(&node);
    for (unsigned i = 0; i < 5; i++)
        others_are_well();
    for (unsigned i = 0; i < N; i++)
        stuck_close(&stuck[i]);
    end();
}

/* More connections than the daemon accepts before it stops: those that are left end with its listening socket. */
Test(hostile_close, lingering_sockets_in_the_backlog_do_not_hold_up_the_end, .timeout = 120)
{
    enum { N = 200 };
    static struct raw raws[N];
    struct stuck stuck[2];

    begin(NULL);
    rdt_close(bystander);
    node_freeze(&node);
    for (unsigned i = 0; i < N; i++) {
        raw_connect(&raws[i], node.socket);
        if (i == 150 || i == N - 2) {
            stuck_open(&stuck[i == 150]);
            send_ping_with(&raws[i], stuck[i == 150].sock);
        }
    }
    must(kill(node.pid, SIGTERM) == 0);
    node_thaw(&node);
    cr_assert_eq(node_result(&node), 0);
    node_check_log(&node, declared);
    for (unsigned i = 0; i < N; i++)
        raw_close(&raws[i]);
    for (unsigned i = 0; i < 2; i++)
        stuck_close(&stuck[i]);
}

/* Clients that are turned away at once: descriptors wait in their connections already. */
Test(hostile_close, lingering_sockets_of_clients_turned_away_delay_nobody, .timeout = 120)
{
    enum { N = 50 };
    static const char *const few[] = {"--owner-max-sessions=4", NULL};
    struct stuck stuck[N];
    struct raw raws[N];

    begin(&(struct node_options){.flags = few});
    node_freeze(&node);
    for (unsigned i = 0; i < N; i++) {
        raw_connect(&raws[i], node.socket);
        stuck_open(&stuck[i]);
        send_ping_with(&raws[i], stuck[i].sock);
    }
    node_thaw(&node);
    for (unsigned i = 0; i < 5; i++)
        others_are_well();
    for (unsigned i = 0; i < N; i++) {
        raw_close(&raws[i]);
        stuck_close(&stuck[i]);
    }
    end();
}

/* ---- a file system that never answers ---- */

/* Sends files of the mute file system and goes on living; its own close would never return. */
static int send_mute_files(struct actor *self, void *arg)
{
    const struct mute_fs *fs = arg;
    Rdt__Pb__Ping ping = RDT__PB__PING__INIT;
    char path[96];
    struct raw raw;

    (void)snprintf(path, sizeof path, "%s/file", fs->folder);
    raw_connect(&raw, node.socket);
    raw_hello(&raw);
    for (unsigned i = 0; i < 200; i++) {
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        cr_assert(fd >= 0, "%s: %s", path, strerror(errno));
        (void)raw_send(&raw, RDT_MSG_PING, &ping.base, &fd, 1);
    }
    for (unsigned i = 0; i < 200; i++)
        cr_assert(raw_next(&raw));
    actor_step(self);
    (void)pause();
    return 0;
}

Test(hostile_close, file_whose_close_never_returns_delays_nobody, .timeout = 120)
{
    struct mute_fs fs;
    struct actor actor;

    if (!mute_mount(&fs))
        cr_skip_test("FUSE cannot be mounted here: /dev/fuse or the right to mount is missing");
    begin(NULL);
    actor_start(&actor, send_mute_files, &fs);
    actor_await(&actor);
    for (unsigned i = 0; i < 5; i++)
        others_are_well();
    mute_end(&fs);
    actor_kill(&actor, SIGKILL);
    node_expect_fds(&node, 4);
    end();
}

/* The kernel keeps the process, and its descriptors, until the file system answers. */
Test(hostile_close, daemon_whose_closes_never_return_can_be_restarted, .timeout = 120)
{
    struct test_node next;
    struct mute_fs fs;
    struct actor actor;

    if (!mute_mount(&fs))
        cr_skip_test("FUSE cannot be mounted here: /dev/fuse or the right to mount is missing");
    begin(NULL);
    actor_start(&actor, send_mute_files, &fs);
    actor_await(&actor);
    rdt_close(bystander);
    cr_assert_eq(kill(node.pid, SIGTERM), 0);
    wait_until(LONG, node_log_has(&node, "rdtd has ended cleanly"));
    node_start(&next, &(struct node_options){.name = "next", .state_dir = node.state_dir, .socket = node.socket});
    node_end(&next, NULL);
    mute_end(&fs);
    actor_kill(&actor, SIGKILL);
    cr_assert_eq(node_result(&node), 0);
}

/* Whoever connects to the daemon's port reaches a daemon that lives: it hangs up on nonsense. */
static void must_answer_at_its_port(const struct test_node *at)
{
    static const char nonsense[64] = "nonsense";
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

    address.sin_port = htons((uint16_t)atoi(strchr(at->address, ':') + 1));
    for (unsigned i = 0; i < 16; i++) {
        int sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        cr_assert(sock >= 0 && connect(sock, (struct sockaddr *)&address, sizeof address) == 0);
        cr_assert_eq(send(sock, nonsense, sizeof nonsense, MSG_NOSIGNAL), (ssize_t)sizeof nonsense);
        struct pollfd ended = {.fd = sock, .events = POLLRDHUP};
        cr_assert_eq(poll(&ended, 1, (int)(LONG / MSEC)), 1, "connection %u reached nobody", i);
        (void)close(sock);
    }
}

/* A killed daemon keeps its locks, its sockets and its keeper, too. The next one has no other state_dir, storage_dir, socket,
 * port or keeper, and neither has the one after it; clients go on. */
Test(hostile_close, daemon_killed_while_closes_never_return_can_be_restarted, .timeout = 180)
{
    static const char *const taken_over[] = {"has been killed and does not end", "connection from 127.0.0.1:", NULL};
    struct test_keeper keeper = {0};
    struct test_node nodes[3];
    struct mute_fs fs;
    struct actor actors[2];
    char storage[160];

    if (!mute_mount(&fs))
        cr_skip_test("FUSE cannot be mounted here: /dev/fuse or the right to mount is missing");
    keeper_start(&keeper);
    (void)snprintf(storage, sizeof storage, "%s/storage", getenv("TMPDIR"));
    const char *const flags[] = {"--storage-dir", storage, "--keeper", keeper.socket, NULL};
    for (unsigned i = 0; i < 3; i++) {
        node_start(&nodes[i], &(struct node_options){.listen = i > 0 ? nodes[0].address : "127.0.0.1:0",
                                                     .flags = flags,
                                                     .state_dir = i > 0 ? nodes[0].state_dir : NULL,
                                                     .socket = i > 0 ? nodes[0].socket : NULL,
                                                     .awaited = i > 0});
        node = nodes[i];
        if (i == 0)
            bystander = node_client(&nodes[i], "bystander");
        must_ok(rdt_ping(bystander, LONG, &err)); /* its session goes on, although nobody has closed its socket */
        must_answer_at_its_port(&nodes[i]);
        if (i == 2)
            break;
        actor_start(&actors[i], send_mute_files, &fs);
        actor_await(&actors[i]);
        cr_assert_eq(kill(nodes[i].pid, SIGKILL), 0);
        wait_until(LONG, main_thread_ended(nodes[i].pid));
    }
    rdt_close(bystander);
    mute_end(&fs);
    for (unsigned i = 0; i < 2; i++)
        actor_kill(&actors[i], SIGKILL);
    node_end(&nodes[2], taken_over);
    cr_assert_eq(node_result(&nodes[0]), 128 + SIGKILL);
    cr_assert_eq(node_result(&nodes[1]), 128 + SIGKILL);
    keeper_stop(&keeper, SIGTERM);
}

/* ---- memory whose last close frees gigabytes ---- */

/* Of user and system together: the kernel measures their sum, and guesses by its ticks how it is divided. */
static double processor_seconds(const char *path)
{
    unsigned long utime = 0, stime = 0;
    char text[1024] = "", *after;
    FILE *file = fopen(path, "re");

    cr_assert(file);
    (void)!fread(text, 1, sizeof text - 1, file);
    (void)fclose(file);
    after = strrchr(text, ')');
    cr_assert(after && sscanf(after + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &utime, &stime) == 2);
    return (double)(utime + stime) / (double)sysconf(_SC_CLK_TCK);
}

struct cost {
    double loop, all; /* seconds of a processor: the loop's thread, the process */
};

static struct cost cost_now(void)
{
    char path[64];
    struct cost cost;

    (void)snprintf(path, sizeof path, "/proc/%d/task/%d/stat", (int)node.pid, (int)node.pid);
    cost.loop = processor_seconds(path);
    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)node.pid);
    cost.all = processor_seconds(path);
    return cost;
}

static int large_memfd(int seals)
{
    int fd = memfd_create("large", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    cr_assert(fd >= 0 && fallocate(fd, 0, 0, (off_t)LARGE) == 0);
    cr_assert_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

/* The pages are freed by another thread than the loop's: the process works, the loop hardly. */
static void expect_freed_elsewhere(const struct cost *before)
{
    struct cost now;

    wait_until(20 * SEC, (now = cost_now(), now.all - before->all >= 0.03));
    others_are_well();
    now = cost_now();
    must_say(now.loop - before->loop <= (now.all - before->all) / 2, "loop %.2f s of %.2f s", now.loop - before->loop,
             now.all - before->all);
}

/* A busy machine may need longer for the pages than the daemon waits at its end, which it then says. */
static void end_with_large_memory(void)
{
    static const char *const slow[] = {"(pid ", "descriptors of clients are still being closed", NULL};

    others_are_well();
    rdt_close(bystander);
    node_end(&node, slow);
}

Test(hostile_close, large_memory_in_a_request_is_freed_off_the_loop, .timeout = 120)
{
    struct raw raw;

    begin_greeted(&raw);
    struct cost before = cost_now();
    node_freeze(&node); /* the daemon's close is the last one */
    send_ping_with(&raw, large_memfd(F_SEAL_SHRINK));
    node_thaw(&node);
    cr_assert(raw_next(&raw));
    expect_freed_elsewhere(&before);
    raw_close(&raw);
    end_with_large_memory();
}

Test(hostile_close, small_import_of_large_memory_is_freed_off_the_loop, .timeout = 120)
{
    struct raw raw;

    begin_greeted(&raw);
    int fd = large_memfd(F_SEAL_SHRINK);
    Rdt__Pb__Import import = MESSAGE(import, .memory = (char *)"host", .device = (char *)"",
                                     .kind = RDT__PB__REGION_KIND__REGION_KIND_MEMFD, .bytes = 4096);
    Rdt__Pb__RegionReply *reply = (Rdt__Pb__RegionReply *)raw_reply(&raw, raw_send(&raw, RDT_MSG_IMPORT, &import.base, &fd, 1),
                                                                    &rdt__pb__region_reply__descriptor);
    rdt__pb__region_reply__free_unpacked(reply, NULL);
    (void)close(fd);
    struct cost before = cost_now();
    raw_close(&raw);
    expect_freed_elsewhere(&before);
    end_with_large_memory();
}

Test(hostile_close, refused_import_of_large_memory_is_freed_off_the_loop, .timeout = 120)
{
    struct raw raw;

    begin_greeted(&raw);
    int fd = large_memfd(0);
    Rdt__Pb__Import import = MESSAGE(import, .memory = (char *)"host", .device = (char *)"",
                                     .kind = RDT__PB__REGION_KIND__REGION_KIND_MEMFD, .bytes = 4096);
    struct cost before = cost_now();
    node_freeze(&node); /* the daemon's close is the last one */
    (void)raw_send(&raw, RDT_MSG_IMPORT, &import.base, &fd, 1);
    (void)close(fd);
    node_thaw(&node);
    refuses(&raw, RDT_INVALID, "F_SEAL_SHRINK");
    expect_freed_elsewhere(&before);
    raw_close(&raw);
    end_with_large_memory();
}

/* ---- memory that ends while its descriptor is on the way to a reader ---- */

enum { ROUNDS = 3, MAX_HOLDS = 64 };

/* The time that the last close of LARGE bytes takes: seconds of system time. */
static double seconds_to_free(void)
{
    int fd = large_memfd(0);
    struct rusage before, after;

    must(getrusage(RUSAGE_THREAD, &before) == 0 && close(fd) == 0 && getrusage(RUSAGE_THREAD, &after) == 0);
    return (double)(after.ru_stime.tv_sec - before.ru_stime.tv_sec) +
           (double)(after.ru_stime.tv_usec - before.ru_stime.tv_usec) / 1e6;
}

/* Puts a page of a large memfd of its own, of which only the object then has a region. */
static void put_large_memory(struct raw *raw)
{
    uint32_t dtype = RDT_U8, ndim = 1, region_index = 0;
    uint64_t shape = 4096, offset = 0;
    Rdt__Pb__RegionUse use = RDT__PB__REGION_USE__INIT, *uses[] = {&use};
    int fd = large_memfd(F_SEAL_SHRINK);
    Rdt__Pb__Import import = MESSAGE(import, .memory = (char *)"host", .device = (char *)"",
                                     .kind = RDT__PB__REGION_KIND__REGION_KIND_MEMFD, .bytes = 4096);
    Rdt__Pb__RegionReply *reply = (Rdt__Pb__RegionReply *)raw_reply(raw, raw_send(raw, RDT_MSG_IMPORT, &import.base, &fd, 1),
                                                                    &rdt__pb__region_reply__descriptor);

    (void)close(fd);
    use.region = reply->region;
    use.generation = reply->generation;
    rdt__pb__region_reply__free_unpacked(reply, NULL);
    Rdt__Pb__TensorList tensors =
        MESSAGE(tensor_list, .dtype = &dtype, .ndim = &ndim, .region_index = &region_index, .offset = &offset, .shape = &shape);
    tensors.n_dtype = tensors.n_ndim = tensors.n_region_index = tensors.n_offset = tensors.n_shape = 1;
    Rdt__Pb__Put put =
        MESSAGE(put, .id = (ProtobufCBinaryData){5, (uint8_t *)"large"}, .tensors = &tensors, .regions = uses, .n_regions = 1);
    protobuf_c_message_free_unpacked(
        raw_reply(raw, raw_send(raw, RDT_MSG_PUT, &put.base, NULL, 0), &rdt__pb__put_reply__descriptor), NULL);
    Rdt__Pb__ReleaseRegion release = MESSAGE(release_region, .region = use.region);
    protobuf_c_message_free_unpacked(
        raw_reply(raw, raw_send(raw, RDT_MSG_RELEASE_REGION, &release.base, NULL, 0), &rdt__pb__region_released__descriptor),
        NULL);
}

struct bytes {
    uint8_t at[8192];
    size_t n;
};

static void add_request(struct bytes *bytes, uint16_t type, uint64_t id, const ProtobufCMessage *message)
{
    size_t n = protobuf_c_message_get_packed_size(message);

    must(bytes->n + FRAME_HEADER_BYTES + n <= sizeof bytes->at);
    frame_header_encode(bytes->at + bytes->n, (uint32_t)n, type, 0, 0, id);
    bytes->n += FRAME_HEADER_BYTES + protobuf_c_message_pack(message, bytes->at + bytes->n + FRAME_HEADER_BYTES);
}

/* The number of a hold of this user. Those of its next ones mostly follow. */
static uint64_t a_hold(struct raw *raw)
{
    Rdt__Pb__FetchItem item = RDT__PB__FETCH_ITEM__INIT, *items[] = {&item};
    Rdt__Pb__Ref ref = MESSAGE(ref, .id = (ProtobufCBinaryData){6, (uint8_t *)"theirs"}, .any_owner = true);

    item.ref = &ref;
    item.handle = 1;
    Rdt__Pb__Fetch fetch =
        MESSAGE(fetch, .items = items, .n_items = 1, .mode = RDT__PB__FETCH_MODE__FETCH_MODE_SHARE, .timeout_ns = LONG);
    (void)raw_send(raw, RDT_MSG_FETCH, &fetch.base, NULL, 0);
    do
        must(raw_next(raw));
    while (raw->frame.type != RDT_EVENT_FETCH_DONE);
    Rdt__Pb__FetchDone *done = rdt__pb__fetch_done__unpack(NULL, raw->frame.length, raw->frame.payload);
    must(done && done->hold != 0);
    uint64_t hold = done->hold;
    must(close(frame_take_fd(&raw->frame, 0)) == 0);
    rdt__pb__fetch_done__free_unpacked(done, NULL);
    return hold;
}

/* Fetches the object, releases the hold (whose number it guesses, after an earlier one) and frees the object, in one write. */
static void fetch_and_free(struct raw *raw, uint64_t earlier)
{
    Rdt__Pb__FetchItem item = RDT__PB__FETCH_ITEM__INIT, *items[] = {&item};
    Rdt__Pb__Release release = RDT__PB__RELEASE__INIT;
    struct bytes bytes = {.n = 0};
    Rdt__Pb__Ref ref = MESSAGE(ref, .id = (ProtobufCBinaryData){5, (uint8_t *)"large"}, .any_owner = true);

    item.ref = &ref;
    item.handle = 2; /* its hold has the number after the earlier one */
    Rdt__Pb__Fetch fetch =
        MESSAGE(fetch, .items = items, .n_items = 1, .mode = RDT__PB__FETCH_MODE__FETCH_MODE_SHARE, .timeout_ns = LONG);
    add_request(&bytes, RDT_MSG_FETCH, 0, &fetch.base);
    for (release.hold = earlier + 1; release.hold <= earlier + MAX_HOLDS; release.hold++)
        add_request(&bytes, RDT_MSG_RELEASE, 0, &release.base);
    Rdt__Pb__Free forced = MESSAGE(free, .ref = &ref, .force = true);
    add_request(&bytes, RDT_MSG_FREE, 0, &forced.base);
    must(raw_bytes(raw, bytes.at, bytes.n));
}

static size_t objects_of_node(void)
{
    Rdt__Pb__ListReply *reply;
    Rdt__Pb__List list = MESSAGE(list, .kind = RDT__PB__LIST_KIND__LIST_KIND_OBJECTS);

    must_ok(call(bystander, RDT_MSG_LIST, &list.base, LONG, (ProtobufCMessage **)(void *)&reply, &err));
    size_t n = reply->n_objects;
    rdt__pb__list_reply__free_unpacked(reply, NULL);
    return n;
}

struct dropper {
    const struct raw *raw;
    _Atomic pid_t tid;
};

/* Receives bytes and drops the descriptors that come with them. */
static void *drop_descriptors(void *arg)
{
    struct dropper *dropper = arg;
    uint8_t bytes[65536];

    dropper->tid = gettid();
    while (recv(dropper->raw->sock, bytes, sizeof bytes, 0) > 0)
        continue;
    return NULL;
}

static bool sleeps(pid_t tid)
{
    char path[64], state = 0;

    (void)snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)tid);
    FILE *file = fopen(path, "re");
    cr_assert(file && fscanf(file, "%*d (%*[^)]) %c", &state) == 1);
    (void)fclose(file);
    return state == 'S';
}

/* An answer waits because the reader has not read the ones before it, and the memory ends meanwhile. Then the reader drops the
 * descriptor before the daemon closes its own: it runs on the same CPU and preempts the daemon as soon as the answer comes. */
Test(hostile_close, large_memory_of_an_unread_fetch_is_freed_off_the_loop, .timeout = 120)
{
    double loop = 0, all = ROUNDS * seconds_to_free();
    uint8_t data[4096] = {0};
    cpu_set_t cpu;

    begin(NULL);
    CPU_ZERO(&cpu);
    CPU_SET((size_t)sched_getcpu(), &cpu);
    must(sched_setaffinity(0, sizeof cpu, &cpu) == 0 && sched_setaffinity(node.pid, sizeof cpu, &cpu) == 0);
    Rdt__Pb__Ping ping = MESSAGE(ping, .data = (ProtobufCBinaryData){sizeof data, data});
    for (unsigned i = 0; i < ROUNDS; i++) {
        struct raw producer, reader;
        struct dropper dropper = {.raw = &reader};
        pthread_t thread;

        greeted(&producer);
        greeted(&reader);
        uint64_t earlier = a_hold(&reader);
        put_large_memory(&producer);
        must(objects_of_node() == 2);
        do
            (void)raw_send(&reader, RDT_MSG_PING, &ping.base, NULL, 0);
        while (most_queued() == 0);
        fetch_and_free(&reader, earlier);
        wait_until(LONG, objects_of_node() == 1);
        others_are_well();
        struct cost before = cost_now();
        must(setpriority(PRIO_PROCESS, (id_t)node.pid, 19) == 0); /* SCHED_IDLE starves beside other work */
        node_freeze(&node);
        while (recv(reader.sock, data, sizeof data, MSG_DONTWAIT) > 0)
            continue;
        must(pthread_create(&thread, NULL, drop_descriptors, &dropper) == 0);
        wait_until(LONG, dropper.tid != 0 && sleeps(dropper.tid));
        node_thaw(&node);
        wait_until(LONG, most_queued() == 0);
        (void)setpriority(PRIO_PROCESS, (id_t)node.pid, 0); /* needs a privilege */
        others_are_well();
        loop += cost_now().loop - before.loop;
        must(shutdown(reader.sock, SHUT_RDWR) == 0 && pthread_join(thread, NULL) == 0);
        raw_close(&reader);
        raw_close(&producer);
    }
    must_say(loop <= all / 2, "loop %.2f s, of %.2f s that freeing takes", loop, all);
    end_with_large_memory();
}

/* ---- memory that is still being written ---- */

enum { PINNED = 20 };

/* Hands over memory of which a pipe holds a page. To seal it, the kernel waits 155 ms for everybody who may still write it. */
static int put_pinned_pages(struct actor *self, void *arg)
{
    uint32_t dtype = RDT_U8, ndim = 1, region_index = 0, given = 0;
    uint64_t shape = 4096, offset = 0;
    struct raw raw;

    raw_connect(&raw, node.socket);
    raw_hello(&raw);
    actor_step(self);
    for (unsigned i = 0; i < PINNED; i++) {
        Rdt__Pb__RegionUse use = RDT__PB__REGION_USE__INIT, *uses[] = {&use};
        int fd, ends[2];

        use.region = raw_alloc(&raw, 4096, &fd, &use.generation);
        struct iovec page =
            (struct iovec){.iov_base = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), .iov_len = 4096};
        must(page.iov_base != MAP_FAILED && pipe(ends) == 0 && vmsplice(ends[1], &page, 1, 0) == 4096);
        must(munmap(page.iov_base, 4096) == 0 && close(fd) == 0);
        Rdt__Pb__TensorList tensors = MESSAGE(tensor_list, .dtype = &dtype, .ndim = &ndim, .region_index = &region_index,
                                              .offset = &offset, .shape = &shape);
        tensors.n_dtype = tensors.n_ndim = tensors.n_region_index = tensors.n_offset = tensors.n_shape = 1;
        Rdt__Pb__Put put = MESSAGE(put, .tensors = &tensors, .regions = uses, .n_regions = 1, .flags = RDT_PUT_SNAPSHOT,
                                   .given = &given, .n_given = 1);
        (void)raw_send(&raw, RDT_MSG_PUT, &put.base, NULL, 0);
        must(raw_next(&raw));
        (void)close(ends[0]);
        (void)close(ends[1]);
    }
    raw_close(&raw);
    return 0;
}

/* Of the others' requests many are answered while one of these waits. */
Test(hostile_close, sealing_memory_that_is_held_delays_nobody, .timeout = 120)
{
    struct actor actor;
    unsigned n_pings = 0;

    begin(NULL);
    actor_start(&actor, put_pinned_pages, NULL);
    actor_await(&actor);
    struct pollfd ended = (struct pollfd){.fd = actor.pidfd, .events = POLLIN};
    do {
        must_ok(rdt_ping(bystander, LONG, &err));
        n_pings++;
    } while (poll(&ended, 1, 0) == 0);
    actor_wait(&actor);
    must_say(n_pings >= 10 * PINNED, "only %u requests were answered meanwhile", n_pings);
    end();
}
