/* SPDX-License-Identifier: Apache-2.0 */
/* Request: a call that was started. Object: what a fetch brought. */
#include <rdt_plan.h>

#include "rdtpy.h"

/* ---- requests ---- */

PyObject *request_new(struct conn *conn, rdt_request *take_request)
{
    PyTypeObject *type = made_request_type ? (PyTypeObject *)made_request_type : &request_type;
    struct request *request = (struct request *)type->tp_alloc(type, 0);

    if (!request) {
        rdt_request_destroy(take_request);
        return NULL;
    }
    Py_INCREF(conn);
    request->conn = conn;
    request->request = take_request;
    link_init(&request->link);
    link_add(&conn->requests, &request->link);
    return (PyObject *)request;
}

PyObject *request_started(struct conn *conn, enum rdt_status status, rdt_request *take_request, const struct rdt_error *err)
{
    PyObject *made = status == RDT_OK ? request_new(conn, take_request) : raise_error(err);

    if (made && conn->closed)
        rdt_cancel(take_request);
    conn_leave(conn);
    return made;
}

/* ---- shared holds ---- */

static void stop_sharing(struct request *request)
{
    PyObject *key = request->shared_as, *address;

    if (!key)
        return;
    request->shared_as = NULL;
    /* By now the key may belong to a later Request of the same ref. */
    address = PyDict_GetItemWithError(request->conn->shared, key);
    if (address && PyLong_AsVoidPtr(address) == request && PyDict_DelItem(request->conn->shared, key) < 0)
        PyErr_Clear();
    Py_DECREF(key);
}

/* _share(packed): copies of the same ref that are unpickled later find this Request while it is alive. The dict has its
 * address, not a weak reference, whose callback would run Python code for each Request that ends. */
static PyObject *request_share(PyObject *self, PyObject *packed)
{
    struct request *request = (struct request *)self;
    struct conn *conn = request->conn;
    PyObject *address = PyLong_FromVoidPtr(request);
    int status = -1;

    stop_sharing(request);
    if (!conn->shared)
        conn->shared = PyDict_New();
    if (address && conn->shared)
        status = PyDict_SetItem(conn->shared, packed, address);
    Py_XDECREF(address);
    if (status < 0)
        return NULL;
    Py_INCREF(packed);
    request->shared_as = packed;
    Py_RETURN_NONE;
}

/* Conn._shared(packed): the Request, or None. */
PyObject *conn_shared(PyObject *self, PyObject *packed)
{
    PyObject *shared = ((struct conn *)self)->shared, *address = shared ? PyDict_GetItemWithError(shared, packed) : NULL,
             *found;

    if (!address && PyErr_Occurred())
        return NULL;
    found = address ? PyLong_AsVoidPtr(address) : Py_None;
    if (address && !PyObject_GC_IsTracked(found)) /* its deallocation has begun */
        found = Py_None;
    Py_INCREF(found);
    return found;
}

static void request_dealloc(PyObject *self)
{
    struct request *request = (struct request *)self;
    struct conn *conn = request->conn;

    PyObject_GC_UnTrack(self);
    stop_sharing(request);
    if (request->weakrefs)
        PyObject_ClearWeakRefs(self); /* a callback may close the connection */
    if (conn) {
        rdt_request *gone = request->request;

        link_remove(&request->link);
        request->request = NULL;
        if (gone && !request->targets) {
            rdt_request_destroy(gone); /* does not block: it has no target of the caller */
        } else if (gone) {
            conn->calls++; /* the session must not end before this call has returned */
            Py_INCREF(conn);
            Py_BEGIN_ALLOW_THREADS rdt_request_destroy(gone);
            Py_END_ALLOW_THREADS conn_leave(conn);
        }
        borrowed_set_free(request->targets);
        Py_DECREF(conn);
    }
    Py_CLEAR(request->how);
    Py_TYPE(self)->tp_free(self);
}

static int request_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((struct request *)self)->how);
    return 0;
}

static int request_clear(PyObject *self)
{
    Py_CLEAR(((struct request *)self)->how);
    return 0;
}

static bool gone(const struct request *request)
{
    if (request->request && request->conn->rdt) /* without it, its end has begun */
        return false;
    (void)raise_status(RDT_DISCONNECTED, "the request's connection was closed");
    return true;
}

bool request_holds(PyObject *self)
{
    struct request *request = (struct request *)self;
    struct rdt_ref held;

    return request->request && rdt_hold_ref(request->request, &held, NULL) == RDT_OK;
}

rdt_request *request_take_hold(PyObject *self, struct conn **conn_p)
{
    struct request *request = (struct request *)self;
    rdt_request *taken = request->request;

    if (Py_REFCNT(self) > 1 || request->conn->closed || !request_holds(self))
        return NULL;
    link_remove(&request->link);
    request->request = NULL;
    *conn_p = request->conn;
    return taken;
}

/* A Ref of the held object. That Ref has no hold of its own. */
static PyObject *request_held(PyObject *self, PyObject *ignored)
{
    struct request *request = (struct request *)self;
    struct rdt_ref held;
    struct rdt_error err;

    if (gone(request))
        return NULL;
    if (rdt_hold_ref(request->request, &held, &err) != RDT_OK)
        return raise_error(&err);
    return ref_new(&held, NULL);
}

static PyObject *request_state(PyObject *self, PyObject *ignored)
{
    struct request *request = (struct request *)self;
    enum rdt_status status = request->request ? rdt_request_status(request->request, NULL) : RDT_DISCONNECTED;

    return PyLong_FromLong(status);
}

static PyObject *request_cancel(PyObject *self, PyObject *ignored)
{
    struct request *request = (struct request *)self;

    if (request->request)
        rdt_cancel(request->request);
    Py_RETURN_NONE;
}

/* Raises the request's error, if it failed. */
static PyObject *request_check(PyObject *self, PyObject *ignored)
{
    struct request *request = (struct request *)self;
    struct rdt_error err;

    if (gone(request))
        return NULL;
    if (rdt_request_status(request->request, &err) != RDT_OK)
        return raise_error(&err);
    Py_RETURN_NONE;
}

static PyObject *request_take(PyObject *self, PyObject *ignored)
{
    struct request *request = (struct request *)self;
    rdt_object *object;
    PyObject *made;
    struct rdt_error err;
    enum rdt_status status;

    if (gone(request))
        return NULL;
    if (rdt_request_take_object(request->request, &object, &err) != RDT_OK)
        return raise_error(&err);
    if (request->targets)
        request->targets->fetched = true;
    made = object_new(request->conn, object); /* which keeps the session, if another thread closes the connection now */
    if (!made || !request->targets || !request->targets->landings)
        return made;
    if (!conn_enter(request->conn)) {
        Py_DECREF(made);
        return NULL;
    }
    CONN_CALL(request->conn, status, gpu_deliver(request->conn, request->targets, &err));
    if (status == RDT_OK)
        return made;
    Py_DECREF(made);
    return raise_error(&err);
}

/* _continue(next): this Request goes on as `next`, which gets what this one was. The caller keeps `next`: a thread may
 * still be waiting for what it got. */
static PyObject *request_continue(PyObject *self, PyObject *argument)
{
    struct request *request = (struct request *)self, *next = (struct request *)argument;
    rdt_request *before = request->request;
    struct borrowed_set *targets = request->targets;

    if (!PyObject_TypeCheck(argument, &request_type))
        return PyErr_Format(PyExc_TypeError, "_continue: expected a Request, not a %.100s", Py_TYPE(argument)->tp_name);
    if (gone(request))
        return NULL;
    request->request = next->request;
    request->targets = next->targets;
    next->request = before;
    next->targets = targets;
    Py_RETURN_NONE;
}

static PyMemberDef request_members[] = {
    {"connection", T_OBJECT, offsetof(struct request, conn), READONLY, "The connection that started the request."},
    {"_how", T_OBJECT, offsetof(struct request, how), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef request_methods[] = {
    {"_state", request_state, METH_NOARGS, NULL},
    {"_check", request_check, METH_NOARGS, NULL},
    {"_held", request_held, METH_NOARGS, NULL},
    {"_take", request_take, METH_NOARGS, NULL},
    {"_continue", request_continue, METH_O, NULL},
    {"_share", request_share, METH_O, NULL},
    {"cancel", request_cancel, METH_NOARGS,
     "Ends the request now with Cancelled, unless it has ended. Other transfers of the same object are not affected."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject request_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "rdtd._rdt.Request",
    .tp_basicsize = sizeof(struct request),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_dealloc = request_dealloc,
    .tp_traverse = request_traverse,
    .tp_weaklistoffset = offsetof(struct request, weakrefs),
    .tp_clear = request_clear,
    .tp_methods = request_methods,
    .tp_members = request_members,
};

/* ---- objects ---- */

static int gpu_of_tensor(const struct object *object, size_t i)
{
    const char *memory, *device;

    if (rdt_object_place(object->object, i, &memory, &device, NULL) != RDT_OK)
        return HOST;
    return gpu_ordinal(object->conn, memory, device);
}

PyObject *object_new(struct conn *conn, rdt_object *take_object)
{
    struct object *object = PyObject_New(struct object, &object_type);

    if (!object) {
        rdt_release(take_object);
        return NULL;
    }
    conn_hold_session(conn);
    object->conn = conn;
    object->object = take_object;
    object->gpus = 0;
    rdt_object_info(take_object, &object->info);
    object->used = (struct used_streams){.n = 0};
    for (size_t i = 0; conn->cuda && i < rdt_object_count(take_object); i++) {
        int gpu = gpu_of_tensor(object, i);

        object->gpus |= gpu == HOST ? 0 : UINT64_C(1) << gpu;
    }
    return (PyObject *)object;
}

static void object_dealloc(PyObject *self)
{
    struct object *object = (struct object *)self;
    struct conn *conn = object->conn;
    rdt_object *released = object->object;

    Py_BEGIN_ALLOW_THREADS /* may unmap much memory */
        gpu_release(conn, object->gpus, &object->used, released, NULL);
    Py_END_ALLOW_THREADS conn_release_session(conn);
    PyObject_Free(self);
}

/* tensors(readonly=False): a list of Tensors, each of which keeps the Object alive. readonly: host memory also where this
 * process may write it. */
static PyObject *object_tensors(PyObject *self, PyObject *args)
{
    struct object *object = (struct object *)self;
    size_t count = rdt_object_count(object->object);
    PyObject *list;
    struct rdt_error err;
    int readonly = 0;

    if (!PyArg_ParseTuple(args, "|p:tensors", &readonly))
        return NULL;
    list = PyList_New((Py_ssize_t)count);
    if (!list)
        return NULL;
    for (size_t i = 0; i < count; i++) {
        struct rdt_tensor view;
        PyObject *tensor;
        int gpu;

        if (rdt_object_tensor(object->object, i, &view, &err) != RDT_OK) {
            Py_DECREF(list);
            return raise_error(&err);
        }
        gpu = object->gpus ? gpu_of_tensor(object, i) : HOST;
        tensor = tensor_new(self, &view, (readonly && gpu == HOST) || !object->info.writable, gpu);
        if (!tensor) {
            Py_DECREF(list);
            return NULL;
        }
        PyList_SET_ITEM(list, (Py_ssize_t)i, tensor);
    }
    return list;
}

/* nothing(i): a target for no element of tensor i: every dimension that it has is 0. */
static PyObject *object_nothing(PyObject *self, PyObject *number)
{
    struct object *object = (struct object *)self;
    size_t i = PyLong_AsSize_t(number);
    static const int64_t zeros[32];
    struct rdt_tensor view;
    struct rdt_error err;

    if (i == (size_t)-1 && PyErr_Occurred())
        return NULL;
    if (rdt_object_tensor(object->object, i, &view, &err) != RDT_OK)
        return raise_error(&err);
    view.shape = zeros;
    view.strides = NULL;
    view.data = NULL;
    return tensor_new(self, &view, false, HOST);
}

static PyObject *get_metadata(PyObject *self, void *ignored)
{
    size_t bytes;
    const void *metadata = rdt_object_metadata(((struct object *)self)->object, &bytes);

    return PyBytes_FromStringAndSize(metadata, (Py_ssize_t)bytes);
}

static PyObject *get_count(PyObject *self, void *ignored)
{
    return PyLong_FromSize_t(rdt_object_count(((struct object *)self)->object));
}

static PyObject *get_is_manifest(PyObject *self, void *ignored)
{
    return PyBool_FromLong(rdt_object_is_manifest(((struct object *)self)->object));
}

static PyObject *object_info(PyObject *self, PyObject *ignored)
{
    const struct rdt_object_info *info = &((struct object *)self)->info;

    return Py_BuildValue("{s:N,s:s,s:K,s:K,s:d,s:O,s:O,s:K}", "ref", ref_new(&info->ref, NULL), "path", info->path, "transfer",
                         (unsigned long long)info->transfer, "bytes_moved", (unsigned long long)info->bytes_moved, "elapsed",
                         (double)info->elapsed_ns / 1e9, "writable", info->writable ? Py_True : Py_False, "mutable_shared",
                         info->mutable_shared ? Py_True : Py_False, "version", (unsigned long long)info->version);
}

static PyObject *get_pickles_trusted(PyObject *self, void *ignored)
{
    return PyBool_FromLong(rdt_object_pickles_trusted(((struct object *)self)->object));
}

/* Whether nobody else sees what the reader writes. Shared memory of a GPU can be written by everybody who has it. */
static PyObject *get_private(PyObject *self, void *ignored)
{
    const struct object *object = (struct object *)self;

    return PyBool_FromLong(object->info.writable && !(object->gpus && strcmp(object->info.path, "local/share") == 0));
}

static PyGetSetDef object_getset[] = {
    {"metadata", get_metadata, NULL, NULL, NULL}, {"pickles_trusted", get_pickles_trusted, NULL, NULL, NULL},
    {"count", get_count, NULL, NULL, NULL},       {"is_manifest", get_is_manifest, NULL, NULL, NULL},
    {"private", get_private, NULL, NULL, NULL},   {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef object_members[] = {
    {"writable", T_BOOL, offsetof(struct object, info.writable), READONLY, NULL},
    {"version", T_ULONGLONG, offsetof(struct object, info.version), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

#define VERIFY_NS(bytes) ((60 + (int64_t)((bytes) >> 26)) * INT64_C(1000000000)) /* the default of rdt.h */

/* verify(): compares the bytes with the checksum of the object. */
static PyObject *object_verify(PyObject *self, PyObject *ignored)
{
    struct object *object = (struct object *)self;
    enum rdt_status status;
    struct rdt_error err;
    uint64_t all = 0;

    for (size_t i = 0; i < rdt_object_count(object->object); i++) {
        struct rdt_tensor view;
        size_t bytes;

        if (rdt_object_tensor(object->object, i, &view, NULL) == RDT_OK && rdt_tensor_bytes(&view, &bytes, NULL) == RDT_OK)
            all += bytes;
    }
    if (!conn_enter(object->conn))
        return NULL;
    CONN_CALL(object->conn, status, rdt_verify(object->object, VERIFY_NS(all), &err));
    if (status != RDT_OK)
        return raise_error(&err);
    Py_RETURN_NONE;
}

static PyMethodDef object_methods[] = {
    {"verify", object_verify, METH_NOARGS, NULL},
    {"tensors", object_tensors, METH_VARARGS, NULL},
    {"nothing", object_nothing, METH_O, NULL},
    {"info", object_info, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

PyTypeObject object_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "rdtd._rdt.Object",
    .tp_basicsize = sizeof(struct object),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = object_dealloc,
    .tp_methods = object_methods,
    .tp_members = object_members,
    .tp_getset = object_getset,
};
