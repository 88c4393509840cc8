/* SPDX-License-Identifier: Apache-2.0 */
/* rdtctl perf --serve: puts the objects, and sends the bytes, that the other end asks for. */
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/ctl/ctl_progress.h"
#include "client/ctl/perf/perf.h"

#define MAX_OBJECTS 8u /* of one connection */

struct served { /* one connection */
    struct ctl *ctl;
    int sock;
    uint8_t *memory[MAX_OBJECTS];
    struct rdt_ref refs[MAX_OBJECTS];
    unsigned n;
    uint8_t *bytes; /* what SEND sends, [n_bytes] */
    uint64_t n_bytes;
};

static enum rdt_status put(struct served *served, uint64_t bytes, char line_p[PERF_LINE_BYTES], struct rdt_error *err)
{
    struct rdt_put_options options = RDT_INIT(options);
    struct rdt_tensor tensor = {.dtype = RDT_U8, .ndim = 1, .shape = (int64_t[]){(int64_t)bytes}};
    char text[RDT_REF_TEXT_BYTES];
    enum rdt_status status;
    void *memory;

    if (served->n == MAX_OBJECTS)
        return rdt_error_set(err, RDT_LIMIT, "at most %u objects", MAX_OBJECTS);
    status = rdt_alloc(served->ctl->rdt, bytes, &memory, err);
    if (status != RDT_OK)
        return status;
    memset(memory, 0x5a, bytes);
    tensor.data = memory;
    options.visibility = RDT_VISIBLE_TO_ALL;
    status = rdt_put(served->ctl->rdt, &tensor, 1, &options, &served->refs[served->n], err);
    if (status != RDT_OK) {
        (void)rdt_dealloc(served->ctl->rdt, memory, NULL);
        return status;
    }
    served->memory[served->n] = memory;
    rdt_ref_to_text(&served->refs[served->n++], text);
    (void)snprintf(line_p, PERF_LINE_BYTES, "REF %s\n", text);
    return RDT_OK;
}

static enum rdt_status send_bytes(struct served *served, uint64_t bytes, struct rdt_error *err)
{
    if (served->n_bytes < bytes) {
        free(served->bytes);
        served->bytes = malloc(bytes);
        served->n_bytes = served->bytes ? bytes : 0;
        if (!served->bytes)
            return rdt_error_set(err, RDT_NO_MEMORY, "no memory for %" PRIu64 " bytes", bytes);
        memset(served->bytes, 0x5a, bytes);
    }
    return perf_write(served->sock, served->bytes, bytes, err);
}

/* Answers one line. An error ends the connection. */
static enum rdt_status answer(struct served *served, const char *line, struct rdt_error *err)
{
    char reply[PERF_LINE_BYTES];
    uint64_t bytes;
    char word[8], end;

    if (sscanf(line, "%7s %" SCNu64 "%c", word, &bytes, &end) != 2 || bytes == 0 || bytes > PERF_MAX_BYTES)
        return rdt_error_set(err, RDT_PROTOCOL, "the other end is not rdtctl perf");
    if (strcmp(word, "SEND") == 0)
        return send_bytes(served, bytes, err);
    if (strcmp(word, "PUT") != 0)
        return rdt_error_set(err, RDT_PROTOCOL, "the other end is not rdtctl perf of this version");
    if (put(served, bytes, reply, err) != RDT_OK)
        (void)snprintf(reply, sizeof reply, "ERROR %.900s\n", err->msg);
    return perf_write(served->sock, reply, strlen(reply), err);
}

/* The loop of one connection. A signal ends it between two lines. */
static void serve_one(struct ctl *ctl, int sock, int signals)
{
    struct served served = {.ctl = ctl, .sock = sock};
    char line[PERF_LINE_BYTES];
    struct rdt_error err;
    enum rdt_status status = RDT_OK;

    while (status == RDT_OK) {
        struct pollfd fds[] = {{.fd = signals, .events = POLLIN}, {.fd = sock, .events = POLLIN}};

        if (poll(fds, 2, PERF_SILENCE_MS) <= 0 || fds[0].revents)
            break;
        status = perf_read_line(sock, line, &err);
        if (status == RDT_OK)
            status = answer(&served, line, &err);
    }
    if (status != RDT_OK && status != RDT_DISCONNECTED)
        fprintf(stderr, "rdtctl: perf: %s\n", err.msg);
    for (unsigned i = 0; i < served.n; i++) {
        (void)rdt_free(ctl->rdt, &served.refs[i], true, NULL);
        (void)rdt_dealloc(ctl->rdt, served.memory[i], NULL);
    }
    free(served.bytes);
    (void)close(sock);
}

int perf_serve(struct ctl *ctl, const char *address)
{
    int64_t timeout_ns = ctl_timeout(ctl, RDT_FOREVER);
    int64_t deadline_ns = timeout_ns < 0 ? INT64_MAX : ctl_now_ns() + timeout_ns;
    struct rdt_error err = {0};
    int signals = -1, listener, one = 1;

    if (ctl_connect(ctl, &err))
        return ctl_fail(ctl, &err);
    listener = perf_open(address, true, &err);
    if (listener < 0)
        return ctl_fail(ctl, &err);
    signals = ctl_signals(&err);
    if (signals < 0) {
        (void)close(listener);
        return ctl_fail(ctl, &err);
    }
    if (!ctl->quiet)
        fprintf(stderr, "rdtctl: perf: serves whoever connects to %s, until it is interrupted\n", address);
    while (!ctl_signalled(signals) && ctl_now_ns() < deadline_ns) {
        struct pollfd fds[] = {{.fd = signals, .events = POLLIN}, {.fd = listener, .events = POLLIN}};
        int64_t left_ms = deadline_ns == INT64_MAX ? -1 : (deadline_ns - ctl_now_ns()) / 1000000 + 1;
        int sock;

        if (poll(fds, 2, (int)(left_ms > INT32_MAX ? INT32_MAX : left_ms)) <= 0 || !fds[1].revents)
            continue;
        sock = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (sock < 0)
            continue;
        (void)setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        serve_one(ctl, sock, signals);
    }
    (void)close(listener);
    (void)close(signals);
    return CTL_OK;
}
