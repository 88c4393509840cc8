/* The reference of bulk bytes: a plain TCP connection between two processes, blocking, nothing in the way. The client asks for BYTES
 * by a request of 8 bytes and reads them into memory that was touched before.
 *
 *     stream serve PORT                        until it is killed; says "ready"
 *     stream fetch PORT BYTES COUNT WINDOW     prints GB/s (1e9 bytes), WINDOW requests ahead
 */
#include <sys/mman.h>

#include "bench_socket.h"

static uint8_t *touched_memory(size_t bytes, int fill)
{
    int fd = memfd_create("stream", MFD_CLOEXEC); /* as the daemons' memory is */
    void *memory;

    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0)
        bench_die("no memfd: %s", strerror(errno));
    memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        bench_die("no memory: %s", strerror(errno));
    memset(memory, fill, bytes);
    (void)close(fd);
    return memory;
}

static void write_all(int sock, const void *bytes, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t sent = send(sock, (const uint8_t *)bytes + at, n - at, MSG_NOSIGNAL);

        if (sent <= 0)
            bench_die("the other end has gone");
        at += (size_t)sent;
    }
}

static bool read_all(int sock, void *bytes, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t got = recv(sock, (uint8_t *)bytes + at, n - at, 0);

        if (got <= 0)
            return false;
        at += (size_t)got;
    }
    return true;
}

static void serve(uint16_t port)
{
    int listener = bench_listen_tcp(port), on = 1;
    size_t room = 0;
    uint8_t *memory = NULL;

    (void)puts("ready");
    (void)fflush(stdout);
    for (;;) { /* one client after the other */
        int sock = accept(listener, NULL, NULL);
        uint64_t bytes;

        if (sock < 0)
            bench_die("accept: %s", strerror(errno));
        (void)setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        while (read_all(sock, &bytes, sizeof bytes)) {
            if (bytes > room) {
                if (memory)
                    (void)munmap(memory, room);
                memory = touched_memory(bytes, 1);
                room = bytes;
            }
            write_all(sock, memory, bytes);
        }
        (void)close(sock);
    }
}

static void fetch(uint16_t port, uint64_t bytes, size_t count, size_t window)
{
    int sock = bench_connect_tcp(port);
    uint8_t *memory = touched_memory(bytes, 0);
    int64_t since = 0;
    size_t asked = 0;

    for (size_t got = 0; got <= count; got++) { /* the first is not timed: the server's memory is new */
        for (; asked <= count && asked < (got == 0 ? 1 : got + window); asked++)
            write_all(sock, &bytes, sizeof bytes);
        if (!read_all(sock, memory, bytes))
            bench_die("the server has gone");
        if (got == 0)
            since = bench_now_ns();
    }
    (void)printf("%.3f\n", (double)count * (double)bytes / (double)(bench_now_ns() - since));
    (void)close(sock);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "serve") == 0)
        serve((uint16_t)bench_number(argv[2]));
    if (argc != 6 || strcmp(argv[1], "fetch") != 0)
        bench_die("usage: stream serve PORT | stream fetch PORT BYTES COUNT WINDOW");
    fetch((uint16_t)bench_number(argv[2]), bench_number(argv[3]), bench_number(argv[4]), bench_number(argv[5]));
    return 0;
}
