/* SPDX-License-Identifier: Apache-2.0 */
/* Deltas between two versions of a contiguous tensor in host memory. */
#include "rdtpy.h"

#include <rdt_delta.h>

static bool is_usable(const struct borrowed_set *set)
{
    const struct rdt_tensor *tensor = set->tensors;
    int64_t stride = 1;

    if (set->on_gpus > 0) {
        PyErr_SetString(PyExc_TypeError, "deltas are of tensors in host memory");
        return false;
    }
    for (uint32_t d = tensor->ndim; tensor->strides && d-- > 0; stride *= tensor->shape[d]) {
        if (tensor->shape[d] > 1 && tensor->strides[d] != stride) {
            PyErr_SetString(PyExc_ValueError, "a tensor of a delta is not contiguous");
            return false;
        }
    }
    return true;
}

/* Borrows one tensor. Returns NULL with an exception set. */
static struct borrowed_set *borrow(PyObject *tensor, bool writable, size_t *elems_p, size_t *elem_bytes_p)
{
    PyObject *list = PyTuple_Pack(1, tensor);
    struct borrowed_set *set = list ? borrowed_set_from(list, writable, Py_None, "delta:") : NULL;
    size_t bytes = 0;
    struct rdt_error err;

    Py_XDECREF(list);
    if (set && rdt_tensor_bytes(set->tensors, &bytes, &err) != RDT_OK)
        raise_error(&err);
    else if (set && is_usable(set)) {
        *elem_bytes_p = rdt_dtype_bytes(set->tensors->dtype);
        if (*elem_bytes_p > 8) /* a complex number is two */
            *elem_bytes_p /= 2;
        *elems_p = bytes / *elem_bytes_p;
        return set;
    }
    borrowed_set_free(set);
    return NULL;
}

PyObject *delta_encode(PyObject *module, PyObject *args)
{
    struct borrowed_set *base = NULL, *next = NULL;
    size_t elems = 0, elem_bytes = 0, other = 0, other_bytes = 0, used = 0;
    PyObject *tensors[2], *result = NULL;
    enum rdt_status status;
    struct rdt_error err;
    Py_buffer out;

    if (!PyArg_ParseTuple(args, "OOw*:delta_encode", &tensors[0], &tensors[1], &out))
        return NULL;
    base = borrow(tensors[0], false, &elems, &elem_bytes);
    next = base ? borrow(tensors[1], false, &other, &other_bytes) : NULL;
    if (next && (elems != other || elem_bytes != other_bytes)) {
        PyErr_Format(PyExc_ValueError, "the versions have %zu and %zu elements of %zu and %zu bytes", elems, other, elem_bytes,
                     other_bytes);
    } else if (next) {
        Py_BEGIN_ALLOW_THREADS status = rdt_delta_encode(base->tensors->data, next->tensors->data, elems, elem_bytes, out.buf,
                                                         (size_t)out.len, &used, &err);
        Py_END_ALLOW_THREADS if (status == RDT_OK) result = PyLong_FromSize_t(used);
        else if (status == RDT_LIMIT) result = Py_NewRef(Py_None);
        else raise_error(&err);
    }
    borrowed_set_free(base);
    borrowed_set_free(next);
    PyBuffer_Release(&out);
    return result;
}

PyObject *delta_apply(PyObject *module, PyObject *args)
{
    struct borrowed_set *set;
    size_t elems = 0, elem_bytes = 0;
    PyObject *target, *result = NULL;
    enum rdt_status status;
    struct rdt_error err;
    Py_buffer delta;

    if (!PyArg_ParseTuple(args, "Oy*:delta_apply", &target, &delta))
        return NULL;
    set = borrow(target, true, &elems, &elem_bytes);
    if (set) {
        Py_BEGIN_ALLOW_THREADS status =
            rdt_delta_apply(set->tensors->data, elems, elem_bytes, delta.buf, (size_t)delta.len, &err);
        Py_END_ALLOW_THREADS result = status == RDT_OK ? Py_NewRef(Py_None) : raise_error(&err);
    }
    borrowed_set_free(set);
    PyBuffer_Release(&delta);
    return result;
}
