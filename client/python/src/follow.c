/* SPDX-License-Identifier: Apache-2.0 */
/* Conn's _follow, and Follower: what is prepared, and commits of it. */
#include <rdt_follow.h>

#include "rdtpy.h"

struct follower {
    PyObject_HEAD struct conn *conn;
    rdt_follower *follower; /* NULL: closed */
    struct link link;       /* in conn->followers, unless closed */
    bool used;              /* in some thread; under the GIL */
    bool in_parts;          /* what is prepared */
};

static void end(struct follower *follower)
{
    rdt_follower *ended = follower->follower;

    follower->follower = NULL;
    link_remove(&follower->link);
    Py_BEGIN_ALLOW_THREADS rdt_follower_close(ended);
    Py_END_ALLOW_THREADS
}

void conn_end_followers(struct conn *conn)
{
    for (struct link *at = conn->followers.next, *next; at != &conn->followers; at = next) {
        struct follower *follower = container_of(at, struct follower, link);

        next = at->next;
        if (follower->used)
            continue; /* its thread ends it */
        end(follower);
        next = conn->followers.next; /* other threads may have run */
    }
}

/* _follow(name ref, after): see Connection.follow. */
PyObject *conn_follow(PyObject *self, PyObject *args)
{
    struct conn *conn = (struct conn *)self;
    struct rdt_follow_options options = RDT_INIT(options);
    struct follower *made;
    unsigned long long after;
    struct ref *name;
    struct rdt_error err;
    enum rdt_status status;

    if (!PyArg_ParseTuple(args, "O!K:_follow", &ref_type, &name, &after))
        return NULL;
    made = PyObject_New(struct follower, &follower_type);
    if (!made)
        return NULL;
    made->conn = NULL;
    made->follower = NULL;
    made->used = made->in_parts = false;
    link_init(&made->link);
    if (!conn_enter(conn)) {
        Py_DECREF(made);
        return NULL;
    }
    options.after = after;
    WAITS(conn, status, rdt_follow(conn->rdt, &name->ref, &options, &made->follower, &err));
    if (status == RDT_OK) {
        Py_INCREF(conn);
        made->conn = conn;
        link_add(&conn->followers, &made->link);
        if (conn->closed)
            end(made);
    } else {
        made->follower = NULL;
        Py_DECREF(made);
        (void)raise_error(&err);
    }
    conn_leave(conn);
    return status == RDT_OK ? (PyObject *)made : NULL;
}

/* One thread at a time uses it. follower_leave ends that, and conn_leave. */
static bool follower_enter(struct follower *follower)
{
    if (!follower->follower && !follower->conn->closed) {
        PyErr_SetString(PyExc_ValueError, "the follower was closed");
        return false;
    }
    if (follower->used) {
        PyErr_SetString(PyExc_RuntimeError, "the follower is used by another thread: make a follower for each");
        return false;
    }
    if (!conn_enter(follower->conn))
        return false;
    follower->used = true;
    return true;
}

static void follower_leave(struct follower *follower)
{
    follower->used = false;
    if (follower->conn->closed)
        end(follower);
    conn_leave(follower->conn);
}

/* prepare(timeout): a dict */
static PyObject *follower_prepare(PyObject *self, PyObject *timeout)
{
    struct follower *follower = (struct follower *)self;
    struct rdt_prepared got;
    struct rdt_error err;
    enum rdt_status status;
    int64_t timeout_ns;

    if (!timeout_from(timeout, RDT_FOREVER, &timeout_ns) || !follower_enter(follower))
        return NULL;
    WAITS(follower->conn, status, rdt_follower_prepare(follower->follower, timeout_ns, &got, &err));
    if (status == RDT_OK)
        follower->in_parts = got.in_parts;
    follower_leave(follower);
    if (status != RDT_OK)
        return raise_error(&err);
    return Py_BuildValue("{s:K,s:K,s:n,s:K,s:K,s:K,s:d,s:d,s:O}", "version", (unsigned long long)got.version, "step",
                         (unsigned long long)got.step, "objects", (Py_ssize_t)got.objects, "bytes",
                         (unsigned long long)got.bytes, "bytes_moved", (unsigned long long)got.bytes_moved, "skipped",
                         (unsigned long long)got.skipped, "wait_s", (double)got.wait_ns / 1e9, "fetch_s",
                         (double)got.fetch_ns / 1e9, "in_parts", got.in_parts ? Py_True : Py_False);
}

/* prepared(): (metadata, number of tensors, whether its pickles are trusted, Ref) of the single object that is prepared; None:
 * nothing is, or a version in parts. */
static PyObject *follower_prepared(PyObject *self, PyObject *ignored)
{
    struct follower *follower = (struct follower *)self;
    const rdt_object *object;
    struct rdt_object_info info;
    PyObject *made = NULL;
    const void *metadata;
    size_t bytes;

    if (!follower_enter(follower))
        return NULL;
    object = rdt_follower_object(follower->follower, 0);
    if (object && !follower->in_parts) {
        metadata = rdt_object_metadata(object, &bytes);
        rdt_object_info(object, &info);
        made = Py_BuildValue("(y#nON)", metadata ? metadata : "", (Py_ssize_t)bytes, (Py_ssize_t)rdt_object_count(object),
                             rdt_object_pickles_trusted(object) ? Py_True : Py_False, ref_new(&info.ref, NULL));
    } else {
        Py_INCREF(Py_None);
        made = Py_None;
    }
    follower_leave(follower);
    return made;
}

/* (key, whether the tensor is whole, its start in the larger one) of each tensor of a part; None as key: it is no box. */
static PyObject *keys_of(const rdt_object *object)
{
    PyObject *list = PyList_New(0);

    for (size_t i = 0; list && i < rdt_object_count(object); i++) {
        struct rdt_tensor tensor;
        struct rdt_shard shard;
        PyObject *row = NULL;
        bool whole = true;

        if (rdt_object_tensor(object, i, &tensor, NULL) == RDT_OK && rdt_object_shard(object, i, &shard, NULL) == RDT_OK) {
            for (uint32_t d = 0; d < tensor.ndim && shard.key; d++)
                whole = whole && shard.global_shape[d] == tensor.shape[d];
            row = Py_BuildValue("(zON)", shard.key, whole ? Py_True : Py_False,
                                tuple_of((const Py_ssize_t *)shard.start, shard.key ? tensor.ndim : 0));
        }
        if (!row || PyList_Append(list, row) < 0)
            Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

/* parts(): for each part that is prepared, the list of keys_of; None: what is prepared is not in parts. */
static PyObject *follower_parts(PyObject *self, PyObject *ignored)
{
    struct follower *follower = (struct follower *)self;
    const rdt_object *object;
    PyObject *list;

    if (!follower_enter(follower))
        return NULL;
    object = rdt_follower_object(follower->follower, 0);
    if (object && !follower->in_parts) {
        Py_INCREF(Py_None);
        list = Py_None;
    } else {
        list = PyList_New(0);
    }
    for (size_t i = 0; list && list != Py_None && (object = rdt_follower_object(follower->follower, i)); i++) {
        PyObject *keys = keys_of(object);

        if (!keys || PyList_Append(list, keys) < 0)
            Py_CLEAR(list);
        Py_XDECREF(keys);
    }
    follower_leave(follower);
    return list;
}

static PyObject *committed_dict(const struct rdt_commit *got)
{
    return Py_BuildValue("{s:K,s:K,s:K,s:K,s:d,s:d,s:d}", "version", (unsigned long long)got->version, "step",
                         (unsigned long long)got->step, "bytes", (unsigned long long)got->bytes, "bytes_moved",
                         (unsigned long long)got->bytes_moved, "wait_s", (double)got->wait_ns / 1e9, "fetch_s",
                         (double)got->fetch_ns / 1e9, "copy_s", (double)got->copy_ns / 1e9);
}

/* With the follower entered, which it leaves. A signal ends the wait for streams, and not the copy. */
static PyObject *commit(struct follower *follower, const struct rdt_commit_options *options)
{
    struct rdt_commit got;
    struct rdt_error err;
    enum rdt_status status;

    WAITS(follower->conn, status, rdt_follower_commit(follower->follower, options, &got, &err));
    follower_leave(follower);
    return status == RDT_OK ? committed_dict(&got) : raise_error(&err);
}

/* commit_into([tensor]): a dict */
static PyObject *follower_commit_into(PyObject *self, PyObject *list)
{
    struct follower *follower = (struct follower *)self;
    struct rdt_commit_options options = RDT_INIT(options);
    struct borrowed_set *set = borrowed_set_from(list, true, Py_None, "target");
    enum rdt_status status = RDT_OK;
    struct rdt_error err;
    PyObject *made = NULL;

    if (set && (set->on_gpus == 0 || gpu_open(follower->conn)) && follower_enter(follower)) {
        if (set->on_gpus > 0)
            WAITS(follower->conn, status, gpu_await(follower->conn, set, NULL, &err));
        options.targets = set->tensors;
        options.n_targets = set->count;
        if (status == RDT_OK) {
            made = commit(follower, &options);
        } else {
            follower_leave(follower);
            (void)raise_error(&err);
        }
    }
    borrowed_set_free(set);
    return made;
}

/* commit_plan(Plan, [a tensor on each GPU, after let_go]): a dict */
static PyObject *follower_commit_plan(PyObject *self, PyObject *args)
{
    struct follower *follower = (struct follower *)self;
    struct rdt_commit_options options = RDT_INIT(options);
    PyObject *order, *made = NULL;
    struct plan *plan;

    if (!PyArg_ParseTuple(args, "O!O:commit_plan", &plan_type, &plan, &order))
        return NULL;
    if (plan->conn != follower->conn)
        return PyErr_Format(PyExc_ValueError, "the plan is of another connection than the follower");
    if (!plan_enter(plan, order))
        return NULL;
    if (follower_enter(follower)) {
        options.plan = plan->plan;
        made = commit(follower, &options);
    }
    conn_leave(plan->conn);
    plan->runs = false;
    return made;
}

/* objects(): [Object] that are prepared, which outlive the follower's next calls */
static PyObject *follower_objects(PyObject *self, PyObject *ignored)
{
    struct follower *follower = (struct follower *)self;
    rdt_object *object;
    PyObject *list;

    if (!follower_enter(follower))
        return NULL;
    list = PyList_New(0);
    for (size_t i = 0; list && (object = rdt_follower_take(follower->follower, i)); i++) {
        PyObject *made = object_new(follower->conn, object);

        if (!made || PyList_Append(list, made) < 0)
            Py_CLEAR(list);
        Py_XDECREF(made);
    }
    follower_leave(follower);
    return list;
}

/* commit_mark(): a dict. What was prepared is committed, and nothing is copied. */
static PyObject *follower_commit_mark(PyObject *self, PyObject *ignored)
{
    struct follower *follower = (struct follower *)self;
    struct rdt_commit_options options = RDT_INIT(options);

    return follower_enter(follower) ? commit(follower, &options) : NULL;
}

/* info(): a dict */
static PyObject *follower_info(PyObject *self, PyObject *ignored)
{
    struct follower *follower = (struct follower *)self;
    struct rdt_follower_info got;
    struct rdt_error err;
    enum rdt_status status;

    if (!follower_enter(follower))
        return NULL;
    WAITS(follower->conn, status, rdt_follower_info(follower->follower, &got, &err));
    follower_leave(follower);
    if (status != RDT_OK)
        return raise_error(&err);
    return Py_BuildValue("{s:K,s:K,s:K,s:K,s:d,s:s,s:s}", "committed", (unsigned long long)got.committed, "prepared",
                         (unsigned long long)got.prepared, "newest", (unsigned long long)got.newest, "lag",
                         (unsigned long long)got.lag, "lag_s", (double)got.lag_ns / 1e9, "state", got.state, "failure",
                         got.failure);
}

static PyObject *follower_close(PyObject *self, PyObject *ignored)
{
    struct follower *follower = (struct follower *)self;

    if (follower->used)
        return PyErr_Format(PyExc_RuntimeError, "the follower is used by another thread");
    if (follower->follower)
        end(follower);
    Py_RETURN_NONE;
}

static void follower_dealloc(PyObject *self)
{
    struct follower *follower = (struct follower *)self;

    if (follower->follower)
        end(follower);
    Py_XDECREF(follower->conn);
    PyObject_Free(self);
}

static PyMethodDef follower_methods[] = {
    {"prepare", follower_prepare, METH_O, NULL},
    {"prepared", follower_prepared, METH_NOARGS, NULL},
    {"parts", follower_parts, METH_NOARGS, NULL},
    {"commit_into", follower_commit_into, METH_O, NULL},
    {"commit_plan", follower_commit_plan, METH_VARARGS, NULL},
    {"objects", follower_objects, METH_NOARGS, NULL},
    {"commit_mark", follower_commit_mark, METH_NOARGS, NULL},
    {"info", follower_info, METH_NOARGS, NULL},
    {"close", follower_close, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

PyTypeObject follower_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "rdtd._rdt.Follower",
    .tp_basicsize = sizeof(struct follower),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = follower_dealloc,
    .tp_methods = follower_methods,
};
