/* SPDX-License-Identifier: Apache-2.0 */
/* The connection of one run, its errors and its signals. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>

#include "client/call.h"
#include "ctl.h"
#include "ctl_json.h"
#include "ctl_progress.h"
#include "ctl_table.h"

int ctl_fail(struct ctl *ctl, const struct rdt_error *err)
{
    const char *name = rdt_status_name(err->status), *msg = *err->msg ? err->msg : rdt_status_sentence(err->status);

    fprintf(stderr, "rdtctl: %s%s", ctl->command ? ctl->command->name : "", ctl->command ? ": " : "");
    fprintf(stderr, "%s: ", name);
    ctl_print_plain(msg, stderr);
    fputc('\n', stderr);
    if (ctl->json)
        ctl_print_json(json_pack("{s:{s:s, s:o}}", "error", "status", name, "message", ctl_json_text(msg)));
    if (err->status == RDT_TIMED_OUT || err->status == RDT_NOT_PUT)
        return CTL_TIMED_OUT;
    return err->status == RDT_DISCONNECTED ? CTL_NO_DAEMON : CTL_FAILED;
}

int ctl_print_json(json_t *take_value)
{
    int failed = !take_value || json_dumpf(take_value, stdout, JSON_INDENT(2) | JSON_ENSURE_ASCII) < 0;

    json_decref(take_value);
    if (failed && !ferror(stdout)) /* otherwise ctl_flush says why */
        fprintf(stderr, "rdtctl: there is no memory for the JSON\n");
    if (failed)
        return CTL_FAILED;
    fputc('\n', stdout);
    return CTL_OK;
}

int ctl_flush(int code)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return code;
    fprintf(stderr, "rdtctl: writing the output: %s\n", strerror(errno));
    return code == CTL_OK ? CTL_FAILED : code;
}

int64_t ctl_timeout(const struct ctl *ctl, int64_t unless_given_ns)
{
    int64_t spent_ns = ctl_now_ns() - ctl->started_ns;

    if (ctl->timeout != CTL_TIMEOUT_GIVEN)
        return unless_given_ns;
    if (ctl->timeout_ns < 0)
        return RDT_FOREVER;
    return spent_ns < ctl->timeout_ns ? ctl->timeout_ns - spent_ns : 1;
}

enum rdt_status ctl_connect(struct ctl *ctl, struct rdt_error *err)
{
    struct rdt_connect_options options = RDT_INIT(options);
    int64_t timeout_ns = ctl_timeout(ctl, CTL_DEFAULT_TIMEOUT_NS);

    if (ctl->rdt)
        return RDT_OK;
    if (timeout_ns > CTL_DEFAULT_TIMEOUT_NS || timeout_ns < 0)
        timeout_ns = CTL_DEFAULT_TIMEOUT_NS; /* a long --timeout is for objects, not for a daemon that does not answer */
    options.socket = ctl->socket;
    options.name = "rdtctl";
    options.daemon_uid = (uint32_t)ctl->daemon_uid;
    options.timeout_ns = timeout_ns;
    return rdt_connect(&options, &ctl->rdt, err);
}

enum rdt_status ctl_call_within(struct ctl *ctl, int64_t timeout_ns, enum rdt_message type, const ProtobufCMessage *request,
                                ProtobufCMessage **reply_p, struct rdt_error *err)
{
    enum rdt_status status = ctl_connect(ctl, err);

    return status ? status : call(ctl->rdt, type, request, timeout_ns, reply_p, err);
}

enum rdt_status ctl_call(struct ctl *ctl, enum rdt_message type, const ProtobufCMessage *request, ProtobufCMessage **reply_p,
                         struct rdt_error *err)
{
    return ctl_call_within(ctl, ctl_timeout(ctl, CTL_DEFAULT_TIMEOUT_NS), type, request, reply_p, err);
}

enum rdt_status ctl_page(struct ctl *ctl, int64_t timeout_ns, Rdt__Pb__List *request, Rdt__Pb__ListReply **page_p,
                         struct rdt_error *err)
{
    enum rdt_status status = ctl_connect(ctl, err);

    return status ? status : call_list(ctl->rdt, request, timeout_ns, page_p, err);
}

void ctl_reply_free(ProtobufCMessage *reply)
{
    if (reply)
        protobuf_c_message_free_unpacked(reply, NULL);
}

int ctl_show(struct ctl *ctl, enum rdt_message type, const ProtobufCMessage *request,
             int (*print)(struct ctl *ctl, const ProtobufCMessage *reply))
{
    struct rdt_error err = {0};
    ProtobufCMessage *reply;
    int code;

    if (ctl_call(ctl, type, request, &reply, &err))
        return ctl_fail(ctl, &err);
    code = ctl->json ? ctl_print_json(ctl_json(reply)) : print(ctl, reply);
    ctl_reply_free(reply);
    return code;
}

int ctl_signals(struct rdt_error *err)
{
    sigset_t set;
    int fd;

    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    if (sigprocmask(SIG_BLOCK, &set, NULL) < 0 || (fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK)) < 0) {
        rdt_error_sys(err, errno, "signalfd");
        return -1;
    }
    return fd;
}

bool ctl_signalled(int signals)
{
    struct pollfd fd = {.fd = signals, .events = POLLIN};

    return poll(&fd, 1, 0) > 0;
}
