/* SPDX-License-Identifier: Apache-2.0 */
/* rdtctl put: puts a safetensors file as an object. The bytes are read once into the daemon's memory, and the tensors
 * refer to them as they lie in the file. The header becomes the object's metadata, so that fetch can write the same file
 * again. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/files/ctl_safetensors.h"
#include "client/put.h"
#include "ctl.h"
#include "ctl_commands.h"
#include "ctl_json.h"
#include "ctl_progress.h"
#include "ctl_table.h"
#include "wire_limits.h"

#define SLICE_BYTES (8u << 20)

struct put {
    const char *path, *id, *transport;
    const char *publish; /* a name; NULL: none */
    int visibility;      /* enum rdt_visibility */
    bool snapshot, detached, stored;
    uint32_t flags;         /* further ones */
    uint32_t priority;      /* of an evictable object */
    char file[4200];        /* where it is stored */
    int64_t for_ns, ttl_ns; /* ttl_ns 0: ten minutes */
    int fd, signals;
    struct safetensors *safetensors;
    char *data; /* memory of rdt_alloc; NULL if there are no bytes */
    struct rdt_ref ref, name_ref;
    uint64_t version; /* of the name */
};

static enum rdt_status read_data(struct ctl *ctl, struct put *put, struct rdt_error *err)
{
    const char *slash = strrchr(put->path, '/');
    uint64_t first = SAFETENSORS_LENGTH_BYTES + put->safetensors->header_bytes, total = put->safetensors->data_bytes, done = 0;
    enum rdt_status status = RDT_OK;
    struct ctl_progress progress;

    ctl_progress_start(&progress, slash ? slash + 1 : put->path, ctl->quiet);
    while (status == RDT_OK && done < total) {
        size_t want = total - done < SLICE_BYTES ? (size_t)(total - done) : SLICE_BYTES;
        ssize_t n = pread(put->fd, put->data + done, want, (off_t)(first + done));

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            status = rdt_error_sys(err, errno, "%s: reading", put->path);
        else if (n == 0)
            status = rdt_error_set(err, RDT_INVALID, "%s: the file was truncated while it was read", put->path);
        else if (ctl->timeout == CTL_TIMEOUT_GIVEN && ctl_timeout(ctl, 0) == 1)
            status = rdt_error_set(err, RDT_TIMED_OUT, "%s: the file was not read within --timeout", put->path);
        else if (ctl_signalled(put->signals))
            status = rdt_error_set(err, RDT_CANCELLED, "%s: interrupted while reading", put->path);
        else
            ctl_progress_update(&progress, done += (uint64_t)n, total);
    }
    ctl_progress_end(&progress);
    return status;
}

/* Describes each tensor where it lies in put->data. */
static void place_tensors(const struct put *put, struct rdt_tensor *tensors)
{
    const struct safetensors *file = put->safetensors;

    for (size_t i = 0; i < file->count; i++) {
        const struct safetensors_tensor *t = &file->tensors[i];

        tensors[i] = (struct rdt_tensor){
            .dtype = t->dtype,
            .ndim = t->ndim,
            .shape = file->shape + t->first_dim,
            .data = t->end > t->begin ? put->data + t->begin : NULL,
        };
    }
}

static enum rdt_status put_object(struct ctl *ctl, struct put *put, struct rdt_error *err)
{
    struct rdt_put_options options = RDT_INIT(options);
    size_t count = put->safetensors->count;
    struct rdt_tensor *tensors = calloc(count + 1, sizeof *tensors);
    enum rdt_status status;

    if (!tensors)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for the table of %zu tensors", count);
    place_tensors(put, tensors);
    options.id = put->id;
    options.id_bytes = put->id ? strlen(put->id) : 0;
    options.metadata = put->safetensors->header;
    options.metadata_bytes = put->safetensors->header_bytes;
    /* A published file never changes. As a snapshot it may have replicas on other nodes. */
    options.priority = put->priority;
    options.flags = (put->snapshot || put->publish || put->stored ? RDT_PUT_SNAPSHOT : 0) |
                    (put->detached ? RDT_PUT_DETACHED : 0) | (put->stored ? RDT_PUT_STORED : 0) | put->flags;
    options.ttl_ns = put->ttl_ns;
    options.visibility = (enum rdt_visibility)put->visibility;
    options.transport = put->transport;
    options.timeout_ns = ctl_timeout(ctl, CTL_DEFAULT_TIMEOUT_NS);
    if (put->data && options.flags & RDT_PUT_SNAPSHOT) {
        void *data = put->data;

        put->data = NULL;
        status = put_snapshot_of(ctl->rdt, data, tensors, count, &options, &put->ref, err);
    } else {
        status = rdt_put(ctl->rdt, tensors, count, &options, &put->ref, err);
    }
    free(tensors);
    if (status == RDT_OK && put->publish) {
        struct rdt_publish_options publish = RDT_INIT(publish);

        publish.visibility = options.visibility;
        publish.name_ref = &put->name_ref;
        status = rdt_publish(ctl->rdt, put->publish, &put->ref, &publish, &put->version, err);
    }
    if (status == RDT_OK && put->stored)
        status = rdt_store(ctl->rdt, &put->ref, ctl_timeout(ctl, RDT_FOREVER), put->file, sizeof put->file, err);
    return status;
}

/* numpy's files are told by their first bytes. "PK" alone may be the length of a safetensors header. */
static enum rdt_status read_header(struct put *put, struct rdt_error *err)
{
    char magic[6];
    ssize_t n = pread(put->fd, magic, sizeof magic, 0);

    if ((n == 6 && memcmp(magic, "\x93NUMPY", 6) == 0) ||
        (n >= 4 && (memcmp(magic, "PK\3\4", 4) == 0 || memcmp(magic, "PK\5\6", 4) == 0)))
        return rdt_error_set(err, RDT_UNSUPPORTED,
                             "rdtctl puts safetensors files only: put arrays of numpy in Python, c.put(numpy.load(FILE))");
    return safetensors_read(put->fd, RDT_MAX_METADATA_BYTES, &put->safetensors, err);
}

static enum rdt_status start(struct ctl *ctl, struct put *put, struct rdt_error *err)
{
    enum rdt_status status;
    void *data;

    put->fd = open(put->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* opening a FIFO must not block: it is refused below */
    if (put->fd < 0)
        return rdt_error_sys(err, errno, "%s", put->path);
    status = read_header(put, err);
    if (status) {
        rdt_error_prefix(err, "%s", put->path);
        return status;
    }
    status = ctl_connect(ctl, err);
    if (status)
        return status;
    if (put->safetensors->data_bytes) {
        struct rdt_alloc_options options = RDT_INIT(options);

        /* The daemon may wait for room under a limit for as long as --timeout says, and answers a little earlier. */
        options.call_timeout_ns = ctl_timeout(ctl, 0);
        options.timeout_ns =
            options.call_timeout_ns > 0 ? options.call_timeout_ns - options.call_timeout_ns / 8 : options.call_timeout_ns;
        status = rdt_alloc_with(ctl->rdt, (size_t)put->safetensors->data_bytes, &options, &data, err);
        if (status)
            return status;
        put->data = data;
    }
    put->signals = ctl_signals(err); /* until here a signal ends the process, also while rdt_alloc_with waits */
    if (put->signals < 0)
        return RDT_SYSTEM;
    status = read_data(ctl, put, err);
    return status ? status : put_object(ctl, put, err);
}

static int announce(struct ctl *ctl, const struct put *put)
{
    uint64_t data_bytes = put->safetensors->data_bytes;
    size_t count = put->safetensors->count;
    char text[RDT_REF_TEXT_BYTES], bytes[CTL_HUMAN_BYTES], lease[CTL_HUMAN_BYTES], name[160], file[4200];

    rdt_ref_to_text(put->publish ? &put->name_ref : &put->ref, text);
    if (ctl->json) {
        ctl_print_json(json_pack("{s:s, s:o*, s:o, s:I, s:I, s:o*}", "ref", text, "version",
                                 put->publish ? ctl_json_u64(put->version) : NULL, "file", ctl_json_text(put->path), "tensors",
                                 (json_int_t)count, "bytes", (json_int_t)data_bytes, "stored_in",
                                 put->stored ? ctl_json_text(put->file) : NULL));
    } else {
        puts(text);
    }
    if (!ctl->quiet && !ctl->json && put->publish) {
        fprintf(stderr, "%zu tensor%s, %s: version %" PRIu64 " of %s\n", count, count == 1 ? "" : "s",
                ctl_human_bytes(data_bytes, bytes), put->version, ctl_plain(put->publish, name, sizeof name));
    } else if (!ctl->quiet && !ctl->json) {
        bool evictable = (put->flags & RDT_PUT_EVICTABLE) && put->for_ns == 0; /* and this command does not hold it */

        fprintf(stderr, "%zu tensor%s, %s; %s ", count, count == 1 ? "" : "s", ctl_human_bytes(data_bytes, bytes),
                evictable ? "stays in the cache" : "held");
        if (evictable && put->ttl_ns == 0)
            fprintf(stderr, "until its memory is wanted");
        else if (evictable)
            fprintf(stderr, "for at most %s", ctl_human_duration(put->ttl_ns, lease));
        else if (put->detached)
            fprintf(stderr, "for %s", put->ttl_ns > 0 ? ctl_human_duration(put->ttl_ns, lease) : "ten minutes");
        else if (put->for_ns > 0)
            fprintf(stderr, "for %s", ctl_human_duration(put->for_ns, lease));
        else
            fprintf(stderr, "until this command is ended");
        fputc('\n', stderr);
    }
    if (!ctl->quiet && !ctl->json && put->stored)
        fprintf(stderr, "stored in %s\n", ctl_plain(put->file, file, sizeof file));
    return ctl_flush(CTL_OK);
}

/* Keeps the connection open, which holds the object, until a signal or the end of --for. */
static enum rdt_status hold(struct ctl *ctl, const struct put *put, struct rdt_error *err)
{
    int64_t end_ns = put->for_ns >= 0 ? ctl_now_ns() + put->for_ns : INT64_MAX;

    for (;;) {
        struct pollfd fds[] = {{.fd = put->signals, .events = POLLIN}, {.fd = rdt_fd(ctl->rdt), .events = POLLIN}};
        int64_t left_ms = (end_ns - ctl_now_ns()) / 1000000;
        enum rdt_status status;

        if (left_ms < 0)
            return RDT_OK;
        if (poll(fds, 2, end_ns == INT64_MAX ? -1 : left_ms < 3600000 ? (int)left_ms + 1 : 3600000) < 0 && errno != EINTR)
            return rdt_error_sys(err, errno, "poll");
        if (fds[0].revents)
            return RDT_OK;
        status = rdt_dispatch(ctl->rdt, NULL, err);
        if (status) {
            rdt_error_prefix(err, "the object is lost");
            return status;
        }
    }
}

int ctl_put(struct ctl *ctl, int argc, char **argv)
{
    struct put put = {.for_ns = RDT_FOREVER, .fd = -1, .signals = -1};
    bool explicit_hold = false, replace = false, evictable = false;
    uint64_t priority = 0;
    const struct ctl_option options[] = {
        {0, "id", CTL_TEXT, "ID", "the object's id (generated)", &put.id},
        {0, "replace", CTL_FLAG, NULL, "with --id: take the place of the object that has the id", &replace},
        {0, "visibility", CTL_CHOICE, "owner|tenant|all", "who else may fetch it (owner)", &put.visibility},
        {0, "transport", CTL_TEXT, "NAME", "transport that is preferred between nodes", &put.transport},
        {0, "publish", CTL_TEXT, "NAME", "put a snapshot as the next version of NAME; the name holds it", &put.publish},
        {0, "snapshot", CTL_FLAG, NULL, "the object never changes, so nodes may keep replicas of it", &put.snapshot},
        {0, "detached", CTL_FLAG, NULL, "the object outlives this command, which ends at once", &put.detached},
        {0, "evictable", CTL_FLAG, NULL, "put a snapshot into the cache: it stays until its memory is wanted", &evictable},
        {0, "stored", CTL_FLAG, NULL, "store it in the daemon's storage_dir, and wait until it is there", &put.stored},
        {0, "priority", CTL_NUMBER, "N", "with --evictable: 0 to 7; objects of lower ones are evicted first (0)", &priority},
        {0, "ttl", CTL_LIFETIME, "TIME", "with --detached (10m) or --evictable: how long the object lives", &put.ttl_ns},
        {0, "for", CTL_DURATION, "TIME", "hold the object for that time, then end", &put.for_ns},
        {0, "hold", CTL_FLAG, NULL, "with --detached: hold it until SIGINT or SIGTERM", &explicit_hold},
        {0},
    };
    struct rdt_error err = {0};
    char **operands;
    int code = ctl_parse(ctl, options, argc, argv, 1, 1, &operands, NULL);

    if (code != CTL_GO)
        return code;
    if (explicit_hold && put.for_ns >= 0)
        return ctl_usage_error(ctl, "--hold and --for exclude each other");
    if (put.publish && (explicit_hold || put.for_ns >= 0))
        return ctl_usage_error(ctl, "--publish ends at once, because the name holds the object: leave out --for and --hold");
    if (put.stored && !put.publish && !put.detached)
        return ctl_usage_error(ctl,
                               "--stored needs --publish or --detached: an object that ends with this command is not stored");
    if (evictable && (put.detached || put.stored))
        return ctl_usage_error(ctl, "--evictable excludes --detached and --stored");
    if (priority > RDT_PRIORITY_MOST || (priority > 0 && !evictable))
        return ctl_usage_error(ctl, "--priority is 0 to 7, and needs --evictable");
    put.priority = (uint32_t)priority;
    put.flags = (replace ? RDT_PUT_REPLACE : 0) | (evictable ? RDT_PUT_EVICTABLE | RDT_PUT_SNAPSHOT : 0);
    put.snapshot |= evictable;
    if (replace && !put.id)
        return ctl_usage_error(ctl, "--replace needs --id: give both");
    if (put.ttl_ns && !put.detached && !evictable)
        return ctl_usage_error(ctl, "--ttl needs --detached or --evictable");
    if ((put.detached || evictable) && !explicit_hold && put.for_ns < 0)
        put.for_ns = 0;
    put.path = operands[0];
    if (start(ctl, &put, &err)) {
        code = ctl_fail(ctl, &err);
    } else {
        code = announce(ctl, &put);
        if (code == CTL_OK && !put.publish && hold(ctl, &put, &err))
            code = ctl_fail(ctl, &err);
    }
    safetensors_destroy(put.safetensors);
    if (put.fd >= 0)
        close(put.fd);
    if (put.signals >= 0)
        close(put.signals);
    return code;
}
