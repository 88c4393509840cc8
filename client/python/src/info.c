/* SPDX-License-Identifier: Apache-2.0 */
/* Conn's call that describes: an object and its holders, objects, names, nodes, groups, and the daemon's state. */
#include "rdtpy.h"

#include <rdt_info.h>
#include <stdlib.h>

/* _json(what, ref or None, prefix or None, state or None, client, limit): JSON, as rdt_info_json writes it. */
PyObject *conn_json(PyObject *self, PyObject *args)
{
    struct rdt_list_options options = RDT_INIT(options);
    struct conn *conn = (struct conn *)self;
    unsigned long long client, limit;
    struct rdt_ref value;
    struct rdt_error err;
    enum rdt_status status;
    PyObject *ref, *made;
    const char *what;
    char *text;

    if (!PyArg_ParseTuple(args, "sOzzKK:_json", &what, &ref, &options.prefix, &options.state, &client, &limit) ||
        (ref != Py_None && !ref_read(ref, &value)) || !conn_enter(conn))
        return NULL;
    options.client = client;
    options.limit = limit;
    CONN_CALL(conn, status, rdt_info_json(conn->rdt, what, ref != Py_None ? &value : NULL, &options, &text, &err));
    if (status != RDT_OK)
        return raise_error(&err);
    made = PyUnicode_FromString(text);
    free(text);
    return made;
}
