/* SPDX-License-Identifier: Apache-2.0 */
/* Borrows tensors on GPUs, from torch, by DLPack and by __cuda_array_interface__, and finds the stream that still writes
 * them. Calls no CUDA. */
#include <string.h>

#include "rdtpy.h"

#define LEGACY_STREAM 1 /* the legacy default stream, as DLPack and cuda.h number it */

bool stream_from(PyObject *number, void **stream_p)
{
    void *stream = PyLong_AsVoidPtr(number);

    if (!stream && PyErr_Occurred())
        return false;
    *stream_p = stream;
    return true;
}

/* torch's allocator reuses and frees memory in stream order, so the stream may read the tensor after put has returned. */
bool gpu_torch_stream(struct borrowed *borrowed, PyObject *torch, PyObject *stream)
{
    PyObject *is_cuda = PyObject_GetAttrString(torch, "is_cuda"), *device = NULL, *index = NULL, *number = NULL;
    bool ok = false;

    if (!is_cuda)
        return false;
    Py_DECREF(is_cuda);
    if (is_cuda != Py_True || !torch_stream) {
        PyErr_SetString(
            PyExc_TypeError,
            "it is neither in host memory nor on a CUDA GPU: call .cpu() first, or to_empty() of a model on the meta device");
        return false;
    }
    borrowed->on_gpu = borrowed->ordered = true;
    if (stream != Py_None)
        return stream_from(stream, &borrowed->stream);
    device = PyObject_GetAttrString(torch, "device");
    index = device ? PyObject_GetAttrString(device, "index") : NULL;
    number = index ? PyObject_CallOneArg(torch_stream, index) : NULL;
    ok = number && stream_from(number, &borrowed->stream);
    Py_XDECREF(device);
    Py_XDECREF(index);
    Py_XDECREF(number);
    return ok;
}

/* The producer makes the stream that we pass wait for its own. */
PyObject *gpu_dlpack(struct borrowed *borrowed, PyObject *object, PyObject *stream)
{
    PyObject *method, *no_arguments, *arguments, *capsule = NULL;

    borrowed->on_gpu = true;
    borrowed->stream = (void *)LEGACY_STREAM;
    if (stream != Py_None && !stream_from(stream, &borrowed->stream))
        return NULL;
    method = PyObject_GetAttrString(object, "__dlpack__");
    no_arguments = PyTuple_New(0);
    arguments =
        Py_BuildValue("{s:N}", "stream", PyLong_FromVoidPtr(borrowed->stream ? borrowed->stream : (void *)LEGACY_STREAM));
    if (method && no_arguments && arguments)
        capsule = PyObject_Call(method, no_arguments, arguments);
    Py_XDECREF(method);
    Py_XDECREF(no_arguments);
    Py_XDECREF(arguments);
    return capsule;
}

/* The dtype of a typestr such as "<f4"; 0: rdtd has none. */
static enum rdt_dtype dtype_of_typestr(const char *text)
{
    char *end;
    long bytes;

    if (strlen(text) < 3 || !strchr("<|=", text[0]))
        return 0;
    bytes = strtol(text + 2, &end, 10);
    return *end ? 0 : dtype_of_numpy(text[1], bytes);
}

/* Version 2 of the interface has no stream: the data is then valid on the legacy default stream. */
bool gpu_array_interface(struct borrowed *borrowed, struct rdt_tensor *tensor, PyObject *object, bool writable, PyObject *given)
{
    PyObject *interface = PyObject_GetAttrString(object, "__cuda_array_interface__"), *typestr, *data, *shape, *strides,
             *stream;
    bool ok = false;

    if (!interface)
        return false;
    if (!PyDict_Check(interface)) {
        PyErr_SetString(PyExc_TypeError, "its __cuda_array_interface__ is not a dict");
        goto end;
    }
    typestr = PyDict_GetItemString(interface, "typestr");
    data = PyDict_GetItemString(interface, "data");
    shape = PyDict_GetItemString(interface, "shape");
    strides = PyDict_GetItemString(interface, "strides");
    stream = PyDict_GetItemString(interface, "stream");
    if (!typestr || !PyUnicode_Check(typestr) || !data || !PyTuple_Check(data) || PyTuple_GET_SIZE(data) != 2 || !shape ||
        !PyTuple_Check(shape)) {
        PyErr_SetString(PyExc_TypeError, "its __cuda_array_interface__ lacks typestr, data or shape");
        goto end;
    }
    tensor->dtype = dtype_of_typestr(PyUnicode_AsUTF8(typestr) ? PyUnicode_AsUTF8(typestr) : "");
    if (!tensor->dtype) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_TypeError, "no rdtd dtype matches its typestr %R", typestr);
        goto end;
    }
    if (writable && PyObject_IsTrue(PyTuple_GET_ITEM(data, 1))) {
        PyErr_SetString(PyExc_BufferError, "it is read-only");
        goto end;
    }
    if (!dims_from_tuples(borrowed, tensor, shape, strides == Py_None ? NULL : strides,
                          (Py_ssize_t)rdt_dtype_bytes(tensor->dtype)))
        goto end;
    tensor->data = PyLong_AsVoidPtr(PyTuple_GET_ITEM(data, 0));
    borrowed->on_gpu = true;
    borrowed->stream = (void *)LEGACY_STREAM;
    if (given != Py_None || (stream && stream != Py_None))
        ok = stream_from(given != Py_None ? given : stream, &borrowed->stream);
    else
        ok = !PyErr_Occurred();
    Py_INCREF(object);
    borrowed->alive = object;
end:
    Py_DECREF(interface);
    return ok;
}
