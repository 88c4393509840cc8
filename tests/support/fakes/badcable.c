/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/fakes/badcable.h"

#include <linux/ethtool.h>
#include <linux/if_packet.h>
#include <linux/sockios.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/check.h"
#include "tests/support/tensors.h"

#define FRAME_BYTES 2048 /* an Ethernet frame and some */
#define QUEUE_MAX 16384  /* frames under way; more are lost, as on any cable with too small a buffer */
#define HOLD_US 3000
#define AT_ONCE 64 /* frames before the other way has its turn */
#define SOCKET_BYTES (16 << 20)

/* ---- what test and process share ---- */

struct way_shared {
    atomic_uint loss_pm, duplicate_pm, reorder_pm, delay_us, jitter_us, hold_us, flap_ms;
    atomic_bool dead;
    atomic_ullong flap_since_ns;
    atomic_ullong passed, lost, doubled, disordered;
};

struct badcable_shared {
    struct way_shared way[BADCABLE_WAYS];
    atomic_ullong giants; /* segments of an offload that was not switched off */
};

/* ---- ends without offloads, so that the captured frames are those of a real cable ---- */

static bool plain(const char *device)
{
    static const uint32_t off[] = {ETHTOOL_STSO, ETHTOOL_SGSO, ETHTOOL_SGRO, ETHTOOL_STXCSUM};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool all = fd >= 0;

    for (unsigned i = 0; all && i < sizeof off / sizeof off[0]; i++) {
        struct ethtool_value value = {.cmd = off[i], .data = 0};
        struct ifreq request = {.ifr_data = (char *)&value};
        (void)snprintf(request.ifr_name, sizeof request.ifr_name, "%s", device);
        all = ioctl(fd, SIOCETHTOOL, &request) == 0;
    }
    if (fd >= 0)
        (void)close(fd);
    return all;
}

static void make_plain(int ns, const char *device)
{
    int status;
    pid_t pid = fork();

    must(pid >= 0);
    if (pid == 0) {
        net_enter(ns);
        _exit(plain(device) ? 0 : 1);
    }
    must(waitpid(pid, &status, 0) == pid);
    must_say(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s keeps its offloads", device);
}

/* ---- the process ---- */

struct frame {
    struct frame *next, *before;
    int64_t due_ns;
    size_t bytes;
    uint8_t data[FRAME_BYTES];
};

struct way {
    struct way_shared *shared;
    int from, to;
    struct frame *first, *last; /* by due_ns */
    unsigned queued;
    int64_t last_due_ns; /* of the frames that keep their order */
};

struct process {
    struct badcable_shared *shared;
    struct way way[BADCABLE_WAYS];
    struct frame *spare;
    uint64_t random;
};

static bool chance(struct process *process, unsigned per_mille)
{
    return per_mille > 0 && next_random(&process->random) % 1000 < per_mille;
}

static bool is_dead(struct way_shared *shared)
{
    unsigned flap_ms = shared->flap_ms;

    return shared->dead ||
           (flap_ms > 0 && ((uint64_t)now_ns() - shared->flap_since_ns) / ((uint64_t)flap_ms * (uint64_t)MSEC) % 2 == 0);
}

static struct frame *new_frame(struct process *process)
{
    struct frame *frame = process->spare;

    if (frame)
        process->spare = frame->next;
    else
        must((frame = malloc(sizeof *frame)) != NULL);
    return frame;
}

static void drop(struct process *process, struct frame *frame)
{
    frame->next = process->spare;
    process->spare = frame;
}

static void enqueue(struct way *way, struct frame *frame)
{
    struct frame *before = way->last;

    while (before && before->due_ns > frame->due_ns)
        before = before->before;
    frame->before = before;
    frame->next = before ? before->next : way->first;
    *(frame->next ? &frame->next->before : &way->last) = frame;
    *(before ? &before->next : &way->first) = frame;
    way->queued++;
}

static void lose(struct process *process, struct way *way, struct frame *frame)
{
    way->shared->lost++;
    drop(process, frame);
}

/* When it is to arrive. Its own turn, unless it is one of those that come late. */
static void schedule(struct process *process, struct way *way, struct frame *frame)
{
    struct way_shared *shared = way->shared;
    unsigned jitter = shared->jitter_us, hold = shared->hold_us;

    if (way->queued >= QUEUE_MAX) {
        lose(process, way, frame);
        return;
    }
    frame->due_ns = now_ns() + (shared->delay_us + (jitter ? next_random(&process->random) % (jitter + 1) : 0)) * INT64_C(1000);
    if (frame->due_ns < way->last_due_ns)
        frame->due_ns = way->last_due_ns;
    if (chance(process, shared->reorder_pm)) {
        frame->due_ns += (hold ? hold : HOLD_US) * INT64_C(1000);
        shared->disordered++;
    } else {
        way->last_due_ns = frame->due_ns;
    }
    enqueue(way, frame);
}

static void receive(struct process *process, struct way *way)
{
    for (unsigned n = 0; n < AT_ONCE; n++) {
        struct frame *frame = new_frame(process), *copy;
        ssize_t bytes = recv(way->from, frame->data, sizeof frame->data, MSG_TRUNC | MSG_DONTWAIT);
        if (bytes < 0) { /* nothing more, or the device is down for now */
            drop(process, frame);
            return;
        }
        if (bytes > (ssize_t)ETH_FRAME_LEN + 4) {
            process->shared->giants++;
            drop(process, frame);
            continue;
        }
        frame->bytes = (size_t)bytes;
        if (is_dead(way->shared) || chance(process, way->shared->loss_pm)) {
            lose(process, way, frame);
            continue;
        }
        if (chance(process, way->shared->duplicate_pm)) {
            copy = new_frame(process);
            memcpy(copy->data, frame->data, frame->bytes);
            copy->bytes = frame->bytes;
            way->shared->doubled++;
            schedule(process, way, copy);
        }
        schedule(process, way, frame);
    }
}

static void deliver(struct process *process, struct way *way)
{
    int64_t now = now_ns();

    while (way->first && way->first->due_ns <= now) {
        struct frame *frame = way->first;
        way->first = frame->next;
        *(way->first ? &way->first->before : &way->last) = NULL;
        way->queued--;
        if (is_dead(way->shared) || send(way->to, frame->data, frame->bytes, 0) < 0) {
            lose(process, way, frame);
            continue;
        }
        way->shared->passed++;
        drop(process, frame);
    }
}

static int open_end(const char *device)
{
    struct sockaddr_ll at = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL)};
    int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0), on = 1, bytes = SOCKET_BYTES;

    must(fd >= 0);
    must(setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof on) == 0);
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes);
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes);
    at.sll_ifindex = (int)if_nametoindex(device);
    must(at.sll_ifindex > 0 && bind(fd, (struct sockaddr *)&at, sizeof at) == 0);
    return fd;
}

static void pause_until_due(const struct process *process, struct pollfd fds[3])
{
    int64_t due = INT64_MAX, left = 0;

    for (unsigned i = 0; i < BADCABLE_WAYS; i++)
        if (process->way[i].first && process->way[i].first->due_ns < due)
            due = process->way[i].first->due_ns;
    if (due != INT64_MAX)
        left = due > now_ns() ? due - now_ns() : 0;
    struct timespec pause = (struct timespec){.tv_sec = left / SEC, .tv_nsec = left % SEC};
    (void)ppoll(fds, 3, due == INT64_MAX ? NULL : &pause, NULL);
}

struct start {
    struct badcable_shared *shared;
    unsigned node;
    uint64_t seed;
    int hub;
};

/* Copies until the test says that it is enough. */
static int copy_frames(struct actor *self, void *arg)
{
    const struct start *start = arg;
    struct process process = {.shared = start->shared, .random = start->seed};
    char near[16], far[16];

    net_enter(start->hub);
    (void)snprintf(near, sizeof near, "p%u", start->node);
    (void)snprintf(far, sizeof far, "q%u", start->node);
    int a = open_end(near);
    int b = open_end(far);
    process.way[BADCABLE_OUT] = (struct way){.shared = &start->shared->way[BADCABLE_OUT], .from = a, .to = b};
    process.way[BADCABLE_IN] = (struct way){.shared = &start->shared->way[BADCABLE_IN], .from = b, .to = a};
    /* A cable does not wait for a processor; where this is refused it is a slower one. */
    (void)sched_setscheduler(0, SCHED_RR, &(struct sched_param){.sched_priority = 1});
    (void)prctl(PR_SET_TIMERSLACK, 1);
    actor_step(self);
    for (;;) {
        struct pollfd fds[3] = {
            {.fd = a, .events = POLLIN}, {.fd = b, .events = POLLIN}, {.fd = self->channel, .events = POLLIN}};
        pause_until_due(&process, fds);
        if (fds[2].revents)
            return 0;
        for (unsigned i = 0; i < BADCABLE_WAYS; i++) {
            receive(&process, &process.way[i]);
            deliver(&process, &process.way[i]);
        }
    }
}

/* ---- from outside ---- */

static void in_hub(const struct badcable *cable, const char *format)
{
    char command[256];

    (void)snprintf(command, sizeof command, "N=%u; %s", cable->node, format);
    must_say(net_run(cable->net->hub, "%s", command) == 0, "`%s` fails", command);
}

void badcable_put(struct badcable *cable, struct test_net *net, unsigned node, uint64_t seed)
{
    struct start start = {.node = node, .seed = seed, .hub = net->hub};
    char device[16];

    *cable = (struct badcable){.net = net, .node = node};
    cable->shared = mmap(NULL, sizeof *cable->shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(cable->shared != MAP_FAILED);
    start.shared = cable->shared;
    in_hub(cable, "ip link add q$N type veth peer name r$N && ip link set q$N up && ip link set r$N up");
    make_plain(net->ns[node], "eth0");
    for (unsigned i = 0; i < 3; i++) {
        (void)snprintf(device, sizeof device, "%c%u", "pqr"[i], node);
        make_plain(net->hub, device);
    }
    actor_start_keeping(&cable->process, copy_frames, &start, net->hub);
    actor_await(&cable->process);
    in_hub(cable, "ip link set p$N nomaster && ip link set r$N master br0");
}

static void set_way(struct way_shared *shared, const struct badcable_faults *faults)
{
    shared->flap_since_ns = (uint64_t)now_ns();
    shared->loss_pm = faults->loss_pm;
    shared->duplicate_pm = faults->duplicate_pm;
    shared->reorder_pm = faults->reorder_pm;
    shared->delay_us = faults->delay_us;
    shared->jitter_us = faults->jitter_us;
    shared->hold_us = faults->hold_us;
    shared->flap_ms = faults->flap_ms;
    shared->dead = faults->dead;
}

void badcable_set(struct badcable *cable, enum badcable_way way, const struct badcable_faults *faults)
{
    for (unsigned i = 0; i < BADCABLE_WAYS; i++)
        if (way == BADCABLE_WAYS || way == i)
            set_way(&cable->shared->way[i], faults);
}

void badcable_heal(struct badcable *cable)
{
    badcable_set(cable, BADCABLE_WAYS, &(struct badcable_faults){0});
}

struct badcable_counts badcable_counts(const struct badcable *cable)
{
    struct badcable_counts counts = {0};

    for (unsigned i = 0; i < BADCABLE_WAYS; i++) {
        struct way_shared *shared = &cable->shared->way[i];
        counts.passed += shared->passed;
        counts.lost += shared->lost;
        counts.doubled += shared->doubled;
        counts.disordered += shared->disordered;
    }
    return counts;
}

void badcable_take(struct badcable *cable)
{
    uint64_t giants = cable->shared->giants;

    in_hub(cable, "ip link set r$N nomaster && ip link set p$N master br0");
    actor_step(&cable->process);
    actor_wait(&cable->process);
    in_hub(cable, "ip link delete q$N");
    must_say(giants == 0, "%llu frames were larger than a cable carries", (unsigned long long)giants);
    (void)munmap(cable->shared, sizeof *cable->shared);
    cable->shared = NULL;
}
