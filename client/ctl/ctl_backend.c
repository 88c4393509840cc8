/* SPDX-License-Identifier: Apache-2.0 */
/* rdtctl backend: loads, lists and unloads plug-ins of the running daemon. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ctl.h"
#include "ctl_commands.h"
#include "ctl_json.h"
#include "ctl_table.h"
#include "rdt.pb-c.h"

#define CHANGE_NS (INT64_C(30) * 1000000000)
/* The daemon ends the request at its deadline and says what was missing. rdtctl waits a little longer for that answer. */
#define SLACK_NS (INT64_C(1) * 1000000000)

static int show_loaded(struct ctl *ctl, const Rdt__Pb__BackendReply *reply)
{
    if (ctl->json)
        return ctl_print_json(ctl_json(&reply->base));
    for (size_t i = 0; i < reply->n_backends && !ctl->quiet; i++) {
        const Rdt__Pb__BackendInfo *b = reply->backends[i];

        ctl_line("%s %s is loaded%s%s", strcmp(b->kind, "memory") == 0 ? "memory kind" : b->kind, b->name,
                 b->available ? "" : ", but not available: ", b->available ? "" : b->why_not);
    }
    return CTL_OK;
}

static enum rdt_status change(struct ctl *ctl, enum rdt_message type, const ProtobufCMessage *request, int64_t timeout_ns,
                              ProtobufCMessage **reply_p, struct rdt_error *err)
{
    return ctl_call_within(ctl, timeout_ns < 0 ? timeout_ns : timeout_ns + SLACK_NS, type, request, reply_p, err);
}

static int load(struct ctl *ctl, char **words, int count)
{
    Rdt__Pb__BackendLoad request = RDT__PB__BACKEND_LOAD__INIT;
    struct rdt_error err = {0};
    ProtobufCMessage *reply;
    int code = CTL_FAILED;
    char *real = realpath(words[0], NULL); /* NULL: this process does not see the file, but the daemon may */
    int why = errno;

    for (int i = 1; i < count; i++) {
        if (!strchr(words[i], '=') || words[i][0] == '=') {
            free(real);
            return ctl_usage_error(ctl, "'%.40s' is not a setting of the form KEY=VALUE", words[i]);
        }
    }
    if (!real && words[0][0] != '/') { /* the daemon would look in its own working directory */
        (void)rdt_error_set(&err, RDT_INVALID, "%.200s: %s", words[0], strerror(why));
        return ctl_fail(ctl, &err);
    }
    request.path = real ? real : words[0];
    request.settings = words + 1;
    request.n_settings = (size_t)count - 1;
    request.timeout_ns = ctl_timeout(ctl, CHANGE_NS);
    if (change(ctl, RDT_MSG_BACKEND_LOAD, &request.base, request.timeout_ns, &reply, &err) != RDT_OK) {
        code = ctl_fail(ctl, &err);
    } else {
        code = show_loaded(ctl, (const Rdt__Pb__BackendReply *)reply);
        ctl_reply_free(reply);
    }
    free(real);
    return code;
}

static int unload(struct ctl *ctl, char *name)
{
    Rdt__Pb__BackendUnload request = RDT__PB__BACKEND_UNLOAD__INIT;
    struct rdt_error err = {0};
    ProtobufCMessage *reply;
    char text[80];

    request.name = name;
    request.timeout_ns = ctl_timeout(ctl, CHANGE_NS);
    if (change(ctl, RDT_MSG_BACKEND_UNLOAD, &request.base, request.timeout_ns, &reply, &err) != RDT_OK)
        return ctl_fail(ctl, &err);
    ctl_reply_free(reply);
    if (ctl->json)
        return ctl_print_json(json_pack("{s:o, s:b}", "name", ctl_json_text(name), "unloaded", 1));
    if (!ctl->quiet)
        printf("%s is unloaded\n", ctl_plain(name, text, sizeof text));
    return CTL_OK;
}

int ctl_backend(struct ctl *ctl, int argc, char **argv)
{
    char **words;
    int count, code = ctl_parse(ctl, NULL, argc, argv, 1, 66, &words, &count);
    char *alone[] = {argv[0], NULL};

    if (code != CTL_GO)
        return code;
    if (strcmp(words[0], "list") == 0 && count == 1)
        return ctl_backends(ctl, 1, alone);
    if (strcmp(words[0], "load") == 0 && count >= 2)
        return load(ctl, words + 1, count - 1);
    if (strcmp(words[0], "unload") == 0 && count == 2)
        return unload(ctl, words[1]);
    return ctl_usage_error(ctl, "needs load PATH [KEY=VALUE ...], list, or unload NAME");
}
