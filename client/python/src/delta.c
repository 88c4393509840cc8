/* SPDX-License-Identifier: Apache-2.0 */
/* Deltas between buffers. */
#include "rdtpy.h"

#include <rdt_delta.h>

static bool whole_elements(const Py_buffer *buffer, Py_ssize_t elem_bytes)
{
    if (elem_bytes > 0 && buffer->len % elem_bytes == 0)
        return true;
    PyErr_Format(PyExc_ValueError, "%zd bytes are not elements of %zd bytes", buffer->len, elem_bytes);
    return false;
}

PyObject *delta_encode(PyObject *module, PyObject *args)
{
    Py_buffer base, next, out;
    Py_ssize_t elem_bytes;
    struct rdt_error err = {0};
    enum rdt_status status = RDT_OK;
    PyObject *result = NULL;
    size_t used = 0;

    if (!PyArg_ParseTuple(args, "y*y*nw*:delta_encode", &base, &next, &elem_bytes, &out))
        return NULL;
    if (base.len != next.len) {
        PyErr_Format(PyExc_ValueError, "the versions have %zd and %zd bytes", base.len, next.len);
    } else if (whole_elements(&next, elem_bytes)) {
        Py_BEGIN_ALLOW_THREADS status = rdt_delta_encode(base.buf, next.buf, (size_t)(next.len / elem_bytes),
                                                         (size_t)elem_bytes, out.buf, (size_t)out.len, &used, &err);
        Py_END_ALLOW_THREADS if (status == RDT_OK) result = PyLong_FromSize_t(used);
        else if (status == RDT_LIMIT) result = Py_NewRef(Py_None);
        else raise_error(&err);
    }
    PyBuffer_Release(&base);
    PyBuffer_Release(&next);
    PyBuffer_Release(&out);
    return result;
}

PyObject *delta_apply(PyObject *module, PyObject *args)
{
    Py_buffer target, delta;
    Py_ssize_t elem_bytes;
    struct rdt_error err = {0};
    enum rdt_status status = RDT_INVALID;

    if (!PyArg_ParseTuple(args, "w*ny*:delta_apply", &target, &elem_bytes, &delta))
        return NULL;
    if (whole_elements(&target, elem_bytes)) {
        Py_BEGIN_ALLOW_THREADS status = rdt_delta_apply(target.buf, (size_t)(target.len / elem_bytes), (size_t)elem_bytes,
                                                        delta.buf, (size_t)delta.len, &err);
        Py_END_ALLOW_THREADS if (status != RDT_OK) raise_error(&err);
    }
    PyBuffer_Release(&target);
    PyBuffer_Release(&delta);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}
