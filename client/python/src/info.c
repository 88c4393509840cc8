/* SPDX-License-Identifier: Apache-2.0 */
/* Conn's call that describes: an object and its holders, objects, names, nodes, groups, and the daemon's state. */
#include "rdtpy.h"

#include <rdt_info.h>
#include <stdlib.h>

static PyObject *take_text(char *take_text)
{
    PyObject *made = PyUnicode_FromString(take_text);

    free(take_text);
    return made;
}

/* _json(what, ref or None, prefix or None, state or None, client, limit): JSON, as rdt_info_json writes it. */
PyObject *conn_json(PyObject *self, PyObject *args)
{
    struct rdt_list_options options = RDT_INIT(options);
    struct conn *conn = (struct conn *)self;
    unsigned long long client, limit;
    struct rdt_ref value;
    struct rdt_error err;
    enum rdt_status status;
    PyObject *ref;
    const char *what;
    char *text;

    if (!PyArg_ParseTuple(args, "sOzzKK:_json", &what, &ref, &options.prefix, &options.state, &client, &limit) ||
        (ref != Py_None && !ref_read(ref, &value)) || !conn_enter(conn))
        return NULL;
    options.client = client;
    options.limit = limit;
    CONN_CALL(conn, status, rdt_info_json(conn->rdt, what, ref != Py_None ? &value : NULL, &options, &text, &err));
    return status == RDT_OK ? take_text(text) : raise_error(&err);
}

#define MAX_FIELDS 16

/* _request_json(name, fields): the reply as JSON to a request with fields ("client=5", ...), as rdt_request_json has them. */
PyObject *conn_request_json(PyObject *self, PyObject *args)
{
    struct conn *conn = (struct conn *)self;
    const char *name, *fields[MAX_FIELDS + 1] = {NULL};
    enum rdt_status status;
    struct rdt_error err;
    PyObject *texts;
    char *text;

    if (!PyArg_ParseTuple(args, "sO!:_request_json", &name, &PyTuple_Type, &texts))
        return NULL;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(texts); i++) {
        if (i == MAX_FIELDS)
            return PyErr_Format(PyExc_ValueError, "a request has at most %d fields", MAX_FIELDS);
        fields[i] = PyUnicode_AsUTF8(PyTuple_GET_ITEM(texts, i));
        if (!fields[i])
            return NULL;
    }
    if (!conn_enter(conn))
        return NULL;
    CONN_CALL(conn, status, rdt_request_json(conn->rdt, name, fields, &text, &err));
    return status == RDT_OK ? take_text(text) : raise_error(&err);
}
