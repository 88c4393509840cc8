/* SPDX-License-Identifier: Apache-2.0 */
/* Conn's calls with one answer. */
#include "rdtpy.h"

#include <rdt_info.h>

static PyObject *node(PyObject *self, PyObject *ignored)
{
    struct conn *conn = (struct conn *)self;
    struct rdt_node_info info;
    struct rdt_error err;
    enum rdt_status status;

    if (!conn_enter(conn))
        return NULL;
    status = rdt_node(conn->rdt, &info, &err);
    conn_leave(conn);
    if (status != RDT_OK)
        return raise_error(&err);
    return Py_BuildValue("{s:y#,s:y#,s:s,s:s,s:K,s:I,s:s}", "node", info.node, (Py_ssize_t)sizeof info.node, "boot_id",
                         info.boot_id, (Py_ssize_t)sizeof info.boot_id, "address", info.address, "daemon_version",
                         info.daemon_version, "session", (unsigned long long)info.session, "uid", (unsigned)info.uid, "tenant",
                         info.tenant);
}

static PyObject *ping(PyObject *self, PyObject *timeout)
{
    struct conn *conn = (struct conn *)self;
    struct rdt_error err;
    enum rdt_status status;
    int64_t timeout_ns;

    if (!timeout_from(timeout, -1, &timeout_ns) || !conn_enter(conn))
        return NULL;
    CONN_CALL(conn, status, rdt_ping(conn->rdt, timeout_ns, &err));
    return none_or_raise(status, &err);
}

/* Its hold is about to be dropped, once. */
static void has_no_hold(struct conn *conn, struct ref *ref)
{
    if (ref->conn == conn) {
        link_remove(&ref->link);
        ref->conn = NULL;
        Py_DECREF(conn);
    }
    ref->wanting = 0;
    Py_CLEAR(ref->hold);
    conn_forget(conn, &ref->ref);
}

/* _free(ref, force) */
static PyObject *free_ref(PyObject *self, PyObject *args)
{
    struct conn *conn = (struct conn *)self;
    struct ref *ref;
    struct rdt_ref value;
    struct rdt_error err;
    enum rdt_status status;
    int force;

    if (!PyArg_ParseTuple(args, "O!p:_free", &ref_type, &ref, &force) || !conn_enter(conn))
        return NULL;
    value = ref->ref;
    has_no_hold(conn, ref);
    CONN_CALL(conn, status, rdt_free(conn->rdt, &value, force != 0, &err));
    return none_or_raise(status, &err);
}

/* _drop(ref): like _free, for what a call that failed has put. Waits for no answer, and raises nothing: the caller raises why
 * the call failed. */
static PyObject *drop_ref(PyObject *self, PyObject *arg)
{
    struct conn *conn = (struct conn *)self;
    struct rdt_ref value;

    if (!ref_read(arg, &value))
        return NULL;
    if (conn->closed || !conn_enter(conn)) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    has_no_hold(conn, (struct ref *)arg);
    (void)rdt_drop(conn->rdt, &value, NULL);
    conn_leave(conn);
    Py_RETURN_NONE;
}

static enum rdt_status hold(rdt *conn, const struct rdt_ref *ref, bool takes_over, int64_t timeout_ns, int64_t patience_ns,
                            rdt_request **request_p, struct rdt_error *err)
{
    enum rdt_status status = takes_over ? rdt_take_over_start(conn, ref, timeout_ns, request_p, err)
                                        : rdt_hold_start(conn, ref, timeout_ns, request_p, err);

    if (status == RDT_OK && patience_ns > 0)
        (void)rdt_wait(conn, request_p, 1, 1, patience_ns, NULL, NULL, NULL); /* the request carries the result */
    return status;
}

/* _start(what (enum wait_for), ref or None, address, bytes, timeout, patience): starts a wait and returns its Request. A hold
 * is waited for `patience` seconds right here, which saves a wake-up. */
static PyObject *start(PyObject *self, PyObject *args)
{
    struct conn *conn = (struct conn *)self;
    PyObject *ref;
    unsigned long long address;
    Py_ssize_t bytes;
    struct rdt_ref value;
    struct rdt_error err;
    rdt_request *request;
    enum rdt_status status;
    int64_t timeout_ns;
    double patience = 0;
    int what;

    if (!PyArg_ParseTuple(args, "iOKnO&|d:_start", &what, &ref, &address, &bytes, timeout_or_forever, &timeout_ns, &patience))
        return NULL;
    if ((what != WAIT_FREED_RANGE && !ref_read(ref, &value)) || !conn_enter(conn))
        return NULL;
    if (what == WAIT_PUT)
        WAITS(conn, status, rdt_wait_put_start(conn->rdt, &value, timeout_ns, &request, &err));
    else if (what == WAIT_FREED)
        WAITS(conn, status, rdt_wait_freed_start(conn->rdt, &value, timeout_ns, &request, &err));
    else if (what == WAIT_HOLD || what == WAIT_TAKE_OVER)
        WAITS(conn, status,
              hold(conn->rdt, &value, what == WAIT_TAKE_OVER, timeout_ns, (int64_t)(patience * 1e9), &request, &err));
    else
        WAITS(
            conn, status,
            rdt_wait_freed_range_start(conn->rdt, (const void *)(uintptr_t)address, (size_t)bytes, timeout_ns, &request, &err));
    return request_started(conn, status, request, &err);
}

/* _span(tensor): address of its first byte, and the number of bytes up to the end of its last element. */
static PyObject *span(PyObject *self, PyObject *tensor)
{
    PyObject *list = PyList_New(1);
    struct borrowed_set *set;
    const struct rdt_tensor *view;
    int64_t lo = 0, hi = 0, row = 1;
    size_t itemsize;
    bool empty = false;

    if (!list)
        return NULL;
    Py_INCREF(tensor);
    PyList_SET_ITEM(list, 0, tensor);
    set = borrowed_set_from(list, false, Py_None, "wait_freed:");
    Py_DECREF(list);
    if (!set)
        return NULL;
    view = &set->tensors[0];
    itemsize = rdt_dtype_bytes(view->dtype);
    for (uint32_t d = view->ndim; d-- > 0;) {
        int64_t stride = view->strides ? view->strides[d] : row, reach = (view->shape[d] - 1) * stride;

        empty = empty || view->shape[d] == 0;
        *(reach < 0 ? &lo : &hi) += reach;
        row *= view->shape[d];
    }
    tensor =
        empty ? Py_BuildValue("(KK)", 0ULL, 0ULL)
              : Py_BuildValue("(KK)", (unsigned long long)(uintptr_t)view->data + (unsigned long long)(lo * (int64_t)itemsize),
                              (unsigned long long)((hi - lo + 1) * (int64_t)itemsize));
    borrowed_set_free(set);
    return tensor;
}

/* _import(fd, address, bytes): the memfd's first bytes are mapped at the address. */
static PyObject *import_memory(PyObject *self, PyObject *args)
{
    struct conn *conn = (struct conn *)self;
    unsigned long long address;
    struct rdt_error err;
    enum rdt_status status;
    Py_ssize_t bytes;
    int fd;

    if (!PyArg_ParseTuple(args, "iKn:_import", &fd, &address, &bytes) || !conn_enter(conn))
        return NULL;
    CONN_CALL(conn, status, rdt_import(conn->rdt, fd, (void *)(uintptr_t)address, (size_t)bytes, &err));
    return none_or_raise(status, &err);
}

/* _forget(address, waits): what _import or _offer has made known. waits: until the daemon writes there no more. */
static PyObject *forget_memory(PyObject *self, PyObject *args)
{
    struct conn *conn = (struct conn *)self;
    unsigned long long address;
    struct rdt_error err;
    enum rdt_status status;
    int waits;

    if (!PyArg_ParseTuple(args, "Kp:_forget", &address, &waits) || !conn_enter(conn))
        return NULL;
    CONN_CALL(conn, status, (waits ? rdt_dealloc : rdt_dealloc_soon)(conn->rdt, (void *)(uintptr_t)address, &err));
    return none_or_raise(status, &err);
}

/* _publish(name, ref, visibility, lease, ttl_ns): (version, the name's ref). */
static PyObject *publish(PyObject *self, PyObject *args)
{
    struct conn *conn = (struct conn *)self;
    struct rdt_publish_options options = RDT_INIT(options);
    struct rdt_ref name_ref, value;
    struct ref *ref;
    struct rdt_error err;
    enum rdt_status status;
    uint64_t version;
    const char *name;
    int visibility, lease;
    long long ttl_ns;

    if (!PyArg_ParseTuple(args, "sO!ipL:_publish", &name, &ref_type, &ref, &visibility, &lease, &ttl_ns) || !conn_enter(conn))
        return NULL;
    options.lease = lease;
    options.ttl_ns = ttl_ns;
    options.visibility = (enum rdt_visibility)visibility;
    options.name_ref = &name_ref;
    value = ref->ref;
    CONN_CALL(conn, status, rdt_publish(conn->rdt, name, &value, &options, &version, &err));
    if (status != RDT_OK)
        return raise_error(&err);
    ref->end = REF_OUTLIVES;
    return Py_BuildValue("(KN)", (unsigned long long)version, ref_new(&name_ref, NULL));
}

/* _store(ref, timeout): the path of the file. */
static PyObject *store(PyObject *self, PyObject *args)
{
    struct conn *conn = (struct conn *)self;
    struct rdt_ref value;
    struct rdt_error err;
    enum rdt_status status;
    char file[4200];
    struct ref *ref;
    int64_t timeout_ns;

    if (!PyArg_ParseTuple(args, "O!O&:_store", &ref_type, &ref, timeout_or_forever, &timeout_ns) || !conn_enter(conn))
        return NULL;
    value = ref->ref;
    CONN_CALL(conn, status, rdt_store(conn->rdt, &value, timeout_ns, file, sizeof file, &err));
    return status == RDT_OK ? PyUnicode_DecodeFSDefault(file) : raise_error(&err);
}

/* _owned(ref, user): the same of another user. */
static PyObject *owned(PyObject *self, PyObject *args)
{
    struct conn *conn = (struct conn *)self;
    struct rdt_ref value;
    struct rdt_error err;
    enum rdt_status status;
    struct ref *ref;
    const char *user;

    if (!PyArg_ParseTuple(args, "O!s:_owned", &ref_type, &ref, &user) || !conn_enter(conn))
        return NULL;
    value = ref->ref;
    CONN_CALL(conn, status, rdt_ref_set_owner(conn->rdt, &value, user, &err));
    return status == RDT_OK ? ref_new(&value, NULL) : raise_error(&err);
}

static PyObject *unpublish(PyObject *self, PyObject *ref)
{
    struct conn *conn = (struct conn *)self;
    struct rdt_ref value;
    struct rdt_error err;
    enum rdt_status status;

    if (!ref_read(ref, &value) || !conn_enter(conn))
        return NULL;
    CONN_CALL(conn, status, rdt_unpublish(conn->rdt, &value, &err));
    return none_or_raise(status, &err);
}

/* ---- event loops ---- */

static PyObject *fileno_of(PyObject *self, PyObject *ignored)
{
    struct conn *conn = (struct conn *)self;
    int fd;

    if (!conn_enter(conn))
        return NULL;
    fd = rdt_fd(conn->rdt);
    conn_leave(conn);
    if (fd < 0)
        return raise_status(RDT_FORKED, "this connection belongs to the parent process: connect in the child");
    return PyLong_FromLong(fd);
}

static PyObject *dispatch(PyObject *self, PyObject *ignored)
{
    struct conn *conn = (struct conn *)self;
    enum rdt_status status;
    size_t n_ended = 0;
    struct rdt_error err;

    if (!conn_enter(conn))
        return NULL;
    CONN_CALL(conn, status, rdt_dispatch(conn->rdt, &n_ended, &err));
    return status == RDT_OK ? PyLong_FromSize_t(n_ended) : raise_error(&err);
}

PyMethodDef conn_methods[] = {
    {"close", conn_close, METH_NOARGS,
     "Ends the connection: cancels its requests and frees what it put, except detached objects. Arrays and tensors that came "
     "from it stay valid: the session lasts, with nothing but their memory, until the last of them is deleted. A second close "
     "does nothing."},
    {"fileno", fileno_of, METH_NOARGS,
     "A descriptor that is readable when dispatch() has something to do: for poll and event loops."},
    {"dispatch", dispatch, METH_NOARGS,
     "Handles what is ready, without blocking: reads answers and ends requests whose deadline has passed. Returns how many "
     "requests have ended since the last call."},
    {"_put_part", conn_put_part, METH_VARARGS, NULL},
    {"_publish_part", conn_publish_part, METH_VARARGS, NULL},
    {"_give_up_part", conn_give_up_part, METH_VARARGS, NULL},
    {"_part_version", conn_part_version, METH_O, NULL},
    {"_manifest", conn_manifest, METH_VARARGS, NULL},
    {"_plan", conn_plan, METH_VARARGS, NULL},
    {"_publishing", conn_publishing, METH_VARARGS, NULL},
    {"_follow", conn_follow, METH_VARARGS, NULL},
    {"_put", conn_put, METH_VARARGS, NULL},
    {"_fetch", conn_fetch, METH_VARARGS, NULL},
    {"_get", conn_get, METH_VARARGS, NULL},
    {"_fetch_ready", conn_fetch_ready, METH_VARARGS, NULL},
    {"_wait", conn_wait, METH_VARARGS, NULL},
    {"_put_many", conn_put_many, METH_VARARGS, NULL},
    {"_publish_many", conn_publish_many, METH_VARARGS, NULL},
    {"_end_prefix", conn_end_prefix, METH_VARARGS, NULL},
    {"_exists", conn_exists, METH_O, NULL},
    {"_lookup", conn_lookup, METH_VARARGS, NULL},
    {"_load_many", conn_load_many, METH_VARARGS, NULL},
    {"_lease_end", conn_lease_end, METH_O, NULL},
    {"_node", node, METH_NOARGS, NULL},
    {"_ping", ping, METH_O, NULL},
    {"_free", free_ref, METH_VARARGS, NULL},
    {"_drop", drop_ref, METH_O, NULL},
    {"_start", start, METH_VARARGS, NULL},
    {"_shared", conn_shared, METH_O, NULL},
    {"_span", span, METH_O, NULL},
    {"_import", import_memory, METH_VARARGS, NULL},
    {"_forget", forget_memory, METH_VARARGS, NULL},
    {"_offer", conn_offer, METH_VARARGS, NULL},
    {"_publish", publish, METH_VARARGS, NULL},
    {"_unpublish", unpublish, METH_O, NULL},
    {"_store", store, METH_VARARGS, NULL},
    {"_owned", owned, METH_VARARGS, NULL},
    {"_json", conn_json, METH_VARARGS, NULL},
    {"_request_json", conn_request_json, METH_VARARGS, NULL},
    {"_group_create", conn_group_create, METH_VARARGS, NULL},
    {"_group_destroy", conn_group_destroy, METH_O, NULL},
    {"_broadcast", conn_broadcast, METH_VARARGS, NULL},
    {"_gpu", conn_gpu, METH_O, NULL},
    {"_gpu_open", conn_gpu_open, METH_NOARGS, NULL},
    {"_use_pool", conn_use_pool, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
