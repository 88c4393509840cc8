/* SPDX-License-Identifier: Apache-2.0 */
/* rdtctl fetch: writes an object as a safetensors file, or as an npy file if the output's name ends in .npy. The same
 * connection carries the fetch and the requests that show its progress. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/ctl/files/ctl_npy.h"
#include "client/ctl/files/ctl_safetensors.h"
#include "ctl.h"
#include "ctl_commands.h"
#include "ctl_json.h"
#include "ctl_progress.h"
#include "ctl_table.h"
#include "rdt.pb-c.h"

#define POLL_NS INT64_C(200000000) /* between two requests for the transfer's progress */

struct fetch {
    const char *ref_text, *output, *transport, *group, *least_path;
    int mode; /* enum rdt_fetch_mode */
    struct rdt_ref ref;
    int signals;
    rdt_request *request;
    rdt_object *object;
    struct rdt_tensor *tensors; /* of the object */
    size_t count;
    uint64_t bytes;
    bool named; /* the object's metadata is a safetensors header for its tensors */
};

/* ---- waiting ---- */

/* Finds the running transfer that brings this object; of several, the one for this client. */
static const Rdt__Pb__TransferInfo *find_transfer(const Rdt__Pb__ListReply *list, const struct fetch *fetch, uint64_t client)
{
    const Rdt__Pb__TransferInfo *found = NULL;

    for (size_t i = 0; i < list->n_transfers; i++) {
        const Rdt__Pb__TransferInfo *t = list->transfers[i];
        struct rdt_ref ref;

        if (t->elapsed_ns > 0 || t->bytes == 0 || strcmp(t->direction, "out") == 0) /* 0 bytes: the object is not put yet */
            continue;
        if (t->client == client)
            return t;
        if (rdt_ref_from_text(t->ref, &ref, NULL) == RDT_OK && ref.id_bytes == fetch->ref.id_bytes &&
            memcmp(ref.id, fetch->ref.id, ref.id_bytes) == 0)
            found = t;
    }
    return found;
}

static void show_progress(struct ctl *ctl, const struct fetch *fetch, struct ctl_progress *progress, bool *moving)
{
    Rdt__Pb__List request = RDT__PB__LIST__INIT;
    const Rdt__Pb__TransferInfo *t;
    struct rdt_node_info node;
    ProtobufCMessage *reply;
    int64_t left_ns = ctl_timeout(ctl, POLL_NS);

    request.kind = RDT__PB__LIST_KIND__LIST_KIND_TRANSFERS;
    if (rdt_node(ctl->rdt, &node, NULL) ||
        ctl_call_within(ctl, left_ns >= 0 && left_ns < POLL_NS ? left_ns : POLL_NS, RDT_MSG_LIST, &request.base, &reply, NULL))
        return; /* the fetch itself will report what is wrong */
    t = find_transfer((const Rdt__Pb__ListReply *)reply, fetch, node.session);
    if (t && !*moving) {
        *moving = true;
        progress->started_ns = ctl_now_ns();
        progress->first_bytes = t->bytes_done;
    }
    if (t)
        ctl_progress_update(progress, t->bytes_done, t->bytes);
    else if (!*moving)
        ctl_progress_say(progress, "waiting until it is put");
    ctl_reply_free(reply);
}

static enum rdt_status await(struct ctl *ctl, struct fetch *fetch, struct rdt_error *err)
{
    struct ctl_progress progress;
    int64_t look_ns = ctl_now_ns() + POLL_NS;
    enum rdt_status status;
    bool moving = false;

    ctl_progress_start(&progress, fetch->ref.id, ctl->quiet);
    while ((status = rdt_request_status(fetch->request, err)) == RDT_AGAIN) {
        struct pollfd fds[] = {{.fd = fetch->signals, .events = POLLIN}, {.fd = rdt_fd(ctl->rdt), .events = POLLIN}};

        /* poll ends after POLL_NS at the latest, so that rdt_dispatch also notices when the deadline has passed. */
        if (poll(fds, 2, (int)(POLL_NS / 1000000)) < 0 && errno != EINTR) {
            status = rdt_error_sys(err, errno, "poll");
            break;
        }
        if (fds[0].revents) {
            rdt_cancel(fetch->request);
            status = rdt_error_set(err, RDT_CANCELLED, "interrupted");
            break;
        }
        status = rdt_dispatch(ctl->rdt, NULL, err);
        if (status)
            break;
        if ((progress.shown || progress.may_say) && ctl_now_ns() >= look_ns &&
            rdt_request_status(fetch->request, NULL) == RDT_AGAIN) {
            show_progress(ctl, fetch, &progress, &moving);
            look_ns = ctl_now_ns() + POLL_NS;
        }
    }
    ctl_progress_end(&progress);
    return status;
}

static enum rdt_status fetch_object(struct ctl *ctl, struct fetch *fetch, struct rdt_error *err)
{
    struct rdt_fetch_options options = RDT_INIT(options);
    int64_t timeout_ns = ctl_timeout(ctl, RDT_FOREVER);
    enum rdt_status status;

    options.mode = (enum rdt_fetch_mode)fetch->mode;
    options.timeout_ns = ctl->no_wait ? RDT_NO_WAIT : timeout_ns < 0 ? 0 : timeout_ns;
    options.transport = fetch->transport;
    options.group = fetch->group;
    options.least_path = fetch->least_path;
    status = rdt_fetch_start(ctl->rdt, &fetch->ref, 1, &options, &fetch->request, err);
    if (status == RDT_OK)
        status = await(ctl, fetch, err);
    if (status == RDT_OK)
        status = rdt_request_take_object(fetch->request, &fetch->object, err);
    return status;
}

/* ---- writing ---- */

static enum rdt_status list_tensors(struct fetch *fetch, struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;

    fetch->count = rdt_object_count(fetch->object);
    fetch->tensors = calloc(fetch->count + 1, sizeof *fetch->tensors);
    if (!fetch->tensors)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for the table of %zu tensors", fetch->count);
    for (size_t i = 0; status == RDT_OK && i < fetch->count; i++) {
        size_t bytes = 0;

        status = rdt_object_tensor(fetch->object, i, &fetch->tensors[i], err);
        if (status == RDT_OK)
            status = rdt_tensor_bytes(&fetch->tensors[i], &bytes, err);
        fetch->bytes += bytes;
    }
    return status;
}

/* Takes the header from the object's metadata if it fits the tensors, and makes one otherwise. The caller frees *header_p. */
static enum rdt_status make_header(struct ctl *ctl, struct fetch *fetch, char **header_p, size_t *bytes_p,
                                   struct rdt_error *err)
{
    size_t metadata_bytes = 0;
    const void *metadata = rdt_object_metadata(fetch->object, &metadata_bytes);
    struct safetensors *parsed = NULL;
    struct rdt_error why = {0};

    if (metadata_bytes && safetensors_parse(metadata, metadata_bytes, fetch->bytes, &parsed, &why) == RDT_OK &&
        safetensors_match(parsed, fetch->tensors, fetch->count, &why) == RDT_OK) {
        fetch->named = true;
        *header_p = parsed->header;
        *bytes_p = parsed->header_bytes;
        parsed->header = NULL;
        safetensors_destroy(parsed);
        return RDT_OK;
    }
    safetensors_destroy(parsed);
    if (!ctl->quiet && metadata_bytes) {
        fprintf(stderr,
                "rdtctl: fetch: the tensors are named by their numbers, because the metadata is not a header for them: ");
        ctl_print_plain(why.msg, stderr);
        fputc('\n', stderr);
    }
    return safetensors_header(fetch->tensors, NULL, fetch->count, header_p, bytes_p, err);
}

struct writing {
    struct ctl_progress progress;
    uint64_t done, total;
    int signals;
};

static bool on_bytes(void *context, size_t bytes)
{
    struct writing *writing = context;

    writing->done += bytes;
    ctl_progress_update(&writing->progress, writing->done, writing->total);
    return !ctl_signalled(writing->signals);
}

static enum rdt_status write_safetensors(struct ctl *ctl, struct fetch *fetch, const struct bytes_sink *sink,
                                         struct rdt_error *err)
{
    char *header = NULL;
    size_t header_bytes;
    enum rdt_status status = make_header(ctl, fetch, &header, &header_bytes, err);

    if (status == RDT_OK)
        status = safetensors_write(sink, header, header_bytes, fetch->tensors, fetch->count, err);
    free(header);
    return status;
}

static enum rdt_status write_npy(struct fetch *fetch, const struct bytes_sink *sink, struct rdt_error *err)
{
    const struct bytes_sink quiet = {.fd = sink->fd};
    enum rdt_status status;
    size_t header_bytes;
    char *header;

    if (fetch->count != 1)
        return rdt_error_set(err, RDT_UNSUPPORTED,
                             "the object has %zu tensors, an npy file holds one: give -o a name that does not end in .npy",
                             fetch->count);
    status = npy_header(fetch->tensors, &header, &header_bytes, err);
    if (status) {
        rdt_error_prefix(err, "give -o a name that does not end in .npy");
        return status;
    }
    status = bytes_write(&quiet, header, header_bytes, err);
    if (status == RDT_OK)
        status = bytes_write_tensors(sink, fetch->tensors, 1, err);
    free(header);
    return status;
}

static bool is_npy(const char *output)
{
    const char *dot = strrchr(output, '.');

    return dot && dot > output && strcasecmp(dot, ".npy") == 0;
}

static enum rdt_status write_into(struct ctl *ctl, struct fetch *fetch, int fd, struct rdt_error *err)
{
    struct writing writing = {.total = fetch->bytes, .signals = fetch->signals};
    const struct bytes_sink sink = {.fd = fd, .on_written = on_bytes, .context = &writing};
    enum rdt_status status;
    mode_t mask = umask(0);

    umask(mask);
    ctl_progress_start(&writing.progress, fetch->output, ctl->quiet);
    status = is_npy(fetch->output) ? write_npy(fetch, &sink, err) : write_safetensors(ctl, fetch, &sink, err);
    ctl_progress_end(&writing.progress);
    if (status == RDT_OK && fchmod(fd, 0666 & ~mask) < 0)
        status = rdt_error_sys(err, errno, "chmod");
    return status;
}

/* Chooses the name that the temporary file gets in the end; the caller frees it. An existing file must be a regular one,
 * because the rename would replace a device or a pipe by a file. A symbolic link is followed, and stays. */
static enum rdt_status choose_target(const char *output, char **target_p, struct rdt_error *err)
{
    struct stat there, link;

    *target_p = NULL;
    if (stat(output, &there) == 0) {
        if (!S_ISREG(there.st_mode))
            return rdt_error_set(err, RDT_INVALID, "%s is not a regular file", output);
        if (lstat(output, &link) == 0 && S_ISLNK(link.st_mode) && !(*target_p = realpath(output, NULL)))
            return rdt_error_sys(err, errno, "%s", output);
    }
    if (!*target_p && !(*target_p = strdup(output)))
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a file name");
    return RDT_OK;
}

/* Fetches into a temporary file beside the output. The file is created first, so that a folder that cannot be written to is an
 * error before the bytes have moved. */
static enum rdt_status fetch_to(struct ctl *ctl, struct fetch *fetch, const char *target, struct rdt_error *err)
{
    enum rdt_status status;
    char *temporary = NULL;
    int fd;

    if (asprintf(&temporary, "%s.XXXXXX", target) < 0)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a file name");
    fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0) {
        rdt_error_sys(err, errno, "%s: cannot create a file there", fetch->output);
        free(temporary);
        return RDT_SYSTEM;
    }
    status = fetch_object(ctl, fetch, err);
    if (status == RDT_OK) {
        status = list_tensors(fetch, err);
        if (status == RDT_OK)
            status = write_into(ctl, fetch, fd, err);
        if (close(fd) < 0 && status == RDT_OK)
            status = rdt_error_sys(err, errno, "writing");
        fd = -1;
        if (status == RDT_OK && rename(temporary, target) < 0)
            status = rdt_error_sys(err, errno, "rename");
        if (status)
            rdt_error_prefix(err, "%s", fetch->output);
    }
    if (fd >= 0)
        close(fd);
    if (status)
        unlink(temporary);
    free(temporary);
    return status;
}

static enum rdt_status fetch_file(struct ctl *ctl, struct fetch *fetch, struct rdt_error *err)
{
    char *target;
    enum rdt_status status = choose_target(fetch->output, &target, err);

    if (status == RDT_OK)
        status = fetch_to(ctl, fetch, target, err);
    free(target);
    return status;
}

static int report(struct ctl *ctl, const struct fetch *fetch)
{
    char text[RDT_REF_TEXT_BYTES], id[160], bytes[CTL_HUMAN_BYTES], took[CTL_HUMAN_BYTES], rate[CTL_HUMAN_BYTES];
    struct rdt_object_info info;

    rdt_object_info(fetch->object, &info);
    if (ctl->json) {
        rdt_ref_to_text(&info.ref, text);
        return ctl_print_json(json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:o, s:b}", "ref", text, "version",
                                        ctl_json_u64(info.version), "file", ctl_json_text(fetch->output), "path",
                                        ctl_json_text(info.path), "transfer", ctl_json_u64(info.transfer), "bytes_moved",
                                        ctl_json_u64(info.bytes_moved), "elapsed_ns", (json_int_t)info.elapsed_ns, "tensors",
                                        (json_int_t)fetch->count, "bytes", ctl_json_u64(fetch->bytes), "named", fetch->named));
    }
    if (ctl->quiet)
        return CTL_OK;
    if (info.version)
        printf("version %" PRIu64 " of %s, ", info.version, ctl_plain(fetch->ref.id, id, sizeof id));
    printf("%s: %zu tensor%s, %s by %s", ctl_plain(info.ref.id, id, sizeof id), fetch->count, fetch->count == 1 ? "" : "s",
           ctl_human_bytes(fetch->bytes, bytes), info.path);
    if (info.bytes_moved)
        printf(" in %s (%s)", ctl_human_duration(info.elapsed_ns, took),
               ctl_human_rate(info.bytes_moved, info.elapsed_ns, rate));
    if (info.transfer)
        printf(", transfer %" PRIu64, info.transfer);
    printf(" -> %s\n", fetch->output);
    return CTL_OK;
}

int ctl_fetch(struct ctl *ctl, int argc, char **argv)
{
    struct fetch fetch = {.signals = -1};
    struct ctl_name name = CTL_NAME_INIT;
    const struct ctl_option options[] = {
        CTL_NAME_OPTIONS(name, "fetch the newest version of this name"),
        CTL_AFTER_OPTION(name),
        {'o', "output", CTL_TEXT, "FILE", "the file to write (required)", &fetch.output},
        {0, "mode", CTL_CHOICE, "auto|share|copy", "share the memory on this node, or copy it (auto)", &fetch.mode},
        {0, "transport", CTL_TEXT, "NAME", "fetch by this transport only", &fetch.transport},
        {0, "group", CTL_TEXT, "NAME", "fetch within this group only", &fetch.group},
        {0, "least-path", CTL_TEXT, "PATH", "refuse slower paths: share, cow, copy, inline, direct or a transport",
         &fetch.least_path},
        {0},
    };
    struct rdt_error err = {0};
    char **operands;
    int count, code = ctl_parse(ctl, options, argc, argv, 0, 1, &operands, &count);

    if (code != CTL_GO)
        return code;
    if (!fetch.output)
        return ctl_usage_error(ctl, "needs -o FILE");
    if (strcmp(fetch.output, "-") == 0)
        return ctl_usage_error(ctl, "-o needs a file, not the standard output (./- is a file of that name)");
    code = ctl_ref_or_name(ctl, count ? operands[0] : NULL, &name, &fetch.ref);
    if (code != CTL_GO)
        return code;
    if (ctl_connect(ctl, &err) || (fetch.signals = ctl_signals(&err)) < 0 || fetch_file(ctl, &fetch, &err))
        code = ctl_fail(ctl, &err);
    else
        code = report(ctl, &fetch);
    rdt_release(fetch.object);
    rdt_request_destroy(fetch.request);
    free(fetch.tensors);
    if (fetch.signals >= 0)
        close(fetch.signals);
    return code;
}
