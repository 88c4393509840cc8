/* SPDX-License-Identifier: Apache-2.0 */
/* A connection. close() ends it for callers at once. The session itself ends when no view of its memory is left and no thread
 * is inside a call, because rdt_close unmaps the memory below those views. */
#include "rdtpy.h"

void link_init(struct link *link)
{
    link->next = link->prev = link;
}

void link_add(struct link *list, struct link *link)
{
    link->prev = list->prev;
    link->next = list;
    list->prev->next = link;
    list->prev = link;
}

void link_remove(struct link *link)
{
    link->prev->next = link->next;
    link->next->prev = link->prev;
    link_init(link);
}

/* ---- users of the session ---- */

/* Ends the session if the connection is closed and nobody uses it any more. */
static void settle(struct conn *conn)
{
    rdt *gone = conn->rdt;

    if (!conn->closed || conn->calls > 0 || conn->session_users > 0 || !gone)
        return;
    conn_end_publishings(conn);
    conn->rdt = NULL;
    while (conn->requests.next != &conn->requests) {
        struct request *request =
            container_of(conn->requests.next, struct request, link); /* its deallocation may have begun: take no reference */
        rdt_request *request_gone = request->request;
        struct borrowed_set *targets = request->targets;

        link_remove(&request->link);
        request->request = NULL;
        request->targets = NULL;
        Py_BEGIN_ALLOW_THREADS rdt_request_destroy(request_gone);
        Py_END_ALLOW_THREADS borrowed_set_free(targets);
    }
    if (conn->calls > 0) { /* a Request is being destroyed by its deallocation in another thread, which then comes here */
        conn->rdt = gone;
        return;
    }
    Py_BEGIN_ALLOW_THREADS gpu_close(conn);
    rdt_close(gone);
    Py_END_ALLOW_THREADS
}

bool conn_enter(struct conn *conn)
{
    if (conn->closed || !conn->rdt) {
        (void)raise_status(RDT_DISCONNECTED, "this connection was closed");
        return false;
    }
    conn->calls++;
    Py_INCREF(conn);
    return true;
}

void conn_leave(struct conn *conn)
{
    conn->calls--;
    settle(conn);
    Py_DECREF(conn);
}

void conn_hold_session(struct conn *conn)
{
    Py_INCREF(conn);
    conn->session_users++;
}

void conn_release_session(struct conn *conn)
{
    conn->session_users--;
    settle(conn);
    Py_DECREF(conn);
}

/* Releases the hold without waiting for an answer. */
static void retained_hold_drop(struct conn *conn, struct retained_hold *retained)
{
    if (retained->hold)
        rdt_request_destroy(retained->hold);
    else
        (void)rdt_drop(conn->rdt, &retained->ref, NULL);
    retained->hold = NULL;
}

void conn_forget(struct conn *conn, const struct rdt_ref *ref)
{
    for (struct link *at = conn->retained.next, *next; at != &conn->retained; at = next) {
        struct retained_hold *retained = container_of(at, struct retained_hold, link);

        next = at->next;
        if (!ref || rdt_ref_equal(&retained->ref, ref)) {
            link_remove(at);
            if (retained->hold && conn->rdt)
                retained_hold_drop(conn, retained);
            PyMem_Free(retained);
        }
    }
}

/* Drops the holds on everything that this session put, as the session's end would. */
static void drop_holds(struct conn *conn)
{
    while (conn->holds.next != &conn->holds) {
        struct ref *ref = container_of(conn->holds.next, struct ref, link);

        link_remove(&ref->link);
        ref->conn = NULL;
        if (ref->end != REF_OUTLIVES)
            ref->end = REF_ENDED;
        if (conn->rdt)
            (void)rdt_drop(conn->rdt, &ref->ref, NULL);
        Py_DECREF(conn); /* the caller owns another reference */
    }
    for (struct link *at = conn->retained.next; conn->rdt && at != &conn->retained; at = at->next)
        retained_hold_drop(conn, container_of(at, struct retained_hold, link));
    conn_forget(conn, NULL);
}

PyObject *conn_close(PyObject *self, PyObject *ignored)
{
    struct conn *conn = (struct conn *)self;

    if (conn->closed)
        Py_RETURN_NONE;
    Py_INCREF(conn);
    conn->closed = true;
    for (struct link *at = conn->requests.next; at != &conn->requests; at = at->next)
        rdt_cancel(container_of(at, struct request, link)->request);
    conn_end_publishings(conn);
    conn_end_followers(conn);
    drop_holds(conn);
    settle(conn);
    Py_DECREF(conn);
    Py_RETURN_NONE;
}

/* ---- the type ---- */

static PyObject *conn_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    struct rdt_connect_options options = RDT_INIT(options);
    static char *names[] = {"socket", "name", "timeout", "daemon_uid", NULL};
    PyObject *socket_bytes = NULL, *socket = Py_None, *daemon_uid = Py_None;
    struct conn *conn;
    struct rdt_error err;
    enum rdt_status status;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|OzO&O:Connection", names, &socket, &options.name, timeout_option,
                                     &options.timeout_ns, &daemon_uid))
        return NULL;
    if (daemon_uid != Py_None) {
        unsigned long uid = PyLong_AsUnsignedLong(daemon_uid);
        if (PyErr_Occurred())
            return NULL;
        if (uid >= UINT32_MAX)
            return PyErr_Format(PyExc_ValueError, "daemon_uid is %lu, which is no uid", uid);
        options.daemon_uid = (uint32_t)uid;
    }
    if (socket != Py_None && !PyUnicode_FSConverter(socket, &socket_bytes))
        return NULL;
    options.socket = socket_bytes ? PyBytes_AS_STRING(socket_bytes) : NULL;
    conn = (struct conn *)type->tp_alloc(type, 0);
    if (!conn) {
        Py_XDECREF(socket_bytes);
        return NULL;
    }
    link_init(&conn->requests);
    link_init(&conn->holds);
    link_init(&conn->publishings);
    link_init(&conn->retained);
    link_init(&conn->memories);
    link_init(&conn->followers);
    (void)pthread_mutex_init(&conn->cuda_opens, NULL);
    WAITS(NULL, status, rdt_connect(&options, &conn->rdt, &err));
    Py_XDECREF(socket_bytes);
    if (status != RDT_OK) {
        Py_DECREF(conn);
        return raise_error(&err);
    }
    return (PyObject *)conn;
}

static void conn_dealloc(PyObject *self)
{
    struct conn *conn = (struct conn *)self;

    if (conn->weakrefs)
        PyObject_ClearWeakRefs(self);
    if (conn->rdt) { /* nothing made from this connection is left, since each would own a reference */
        conn->closed = true;
        conn->calls = conn->session_users = 0;
        settle(conn);
    }
    conn_forget(conn, NULL);
    Py_CLEAR(conn->shared);
    (void)pthread_mutex_destroy(&conn->cuda_opens);
    Py_TYPE(self)->tp_free(self);
}

static PyMemberDef members[] = {
    {"closed", T_BOOL, offsetof(struct conn, closed), READONLY, "True once close() was called."},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject conn_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "rdtd._rdt.Conn",
    .tp_basicsize = sizeof(struct conn),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = conn_new,
    .tp_dealloc = conn_dealloc,
    .tp_weaklistoffset = offsetof(struct conn, weakrefs),
    .tp_methods = conn_methods,
    .tp_members = members,
};
