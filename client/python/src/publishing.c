/* SPDX-License-Identifier: Apache-2.0 */
/* A version that grows tensor by tensor: see Connection.publishing. The connection knows all of them, because they end before
 * it does. */
#include <rdt_plan.h>

#include "rdtpy.h"

struct publishing {
    PyObject_HEAD struct conn *conn;
    rdt_publishing *publishing;      /* NULL: the connection was closed */
    struct link link;                /* in conn->publishings */
    bool runs;                       /* in some thread; under the GIL */
    struct rdt_publishing_info info; /* after the last call: a call may run meanwhile */
};

/* _publishing(name ref, step, rank, of, visibility, timeout): begins it. */
PyObject *conn_publishing(PyObject *self, PyObject *args)
{
    struct conn *conn = (struct conn *)self;
    struct rdt_publishing_options options = RDT_INIT(options);
    struct publishing *publishing;
    unsigned long long step;
    struct ref *name;
    unsigned rank, of;
    struct rdt_error err;
    enum rdt_status status;
    int visibility;

    if (!PyArg_ParseTuple(args, "O!KIIiO&:_publishing", &ref_type, &name, &step, &rank, &of, &visibility, timeout_or_none,
                          &options.timeout_ns))
        return NULL;
    publishing = PyObject_New(struct publishing, &publishing_type);
    if (!publishing)
        return NULL;
    publishing->conn = NULL;
    publishing->publishing = NULL;
    publishing->runs = false;
    publishing->info = (struct rdt_publishing_info){.step = step};
    link_init(&publishing->link);
    if (!conn_enter(conn)) {
        Py_DECREF(publishing);
        return NULL;
    }
    options.visibility = (enum rdt_visibility)visibility;
    WAITS(conn, status, rdt_publishing_begin(conn->rdt, &name->ref, step, rank, of, &options, &publishing->publishing, &err));
    if (status == RDT_OK) {
        Py_INCREF(conn);
        publishing->conn = conn;
        link_add(&conn->publishings, &publishing->link);
    }
    conn_leave(conn);
    if (status == RDT_OK)
        return (PyObject *)publishing;
    Py_DECREF(publishing);
    return raise_error(&err);
}

/* Brackets every use of it. enter returns false with an exception set. */
static bool enter(struct publishing *publishing)
{
    if (publishing->runs) {
        PyErr_SetString(PyExc_RuntimeError, "another thread is adding to this version: one at a time may");
        return false;
    }
    if (!conn_enter(publishing->conn))
        return false;
    publishing->runs = true;
    return true;
}

/* Gives it up, unless it is complete. Does not block. */
static void destroy(struct publishing *publishing)
{
    rdt_publishing *gone = publishing->publishing;

    link_remove(&publishing->link);
    publishing->publishing = NULL;
    rdt_publishing_destroy(gone);
}

static void leave(struct publishing *publishing)
{
    publishing->runs = false;
    rdt_publishing_info(publishing->publishing, &publishing->info);
    if (publishing->conn->closed)
        destroy(publishing);
    conn_leave(publishing->conn);
}

/* add(tensor in a list, key in a list, global shape or None in a list, start or None in a list) */
static PyObject *publishing_add(PyObject *self, PyObject *args)
{
    struct publishing *publishing = (struct publishing *)self;
    PyObject *tensors, *lists[3];
    struct borrowed_set *set;
    struct rdt_shard shard = {0};
    struct rdt_error err;
    enum rdt_status status = RDT_INVALID;
    int64_t *dims = NULL;
    Py_ssize_t ndim;
    bool read = false;

    if (!PyArg_ParseTuple(args, "OO!O!O!:add", &tensors, &PyList_Type, &lists[0], &PyList_Type, &lists[1], &PyList_Type,
                          &lists[2]))
        return NULL;
    set = borrowed_set_from(tensors, false, Py_None, "part:");
    if (!set)
        return NULL;
    ndim = set->count == 1 ? (Py_ssize_t)set->tensors[0].ndim : 0;
    dims = PyMem_Calloc(2 * (size_t)ndim + 1, sizeof *dims);
    if (!dims)
        PyErr_NoMemory();
    else if (set->count != 1 || set->on_gpus > 0)
        PyErr_SetString(PyExc_ValueError, "part: tensor 0: it must be in host memory");
    else
        read = (shard.key = part_key(lists[0], 0)) && part_numbers(lists[1], 0, ndim, dims) &&
               part_numbers(lists[2], 0, ndim, dims + ndim);
    if (read && enter(publishing)) {
        shard.global_shape = PyList_GET_ITEM(lists[1], 0) == Py_None ? NULL : dims;
        shard.start = dims + ndim;
        WAITS(publishing->conn, status, rdt_publishing_add(publishing->publishing, &set->tensors[0], &shard, &err));
        leave(publishing);
        if (status != RDT_OK)
            (void)raise_error(&err);
    }
    PyMem_Free(dims);
    borrowed_set_free(set);
    if (status != RDT_OK)
        return NULL;
    Py_RETURN_NONE;
}

/* leave(key in a list) */
static PyObject *publishing_leave(PyObject *self, PyObject *list)
{
    struct publishing *publishing = (struct publishing *)self;
    const char *key = PyList_Check(list) && PyList_GET_SIZE(list) == 1 ? part_key(list, 0) : NULL;
    struct rdt_error err;
    enum rdt_status status;

    if (!key && !PyErr_Occurred())
        PyErr_SetString(PyExc_TypeError, "expected a list with a key");
    if (!key || !enter(publishing))
        return NULL;
    status = rdt_publishing_leave(publishing->publishing, key, &err);
    leave(publishing);
    return none_or_raise(status, &err);
}

/* end(timeout): the version */
static PyObject *publishing_end(PyObject *self, PyObject *seconds)
{
    struct publishing *publishing = (struct publishing *)self;
    int64_t timeout_ns;
    uint64_t version = 0;
    struct rdt_error err;
    enum rdt_status status;

    if (!timeout_from(seconds, RDT_FOREVER, &timeout_ns) || !enter(publishing))
        return NULL;
    WAITS(publishing->conn, status, rdt_publishing_end(publishing->publishing, timeout_ns, &version, &err));
    leave(publishing);
    return status == RDT_OK ? PyLong_FromUnsignedLongLong(version) : raise_error(&err);
}

/* give_up(sentence). Does not wait. */
static PyObject *publishing_give_up(PyObject *self, PyObject *text)
{
    struct publishing *publishing = (struct publishing *)self;
    const char *sentence = PyUnicode_AsUTF8(text);
    struct rdt_error err;
    enum rdt_status status;

    if (!sentence || !enter(publishing))
        return NULL;
    WAITS(publishing->conn, status, rdt_publishing_give_up(publishing->publishing, sentence, &err));
    leave(publishing);
    return none_or_raise(status, &err);
}

/* info(): (step, version, tensors, pieces, bytes). Any thread. */
static PyObject *publishing_info(PyObject *self, PyObject *ignored)
{
    const struct rdt_publishing_info *info = &((struct publishing *)self)->info;

    return Py_BuildValue("(KKnnK)", (unsigned long long)info->step, (unsigned long long)info->version,
                         (Py_ssize_t)info->tensors, (Py_ssize_t)info->pieces, (unsigned long long)info->bytes);
}

void conn_end_publishings(struct conn *conn)
{
    for (struct link *at = conn->publishings.next, *next; at != &conn->publishings; at = next) {
        struct publishing *publishing = container_of(at, struct publishing, link);

        next = at->next;
        if (!publishing->runs) /* else its thread does this when its call has ended */
            destroy(publishing);
    }
}

static void publishing_dealloc(PyObject *self)
{
    struct publishing *publishing = (struct publishing *)self;

    destroy(publishing);
    Py_XDECREF(publishing->conn);
    PyObject_Free(self);
}

static PyMethodDef methods[] = {
    {"add", publishing_add, METH_VARARGS, NULL},  {"leave", publishing_leave, METH_O, NULL},
    {"end", publishing_end, METH_O, NULL},        {"give_up", publishing_give_up, METH_O, NULL},
    {"info", publishing_info, METH_NOARGS, NULL}, {NULL, NULL, 0, NULL},
};

PyTypeObject publishing_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "rdtd._rdt.Publishing",
    .tp_basicsize = sizeof(struct publishing),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = publishing_dealloc,
    .tp_methods = methods,
};
