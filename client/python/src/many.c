/* SPDX-License-Identifier: Apache-2.0 */
/* Conn's calls about many objects or names. */
#include <rdt_many.h>

#include "rdtpy.h"

/* Reads a list of Refs and of names, which are text. NULL with an exception that names the item. */
static struct rdt_ref *refs_of(PyObject *list, Py_ssize_t count)
{
    struct rdt_ref *refs = PyMem_Calloc((size_t)count + 1, sizeof *refs);
    struct rdt_error err;

    if (!refs)
        return (struct rdt_ref *)PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PyList_GET_ITEM(list, i);
        const char *name = NULL;
        Py_ssize_t bytes;

        if (PyObject_TypeCheck(item, &ref_type)) {
            refs[i] = ((struct ref *)item)->ref;
            continue;
        }
        if (PyUnicode_Check(item))
            name = PyUnicode_AsUTF8AndSize(item, &bytes);
        else
            PyErr_Format(PyExc_TypeError, "item %zd must be a Ref or a name, not a %.100s", i, Py_TYPE(item)->tp_name);
        if (name && rdt_ref_from_name(name, 0, NULL, &refs[i], &err) == RDT_OK)
            continue;
        if (name) {
            rdt_error_prefix(&err, "item %zd", i);
            (void)raise_error(&err);
        }
        PyMem_Free(refs);
        return NULL;
    }
    return refs;
}

/* _exists([ref or name]): a list of bools. */
PyObject *conn_exists(PyObject *self, PyObject *list)
{
    struct conn *conn = (struct conn *)self;
    Py_ssize_t count = PyList_Check(list) ? PyList_GET_SIZE(list) : -1;
    struct rdt_ref *refs;
    enum rdt_status *statuses, status;
    struct rdt_error err;
    PyObject *made = NULL;

    if (count < 0)
        return PyErr_Format(PyExc_TypeError, "expected a list");
    refs = refs_of(list, count);
    statuses = refs ? PyMem_Calloc((size_t)count + 1, sizeof *statuses) : NULL;
    if (refs && !statuses)
        PyErr_NoMemory();
    if (statuses && conn_enter(conn)) {
        CONN_CALL(conn, status, rdt_exists(conn->rdt, refs, (size_t)count, statuses, &err));
        made = status == RDT_OK ? PyList_New(count) : raise_error(&err);
        for (Py_ssize_t i = 0; made && i < count; i++)
            PyList_SET_ITEM(made, i, PyBool_FromLong(statuses[i] == RDT_OK));
    }
    PyMem_Free(refs);
    PyMem_Free(statuses);
    return made;
}
