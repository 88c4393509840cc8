/* SPDX-License-Identifier: Apache-2.0 */
/* The loop, and the socket to rdtd. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "etcd.h"
#include "proto/std_fds.h"

#define SOCKET_FD 3
#define BEAT_MS 1000

static struct etcd etcd;

/* ---- from rdtd ---- */

static bool is_whole(const Rdt__Pb__EtcdConfig *config)
{
    return config && config->n_endpoints > 0 && config->node.len == 16 && config->boot_id.len == 16 && config->ttl_ns > 0 &&
           strlen(config->prefix) < 200 && strlen(config->address) < 65;
}

static void take(struct frame *frame)
{
    if (frame->type == RDT__PB__ETCD_MESSAGE__ETCD_CONFIG && !etcd.config) {
        etcd.config = rdt__pb__etcd_config__unpack(NULL, frame->length, frame->payload);
        if (!is_whole(etcd.config))
            etcd.done = true;
        else
            membership_begin(&etcd);
    } else if (frame->type == RDT__PB__ETCD_MESSAGE__ETCD_LEAVE && etcd.config) {
        membership_leave(&etcd);
    }
}

static void read_socket(void)
{
    struct frame frame;
    struct rdt_error err;
    size_t n;

    for (unsigned i = 0; i < 16 && !etcd.done; i++) {
        enum rdt_status status = frame_reader_recv(&etcd.reader, SOCKET_FD, &n, &err);
        while (frame_reader_next(&etcd.reader, &frame, &err) == RDT_OK)
            take(&frame);
        if (status == RDT_AGAIN)
            return;
        if (status != RDT_OK) {
            etcd.done = !etcd.leaving; /* waits for the end of a lease that is being revoked */
            return;
        }
    }
}

/* ---- to rdtd ---- */

static void tell_state(void)
{
    static int64_t told_ms;
    Rdt__Pb__EtcdState message = RDT__PB__ETCD_STATE__INIT;
    char error[1024];
    int64_t now = now_ms();

    if (!etcd.state_changed && now - told_ms < BEAT_MS)
        return;
    (void)snprintf(error, sizeof error, "%s",
                   etcd.config->names ? "rdtd-etcd keeps no names any more (names = etcd): restart rdtd, which is older than it"
                   : !etcd.state.up && etcd.error[0] != '\0' ? etcd.error
                                                             : etcd.own_error);
    if (error[0] == '\0' && etcd.state.up && etcd.state.bad_keys > 0)
        (void)snprintf(error, sizeof error, "%u keys below %.200s are not rdtd's or cannot be read, as %s", etcd.state.bad_keys,
                       etcd.config->prefix, etcd.bad_error);
    if (error[0] == '\0' && etcd.known.full)
        (void)snprintf(error, sizeof error, "there are more than %u nodes", NODES_MAX);
    etcd.state.endpoint = etcd.endpoint;
    message.info = &etcd.state;
    message.error = error;
    if (tell(&etcd, RDT__PB__ETCD_MESSAGE__ETCD_STATE, &message.base)) {
        etcd.state_changed = false;
        told_ms = now;
    }
}

static int run(void)
{
    struct curl_waitfd wait = {.fd = SOCKET_FD};
    int running;

    while (!etcd.done) {
        struct rdt_error err;
        if (curl_multi_perform(etcd.multi, &running) != CURLM_OK)
            return 1;
        requests_read(&etcd);
        if (etcd.config && !etcd.leaving) {
            membership_tick(&etcd);
            facts_tick(&etcd);
            facts_send(&etcd);
            tell_state();
        }
        if (etcd.writer.queued_bytes > QUEUE_BYTES_MAX ||
            (frame_writer_send(&etcd.writer, SOCKET_FD, &err) < 0 && err.status != RDT_AGAIN && !etcd.leaving))
            return 1;
        wait.events = (short)(CURL_WAIT_POLLIN | (etcd.writer.queued_frames > 0 ? CURL_WAIT_POLLOUT : 0));
        wait.revents = 0;
        if (curl_multi_poll(etcd.multi, etcd.leaving ? NULL : &wait, etcd.leaving ? 0 : 1,
                            etcd.config ? (int)membership_due_ms(&etcd) : 1000, NULL) != CURLM_OK)
            return 1;
        if (wait.revents & CURL_WAIT_POLLIN)
            read_socket();
    }
    return 0;
}

int main(int argc, char **argv)
{
    int type, status;
    socklen_t bytes = sizeof type;
    char seed[sizeof(unsigned)];

    std_fds_open();
    if (argc > 1 || getsockopt(SOCKET_FD, SOL_SOCKET, SO_TYPE, &type, &bytes) < 0) {
        (void)fprintf(stderr, "%s is started by rdtd, where etcd_endpoints is set: see rdt-network(7)\n", argv[0]);
        return 2;
    }
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGXFSZ, SIG_IGN);
    (void)fcntl(SOCKET_FD, F_SETFL, O_NONBLOCK);
    (void)fcntl(SOCKET_FD, F_SETFD, FD_CLOEXEC);
    if (getentropy(seed, sizeof seed) == 0)
        srand(*(unsigned *)(void *)seed);
    frame_reader_init(&etcd.reader, RDT_MAX_FRAME_BYTES);
    frame_writer_init(&etcd.writer);
    rdt__pb__etcd_info__init(&etcd.state);
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK || !(etcd.multi = curl_multi_init()))
        return 1;
    status = run();
    requests_drop(&etcd);
    (void)curl_multi_cleanup(etcd.multi);
    curl_global_cleanup();
    free(etcd.cluster.next_key);
    free(etcd.token);
    if (etcd.config)
        rdt__pb__etcd_config__free_unpacked(etcd.config, NULL);
    frame_reader_fini(&etcd.reader);
    frame_writer_fini(&etcd.writer);
    return status;
}
