/* SPDX-License-Identifier: Apache-2.0 */
/* rdtctl fetch: writes an object as a safetensors file. The same connection carries the fetch and the requests that show its
 * progress. Of a version of many parts it writes the whole tensors, part by part. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/ctl/files/ctl_safetensors.h"
#include "client/rdt_plan.h"
#include "ctl.h"
#include "ctl_commands.h"
#include "ctl_json.h"
#include "ctl_progress.h"
#include "ctl_table.h"
#include "rdt.pb-c.h"
#include "wire_limits.h"

#define POLL_NS INT64_C(200000000) /* between two requests for the transfer's progress */

struct fetch {
    const char *output, *transport, *group, *least_path;
    int mode; /* enum rdt_fetch_mode */
    struct rdt_ref ref;
    int signals;
    rdt_request *request;
    rdt_object *object;
    struct rdt_tensor *tensors; /* of the object */
    size_t count;
    uint64_t bytes;
    bool verify;
    bool named; /* the object's metadata is a safetensors header for its tensors, or these are of a version of many parts */
    /* Of a version of many parts. */
    rdt_manifest *manifest;
    struct rdt_manifest_info version;
    uint64_t moved; /* bytes of parts that came from other nodes */
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
    Rdt__Pb__ListReply *page = NULL;
    int64_t left_ns = ctl_timeout(ctl, POLL_NS);

    request.kind = RDT__PB__LIST_KIND__LIST_KIND_TRANSFERS;
    if (rdt_node(ctl->rdt, &node, NULL))
        return;
    do {
        if (page)
            ctl_reply_free(&page->base);
        if (ctl_page(ctl, left_ns >= 0 && left_ns < POLL_NS ? left_ns : POLL_NS, &request, &page, NULL))
            return; /* the fetch itself will report what is wrong */
        t = find_transfer(page, fetch, node.session);
    } while (!t && request.after != 0);
    if (t && !*moving) {
        *moving = true;
        progress->started_ns = ctl_now_ns();
        progress->first_bytes = t->bytes_done;
    }
    if (t)
        ctl_progress_update(progress, t->bytes_done, t->bytes);
    else if (!*moving)
        ctl_progress_say(progress, "waiting until it is put");
    ctl_reply_free(&page->base);
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
    options.timeout_ns = ctl->timeout == CTL_NO_WAIT ? RDT_NO_WAIT : timeout_ns < 0 ? 0 : timeout_ns;
    options.transport = fetch->transport;
    options.group = fetch->group;
    options.least_path = fetch->least_path;
    status = rdt_fetch_start(ctl->rdt, &fetch->ref, 1, &options, &fetch->request, err);
    if (status == RDT_OK)
        status = await(ctl, fetch, err);
    if (status == RDT_OK)
        status = rdt_request_take_object(fetch->request, &fetch->object, err);
    if (status == RDT_OK && fetch->verify && !rdt_object_is_manifest(fetch->object)) /* of a version in parts: each part */
        status = rdt_verify(fetch->object, ctl_timeout(ctl, RDT_FOREVER), err);
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

static enum rdt_status write_into(struct ctl *ctl, struct fetch *fetch, int fd, struct rdt_error *err)
{
    struct writing writing = {.total = fetch->bytes, .signals = fetch->signals};
    const struct bytes_sink sink = {.fd = fd, .on_written = on_bytes, .context = &writing};
    enum rdt_status status = list_tensors(fetch, err);

    if (status != RDT_OK)
        return status;
    ctl_progress_start(&writing.progress, fetch->output, ctl->quiet);
    status = write_safetensors(ctl, fetch, &sink, err);
    ctl_progress_end(&writing.progress);
    return status;
}

/* ---- a version of many parts ---- */

struct box { /* a tensor of a part */
    struct rdt_box is;
    size_t number;
    struct box *first; /* the first box of the same whole tensor, in the order of the parts */
    size_t whole;      /* if this is the first one: which of fetch->tensors */
};

/* The file is mapped, and the boxes are copied to their places in it. */
struct parts {
    size_t n_boxes;
    struct box *boxes;  /* [n_boxes], in the order of the parts */
    const char **names; /* [fetch->count] */
    uint64_t *offsets;  /* [fetch->count], in the file */
    uint64_t *left;     /* [fetch->count]: elements that no part has written yet */
    uint8_t *file;      /* [file_bytes] */
    uint64_t file_bytes;
};

static int by_key(const void *a, const void *b)
{
    const struct box *const *one = a, *const *other = b;
    int order = strcmp((*one)->is.key, (*other)->is.key);

    return order ? order : (*one)->number < (*other)->number ? -1 : 1;
}

static enum rdt_status list_boxes(const struct fetch *fetch, struct parts *parts, struct rdt_error *err)
{
    struct box **sorted;
    size_t n, at = 0;
    enum rdt_status status = RDT_OK;

    for (size_t i = 0; i < fetch->version.parts && status == RDT_OK; i++) {
        status = rdt_manifest_part(fetch->manifest, i, NULL, &n, err);
        parts->n_boxes += n;
    }
    parts->boxes = calloc(parts->n_boxes + 1, sizeof *parts->boxes);
    sorted = calloc(parts->n_boxes + 1, sizeof(struct box *));
    if (status == RDT_OK && (!parts->boxes || !sorted))
        status = rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a table of %zu tensors", parts->n_boxes);
    for (size_t i = 0; i < fetch->version.parts && status == RDT_OK; i++) {
        status = rdt_manifest_part(fetch->manifest, i, NULL, &n, err);
        for (size_t t = 0; t < n && status == RDT_OK; t++, at++) {
            parts->boxes[at].number = at;
            sorted[at] = &parts->boxes[at];
            status = rdt_manifest_box(fetch->manifest, i, t, &parts->boxes[at].is, err);
        }
    }
    if (status == RDT_OK && at > 0)
        qsort(sorted, at, sizeof(struct box *), by_key);
    for (size_t i = 0; i < at && status == RDT_OK; i++)
        sorted[i]->first = i > 0 && strcmp(sorted[i]->is.key, sorted[i - 1]->is.key) == 0 ? sorted[i - 1]->first : sorted[i];
    free(sorted);
    return status;
}

/* Lists the whole tensors, which have no data, in the order in which the parts begin with them. */
static enum rdt_status list_whole(struct fetch *fetch, struct parts *parts, struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;

    fetch->tensors = calloc(parts->n_boxes + 1, sizeof *fetch->tensors);
    parts->names = calloc(parts->n_boxes + 1, sizeof *parts->names);
    parts->offsets = calloc(parts->n_boxes + 1, sizeof *parts->offsets);
    parts->left = calloc(parts->n_boxes + 1, sizeof *parts->left);
    if (!fetch->tensors || !parts->names || !parts->offsets || !parts->left)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a table of %zu tensors", parts->n_boxes);
    for (size_t i = 0; i < parts->n_boxes && status == RDT_OK; i++) {
        struct box *box = &parts->boxes[i];
        struct rdt_tensor *tensor = &fetch->tensors[fetch->count];
        size_t bytes = 0;

        if (box->first != box)
            continue;
        *tensor = (struct rdt_tensor){.dtype = box->is.dtype, .ndim = box->is.ndim, .shape = box->is.global_shape};
        status = rdt_tensor_bytes(tensor, &bytes, err);
        if (status == RDT_OK && bytes > INT64_MAX / 2 - fetch->bytes)
            status = rdt_error_set(err, RDT_LIMIT, "the tensors have too many bytes for a file");
        box->whole = fetch->count;
        parts->names[fetch->count] = box->is.key;
        parts->offsets[fetch->count] = fetch->bytes;
        parts->left[fetch->count++] = bytes / rdt_dtype_bytes(box->is.dtype);
        fetch->bytes += bytes;
    }
    return status;
}

/* Writes the header, and maps the file with room for all tensors. */
static enum rdt_status begin_file(struct fetch *fetch, struct parts *parts, int fd, struct rdt_error *err)
{
    const struct bytes_sink sink = {.fd = fd};
    size_t header_bytes = 0;
    char *header = NULL;
    enum rdt_status status = safetensors_header(fetch->tensors, parts->names, fetch->count, &header, &header_bytes, err);
    int failed;

    parts->file_bytes = SAFETENSORS_LENGTH_BYTES + header_bytes + fetch->bytes;
    failed = status == RDT_OK ? posix_fallocate(fd, 0, (off_t)parts->file_bytes) : 0;
    if (failed)
        status = rdt_error_sys(err, failed, "making room for %" PRIu64 " bytes", parts->file_bytes);
    if (status == RDT_OK)
        status = safetensors_write(&sink, header, header_bytes, NULL, 0, err);
    free(header);
    if (status != RDT_OK)
        return status;
    parts->file = mmap(NULL, parts->file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (parts->file == MAP_FAILED) {
        parts->file = NULL;
        return rdt_error_sys(err, errno, "mapping the file");
    }
    for (size_t i = 0; i < fetch->count; i++)
        parts->offsets[i] += SAFETENSORS_LENGTH_BYTES + header_bytes;
    return RDT_OK;
}

struct strided {
    uint8_t *data;
    const int64_t *strides; /* elements */
};

/* Copies dimension d and those behind it. */
static void copy_elements(const struct rdt_box *box, uint32_t d, struct strided from, struct strided to)
{
    int64_t item_bytes = (int64_t)rdt_dtype_bytes(box->dtype);

    if (d == box->ndim) {
        memcpy(to.data, from.data, (size_t)item_bytes);
    } else if (d + 1 == box->ndim && from.strides[d] == 1 && to.strides[d] == 1) {
        memcpy(to.data, from.data, (size_t)(box->count[d] * item_bytes));
    } else {
        for (int64_t i = 0; i < box->count[d]; i++)
            copy_elements(box, d + 1, (struct strided){from.data + i * from.strides[d] * item_bytes, from.strides},
                          (struct strided){to.data + i * to.strides[d] * item_bytes, to.strides});
    }
}

static enum rdt_status copy_box(const struct fetch *fetch, const struct parts *parts, const struct box *box,
                                const struct rdt_tensor *tensor, struct rdt_error *err)
{
    size_t whole = box->first->whole, item_bytes = rdt_dtype_bytes(box->is.dtype);
    int64_t strides[RDT_MAX_NDIM], stride = 1, at = 0;
    uint64_t elems = 1;

    if (tensor->dtype != box->is.dtype || tensor->ndim != box->is.ndim || tensor->ndim > RDT_MAX_NDIM ||
        (tensor->ndim > 0 && memcmp(tensor->shape, box->is.count, tensor->ndim * sizeof *tensor->shape) != 0))
        return rdt_error_set(err, RDT_MISMATCH, "tensor \"%s\" is not what the list of parts says", box->is.key);
    for (uint32_t d = tensor->ndim; d-- > 0;) {
        strides[d] = stride;
        at += box->is.start[d] * stride;
        stride *= fetch->tensors[whole].shape[d];
        elems *= (uint64_t)box->is.count[d];
    }
    if (elems == 0)
        return RDT_OK;
    if (elems > parts->left[whole])
        return rdt_error_set(err, RDT_INVALID, "tensor \"%s\": parts of the version overlap", box->is.key);
    parts->left[whole] -= elems;
    copy_elements(&box->is, 0, (struct strided){tensor->data, tensor->strides},
                  (struct strided){parts->file + parts->offsets[whole] + (uint64_t)at * item_bytes, strides});
    return RDT_OK;
}

/* boxes: of this part. */
static enum rdt_status copy_part(struct ctl *ctl, struct fetch *fetch, const struct parts *parts, size_t i,
                                 const struct box *boxes, struct rdt_error *err)
{
    struct fetch part = *fetch;
    struct rdt_object_info info;
    struct rdt_node_info node;
    struct rdt_tensor tensor;
    size_t n = 0;
    enum rdt_status status = rdt_manifest_part(fetch->manifest, i, &part.ref, &n, err);

    if (status != RDT_OK || n == 0)
        return status;
    part.request = NULL;
    part.object = NULL;
    status = fetch_object(ctl, &part, err);
    if (status == RDT_OK && rdt_object_count(part.object) != n)
        status = rdt_error_set(err, RDT_MISMATCH, "part %zu has %zu tensors, and the list of parts says %zu", i,
                               rdt_object_count(part.object), n);
    for (size_t t = 0; t < n && status == RDT_OK; t++) {
        status = rdt_object_tensor(part.object, t, &tensor, err);
        if (status == RDT_OK)
            status = copy_box(fetch, parts, &boxes[t], &tensor, err);
        if (status == RDT_OK && ctl_signalled(fetch->signals))
            status = rdt_error_set(err, RDT_CANCELLED, "interrupted");
    }
    if (status == RDT_OK && rdt_node(ctl->rdt, &node, NULL) == RDT_OK && memcmp(node.node, part.ref.node, sizeof node.node)) {
        rdt_object_info(part.object, &info);
        fetch->moved += info.bytes_moved;
    }
    rdt_release(part.object);
    rdt_request_destroy(part.request);
    return status;
}

static enum rdt_status write_parts(struct ctl *ctl, struct fetch *fetch, int fd, struct rdt_error *err)
{
    struct rdt_object_info info;
    struct parts parts = {0};
    const struct box *boxes;
    size_t n = 0;
    enum rdt_status status;

    rdt_object_info(fetch->object, &info);
    status = rdt_manifest_fetch(ctl->rdt, fetch->ref.is_name ? &fetch->ref : &info.ref, ctl_timeout(ctl, RDT_FOREVER),
                                &fetch->manifest, err); /* holds the parts */
    if (status == RDT_OK) {
        rdt_manifest_info(fetch->manifest, &fetch->version);
        status = list_boxes(fetch, &parts, err);
    }
    if (status == RDT_OK)
        status = list_whole(fetch, &parts, err);
    if (status == RDT_OK)
        status = begin_file(fetch, &parts, fd, err);
    boxes = parts.boxes;
    for (size_t i = 0; i < fetch->version.parts && status == RDT_OK; i++, boxes += n) {
        status = copy_part(ctl, fetch, &parts, i, boxes, err);
        if (status == RDT_OK)
            status = rdt_manifest_part(fetch->manifest, i, NULL, &n, err);
    }
    for (size_t i = 0; i < fetch->count && status == RDT_OK; i++)
        if (parts.left[i] > 0)
            status = rdt_error_set(err, RDT_INVALID, "tensor \"%s\": no part of the version has all of it", parts.names[i]);
    fetch->named = true;
    if (parts.file)
        munmap(parts.file, parts.file_bytes);
    free(parts.boxes);
    free(parts.names);
    free(parts.offsets);
    free(parts.left);
    return status;
}

/* ---- the file ---- */

static enum rdt_status write_file(struct ctl *ctl, struct fetch *fetch, int fd, struct rdt_error *err)
{
    mode_t mask = umask(0);
    enum rdt_status status;

    umask(mask);
    status = rdt_object_is_manifest(fetch->object) ? write_parts(ctl, fetch, fd, err) : write_into(ctl, fetch, fd, err);
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
        status = write_file(ctl, fetch, fd, err);
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
    if (fetch->manifest) {
        info.version = info.version ? fetch->version.version : 0;
        info.bytes_moved = fetch->moved;
        (void)snprintf(info.path, sizeof info.path, "plan");
    }
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
    if (fetch->manifest) {
        printf("step %" PRIu64 ": %zu tensor%s, %s in %zu part%s -> %s\n", fetch->version.step, fetch->count,
               fetch->count == 1 ? "" : "s", ctl_human_bytes(fetch->bytes, bytes), fetch->version.parts,
               fetch->version.parts == 1 ? "" : "s", fetch->output);
        return CTL_OK;
    }
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

/* The ending of the path if it is that of another format, which programs take the file for; NULL if it is not. */
static const char *other_format(const char *output)
{
    static const char *const endings[] = {".npy", ".npz", ".pt", ".pth", ".bin", ".ckpt", ".pkl", ".h5", ".gguf", ".onnx"};
    const char *dot = strrchr(output, '.');

    for (size_t i = 0; dot && i < sizeof endings / sizeof *endings; i++)
        if (strcasecmp(dot, endings[i]) == 0)
            return endings[i];
    return NULL;
}

int ctl_fetch(struct ctl *ctl, int argc, char **argv)
{
    struct fetch fetch = {.signals = -1};
    struct ctl_name name = CTL_NAME_INIT;
    int format = -1; /* not given */
    const struct ctl_option options[] = {
        CTL_NAME_OPTIONS(name, "fetch the newest version of this name"),
        CTL_AFTER_OPTION(name),
        {'o', "output", CTL_TEXT, "FILE", "the file to write (required)", &fetch.output},
        {0, "format", CTL_CHOICE, "safetensors", "write this format whatever FILE ends with; there is no other", &format},
        {0, "mode", CTL_CHOICE, "auto|share|copy", "share the memory on this node, or copy it (auto)", &fetch.mode},
        {0, "transport", CTL_TEXT, "NAME", "fetch by this transport only", &fetch.transport},
        {0, "group", CTL_TEXT, "NAME", "fetch within this group only", &fetch.group},
        {0, "least-path", CTL_TEXT, "PATH", "refuse slower paths: share, cow, copy, inline, direct or a transport",
         &fetch.least_path},
        {0, "verify", CTL_FLAG, NULL, "compare what comes with the object's checksum", &fetch.verify},
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
    if (format < 0 && other_format(fetch.output))
        return ctl_usage_error(ctl,
                               "-o %.200s: rdtctl writes safetensors, not a file that the ending %s stands for: name it "
                               "*.safetensors, give --format safetensors, or use Python (numpy.save(FILE, c.get(REF)))",
                               fetch.output, other_format(fetch.output));
    code = ctl_ref_or_name(ctl, count ? operands[0] : NULL, &name, &fetch.ref);
    if (code != CTL_GO)
        return code;
    if (ctl_connect(ctl, &err) || (fetch.signals = ctl_signals(&err)) < 0 || fetch_file(ctl, &fetch, &err))
        code = ctl_fail(ctl, &err);
    else
        code = report(ctl, &fetch);
    rdt_release(fetch.object);
    rdt_request_destroy(fetch.request);
    rdt_manifest_release(fetch.manifest);
    free(fetch.tensors);
    if (fetch.signals >= 0)
        close(fetch.signals);
    return code;
}
