/* SPDX-License-Identifier: Apache-2.0 */
/* Versions of many parts: Conn's puts and publishes of parts, manifests, and plans. */
#include <string.h>

#include "rdtpy.h"

#include <rdt_delta.h>

bool part_numbers(PyObject *list, Py_ssize_t i, Py_ssize_t ndim, int64_t *to)
{
    PyObject *tuple = PyList_GET_ITEM(list, i);

    if (tuple == Py_None)
        return true;
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != ndim) {
        PyErr_Format(PyExc_ValueError, "tensor %zd has %zd dimensions, and its box needs a tuple of as many numbers", i, ndim);
        return false;
    }
    return dims_from_tuple(tuple, to, ndim);
}

const char *part_key(PyObject *list, size_t i)
{
    PyObject *text = PyList_GET_ITEM(list, (Py_ssize_t)i);
    Py_ssize_t bytes = 0;
    const char *key;

    if (!PyUnicode_Check(text)) {
        PyErr_Format(PyExc_TypeError, "tensor %zu: its key is a %s, not text", i, Py_TYPE(text)->tp_name);
        return NULL;
    }
    key = PyUnicode_AsUTF8AndSize(text, &bytes);
    if (!key || strlen(key) == (size_t)bytes)
        return key;
    PyErr_Format(PyExc_ValueError, "tensor %zu: its key contains a zero byte", i);
    return NULL;
}

static bool are_lists(size_t count, PyObject *const *lists, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        if (!PyList_Check(lists[i]) || (size_t)PyList_GET_SIZE(lists[i]) != count) {
            PyErr_SetString(PyExc_ValueError, "keys, shapes and starts must be lists with one entry for each tensor");
            return false;
        }
    }
    return true;
}

/* _put_part(tensors, keys, global shapes or None, starts or None, visibility, timeout, checksum, base ref, deltas' ref): puts a
 * snapshot, in host memory, of tensors that are boxes of larger ones. With refs, it carries the note of rdt_delta_note. */
PyObject *conn_put_part(PyObject *self, PyObject *args)
{
    struct conn *conn = (struct conn *)self;
    struct rdt_put_options options = RDT_INIT(options);
    PyObject *tensors, *lists[3], *made = NULL;
    struct borrowed_set *set = NULL;
    struct rdt_shard *shards = NULL;
    int64_t *dims = NULL, *at;
    size_t n_dims = 0;
    struct rdt_ref value;
    struct rdt_error err;
    enum rdt_status status;
    int visibility, checksum = 0;
    struct ref *base = NULL, *changes = NULL;
    char note[RDT_DELTA_NOTE_MAX_BYTES];
    Py_ssize_t copied = 0;
    bool live = false;

    if (!PyArg_ParseTuple(args, "OOOOiO&|pO!O!:_put_part", &tensors, &lists[0], &lists[1], &lists[2], &visibility,
                          timeout_or_none, &options.timeout_ns, &checksum, &ref_type, &base, &ref_type, &changes))
        return NULL;
    if (changes) {
        options.metadata = note;
        if (rdt_delta_note(&base->ref, &changes->ref, note, sizeof note, &options.metadata_bytes, &err) != RDT_OK)
            return raise_error(&err);
    }
    set = borrowed_set_from(tensors, false, Py_None, "part:");
    if (!set || !are_lists(set->count, lists, 3))
        goto end;
    for (size_t i = 0; i < set->count; i++)
        n_dims += set->tensors[i].ndim;
    shards = PyMem_Calloc(set->count + 1, sizeof *shards);
    at = dims = PyMem_Calloc(2 * n_dims + 1, sizeof *dims);
    if (!shards || !dims) {
        PyErr_NoMemory();
        goto end;
    }
    for (size_t i = 0; i < set->count; i++, at += 2 * set->tensors[i - 1].ndim) {
        Py_ssize_t ndim = (Py_ssize_t)set->tensors[i].ndim;

        shards[i].key = part_key(lists[0], i);
        if (ndim > 0) /* without a global shape it is whole */
            memcpy(at, set->tensors[i].shape, (size_t)ndim * sizeof *at);
        if (!shards[i].key || !part_numbers(lists[1], (Py_ssize_t)i, ndim, at) ||
            !part_numbers(lists[2], (Py_ssize_t)i, ndim, at + ndim))
            goto end;
        shards[i].global_shape = at;
        shards[i].start = at + ndim;
    }
    options.flags = RDT_PUT_SNAPSHOT | RDT_PUT_UNSEALED | (checksum ? RDT_PUT_SUM : 0);
    options.visibility = (enum rdt_visibility)visibility;
    options.shards = shards;
    if ((set->on_gpus > 0 && !gpu_open(conn)) || !conn_enter(conn))
        goto end;
    WAITS(conn, status,
          set->on_gpus > 0 ? gpu_put(conn, set, &options, &value, PUT_TO_HOST, &copied, &live, &err)
                           : rdt_put(conn->rdt, set->tensors, set->count, &options, &value, &err));
    if (status != RDT_OK) {
        raise_error(&err);
    } else {
        made = ref_new(&value, conn->closed ? NULL : conn);
        if (!made)
            (void)rdt_drop(conn->rdt, &value, NULL);
    }
    conn_leave(conn);
end:
    PyMem_Free(shards);
    PyMem_Free(dims);
    borrowed_set_free(set);
    return made;
}

/* _publish_part(name ref, step, rank, of, object ref, visibility, timeout, others): starts it and returns its Request. */
PyObject *conn_publish_part(PyObject *self, PyObject *args)
{
    struct conn *conn = (struct conn *)self;
    struct rdt_part_options options = RDT_INIT(options);
    struct ref *name, *object;
    unsigned long long step;
    unsigned rank, of;
    rdt_request *request = NULL;
    PyObject *others;
    const char **keys = NULL;
    struct rdt_error err;
    enum rdt_status status;
    int64_t timeout_ns;
    int visibility;

    if (!PyArg_ParseTuple(args, "O!KIIO!iO&O!:_publish_part", &ref_type, &name, &step, &rank, &of, &ref_type, &object,
                          &visibility, timeout_or_forever, &timeout_ns, &PyList_Type, &others))
        return NULL;
    options.n_others = (size_t)PyList_GET_SIZE(others);
    keys = PyMem_Calloc(options.n_others + 1, sizeof *keys);
    if (!keys)
        return PyErr_NoMemory();
    for (size_t i = 0; i < options.n_others; i++) {
        keys[i] = part_key(others, i);
        if (!keys[i]) {
            PyMem_Free(keys);
            return NULL;
        }
    }
    if (!conn_enter(conn)) {
        PyMem_Free(keys);
        return NULL;
    }
    options.visibility = (enum rdt_visibility)visibility;
    options.others = keys;
    WAITS(conn, status,
          rdt_publish_part_start(conn->rdt, &name->ref, step, rank, of, &object->ref, &options, timeout_ns, &request, &err));
    PyMem_Free(keys);
    return request_started(conn, status, request, &err);
}

/* _give_up_part(name ref, step, rank, of, sentence): tells the other ranks. Does not wait. */
PyObject *conn_give_up_part(PyObject *self, PyObject *args)
{
    struct conn *conn = (struct conn *)self;
    unsigned long long step;
    struct rdt_error err;
    enum rdt_status status;
    const char *sentence;
    struct ref *name;
    unsigned rank, of;

    if (!PyArg_ParseTuple(args, "O!KIIs:_give_up_part", &ref_type, &name, &step, &rank, &of, &sentence) || !conn_enter(conn))
        return NULL;
    CONN_CALL(conn, status, rdt_part_give_up(conn->rdt, &name->ref, step, rank, of, RDT_OWNER_DIED, sentence, &err));
    return none_or_raise(status, &err);
}

/* _part_version(request): of _publish_part, when it has ended well. */
PyObject *conn_part_version(PyObject *self, PyObject *request)
{
    struct rdt_error err;
    uint64_t version;

    if (!PyObject_TypeCheck(request, &request_type))
        return PyErr_Format(PyExc_TypeError, "expected a Request of this connection");
    if (!((struct request *)request)->request || !((struct request *)request)->conn->rdt)
        return raise_status(RDT_DISCONNECTED, "the request's connection was closed");
    if (rdt_part_version(((struct request *)request)->request, &version, &err) != RDT_OK)
        return raise_error(&err);
    return PyLong_FromUnsignedLongLong(version);
}

static PyObject *boxes_of(const rdt_manifest *manifest, size_t part, size_t n)
{
    PyObject *list = PyList_New(0);

    for (size_t i = 0; list && i < n; i++) {
        struct rdt_box box = {0};
        PyObject *row = NULL;

        if (rdt_manifest_box(manifest, part, i, &box, NULL) == RDT_OK)
            row = Py_BuildValue(
                "(ssNNN)", box.key, rdt_dtype_name(box.dtype), tuple_of((const Py_ssize_t *)box.global_shape, box.ndim),
                tuple_of((const Py_ssize_t *)box.start, box.ndim), tuple_of((const Py_ssize_t *)box.count, box.ndim));
        if (!row || PyList_Append(list, row) < 0)
            Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

/* _manifest(name ref, timeout): (version, step, [(Ref, [(key, dtype, global shape, start, shape)])]) */
PyObject *conn_manifest(PyObject *self, PyObject *args)
{
    struct conn *conn = (struct conn *)self;
    struct rdt_manifest_info info;
    rdt_manifest *manifest;
    struct ref *name;
    PyObject *parts;
    struct rdt_error err;
    enum rdt_status status;
    int64_t timeout_ns;

    if (!PyArg_ParseTuple(args, "O!O&:_manifest", &ref_type, &name, timeout_or_forever, &timeout_ns) || !conn_enter(conn))
        return NULL;
    WAITS(conn, status, rdt_manifest_fetch(conn->rdt, &name->ref, timeout_ns, &manifest, &err));
    if (status != RDT_OK) {
        conn_leave(conn);
        return raise_error(&err);
    }
    rdt_manifest_info(manifest, &info);
    parts = PyList_New(0);
    for (size_t i = 0; parts && i < info.parts; i++) {
        struct rdt_ref ref;
        size_t n = 0;
        PyObject *row = NULL;

        if (rdt_manifest_part(manifest, i, &ref, &n, NULL) == RDT_OK)
            row = Py_BuildValue("(NN)", ref_new(&ref, NULL), boxes_of(manifest, i, n));
        if (!row || PyList_Append(parts, row) < 0)
            Py_CLEAR(parts);
        Py_XDECREF(row);
    }
    Py_BEGIN_ALLOW_THREADS rdt_manifest_release(manifest);
    Py_END_ALLOW_THREADS conn_leave(conn);
    return parts ? Py_BuildValue("(KKN)", (unsigned long long)info.version, (unsigned long long)info.step, parts) : NULL;
}

/* Makes the want of tensor i, whose start and global shape may be None. dims: room for both. */
static bool want_from(struct rdt_want *want, const struct rdt_tensor *tensor, PyObject *const *lists, Py_ssize_t i,
                      int64_t *dims, const int64_t **shape_p, int32_t *padded_p)
{
    Py_ssize_t ndim = (Py_ssize_t)tensor->ndim;
    long padded;

    *want = (struct rdt_want){.key = part_key(lists[0], (size_t)i),
                              .ndim = tensor->ndim,
                              .count = tensor->shape,
                              .dtype = tensor->dtype,
                              .data = tensor->data,
                              .strides = tensor->strides};
    if (!want->key)
        return false;
    if (PyList_GET_ITEM(lists[1], i) != Py_None) {
        if (!part_numbers(lists[1], i, ndim, dims))
            return false;
        want->start = dims;
    }
    if (PyList_GET_ITEM(lists[2], i) != Py_None) {
        if (!part_numbers(lists[2], i, ndim, dims + ndim))
            return false;
        *shape_p = dims + ndim;
    }
    padded = PyLong_AsLong(PyList_GET_ITEM(lists[3], i));
    if (padded == -1 && PyErr_Occurred())
        return false;
    *padded_p = padded < -1 || padded > INT32_MAX ? INT32_MAX : (int32_t)padded; /* rdt_plan_create refuses it */
    return true;
}

/* _plan(name ref, targets, keys, starts, global shapes, padded dimensions, strict, move, verify): see Connection.plan. */
PyObject *conn_plan(PyObject *self, PyObject *args)
{
    struct conn *conn = (struct conn *)self;
    struct rdt_plan_options options = RDT_INIT(options);
    PyObject *targets, *lists[4];
    struct rdt_want *wants = NULL;
    const int64_t **shapes = NULL;
    int32_t *padded = NULL;
    int64_t *dims = NULL, *at;
    size_t n_dims = 0;
    struct plan *plan = NULL;
    struct borrowed_set *set;
    struct ref *name;
    struct rdt_error err;
    enum rdt_status status;
    int strict, move, verify = 0;

    if (!PyArg_ParseTuple(args, "O!OOOOOpi|p:_plan", &ref_type, &name, &targets, &lists[0], &lists[1], &lists[2], &lists[3],
                          &strict, &move, &verify))
        return NULL;
    set = borrowed_set_from(targets, true, Py_None, "plan:");
    if (!set || !are_lists(set->count, lists, 4))
        goto end;
    if (set->on_gpus > 0 && !gpu_open(conn))
        goto end;
    for (size_t i = 0; i < set->count; i++)
        n_dims += set->tensors[i].ndim;
    wants = PyMem_Calloc(set->count + 1, sizeof *wants);
    shapes = PyMem_Calloc(set->count + 1, sizeof *shapes);
    padded = PyMem_Calloc(set->count + 1, sizeof *padded);
    at = dims = PyMem_Calloc(2 * n_dims + 1, sizeof *dims);
    if (!wants || !shapes || !padded || !dims) {
        PyErr_NoMemory();
        goto end;
    }
    for (size_t i = 0; i < set->count; at += 2 * set->tensors[i++].ndim)
        if (!want_from(&wants[i], &set->tensors[i], lists, (Py_ssize_t)i, at, &shapes[i], &padded[i]))
            goto end;
    plan = PyObject_New(struct plan, &plan_type);
    if (!plan)
        goto end;
    plan->conn = NULL;
    plan->plan = NULL;
    plan->targets = NULL;
    plan->list = NULL;
    plan->runs = false;
    if (!conn_enter(conn)) {
        Py_CLEAR(plan);
        goto end;
    }
    options.move = (enum rdt_plan_move)move;
    options.global_shapes = shapes;
    options.padded = padded;
    options.strict = strict;
    options.verify = verify;
    status = rdt_plan_create(conn->rdt, &name->ref, wants, set->count, &options, &plan->plan, &err);
    conn_leave(conn);
    if (status != RDT_OK) {
        plan->plan = NULL;
        Py_CLEAR(plan);
        raise_error(&err);
        goto end;
    }
    Py_INCREF(conn);
    plan->conn = conn;
    plan->targets = set;
    plan->list = targets;
    Py_INCREF(targets);
    set = NULL;
end:
    PyMem_Free(wants);
    PyMem_Free(shapes);
    PyMem_Free(padded);
    PyMem_Free(dims);
    borrowed_set_free(set);
    return (PyObject *)plan;
}

bool plan_enter(struct plan *plan, PyObject *order)
{
    struct borrowed_set *now = NULL;
    PyObject *nothing = order ? NULL : PyList_New(0);
    bool entered = false;

    if (plan->runs) {
        PyErr_SetString(PyExc_RuntimeError, "the plan is being run by another thread: make a plan for each");
        Py_XDECREF(nothing);
        return false;
    }
    plan->runs = true; /* other threads run while the targets are looked at */
    if (!plan->targets)
        now = order || nothing ? borrowed_set_from(order ? order : nothing, true, Py_None, "plan:") : NULL;
    else if (borrowed_set_is_unmoved(plan->targets, plan->list, "plan:", &now) && !now)
        PyErr_NoMemory();
    if (now)
        entered = conn_enter(plan->conn);
    if (entered && !gpu_order(plan->conn, plan->plan, now)) {
        conn_leave(plan->conn);
        entered = false;
    }
    borrowed_set_free(now);
    Py_XDECREF(nothing);
    plan->runs = entered;
    return entered;
}

/* run(after, timeout, [a tensor on each GPU, after let_go]): a dict */
static PyObject *plan_run(PyObject *self, PyObject *args)
{
    struct plan *plan = (struct plan *)self;
    struct rdt_plan_run run;
    unsigned long long after;
    PyObject *order = NULL;
    struct rdt_error err;
    enum rdt_status status;
    int64_t timeout_ns;

    if (!PyArg_ParseTuple(args, "KO&|O:run", &after, timeout_or_forever, &timeout_ns, &order) || !plan_enter(plan, order))
        return NULL;
    CONN_CALL(plan->conn, status, rdt_plan_run(plan->plan, after, timeout_ns, &run, &err));
    plan->runs = false;
    if (status != RDT_OK)
        return raise_error(&err);
    return Py_BuildValue("{s:K,s:K,s:O,s:n,s:n,s:K,s:K,s:d,s:d,s:d}", "version", (unsigned long long)run.version, "step",
                         (unsigned long long)run.step, "planned", run.planned ? Py_True : Py_False, "parts",
                         (Py_ssize_t)run.parts, "pieces", (Py_ssize_t)run.pieces, "bytes", (unsigned long long)run.bytes,
                         "bytes_moved", (unsigned long long)run.bytes_moved, "wait_s", (double)run.wait_ns / 1e9, "fetch_s",
                         (double)run.fetch_ns / 1e9, "copy_s", (double)run.copy_ns / 1e9);
}

/* let_go(): from now on whoever runs the plan sees to it that the targets are where they were, and keeps them. */
static PyObject *plan_let_go(PyObject *self, PyObject *ignored)
{
    struct plan *plan = (struct plan *)self;
    struct borrowed_set *targets = plan->targets;

    plan->targets = NULL;
    borrowed_set_free(targets);
    Py_CLEAR(plan->list);
    Py_RETURN_NONE;
}

static void plan_dealloc(PyObject *self)
{
    struct plan *plan = (struct plan *)self;

    rdt_plan_destroy(plan->plan); /* uses no connection */
    borrowed_set_free(plan->targets);
    Py_XDECREF(plan->list);
    Py_XDECREF(plan->conn);
    PyObject_Free(self);
}

static PyMethodDef plan_methods[] = {
    {"run", plan_run, METH_VARARGS, NULL},
    {"let_go", plan_let_go, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

PyTypeObject plan_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "rdtd._rdt.Plan",
    .tp_basicsize = sizeof(struct plan),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = plan_dealloc,
    .tp_methods = plan_methods,
};
