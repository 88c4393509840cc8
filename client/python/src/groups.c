/* SPDX-License-Identifier: Apache-2.0 */
/* Conn's calls about groups of nodes. */
#include "rdtpy.h"

/* Reads a tuple (client, node or None, device or None). The member borrows its strings. */
static bool read_member(PyObject *tuple, struct rdt_member *member)
{
    if (!PyTuple_Check(tuple)) {
        PyErr_Format(PyExc_TypeError, "a member must be a tuple, not a %.100s", Py_TYPE(tuple)->tp_name);
        return false;
    }
    return PyArg_ParseTuple(tuple, "szz:member", &member->client, &member->node, &member->device);
}

/* _group_create(name, transport, [member], timeout) */
PyObject *conn_group_create(PyObject *self, PyObject *args)
{
    struct conn *conn = (struct conn *)self;
    struct rdt_group_options options = RDT_INIT(options);
    struct rdt_member *members = NULL;
    PyObject *list, *held = NULL;
    const char *name, *transport;
    struct rdt_error err;
    enum rdt_status status = RDT_OK;
    size_t count = 0;
    bool entered = false;

    if (!PyArg_ParseTuple(args, "ssO!O&:_group_create", &name, &transport, &PyList_Type, &list, timeout_option,
                          &options.timeout_ns))
        return NULL;
    held = PyList_AsTuple(list); /* a copy: the caller's list may change meanwhile */
    members = held ? PyMem_Calloc((size_t)PyTuple_GET_SIZE(held) + 1, sizeof *members) : NULL;
    if (!members) {
        if (held)
            PyErr_NoMemory();
        goto end;
    }
    for (; count < (size_t)PyTuple_GET_SIZE(held); count++)
        if (!read_member(PyTuple_GET_ITEM(held, (Py_ssize_t)count), &members[count]))
            goto end;
    entered = conn_enter(conn);
    if (entered)
        CONN_CALL(conn, status, rdt_group_create(conn->rdt, name, transport, members, count, &options, &err));
    if (entered && status != RDT_OK)
        (void)raise_error(&err);
end:
    PyMem_Free(members);
    Py_XDECREF(held);
    if (!entered || status != RDT_OK)
        return NULL;
    Py_RETURN_NONE;
}

PyObject *conn_group_destroy(PyObject *self, PyObject *name)
{
    struct conn *conn = (struct conn *)self;
    const char *text = PyUnicode_AsUTF8(name);
    struct rdt_error err;
    enum rdt_status status;

    if (!text || !conn_enter(conn))
        return NULL;
    CONN_CALL(conn, status, rdt_group_destroy(conn->rdt, text, &err));
    return none_or_raise(status, &err);
}

/* _broadcast(ref, group, timeout): a Request. */
PyObject *conn_broadcast(PyObject *self, PyObject *args)
{
    struct conn *conn = (struct conn *)self;
    struct ref *ref;
    rdt_request *request;
    const char *group;
    struct rdt_error err;
    enum rdt_status status;
    int64_t timeout_ns;

    if (!PyArg_ParseTuple(args, "O!sO&:_broadcast", &ref_type, &ref, &group, timeout_or_forever, &timeout_ns) ||
        !conn_enter(conn))
        return NULL;
    status = rdt_broadcast_start(conn->rdt, &ref->ref, group, timeout_ns, &request, &err);
    return request_started(conn, status, request, &err);
}
