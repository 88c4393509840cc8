/* The listening socket: who knocks becomes a lane that has to say who it is, and soon.
 *
 * Strangers cost little and hold nothing up: there are at most MAX_STRANGERS of them, the oldest makes room for the next, and each
 * has HELLO_NS (lane.c).
 */
#include <errno.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "backends/common/address.h"
#include "backends/stream/stream.h"

#define BACKLOG 256
#define ACCEPTS_A_TURN 64

void listen_socket(int fd, const struct settings *settings)
{
    const int on = 1, third = (int)(settings->dead_after_s + 2) / 3, probes = 2;
    const unsigned dead_after_ms = settings->dead_after_s * 1000;

    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    /* What is sent and not acknowledged, and an idle connection whose other end has vanished. */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &dead_after_ms, sizeof dead_after_ms);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &third, sizeof third);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &third, sizeof third);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

static bool bind_one(struct transport *transport, struct sockaddr_storage *address, uint16_t port)
{
    socklen_t bytes = address->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);

    ((struct sockaddr_in *)address)->sin_port = htons(port); /* at the same place in both */
    return !bind(transport->listener, (const struct sockaddr *)address, bytes) && !listen(transport->listener, BACKLOG);
}

enum rdt_status listen_open(struct transport *transport, struct rdt_error *err)
{
    const struct settings *settings = &transport->settings;
    struct sockaddr_storage address;
    socklen_t bytes = sizeof transport->address;
    unsigned port = settings->first_port;
    const int on = 1;

    (void)address_parse(settings->listen, &address);
    for (;; port++) {
        transport->listener = socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (transport->listener < 0)
            return rdt_error_sys(err, errno, "making a socket for peers");
        (void)setsockopt(transport->listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind_one(transport, &address, (uint16_t)port))
            break;
        if (errno != EADDRINUSE || port >= settings->last_port)
            return rdt_error_set(err, RDT_UNSUPPORTED, "cannot listen on %s port %u: %s", settings->listen, port,
                                 strerror(errno));
        (void)close(transport->listener);
        transport->listener = -1;
    }
    if (getsockname(transport->listener, (struct sockaddr *)&transport->address, &bytes))
        return rdt_error_sys(err, errno, "asking where we listen");
    return RDT_OK;
}

/* The lock is held. */
static void make_room(struct transport *transport)
{
    struct lane *oldest;

    if (transport->n_strangers < MAX_STRANGERS || ring_empty(&transport->strangers))
        return;
    oldest = container_of(transport->strangers.next, struct lane, ring);
    ring_remove(&oldest->ring);
    transport->n_strangers--;
    oldest->evicted = true;
    thread_attend(oldest);
}

void listen_accept(struct transport *transport, struct thread *thread)
{
    for (unsigned i = 0; i < ACCEPTS_A_TURN; i++) {
        int fd = accept4(transport->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        struct lane *lane;

        if (fd < 0) {
            /* Nothing can be accepted for want of descriptors or memory: not asked again before the next tick. */
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
                thread->deaf = true;
                (void)epoll_ctl(thread->epoll, EPOLL_CTL_DEL, transport->listener, NULL);
            }
            return; /* else: there is none, or it has gone again */
        }
        listen_socket(fd, &transport->settings);
        (void)pthread_mutex_lock(&transport->lock);
        make_room(transport);
        lane = lane_create(transport, NULL, fd);
        if (lane)
            thread_attend(lane);
        (void)pthread_mutex_unlock(&transport->lock);
        if (!lane)
            (void)close(fd);
    }
}
