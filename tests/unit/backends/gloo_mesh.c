/* SPDX-License-Identifier: Apache-2.0 */
/* backends/gloo/mesh: two ranks in this process, and strangers that connect to their ports. An exception that Gloo's thread
 * does not catch would end this process. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "backends/gloo/mesh.h"
#include "tests/support/check.h"

#define OFFER_ROOM 1024u
#define BIG ((size_t)64 << 20)

static const struct mesh_id id = {.token = "sixteen bytes...", .epoch = 3};
static struct mesh_device *device;
static struct mesh *mesh[2];
static uint8_t offer[2][OFFER_ROOM];
static size_t offer_bytes[2];
static char why[2][MESH_WHY_BYTES];

static void make(unsigned rank, const struct mesh_id *with)
{
    cr_assert(mesh_create(device, with, rank, 2, &mesh[rank], why[rank]), "%s", why[rank]);
    cr_assert(mesh_offer(mesh[rank], offer[rank], OFFER_ROOM, &offer_bytes[rank], why[rank]), "%s", why[rank]);
}

static void setup(void)
{
    (void)signal(SIGPIPE, SIG_IGN); /* as the daemon does, because Gloo writes to closed sockets */
    cr_assert(mesh_device_create("", "127.0.0.1", &device, why[0]), "%s", why[0]);
    make(0, &id);
    make(1, &id);
}

static void teardown(void)
{
    for (unsigned i = 0; i < 2; i++) {
        mesh_close(mesh[i]);
        mesh_destroy(mesh[i]);
    }
    mesh_device_destroy(device);
}

TestSuite(gloo_mesh, .init = setup, .fini = teardown, .timeout = 60);

/* ---- two ranks ---- */

static void *connect_second(void *arg)
{
    return mesh_connect(mesh[1], 0, offer[0], offer_bytes[0], why[1]) ? mesh[1] : NULL;
}

/* Returns which of the two ranks failed: bit 0 for the first, bit 1 for the second. */
static unsigned connect_both(void)
{
    pthread_t thread;
    void *second;

    cr_assert_eq(pthread_create(&thread, NULL, connect_second, NULL), 0);
    bool first = mesh_connect(mesh[0], 1, offer[1], offer_bytes[1], why[0]);
    cr_assert_eq(pthread_join(thread, &second), 0);
    return !first + 2u * !second;
}

static void must_connect(void)
{
    cr_assert_eq(connect_both(), 0, "%s; %s", why[0], why[1]);
}

struct move {
    pthread_t thread;
    unsigned rank;
    bool sends, done;
    uint8_t *bytes;
    size_t n;
    char why[MESH_WHY_BYTES];
};

static void *run_move(void *arg)
{
    struct move *move = arg;

    move->done = move->sends ? mesh_send(mesh[move->rank], !move->rank, 1, move->bytes, move->n, move->why)
                             : mesh_recv(mesh[move->rank], !move->rank, 1, move->bytes, move->n, move->why);
    return NULL;
}

static void start(struct move *move, unsigned rank, bool sends, size_t n)
{
    *move = (struct move){.rank = rank, .sends = sends, .bytes = malloc(n), .n = n};
    cr_assert_not_null(move->bytes);
    for (size_t i = 0; i < n; i++)
        move->bytes[i] = sends ? (uint8_t)(i * 7) : 0;
    cr_assert_eq(pthread_create(&move->thread, NULL, run_move, move), 0);
}

static bool end(struct move *move)
{
    cr_assert_eq(pthread_join(move->thread, NULL), 0);
    return move->done;
}

static void must_move(void)
{
    struct move out, in;

    for (unsigned from = 0; from < 2; from++) {
        start(&out, from, true, 300000);
        start(&in, !from, false, 300000);
        cr_assert(end(&out) && end(&in), "%s; %s", out.why, in.why);
        cr_assert_eq(memcmp(out.bytes, in.bytes, out.n), 0);
        free(out.bytes);
        free(in.bytes);
    }
}

/* ---- strangers ---- */

/* Returns the address at which the rank listens for the other one. */
static struct sockaddr_in door_of(unsigned rank)
{
    struct sockaddr_in address;

    /* In the offer of rank 0, only the empty entry for rank 0 precedes the one for rank 1. */
    memcpy(&address, offer[rank] + (rank == 0 ? 2 : 1) * sizeof(uint32_t), sizeof address);
    cr_assert_eq(address.sin_family, AF_INET);
    return address;
}

static int knock(unsigned rank)
{
    struct sockaddr_in address = door_of(rank);
    int sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    cr_assert(sock >= 0);
    if (connect(sock, (const struct sockaddr *)&address, sizeof address) == 0)
        return sock;
    (void)close(sock);
    return -1;
}

static void reset(int sock)
{
    const struct linger at_once = {.l_onoff = 1};

    (void)setsockopt(sock, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    (void)close(sock);
}

static void must_be_shut_out(int sock)
{
    char byte;

    cr_assert_leq(recv(sock, &byte, 1, 0), 0);
    (void)close(sock);
}

Test(gloo_mesh, ranks_connect_and_move)
{
    must_connect();
    must_move();
}

static unsigned count_threads(void)
{
    DIR *dir = opendir("/proc/self/task");
    unsigned n = 0;

    cr_assert(dir);
    while (readdir(dir))
        n++;
    (void)closedir(dir);
    return n;
}

/* It would wake a hundred times a second. */
Test(gloo_mesh, device_has_no_thread_of_gloo_without_a_mesh)
{
    unsigned with = count_threads();

    mesh_discard(mesh[0]);
    mesh_discard(mesh[1]);
    wait_until(10 * SEC, count_threads() == with - 1);
    make(0, &id);
    make(1, &id);
    cr_assert_eq(count_threads(), with);
    must_connect();
    must_move();
}

Test(gloo_mesh, resets_at_the_door_end_nothing)
{
    for (unsigned i = 0; i < 400; i++) {
        int sock = knock(i % 2);
        cr_assert(sock >= 0, "nobody listens after %u", i);
        reset(sock);
    }
    must_connect();
    must_move();
}

Test(gloo_mesh, nonsense_at_the_door_is_shut_out)
{
    char nonsense[4096];

    memset(nonsense, 0x7f, sizeof nonsense);
    for (unsigned i = 0; i < 20; i++) {
        int sock = knock(i % 2);
        cr_assert(sock >= 0);
        cr_assert_gt(send(sock, nonsense, sizeof nonsense, MSG_NOSIGNAL), 0);
        must_be_shut_out(sock);
    }
    must_connect();
    must_move();
}

/* Connections that send nothing, or only a part of a greeting, do not keep the other rank out: the oldest make room. */
Test(gloo_mesh, silent_crowd_at_the_door_keeps_nobody_out)
{
    enum { CROWD = 60 };
    int socks[2][CROWD];

    for (unsigned rank = 0; rank < 2; rank++)
        for (unsigned i = 0; i < CROWD; i++) {
            socks[rank][i] = knock(rank);
            cr_assert(socks[rank][i] >= 0);
            if (i % 2)
                cr_assert_eq(send(socks[rank][i], "sixteen", 7, MSG_NOSIGNAL), 7);
        }
    must_connect();
    must_move();
    for (unsigned rank = 0; rank < 2; rank++)
        for (unsigned i = 0; i < CROWD; i++)
            (void)close(socks[rank][i]);
}

/* Greetings of another group, of another epoch, for the other rank, and one of zeros. */
Test(gloo_mesh, stranger_with_a_wrong_greeting_is_not_let_in)
{
    static const struct hello {
        uint8_t token[16];
        uint64_t epoch;
        uint32_t from, to;
    } wrong[] = {{"another group's.", 3, 1, 0}, {"sixteen bytes...", 2, 1, 0}, {"sixteen bytes...", 3, 0, 1}, {"", 0, 0, 0}};

    for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        int sock = knock(0);
        cr_assert_eq(send(sock, &wrong[i], sizeof wrong[i], MSG_NOSIGNAL), sizeof wrong[i]);
        must_be_shut_out(sock);
    }
    must_connect();
    must_move();
}

/* Strangers connect and disconnect in every way while the ranks connect, move bytes and close, again and again. */
struct crowd {
    pthread_t thread;
    atomic_bool enough;
};

static void *push(void *arg)
{
    struct crowd *crowd = arg;
    uint8_t said[64] = {0}; /* the right token, but no rank */

    memcpy(said, id.token, sizeof id.token);
    for (unsigned i = 0; !atomic_load(&crowd->enough); i++) {
        struct sockaddr_in address;
        int sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        memcpy(&address, offer[i % 2] + (i % 2 == 0 ? 2 : 1) * sizeof(uint32_t), sizeof address);
        if (connect(sock, (const struct sockaddr *)&address, sizeof address) == 0 && i % 3)
            (void)send(sock, said, i % 5 * 16, MSG_NOSIGNAL);
        if (i % 4)
            reset(sock);
        else
            (void)close(sock);
    }
    return NULL;
}

Test(gloo_mesh, crowd_in_the_way_disturbs_no_life)
{
    struct crowd crowd = {.enough = false};

    for (unsigned round = 0; round < 15; round++) {
        atomic_store(&crowd.enough, false);
        cr_assert_eq(pthread_create(&crowd.thread, NULL, push, &crowd), 0);
        must_connect();
        must_move();
        for (unsigned i = 0; i < 2; i++) {
            mesh_close(mesh[i]);
            mesh_destroy(mesh[i]);
        }
        atomic_store(&crowd.enough, true);
        cr_assert_eq(pthread_join(crowd.thread, NULL), 0);
        make(0, &id);
        make(1, &id);
    }
}

/* ---- a connection that is cut ---- */

/* Shuts down the connections between the two ranks: every connection that this process has with itself. */
static void cut_all(void)
{
    DIR *fds = opendir("/proc/self/fd");

    cr_assert_not_null(fds);
    for (struct dirent *entry; (entry = readdir(fds));) {
        struct sockaddr_in there;
        socklen_t bytes = sizeof there;
        int fd = atoi(entry->d_name);
        if (fd > 2 && getpeername(fd, (struct sockaddr *)&there, &bytes) == 0 && there.sin_family == AF_INET)
            (void)shutdown(fd, SHUT_RDWR);
    }
    (void)closedir(fds);
}

/* Some of the bytes have arrived, and both ends wait for the rest. */
Test(gloo_mesh, cut_in_the_middle_of_a_message_is_heard_at_both_ends)
{
    struct move in, out;

    must_connect();
    must_move();
    start(&in, 0, false, BIG);
    start(&out, 1, true, BIG);
    while (!atomic_load((_Atomic uint8_t *)&in.bytes[100001])) /* until some have arrived: (100001 * 7) % 256 is not 0 */
        ;
    cut_all();
    cr_assert(!end(&in), "it came whole before it was cut");
    (void)end(&out); /* it succeeds if the kernel had taken the last bytes */
    cr_assert(in.why[0]);
    free(in.bytes);
    free(out.bytes);
}

Test(gloo_mesh, cut_is_noticed_by_a_rank_that_waits_for_an_unsent_message)
{
    struct move in;

    must_connect();
    start(&in, 0, false, 100);
    cut_all();
    cr_assert(!end(&in) && in.why[0]);
    free(in.bytes);
}
