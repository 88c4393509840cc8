/* SPDX-License-Identifier: Apache-2.0 */
/* Conn's put and fetch, and waiting for requests. */
#include <rdt_many.h>
#include <string.h>

#include "rdtpy.h"

#define MAX_HEADER_BYTES ((size_t)4 << 20)

#define LITTLE_BYTES ((size_t)1 << 20)

static char *put_text(char *at, const char *text, size_t length)
{
    memcpy(at, text, length);
    return at + length;
}

static char *put_number(char *at, uint64_t number)
{
    char digits[20];
    size_t n = sizeof digits;

    do
        digits[--n] = (char)('0' + number % 10);
    while (number /= 10);
    return put_text(at, digits + n, sizeof digits - n);
}

#define PUT(at, literal) put_text(at, literal, sizeof(literal) - 1)

/* A safetensors header for these tensors in their order, from which rdtctl writes a safetensors file. `names` are JSON
 * strings; `more` is appended to them. Returns NULL without an exception if the format lacks a dtype or the header is longer
 * than metadata may be. */
static PyObject *header_of(const struct borrowed_set *set, PyObject *names, const char *more)
{
    size_t room = strlen(more) + 16, used, data_at = 0;
    PyObject *header;
    char *text, *at;

    for (size_t i = 0; i < set->count; i++) {
        Py_ssize_t bytes;

        if (!PyUnicode_AsUTF8AndSize(PyList_GET_ITEM(names, (Py_ssize_t)i), &bytes))
            return NULL;
        room += (size_t)bytes + 96 + 21 * (size_t)set->tensors[i].ndim;
        if (!rdt_dtype_row(set->tensors[i].dtype)->safetensors)
            return NULL;
    }
    text = at = PyMem_Malloc(room);
    if (!text)
        return PyErr_NoMemory();
    for (size_t i = 0; i < set->count; i++) {
        const struct rdt_tensor *tensor = &set->tensors[i];
        const char *name, *dtype = rdt_dtype_row(tensor->dtype)->safetensors;
        Py_ssize_t name_bytes;
        size_t bytes;

        if (rdt_tensor_bytes(tensor, &bytes, NULL) != RDT_OK)
            bytes = 0; /* rdt_put reports the error */
        name = PyUnicode_AsUTF8AndSize(PyList_GET_ITEM(names, (Py_ssize_t)i), &name_bytes);
        *at++ = i ? ',' : '{';
        at = put_text(at, name, (size_t)name_bytes);
        at = PUT(at, ":{\"dtype\":\"");
        at = put_text(at, dtype, strlen(dtype));
        at = PUT(at, "\",\"shape\":[");
        for (uint32_t d = 0; d < tensor->ndim; d++) {
            if (d)
                *at++ = ',';
            at = put_number(at, (uint64_t)tensor->shape[d]);
        }
        at = PUT(at, "],\"data_offsets\":[");
        at = put_number(at, data_at);
        *at++ = ',';
        at = put_number(at, data_at += bytes);
        at = PUT(at, "]}");
    }
    at = put_text(at, more, strlen(more));
    *at++ = '}';
    used = (size_t)(at - text);
    header = used <= MAX_HEADER_BYTES ? PyBytes_FromStringAndSize(text, (Py_ssize_t)used) : NULL;
    PyMem_Free(text);
    return header;
}

static bool is_little(const struct borrowed_set *set)
{
    size_t all = 0, bytes;

    if (set->on_gpus > 0)
        return false;
    for (size_t i = 0; i < set->count && all <= LITTLE_BYTES; i++) {
        if (rdt_tensor_bytes(&set->tensors[i], &bytes, NULL) != RDT_OK)
            return false;
        all += bytes;
    }
    return all <= LITTLE_BYTES;
}

/* _put(tensors, id, metadata, visibility, transport, flags, timeout, ttl, names, stream, priority). With names (one JSON string
 * per tensor) the metadata becomes a safetensors header that ends with `metadata`; the result is None, and nothing was put, if
 * no such header can be written. PUT_SNAPSHOT_UNLESS_OURS: the object is live if a tensor lies in memory from Connection.empty;
 * otherwise the copy never changes, and other nodes may keep replicas of it, or for small tensors a live object in memory
 * of librdt's own, which is faster to put, or with tensors on GPUs a live object, because the library has copied those in
 * their stream and the daemon would copy them again. */
PyObject *conn_put(PyObject *self, PyObject *args)
{
    struct conn *conn = (struct conn *)self;
    struct rdt_put_options options = RDT_INIT(options);
    PyObject *tensors, *names, *stream = Py_None, *made, *header = NULL;
    Py_buffer id = {0}, metadata = {0};
    struct borrowed_set *set = NULL;
    enum rdt_memory *how = NULL;
    struct rdt_ref value;
    struct rdt_error err;
    enum rdt_status status = RDT_INVALID;
    Py_ssize_t copied = 0;
    uint32_t of_gpus;
    bool live = false;
    int visibility;

    if (!PyArg_ParseTuple(args, "Oz*z*izIO&O&O|OI:_put", &tensors, &id, &metadata, &visibility, &options.transport,
                          &options.flags, timeout_or_none, &options.timeout_ns, timeout_or_none, &options.ttl_ns, &names,
                          &stream, &options.priority))
        return NULL; /* a timeout of 0 does not wait for room, nor does None */
    options.id = id.buf;
    options.id_bytes = (size_t)id.len;
    options.metadata = metadata.buf;
    options.metadata_bytes = (size_t)metadata.len;
    options.visibility = (enum rdt_visibility)visibility;
    made = NULL;
    set = borrowed_set_from(tensors, false, stream, "put:");
    how = set ? PyMem_Calloc(set->count + 1, sizeof *how) : NULL;
    if (!how) {
        if (set)
            PyErr_NoMemory();
        goto end;
    }
    if (names != Py_None) {
        if (!PyList_Check(names) || (size_t)PyList_GET_SIZE(names) != set->count || !metadata.buf) {
            PyErr_SetString(PyExc_ValueError, "the number of names must equal the number of tensors");
            goto end;
        }
        header = header_of(set, names, metadata.buf);
        if (!header) {
            if (!PyErr_Occurred()) {
                Py_INCREF(Py_None);
                made = Py_None;
            }
            goto end;
        }
        options.metadata = PyBytes_AS_STRING(header);
        options.metadata_bytes = (size_t)PyBytes_GET_SIZE(header);
    }
    if (options.flags & PUT_SNAPSHOT_UNLESS_OURS) {
        options.flags &= ~(uint32_t)PUT_SNAPSHOT_UNLESS_OURS;
        options.flags |= set->on_gpus > 0 || memory_has_one_of(conn, set->tensors, set->count) || is_little(set)
                             ? 0
                             : RDT_PUT_SNAPSHOT | RDT_PUT_UNSEALED;
    }
    of_gpus = options.flags & (PUT_MAY_SHARE | PUT_TO_HOST);
    options.flags &= ~of_gpus;
    options.how = how;
    if ((set->on_gpus > 0 && !gpu_open(conn)) || !conn_enter(conn))
        goto end;
    WAITS(conn, status,
          set->on_gpus > 0 ? gpu_put(conn, set, &options, &value, of_gpus, &copied, &live, &err)
                           : rdt_put(conn->rdt, set->tensors, set->count, &options, &value, &err));
    if (status != RDT_OK) {
        raise_error(&err);
    } else {
        made = ref_new(&value, options.flags & (RDT_PUT_DETACHED | RDT_PUT_EVICTABLE) || conn->closed ? NULL : conn);
        if (made) {
            struct ref *ref = (struct ref *)made;

            ref->retained = options.id;
            ref->copied = copied;
            ref->live = live;
            for (size_t i = 0; i < set->count; i++) {
                size_t bytes;

                ref->copied +=
                    how[i] == RDT_MEMORY_COPIED && rdt_tensor_bytes(&set->tensors[i], &bytes, NULL) == RDT_OK && bytes > 0;
            }
        } else {
            (void)rdt_drop(conn->rdt, &value, NULL);
        }
    }
    conn_leave(conn);
end:
    PyMem_Free(how);
    borrowed_set_free(set);
    Py_XDECREF(header);
    PyBuffer_Release(&id);
    PyBuffer_Release(&metadata);
    return made;
}

/* ---- fetch ---- */

struct fetching { /* everything that rdt_fetch_start borrows */
    size_t count;
    struct rdt_ref *refs;
    const struct rdt_slice **slices;
    size_t *slice_counts;
    const struct rdt_tensor **targets;
    size_t *target_counts;
    struct borrowed_set **borrowed; /* [count]; NULL for a ref without targets */
    rdt_request **requests;
};

static void fetching_fini(struct fetching *fetching)
{
    for (size_t i = 0; i < fetching->count; i++) {
        if (fetching->slices && fetching->slices[i]) {
            for (size_t t = 0; t < fetching->slice_counts[i]; t++)
                PyMem_Free((void *)fetching->slices[i][t].start);
            PyMem_Free((void *)fetching->slices[i]);
        }
        if (fetching->borrowed)
            borrowed_set_free(fetching->borrowed[i]);
    }
    PyMem_Free(fetching->refs);
    PyMem_Free(fetching->slices);
    PyMem_Free(fetching->slice_counts);
    PyMem_Free(fetching->targets);
    PyMem_Free(fetching->target_counts);
    PyMem_Free(fetching->borrowed);
    PyMem_Free(fetching->requests);
}

/* Reads the slices of one object: None, or a list with None or a tuple of (start, count) pairs for each tensor. */
static bool read_slices(struct fetching *fetching, size_t i, PyObject *list)
{
    Py_ssize_t count;
    struct rdt_slice *slices;

    if (list == Py_None)
        return true;
    if (!PyList_Check(list)) {
        PyErr_SetString(PyExc_TypeError, "the slices of an object must be a list");
        return false;
    }
    count = PyList_GET_SIZE(list);
    slices = PyMem_Calloc((size_t)count + 1, sizeof *slices);
    if (!slices) {
        PyErr_NoMemory();
        return false;
    }
    fetching->slices[i] = slices;
    fetching->slice_counts[i] = (size_t)count;
    for (Py_ssize_t t = 0; t < count; t++) {
        PyObject *box = PyList_GET_ITEM(list, t);
        Py_ssize_t ndim;
        int64_t *dims;

        if (box == Py_None)
            continue;
        if (!PyTuple_Check(box)) {
            PyErr_SetString(PyExc_TypeError, "a slice must be a tuple");
            return false;
        }
        ndim = PyTuple_GET_SIZE(box);
        dims = PyMem_Calloc(2 * (size_t)ndim + 1, sizeof *dims);
        if (!dims) {
            PyErr_NoMemory();
            return false;
        }
        slices[t].ndim = (uint32_t)ndim;
        slices[t].start = dims;
        slices[t].count = dims + ndim;
        for (Py_ssize_t d = 0; d < ndim; d++) {
            long long start, length;

            if (!PyArg_ParseTuple(PyTuple_GET_ITEM(box, d), "LL", &start, &length))
                return false;
            dims[d] = start;
            dims[ndim + d] = length;
        }
    }
    return true;
}

static bool fetching_init(struct fetching *fetching, PyObject *refs, PyObject *slices, PyObject *targets)
{
    size_t count = (size_t)PyList_GET_SIZE(refs);

    fetching->count = count;
    fetching->refs = PyMem_Calloc(count + 1, sizeof *fetching->refs);
    fetching->requests = PyMem_Calloc(count + 1, sizeof(rdt_request *));
    fetching->borrowed = PyMem_Calloc(count + 1, sizeof(struct borrowed_set *));
    if (slices != Py_None) {
        fetching->slices = PyMem_Calloc(count + 1, sizeof(struct rdt_slice *));
        fetching->slice_counts = PyMem_Calloc(count + 1, sizeof(size_t));
    }
    if (targets != Py_None) {
        fetching->targets = PyMem_Calloc(count + 1, sizeof(struct rdt_tensor *));
        fetching->target_counts = PyMem_Calloc(count + 1, sizeof(size_t));
    }
    if (!fetching->refs || !fetching->requests || !fetching->borrowed ||
        (slices != Py_None && (!fetching->slices || !fetching->slice_counts)) ||
        (targets != Py_None && (!fetching->targets || !fetching->target_counts))) {
        PyErr_NoMemory();
        return false;
    }
    if ((slices != Py_None && (!PyList_Check(slices) || (size_t)PyList_GET_SIZE(slices) != count)) ||
        (targets != Py_None && (!PyList_Check(targets) || (size_t)PyList_GET_SIZE(targets) != count))) {
        PyErr_SetString(PyExc_ValueError, "the number of slices and of targets must equal the number of refs");
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        if (!ref_read(PyList_GET_ITEM(refs, (Py_ssize_t)i), &fetching->refs[i]))
            return false;
        if (slices != Py_None && !read_slices(fetching, i, PyList_GET_ITEM(slices, (Py_ssize_t)i)))
            return false;
        if (targets != Py_None && PyList_GET_ITEM(targets, (Py_ssize_t)i) != Py_None) {
            fetching->borrowed[i] = borrowed_set_from(PyList_GET_ITEM(targets, (Py_ssize_t)i), true, Py_None, "fetch: target");
            if (!fetching->borrowed[i])
                return false;
            fetching->targets[i] = fetching->borrowed[i]->tensors;
            fetching->target_counts[i] = fetching->borrowed[i]->count;
        }
    }
    return true;
}

static bool fetching_on_gpus(const struct fetching *fetching)
{
    for (size_t i = 0; i < fetching->count; i++)
        if (fetching->borrowed[i] && fetching->borrowed[i]->on_gpus > 0)
            return true;
    return false;
}

static enum rdt_status begin_fetching(struct conn *conn, struct fetching *fetching, struct rdt_fetch_options *options,
                                      int64_t patience_ns, struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;

    for (size_t i = 0; status == RDT_OK && i < fetching->count; i++)
        if (fetching->borrowed[i] && fetching->borrowed[i]->on_gpus > 0)
            status = gpu_offer(conn, fetching->borrowed[i], &options->timeout_ns, err);
    if (status == RDT_OK)
        status = rdt_fetch_start(conn->rdt, fetching->refs, fetching->count, options, fetching->requests, err);
    if (status == RDT_OK && patience_ns > 0) /* the requests carry the results */
        (void)rdt_wait(conn->rdt, fetching->requests, fetching->count, RDT_WAIT_ALL, patience_ns, NULL, NULL, NULL);
    return status;
}

/* _fetch([ref], mode, timeout, transport, least_path, slices, targets, place, group, patience, metadata_only): starts the
 * fetches and returns a list of Requests. Waits `patience` seconds for all of them first,
 * so a caller that waits anyway takes the GIL only once. */
PyObject *conn_fetch(PyObject *self, PyObject *args)
{
    struct conn *conn = (struct conn *)self;
    struct rdt_fetch_options options = RDT_INIT(options);
    struct fetching fetching = {0};
    PyObject *refs, *slices, *targets, *place = Py_None, *list = NULL;
    struct rdt_error err;
    enum rdt_status status = RDT_OK;
    double patience = 0;
    int mode, metadata_only = 0;

    if (!PyArg_ParseTuple(args, "O!iO&zzOO|Ozdp:_fetch", &PyList_Type, &refs, &mode, timeout_option, &options.timeout_ns,
                          &options.transport, &options.least_path, &slices, &targets, &place, &options.group, &patience,
                          &metadata_only) ||
        !gpu_place(place, &options.memory, &options.device, &options.host_stays))
        return NULL;
    options.mode = (enum rdt_fetch_mode)mode;
    options.metadata_only = metadata_only;
    if (!fetching_init(&fetching, refs, slices, targets) || (fetching_on_gpus(&fetching) && !gpu_open(conn)) ||
        !conn_enter(conn)) {
        fetching_fini(&fetching);
        return NULL;
    }
    options.slices = (const struct rdt_slice *const *)fetching.slices;
    options.slice_counts = fetching.slice_counts;
    options.targets = (const struct rdt_tensor *const *)fetching.targets;
    options.target_counts = fetching.target_counts;
    WAITS(conn, status, begin_fetching(conn, &fetching, &options, (int64_t)(patience * 1e9), &err));
    if (status != RDT_OK) {
        (void)raise_error(&err);
    } else {
        list = PyList_New((Py_ssize_t)fetching.count);
        for (size_t i = 0; i < fetching.count; i++) {
            PyObject *request = list ? request_new(conn, fetching.requests[i]) : NULL;

            if (request) {
                ((struct request *)request)->targets = fetching.borrowed[i];
                fetching.borrowed[i] = NULL;
                PyList_SET_ITEM(list, (Py_ssize_t)i, request);
                if (conn->closed)
                    rdt_cancel(fetching.requests[i]);
            } else if (list) { /* its destructor has destroyed the rdt_request */
                Py_CLEAR(list);
            } else {
                rdt_request_destroy(fetching.requests[i]);
            }
        }
    }
    conn_leave(conn);
    fetching_fini(&fetching);
    return list;
}

/* ---- wait ---- */

/* Whether TIMED_OUT is the result of a request, and not of the wait. */
static bool one_timed_out(rdt_request *const *requests, const bool *done, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        if (done[i] && rdt_request_status(requests[i], NULL) != RDT_OK)
            return true;
    }
    return false;
}

static enum rdt_status fetch_one(rdt *conn, const struct rdt_ref *ref, const struct rdt_fetch_options *options,
                                 rdt_request **request_p, struct rdt_error *err)
{
    enum rdt_status status = rdt_fetch_start(conn, ref, 1, options, request_p, err);

    return status == RDT_OK ? rdt_wait(conn, request_p, 1, 1, RDT_FOREVER, NULL, NULL, err) : status;
}

/* _get(ref, mode): fetches one object, waits and returns it. This is the most frequent call, so it makes neither a Request
 * nor a list. */
PyObject *conn_get(PyObject *self, PyObject *args)
{
    struct conn *conn = (struct conn *)self;
    struct rdt_fetch_options options = RDT_INIT(options);
    PyObject *made = NULL;
    const struct ref *ref;
    rdt_request *request = NULL;
    rdt_object *object;
    struct rdt_error err;
    enum rdt_status status;
    int mode;

    if (!PyArg_ParseTuple(args, "O!i:_get", &ref_type, &ref, &mode) || !conn_enter(conn))
        return NULL;
    options.mode = (enum rdt_fetch_mode)mode;
    WAITS(conn, status, fetch_one(conn->rdt, &ref->ref, &options, &request, &err)); /* which close() ends, too */
    if (status == RDT_OK)
        status = rdt_request_take_object(request, &object, &err);
    if (status == RDT_OK)
        made = object_new(conn, object);
    else
        (void)raise_error(&err);
    if (request)
        rdt_request_destroy(request); /* does not block, since it has no targets */
    conn_leave(conn);
    return made;
}

/* Fetches those of refs [count] that are on this node, without waiting for any put, and takes those on other nodes that come in
 * a few answers. room [count] and got [count] are for its own use; objects [count] stays NULL for the others, and for what
 * failed. */
static enum rdt_status fetch_ready(rdt *conn, const struct rdt_ref *refs, size_t count, struct rdt_fetch_options *options,
                                   struct rdt_ref *room, rdt_object **got, rdt_object **objects, struct rdt_error *err)
{
    struct rdt_node_info node;
    enum rdt_status status = rdt_node(conn, &node, err);
    bool ended = status != RDT_OK;

    for (int far = 1; far >= 0 && !ended; far--) { /* the others first: they have the caller's time-out */
        size_t n = 0;
        for (size_t i = 0; i < count; i++)
            if (refs[i].generation && far == (memcmp(refs[i].node, node.node, sizeof node.node) != 0))
                room[n++] = refs[i];
        if (n == 0)
            continue;
        if (!far)
            options->timeout_ns = RDT_NO_WAIT;
        status =
            far ? rdt_fetch_small(conn, room, n, options, got, err) : rdt_fetch_each(conn, room, n, options, got, NULL, err);
        for (size_t i = 0, k = 0; i < count && k < n; i++)
            if (refs[i].generation && far == (memcmp(refs[i].node, node.node, sizeof node.node) != 0))
                objects[i] = got[k++];
        ended = status == RDT_CANCELLED;
    }
    return status;
}

/* _fetch_ready([ref], mode, timeout): a list with the Object of each ref whose object is on this node, or came in an answer of
 * another one, and None for those that must be fetched otherwise, or whose fetch failed. */
PyObject *conn_fetch_ready(PyObject *self, PyObject *args)
{
    struct conn *conn = (struct conn *)self;
    struct rdt_fetch_options options = RDT_INIT(options);
    PyObject *list, *made = NULL;
    struct rdt_ref *refs;
    rdt_object **objects;
    struct rdt_error err;
    enum rdt_status status;
    size_t count;
    int mode;

    if (!PyArg_ParseTuple(args, "O!iO&:_fetch_ready", &PyList_Type, &list, &mode, timeout_option, &options.timeout_ns))
        return NULL;
    options.mode = (enum rdt_fetch_mode)mode;
    count = (size_t)PyList_GET_SIZE(list);
    refs = PyMem_Malloc((2 * count + 1) * sizeof *refs);
    objects = PyMem_Calloc(2 * count + 1, sizeof(rdt_object *));
    if (!refs || !objects)
        PyErr_NoMemory();
    for (size_t i = 0; !PyErr_Occurred() && i < count; i++)
        (void)ref_read(PyList_GET_ITEM(list, (Py_ssize_t)i), &refs[i]);
    if (!PyErr_Occurred() && conn_enter(conn)) {
        WAITS(conn, status, fetch_ready(conn->rdt, refs, count, &options, refs + count, objects + count, objects, &err));
        if (status != RDT_OK && !waits_raise() && status == RDT_CANCELLED)
            (void)raise_error(&err);
        made = PyErr_Occurred() ? NULL : PyList_New((Py_ssize_t)count);
        for (size_t i = 0; i < count; i++) {
            PyObject *one = Py_None;

            if (!made) {
                rdt_release(objects[i]);
                continue;
            }
            if (objects[i])
                one = object_new(conn, objects[i]); /* which releases it if there is no memory */
            else
                Py_INCREF(one);
            if (one)
                PyList_SET_ITEM(made, (Py_ssize_t)i, one);
            else
                Py_CLEAR(made);
        }
        conn_leave(conn);
    }
    PyMem_Free(refs);
    PyMem_Free(objects);
    return made;
}

static enum rdt_status wait_each(rdt *conn, rdt_request *const *requests, size_t count, size_t how_many, int64_t timeout_ns,
                                 bool *done_p, struct rdt_error *err)
{
    enum rdt_status status = rdt_wait_each(conn, requests, count, how_many, timeout_ns, NULL, err);

    for (size_t i = 0; i < count; i++)
        done_p[i] = rdt_request_status(requests[i], NULL) != RDT_AGAIN;
    return status;
}

/* _wait([request], how many (-1: all), timeout, each): a list that says which requests have ended, whether or not that is
 * enough. Raises the error of the first request that failed; with `each` a request that failed has ended like any other. */
PyObject *conn_wait(PyObject *self, PyObject *args)
{
    struct conn *conn = (struct conn *)self;
    PyObject *list, *ended = NULL;
    Py_ssize_t how_many, count;
    rdt_request **requests;
    size_t number;
    int each = 0;
    bool *done;
    int64_t timeout_ns;
    struct rdt_error err;
    enum rdt_status status;

    if (!PyArg_ParseTuple(args, "O!nO&|p:_wait", &PyList_Type, &list, &how_many, timeout_or_forever, &timeout_ns, &each) ||
        !conn_enter(conn))
        return NULL;
    count = PyList_GET_SIZE(list);
    requests = PyMem_Calloc((size_t)count + 1, sizeof(rdt_request *));
    done = PyMem_Calloc((size_t)count + 1, sizeof *done);
    list = PyList_GetSlice(list, 0, count); /* a copy: the caller's list may change meanwhile */
    if (!requests || !done || !list) {
        if (list)
            PyErr_NoMemory();
        goto end;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        struct request *request = (struct request *)PyList_GET_ITEM(list, i);

        if (!PyObject_TypeCheck((PyObject *)request, &request_type)) {
            PyErr_Format(PyExc_TypeError, "wait: expected a Request, not a %.100s", Py_TYPE(request)->tp_name);
            goto end;
        }
        requests[i] = request->request;
    }
    number = how_many < 0 ? RDT_WAIT_ALL : (size_t)how_many;
    if (each)
        WAITS(conn, status, wait_each(conn->rdt, requests, (size_t)count, number, timeout_ns, done, &err));
    else
        WAITS(conn, status, rdt_wait(conn->rdt, requests, (size_t)count, number, timeout_ns, done, NULL, &err));
    if (status != RDT_OK && (status != RDT_TIMED_OUT || (!each && one_timed_out(requests, done, count)))) {
        (void)raise_error(&err);
        goto end;
    }
    ended = PyList_New(count);
    for (Py_ssize_t i = 0; ended && i < count; i++) {
        PyObject *truth = PyBool_FromLong(done[i]);

        PyList_SET_ITEM(ended, i, truth);
    }
end:
    PyMem_Free(requests);
    PyMem_Free(done);
    Py_XDECREF(list);
    conn_leave(conn);
    return ended;
}
