/* SPDX-License-Identifier: Apache-2.0 */
/* Followers. What is prepared consists of ordinary fetched objects: the daemon serves fetches of a prepared version from what
 * it has for the follower. A commit needs nothing else, so it does not depend on the daemon. */
#include "client/rdt_follow.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/call.h"
#include "client/fetched.h"
#include "client/memory/overlap.h"
#include "client/note.h"
#include "client/options.h"
#include "client/plan/devices.h"
#include "client/plan/plan.h"
#include "client/plan/strided.h"
#include "client/session/clock.h"
#include "proto/wire_ref.h"

#define MOST_TRIES 16u /* of one prepare: the daemon restarts, or drops a version because there is a newer one */

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14 */
#endif

struct version {     /* that is prepared */
    uint64_t number; /* 0: none is */
    struct rdt_ref ref;
    uint64_t bytes, bytes_moved;
    int64_t fetch_ns;
    uint64_t step;
    rdt_manifest *manifest; /* NULL: it is a single object, or a plan has it */
    bool in_parts;
    size_t n;
    rdt_object **objects; /* [n] */
};

struct rdt_follower {
    rdt *conn;
    struct rdt_ref name;
    uint64_t number; /* of this follower, for the daemon */
    uint64_t committed;
    struct rdt_ref committed_ref; /* id_bytes 0: it is not known */
    struct version next;
    struct version last; /* that was copied: to unmap it takes long, so the next prepare does it, and not the commit */
    int64_t wait_ns;     /* since the last commit */
};

static enum rdt_status no_memory(struct rdt_error *err)
{
    return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a follower");
}

static void version_fini(rdt *conn, struct version *version)
{
    rdt_cork(conn);
    for (size_t i = 0; i < version->n; i++)
        rdt_release(version->objects[i]);
    rdt_uncork(conn);
    free(version->objects);
    rdt_manifest_release(version->manifest);
    *version = (struct version){0};
}

/* ---- the beginning and the end ---- */

/* Tells the daemon, which may be a later one, that there is this follower and what it has committed. */
static enum rdt_status tell(const rdt_follower *follower, struct rdt_error *err)
{
    Rdt__Pb__Follow request = RDT__PB__FOLLOW__INIT;
    Rdt__Pb__Ref name, committed;
    enum rdt_status status = call_wire_ref(follower->conn, &follower->name, &name, err);

    if (status != RDT_OK)
        return status;
    wire_ref_from(&follower->committed_ref, &committed);
    request.follower = follower->number;
    request.name = &name;
    request.committed = follower->committed;
    request.committed_ref = follower->committed_ref.id_bytes > 0 ? &committed : NULL;
    return call(follower->conn, RDT_MSG_FOLLOW, &request.base, CALL_TIMEOUT_NS, NULL, err);
}

/* Tells the daemon something for which nobody waits. A lost connection has ended the follower there. */
static void note(rdt *conn, enum rdt_message type, const ProtobufCMessage *message)
{
    if (connection_check(conn, NULL) != RDT_OK)
        return;
    connection_lock(conn);
    (void)note_send(conn, type, message, true, NULL);
    connection_unlock(conn);
}

static void unfollow(const rdt_follower *follower)
{
    Rdt__Pb__Unfollow request = RDT__PB__UNFOLLOW__INIT;

    request.follower = follower->number;
    note(follower->conn, RDT_MSG_UNFOLLOW, &request.base);
}

enum rdt_status rdt_follow(rdt *conn, const struct rdt_ref *name, const struct rdt_follow_options *options,
                           rdt_follower **follower_p, struct rdt_error *err)
{
    struct rdt_follow_options own;
    rdt_follower *follower;
    enum rdt_status status = connection_check(conn, err);

    if (status == RDT_OK)
        status = options_check_out(follower_p, "follower_p", err);
    if (status == RDT_OK)
        status = options_copy(&own, sizeof own, options, err);
    if (status == RDT_OK)
        status = options_check_ref(name, err);
    if (status == RDT_OK && !name->is_name)
        status = rdt_error_set(err, RDT_INVALID,
                               "this is the ref of an object, and only names can be followed: make one with rdt_ref_from_name");
    if (status != RDT_OK)
        return status;
    follower = calloc(1, sizeof *follower);
    if (!follower)
        return no_memory(err);
    follower->conn = conn;
    follower->name = *name;
    follower->name.after = 0;
    follower->committed = own.after;
    connection_lock(conn);
    follower->number = connection_id(conn);
    connection_unlock(conn);
    status = tell(follower, err);
    if (status == RDT_TIMED_OUT || status == RDT_CANCELLED) /* the daemon may begin to follow later */
        unfollow(follower);
    if (status == RDT_OK)
        *follower_p = follower;
    else
        free(follower);
    return status;
}

void rdt_follower_close(rdt_follower *follower)
{
    if (!follower)
        return;
    version_fini(follower->conn, &follower->last);
    version_fini(follower->conn, &follower->next);
    unfollow(follower);
    free(follower);
}

/* ---- prepare ---- */

/* Maps the pages of the tensors now, so that the commit need not. Errors do not matter: then the commit does it. */
static void touch(const rdt_object *object)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    struct rdt_tensor tensor;

    for (size_t i = 0; i < rdt_object_count(object); i++) {
        const char *memory = "";
        size_t bytes = 0;
        uintptr_t lo;

        if (rdt_object_tensor(object, i, &tensor, NULL) != RDT_OK || rdt_tensor_bytes(&tensor, &bytes, NULL) != RDT_OK ||
            bytes < 16 * page || rdt_object_place(object, i, &memory, NULL, NULL) != RDT_OK || strcmp(memory, "host") != 0)
            continue;
        lo = ((uintptr_t)tensor.data + page - 1) & ~(page - 1);
        (void)madvise((void *)lo, ((uintptr_t)tensor.data + bytes - lo) & ~(page - 1), MADV_POPULATE_READ);
    }
}

static enum rdt_status fetch(rdt *conn, const struct rdt_ref *refs, size_t n, rdt_object **objects, struct rdt_error *err)
{
    struct rdt_fetch_options options = RDT_INIT(options);

    options.memory = "host";
    options.timeout_ns = CALL_TIMEOUT_NS; /* everything is on this node */
    return rdt_fetch(conn, refs, n, &options, objects, err);
}

/* Fetches the version's parts, which its manifest names. */
static enum rdt_status fetch_parts(rdt *conn, struct version *version, struct rdt_error *err)
{
    size_t n = version->manifest->message->n_parts;
    rdt_object **objects = calloc(n + 1, sizeof(rdt_object *));
    struct rdt_ref *refs = calloc(n + 1, sizeof *refs);
    enum rdt_status status = objects && refs ? RDT_OK : no_memory(err);

    for (size_t i = 0; i < n && status == RDT_OK; i++)
        refs[i] = version->manifest->parts[i].ref;
    if (status == RDT_OK)
        status = fetch(conn, refs, n, objects, err);
    free(refs);
    if (status != RDT_OK) {
        free(objects);
        return status;
    }
    version->n = n;
    version->objects = objects;
    version->in_parts = true;
    version->step = version->manifest->message->step;
    return RDT_OK;
}

static enum rdt_status fetch_version(rdt_follower *follower, const Rdt__Pb__PrepareReply *reply, struct version *version_p,
                                     struct rdt_error *err)
{
    struct version version = {
        .number = reply->version, .bytes = reply->bytes, .bytes_moved = reply->bytes_moved, .fetch_ns = reply->fetch_ns};
    rdt_object *object = NULL;
    enum rdt_status status = wire_ref_to(reply->ref, &version.ref, err);

    if (status == RDT_OK)
        status = fetch(follower->conn, &version.ref, 1, &object, err);
    if (status != RDT_OK)
        return status;
    if (!rdt_object_is_manifest(object)) {
        version.objects = calloc(1, sizeof(rdt_object *));
        if (!version.objects)
            status = no_memory(err);
        else
            version.objects[version.n++] = object;
    } else {
        status = manifest_read(follower->conn, object, &follower->name, &version.manifest, err);
        if (status == RDT_OK)
            status = fetch_parts(follower->conn, &version, err);
    }
    if (version.n == 0 || version.objects[0] != object)
        rdt_release(object);
    if (status != RDT_OK) {
        version_fini(follower->conn, &version);
        return status;
    }
    for (size_t i = 0; i < version.n; i++)
        touch(version.objects[i]);
    *version_p = version;
    return RDT_OK;
}

static bool is_same(const struct rdt_ref *ref, const Rdt__Pb__Ref *wire)
{
    return wire && ref->generation == wire->generation && wire->node.len == sizeof ref->node &&
           memcmp(ref->node, wire->node.data, sizeof ref->node) == 0;
}

/* One attempt. AGAIN: the daemon has restarted meanwhile, or has dropped what it had prepared. */
static enum rdt_status prepare(rdt_follower *follower, int64_t timeout_ns, int64_t deadline_ns, struct rdt_error *err)
{
    Rdt__Pb__Prepare request = RDT__PB__PREPARE__INIT;
    ProtobufCMessage *reply = NULL;
    int64_t began_ns = clock_now_ns(), left_ns = clock_remaining_ns(deadline_ns);
    struct version version;
    enum rdt_status status;

    request.follower = follower->number;
    request.timeout_ns = timeout_ns == 0 ? 0 : left_ns;
    status = call_fds(follower->conn, RDT_MSG_PREPARE, &request.base, -1,
                      clock_after_answer_ns(deadline_ns, timeout_ns == 0 ? CLOCK_NO_WAIT_NS : timeout_ns), &reply, NULL, err);
    follower->wait_ns += clock_now_ns() - began_ns;
    if (status == RDT_NOT_FOUND) { /* this daemon does not know the follower */
        status = tell(follower, err);
        return status == RDT_OK ? RDT_AGAIN : status;
    }
    if (status != RDT_OK)
        return status;
    if (!is_same(&follower->next.ref, ((const Rdt__Pb__PrepareReply *)reply)->ref) || follower->next.number == 0) {
        status = fetch_version(follower, (const Rdt__Pb__PrepareReply *)reply, &version, err);
        if (status == RDT_OK) {
            version_fini(follower->conn, &follower->next);
            follower->next = version;
        }
    }
    protobuf_c_message_free_unpacked(reply, NULL);
    return status == RDT_NOT_FOUND || status == RDT_FREED || status == RDT_OWNER_DIED || status == RDT_PEER_LOST ||
                   status == RDT_RESTARTED
               ? RDT_AGAIN
               : status;
}

enum rdt_status rdt_follower_prepare(rdt_follower *follower, int64_t timeout_ns, struct rdt_prepared *prepared_p,
                                     struct rdt_error *err)
{
    int64_t deadline_ns = clock_deadline_ns(timeout_ns == 0 ? CLOCK_NO_WAIT_NS : timeout_ns), began_ns;
    const struct version *next;
    struct rdt_error why;
    enum rdt_status status;

    if (!follower)
        return rdt_error_set(err, RDT_INVALID, "follower is NULL");
    version_fini(follower->conn, &follower->last);
    began_ns = follower->wait_ns;
    next = &follower->next;
    for (unsigned tries = 0; (status = prepare(follower, timeout_ns, deadline_ns, &why)) == RDT_AGAIN; tries++)
        if (tries == MOST_TRIES || clock_remaining_ns(deadline_ns) == 0) {
            status = rdt_error_set(&why, RDT_TIMED_OUT,
                                   "no version could be prepared in time: the daemon has restarted, or "
                                   "dropped each for a newer one");
            break;
        }
    if (status != RDT_OK) {
        if (err)
            *err = why;
        return status;
    }
    if (prepared_p)
        *prepared_p = (struct rdt_prepared){.version = next->number,
                                            .step = next->step,
                                            .objects = next->n,
                                            .bytes = next->bytes,
                                            .bytes_moved = next->bytes_moved,
                                            .skipped = follower->committed > 0 && next->number > follower->committed + 1
                                                           ? next->number - follower->committed - 1
                                                           : 0,
                                            .wait_ns = follower->wait_ns - began_ns,
                                            .fetch_ns = next->fetch_ns,
                                            .in_parts = next->in_parts};
    return RDT_OK;
}

const rdt_object *rdt_follower_object(const rdt_follower *follower, size_t i)
{
    return follower && i < follower->next.n ? follower->next.objects[i] : NULL;
}

rdt_object *rdt_follower_take(rdt_follower *follower, size_t i)
{
    rdt_object *object = (rdt_object *)rdt_follower_object(follower, i);

    if (!object || connection_is_forked(follower->conn))
        return NULL;
    connection_lock(follower->conn);
    object->shared++;
    connection_unlock(follower->conn);
    return object;
}

/* ---- commit ---- */

/* The targets have the object's tensors, and share no memory. */
static enum rdt_status check_targets(const rdt_object *object, const struct rdt_tensor *targets, size_t n,
                                     struct rdt_error *err)
{
    struct overlap overlap;
    struct rdt_tensor tensor;
    size_t bytes;
    enum rdt_status status = RDT_OK;

    if (n != rdt_object_count(object))
        return rdt_error_set(err, RDT_MISMATCH, "the object has %zu tensors, and there are %zu targets",
                             rdt_object_count(object), n);
    for (size_t i = 0; i < n && status == RDT_OK; i++) {
        int64_t stride = 1;

        status = rdt_object_tensor(object, i, &tensor, err);
        if (status == RDT_OK && rdt_tensor_bytes(&targets[i], &bytes, err) != RDT_OK)
            status = RDT_INVALID;
        if (status != RDT_OK) {
            rdt_error_prefix(err, "target tensor %zu", i);
            return status;
        }
        if (tensor.dtype != targets[i].dtype || tensor.ndim != targets[i].ndim ||
            (tensor.ndim > 0 && memcmp(tensor.shape, targets[i].shape, tensor.ndim * sizeof *tensor.shape) != 0))
            return rdt_error_set(err, RDT_MISMATCH, "target tensor %zu has another dtype or shape than the object's", i);
        for (uint32_t d = targets[i].ndim; d-- > 0 && bytes > 0 && targets[i].strides; stride *= targets[i].shape[d])
            if (targets[i].shape[d] > 1 && targets[i].strides[d] != stride)
                return rdt_error_set(err, RDT_MISMATCH, "target tensor %zu is not contiguous", i);
        if (bytes > 0 && !targets[i].data)
            return rdt_error_set(err, RDT_INVALID, "data of target tensor %zu is NULL", i);
    }
    status = overlap_find(targets, n, NULL, &overlap);
    if (status == RDT_EXISTS)
        return rdt_error_set(err, RDT_INVALID,
                             "target tensor %zu shares memory with target tensor %zu, so one would overwrite the other",
                             overlap.second, overlap.first);
    if (status == RDT_LIMIT)
        return rdt_error_set(err, RDT_LIMIT,
                             "so many targets lie between each other that it takes too long to find out whether they share "
                             "memory: give them contiguous memory");
    return status == RDT_OK ? RDT_OK : no_memory(err);
}

/* Copies the object to the targets, after the devices of `places` [n] were found. */
static enum rdt_status copy_each(const rdt_object *object, const struct rdt_tensor *targets, size_t n, const int *places,
                                 struct plan_devices *devices, uint64_t *bytes_p, struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;

    for (size_t i = 0; i < n && status == RDT_OK; i++) {
        struct rdt_tensor tensor;
        size_t bytes = 0;
        int64_t strides[RDT_MAX_NDIM], stride = 1;
        struct strided from, to;

        if (rdt_object_tensor(object, i, &tensor, NULL) != RDT_OK || rdt_tensor_bytes(&tensor, &bytes, NULL) != RDT_OK ||
            bytes == 0)
            continue;
        for (uint32_t d = tensor.ndim; d-- > 0; stride *= tensor.shape[d])
            strides[d] = stride;
        from = (struct strided){tensor.dtype, tensor.data, tensor.strides};
        to = (struct strided){tensor.dtype, targets[i].data, strides};
        if (places[i] == PLAN_HOST)
            strided_copy(tensor.ndim, (const uint64_t *)tensor.shape, &from, &to);
        else
            status = devices_copy(devices, places[i], tensor.ndim, (const uint64_t *)tensor.shape, &from, &to, err);
        *bytes_p += bytes;
    }
    return status;
}

static enum rdt_status copy_targets(rdt *conn, const rdt_object *object, const struct rdt_tensor *targets, size_t n,
                                    uint64_t *bytes_p, struct rdt_error *err)
{
    struct plan_devices devices = {0};
    int *places = malloc((n + 1) * sizeof *places);
    enum rdt_status status = places ? RDT_OK : no_memory(err);

    for (size_t i = 0; i < n && status == RDT_OK; i++) {
        places[i] = PLAN_HOST;
        if (targets[i].data)
            status = devices_find(&devices, conn, targets[i].data, &places[i], err);
        if (status != RDT_OK)
            rdt_error_prefix(err, "target tensor %zu", i);
    }
    if (status == RDT_OK)
        status = devices_begin(&devices, CLOCK_NEVER, err);
    if (status == RDT_OK) {
        status = copy_each(object, targets, n, places, &devices, bytes_p, err);
        status = devices_end(&devices, status, err);
        if (status != RDT_OK)
            rdt_error_prefix(err, "the targets may have a part of the version");
    }
    devices_fini(&devices);
    free(places);
    return status;
}

static enum rdt_status check_options(const rdt_follower *follower, const struct rdt_commit_options *options,
                                     struct rdt_error *err)
{
    const struct version *next = &follower->next;

    if ((options->plan != NULL) + (options->targets != NULL) + (options->objects != NULL) > 1)
        return rdt_error_set(err, RDT_INVALID, "a commit takes one of plan, targets and objects");
    if (next->number == 0)
        return rdt_error_set(err, RDT_INVALID, "no version of \"%s\" is prepared: call rdt_follower_prepare",
                             follower->name.id);
    if (options->plan && !next->in_parts)
        return rdt_error_set(err, RDT_INVALID, "version %llu of \"%s\" is one object, not parts: give targets, not a plan",
                             (unsigned long long)next->number, follower->name.id);
    if (options->targets && next->in_parts)
        return rdt_error_set(err, RDT_INVALID, "version %llu of \"%s\" is published in parts: give a plan, not targets",
                             (unsigned long long)next->number, follower->name.id);
    return RDT_OK;
}

/* Everything that can fail, but for devices. */
static enum rdt_status check(rdt_follower *follower, const struct rdt_commit_options *options, bool *planned_p,
                             struct rdt_error *err)
{
    struct version *next = &follower->next;
    enum rdt_status status = RDT_OK;

    if (options->plan) {
        status = next->manifest ? plan_fit(options->plan, next->manifest, next->objects, planned_p, err)
                                : rdt_error_set(err, RDT_INVALID, "the version was given to a plan already");
    } else if (options->targets) {
        status = check_targets(next->objects[0], options->targets, options->n_targets, err);
    }
    if (status != RDT_OK)
        rdt_error_prefix(err, "version %llu of \"%s\"", (unsigned long long)next->number, follower->name.id);
    return status;
}

/* The daemon may forget what this process has copied. */
static void tell_committed(rdt_follower *follower)
{
    Rdt__Pb__Commit request = RDT__PB__COMMIT__INIT;
    Rdt__Pb__Ref ref;

    follower->committed = follower->next.number;
    follower->committed_ref = follower->next.ref;
    wire_ref_from(&follower->committed_ref, &ref);
    request.follower = follower->number;
    request.version = follower->committed;
    request.ref = &ref;
    note(follower->conn, RDT_MSG_COMMIT, &request.base);
}

enum rdt_status rdt_follower_commit(rdt_follower *follower, const struct rdt_commit_options *options,
                                    struct rdt_commit *commit_p, struct rdt_error *err)
{
    struct rdt_commit_options own;
    struct rdt_commit commit;
    int64_t began_ns;
    bool planned = false;
    enum rdt_status status = options_copy(&own, sizeof own, options, err);

    if (status == RDT_OK && !follower)
        status = rdt_error_set(err, RDT_INVALID, "follower is NULL");
    if (status == RDT_OK)
        status = check_options(follower, &own, err);
    if (status == RDT_OK)
        status = check(follower, &own, &planned, err);
    if (status != RDT_OK)
        return status;
    commit = (struct rdt_commit){.version = follower->next.number,
                                 .step = follower->next.step,
                                 .bytes_moved = follower->next.bytes_moved,
                                 .wait_ns = follower->wait_ns,
                                 .fetch_ns = follower->next.fetch_ns};
    began_ns = clock_now_ns();
    if (own.plan)
        status = plan_write(own.plan, follower->next.objects, &commit.bytes, err);
    if (own.targets)
        status = copy_targets(follower->conn, follower->next.objects[0], own.targets, own.n_targets, &commit.bytes, err);
    if (status != RDT_OK) {
        rdt_error_prefix(err, "version %llu of \"%s\"", (unsigned long long)follower->next.number, follower->name.id);
        return status;
    }
    if (planned) {
        plan_keep(own.plan, follower->next.manifest);
        follower->next.manifest = NULL;
    }
    commit.copy_ns = own.plan || own.targets ? clock_now_ns() - began_ns : 0;
    for (; own.objects && follower->next.n > 0; follower->next.n--)
        own.objects[follower->next.n - 1] = follower->next.objects[follower->next.n - 1];
    follower->wait_ns = 0;
    tell_committed(follower);
    version_fini(follower->conn, &follower->last);
    follower->last = follower->next;
    follower->next = (struct version){0};
    if (commit_p)
        *commit_p = commit;
    return RDT_OK;
}

/* ---- what the daemon says ---- */

static void copy_text(char *to, size_t room, const char *from)
{
    size_t n = strlen(from) < room ? strlen(from) : room - 1;

    memcpy(to, from, n);
    to[n] = '\0';
}

enum rdt_status rdt_follower_info(rdt_follower *follower, struct rdt_follower_info *info_p, struct rdt_error *err)
{
    Rdt__Pb__Followers request = RDT__PB__FOLLOWERS__INIT;
    struct rdt_follower_info info = {0};
    struct rdt_node_info node;
    ProtobufCMessage *message;
    const Rdt__Pb__FollowersReply *reply;
    enum rdt_status status = options_check_out(info_p, "info_p", err);

    if (status == RDT_OK && !follower)
        status = rdt_error_set(err, RDT_INVALID, "follower is NULL");
    if (status != RDT_OK)
        return status;
    status = call(follower->conn, RDT_MSG_FOLLOWERS, &request.base, CALL_TIMEOUT_NS, &message, err);
    if (status != RDT_OK)
        return status;
    connection_copy_node(follower->conn, &node);
    reply = (const Rdt__Pb__FollowersReply *)message;
    info.committed = follower->committed;
    info.prepared = follower->next.number;
    for (size_t i = 0; i < reply->n_followers; i++) {
        const Rdt__Pb__FollowerInfo *row = reply->followers[i];

        if (row->client != node.session || row->follower != follower->number)
            continue;
        info = (struct rdt_follower_info){.committed = follower->committed,
                                          .prepared = row->prepared,
                                          .newest = row->newest,
                                          .lag = row->lag,
                                          .lag_ns = row->lag_ns};
        copy_text(info.state, sizeof info.state, row->state);
        copy_text(info.failure, sizeof info.failure, row->failure);
    }
    protobuf_c_message_free_unpacked(message, NULL);
    *info_p = info;
    return RDT_OK;
}
