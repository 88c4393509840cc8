/* SPDX-License-Identifier: Apache-2.0 */
/* Borrows tensors of any library as struct rdt_tensor: by the buffer protocol, from torch, by DLPack, and numpy dtypes
 * without a buffer. Nothing is copied. A borrowed_set keeps the borrowed memory alive. */
#include <string.h>

#include "rdtpy.h"

/* ---- dtypes ---- */

enum rdt_dtype dtype_of_numpy(char kind, Py_ssize_t bytes)
{
    const struct rdt_dtype_row *row;

    for (int number = 1; kind && (row = rdt_dtype_row((enum rdt_dtype)number)); number++)
        if (row->kind == kind && row->bytes == bytes)
            return (enum rdt_dtype)number;
    return 0;
}

/* The dtype of a format of the struct module. 0: rdtd has none. */
static enum rdt_dtype dtype_of_format(const char *format, Py_ssize_t itemsize)
{
    static const char kinds[256] = {
        ['?'] = 'b', ['c'] = 'u', ['b'] = 'i', ['h'] = 'i', ['i'] = 'i', ['l'] = 'i', ['q'] = 'i', ['B'] = 'u',
        ['H'] = 'u', ['I'] = 'u', ['L'] = 'u', ['Q'] = 'u', ['e'] = 'f', ['f'] = 'f', ['d'] = 'f', ['Z'] = 'c'};

    if (!format)
        return RDT_U8;
    if (*format == '@' || *format == '=' || *format == '<')
        format++;
    if (!format[0] || (format[0] == 'Z' ? !format[1] || format[2] : format[1] != 0))
        return 0;
    return dtype_of_numpy(kinds[(unsigned char)format[0]], itemsize);
}

enum rdt_dtype dtype_of_dlpack(uint8_t code, uint8_t bits, uint16_t lanes)
{
    const struct rdt_dtype_row *row;

    for (int number = 1; lanes == 1 && (row = rdt_dtype_row((enum rdt_dtype)number)); number++)
        if (row->dlpack == code && 8 * row->bytes == bits)
            return (enum rdt_dtype)number;
    return 0;
}

/* ---- one tensor ---- */

/* Returns room for shape and strides, [2 * ndim]; NULL with an exception set. */
static int64_t *borrowed_dims(struct borrowed *borrowed, Py_ssize_t ndim)
{
    if (ndim > 32) {
        PyErr_Format(PyExc_ValueError, "it has %zd dimensions; 0 to 32 are supported", ndim);
        return NULL;
    }
    if (2 * ndim <= (Py_ssize_t)(sizeof borrowed->few / sizeof *borrowed->few))
        return borrowed->few;
    borrowed->dims = PyMem_Malloc(2 * (size_t)ndim * sizeof *borrowed->dims);
    if (!borrowed->dims)
        PyErr_NoMemory();
    return borrowed->dims;
}

static bool strides_from_bytes(int64_t *strides, const Py_ssize_t *shape, const Py_ssize_t *bytes, Py_ssize_t ndim,
                               Py_ssize_t itemsize)
{
    for (Py_ssize_t i = 0; i < ndim; i++) {
        if (bytes[i] % itemsize != 0 && shape[i] > 1) {
            PyErr_Format(PyExc_ValueError,
                         "its stride of %zd bytes is not a multiple of its element size of %zd: copy it first", bytes[i],
                         itemsize);
            return false;
        }
        strides[i] = bytes[i] / itemsize;
    }
    return true;
}

/* Whether the strides are whole elements; those of a field of packed records are not. */
static bool has_element_strides(const Py_buffer *view)
{
    for (Py_ssize_t i = 0; view->strides && i < view->ndim; i++)
        if (view->strides[i] % view->itemsize != 0 && view->shape[i] > 1)
            return false;
    return true;
}

/* Fills `tensor` from borrowed->view, which PyObject_GetBuffer has filled. What has no strides in elements is copied, unless
 * it is to be written. */
static bool from_buffer(struct borrowed *borrowed, struct rdt_tensor *tensor, bool writable)
{
    const Py_buffer *view = &borrowed->view;
    enum rdt_dtype dtype = dtype_of_format(view->format, view->itemsize);
    int64_t *dims;

    if (!dtype) {
        PyErr_Format(PyExc_TypeError, "its element format is '%s' (%zd bytes), and no rdtd dtype matches it", view->format,
                     view->itemsize);
        return false;
    }
    dims = borrowed_dims(borrowed, view->ndim);
    if (dims && !writable && !has_element_strides(view)) {
        borrowed->alive = PyBytes_FromStringAndSize(NULL, view->len);
        if (!borrowed->alive || PyBuffer_ToContiguous(PyBytes_AS_STRING(borrowed->alive), view, view->len, 'C') < 0)
            return false;
        *tensor = (struct rdt_tensor){.dtype = dtype,
                                      .ndim = (uint32_t)view->ndim,
                                      .shape = (const int64_t *)view->shape,
                                      .data = PyBytes_AS_STRING(borrowed->alive)};
        return true;
    }
    if (!dims || (view->strides && !strides_from_bytes(dims, view->shape, view->strides, view->ndim, view->itemsize)))
        return false;
    *tensor = (struct rdt_tensor){.dtype = dtype,
                                  .ndim = (uint32_t)view->ndim,
                                  .shape = (const int64_t *)view->shape,
                                  .strides = view->strides ? dims : NULL, /* ctypes has none */
                                  .data = view->buf};
    return true;
}

static bool from_tensor(struct borrowed *borrowed, struct rdt_tensor *tensor, const struct tensor *ours, PyObject *stream)
{
    Py_INCREF(ours);
    borrowed->alive = (PyObject *)ours;
    borrowed->on_gpu = ours->gpu != HOST;
    borrowed->ordered = true; /* the daemon owns this memory */
    if (borrowed->on_gpu && stream != Py_None && !stream_from(stream, &borrowed->stream))
        return false;
    *tensor = (struct rdt_tensor){.dtype = ours->dtype,
                                  .ndim = (uint32_t)ours->ndim,
                                  .shape = (const int64_t *)ours->dims,
                                  .strides = (const int64_t *)ours->dims + ours->ndim,
                                  .data = ours->data};
    return true;
}

bool dims_from_tuple(PyObject *tuple, int64_t *dims, Py_ssize_t ndim)
{
    if (!tuple || !PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != ndim) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "its shape and strides are not tuples of the same length");
        return false;
    }
    for (Py_ssize_t i = 0; i < ndim; i++) {
        dims[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
        if (dims[i] == -1 && PyErr_Occurred())
            return false;
    }
    return true;
}

bool dims_from_tuples(struct borrowed *borrowed, struct rdt_tensor *tensor, PyObject *shape, PyObject *strides,
                      Py_ssize_t itemsize)
{
    Py_ssize_t ndim = PyTuple_GET_SIZE(shape);
    int64_t *dims = borrowed_dims(borrowed, ndim);

    if (!dims || !dims_from_tuple(shape, dims, ndim) || (strides && !dims_from_tuple(strides, dims + ndim, ndim)) ||
        (strides && itemsize > 0 &&
         !strides_from_bytes(dims + ndim, (const Py_ssize_t *)dims, (const Py_ssize_t *)dims + ndim, ndim, itemsize)))
        return false;
    tensor->ndim = (uint32_t)ndim;
    tensor->shape = dims;
    tensor->strides = strides ? dims + ndim : NULL;
    return true;
}

bool tensor_from_dl(struct borrowed *borrowed, struct rdt_tensor *tensor, const struct dl_tensor *dl)
{
    int64_t *dims = borrowed_dims(borrowed, dl->ndim);

    if (!dims)
        return false;
    for (int i = 0; i < dl->ndim; i++) {
        dims[i] = dl->shape[i];
        if (dl->strides)
            dims[dl->ndim + i] = dl->strides[i];
    }
    tensor->ndim = (uint32_t)dl->ndim;
    tensor->shape = dims;
    tensor->strides = dl->strides ? dims + dl->ndim : NULL;
    tensor->data = (uint8_t *)dl->data + dl->byte_offset;
    return true;
}

/* Reads the device type and number from __dlpack_device__. */
static bool dlpack_device(PyObject *object, int *type_p, int *id_p)
{
    PyObject *device = PyObject_CallMethod(object, "__dlpack_device__", NULL), *type = NULL;
    bool ok;

    if (!device)
        return false;
    ok = PyTuple_Check(device) && PyTuple_GET_SIZE(device) == 2;
    if (!ok)
        PyErr_Format(PyExc_TypeError, "its __dlpack_device__() returned %R, not a tuple of two numbers", device);
    ok = ok && PyArg_ParseTuple(device, "Oi", &type, id_p); /* the type may be a member of an enum */
    if (ok)
        *type_p = (int)PyLong_AsLong(type);
    Py_DECREF(device);
    return ok && !PyErr_Occurred();
}

static bool from_dlpack(struct borrowed *borrowed, struct rdt_tensor *tensor, PyObject *object, bool writable, PyObject *stream)
{
    const struct dl_tensor *dl;
    bool readonly = false;
    int type = DL_CPU, id = 0;

    if (!dlpack_device(object, &type, &id))
        return false;
    borrowed->alive = type == DL_CUDA ? gpu_dlpack(borrowed, object, stream) : PyObject_CallMethod(object, "__dlpack__", NULL);
    if (!borrowed->alive)
        return false;
    if (PyCapsule_IsValid(borrowed->alive, "dltensor")) {
        dl = &((const struct dl_managed *)PyCapsule_GetPointer(borrowed->alive, "dltensor"))->tensor;
    } else if (PyCapsule_IsValid(borrowed->alive, "dltensor_versioned")) {
        const struct dl_managed_versioned *managed = PyCapsule_GetPointer(borrowed->alive, "dltensor_versioned");

        if (managed->version.major != 1) {
            PyErr_Format(PyExc_BufferError, "it uses DLPack version %u; version 1 is supported",
                         (unsigned)managed->version.major);
            return false;
        }
        dl = &managed->tensor;
        readonly = (managed->flags & DL_READ_ONLY) != 0;
    } else {
        PyErr_SetString(PyExc_TypeError, "its __dlpack__() did not return a DLPack capsule");
        return false;
    }
    if (dl->device.type != DL_CPU && dl->device.type != DL_CUDA) {
        PyErr_Format(PyExc_TypeError, "its DLPack device type is %d; host memory (1) and CUDA (2) are supported",
                     (int)dl->device.type);
        return false;
    }
    if (dl->device.type != type) {
        PyErr_Format(PyExc_TypeError, "its __dlpack_device__() reports device type %d, but its capsule has %d", type,
                     (int)dl->device.type);
        return false;
    }
    if (writable && readonly) {
        PyErr_SetString(PyExc_BufferError, "it is read-only");
        return false;
    }
    tensor->dtype = dtype_of_dlpack(dl->dtype.code, dl->dtype.bits, dl->dtype.lanes);
    if (!tensor->dtype) {
        PyErr_Format(PyExc_TypeError, "no rdtd dtype matches its DLPack type (code %d, %d bits, %d lanes)", (int)dl->dtype.code,
                     (int)dl->dtype.bits, (int)dl->dtype.lanes);
        return false;
    }
    return tensor_from_dl(borrowed, tensor, dl);
}

/* numpy arrays whose dtype (of ml_dtypes) the buffer protocol cannot express: the dtype is found by its name. */
static bool from_numpy_name(struct borrowed *borrowed, struct rdt_tensor *tensor, PyObject *array, bool writable)
{
    PyObject *dtype = PyObject_GetAttrString(array, "dtype"), *name = dtype ? PyObject_GetAttrString(dtype, "name") : NULL;
    PyObject *number = name && numpy_names ? PyDict_GetItemWithError(numpy_names, name) : NULL, *flags = NULL,
             *writeable = NULL;
    PyObject *shape = NULL, *strides = NULL, *ctypes = NULL, *item;
    bool ok = false;

    if (!number) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_TypeError, "no rdtd dtype matches its dtype %S", dtype);
        goto end;
    }
    flags = PyObject_GetAttrString(array, "flags");
    writeable = flags ? PyObject_GetAttrString(flags, "writeable") : NULL;
    if (!writeable)
        goto end;
    if (writable && writeable != Py_True) {
        PyErr_SetString(PyExc_BufferError, "it is read-only");
        goto end;
    }
    tensor->dtype = (enum rdt_dtype)PyLong_AsLong(number);
    shape = PyObject_GetAttrString(array, "shape");
    strides = PyObject_GetAttrString(array, "strides");
    if (!shape || !strides || !PyTuple_Check(shape) ||
        !dims_from_tuples(borrowed, tensor, shape, strides, (Py_ssize_t)rdt_dtype_bytes(tensor->dtype)))
        goto end;
    ctypes = PyObject_GetAttrString(array, "__array_interface__");
    item = ctypes && PyDict_Check(ctypes) ? PyDict_GetItemString(ctypes, "data") : NULL;
    if (!item || !PyTuple_Check(item) || PyTuple_GET_SIZE(item) < 1)
        goto end;
    tensor->data = PyLong_AsVoidPtr(PyTuple_GET_ITEM(item, 0));
    Py_INCREF(array);
    borrowed->alive = array;
    if (writable)
        borrowed->pin = pin_owner(array);
    ok = !PyErr_Occurred();
end:
    if (!ok && !PyErr_Occurred())
        PyErr_SetString(PyExc_TypeError, "it is not a tensor");
    Py_XDECREF(dtype);
    Py_XDECREF(name);
    Py_XDECREF(flags);
    Py_XDECREF(writeable);
    Py_XDECREF(shape);
    Py_XDECREF(strides);
    Py_XDECREF(ctypes);
    return ok;
}

/* Whether from_numpy_name may read `object`, whose buffer was refused with the pending exception, which stays. An array that is
 * merely read-only has a buffer. */
static bool is_numpy_name(PyObject *object, bool writable)
{
    PyObject *type, *value, *traceback;
    Py_buffer readable;
    bool is;

    PyErr_Fetch(&type, &value, &traceback); /* the calls below would overwrite it */
    is = !writable || PyObject_GetBuffer(object, &readable, PyBUF_STRIDES | PyBUF_FORMAT) < 0;
    if (!is)
        PyBuffer_Release(&readable);
    PyErr_Clear();
    is = is && PyObject_HasAttrString(object, "__array_interface__");
    PyErr_Restore(type, value, traceback);
    return is;
}

static bool take(struct borrowed *borrowed, struct rdt_tensor *tensor, PyObject *object, bool writable, PyObject *stream)
{
    if (PyObject_TypeCheck(object, &tensor_type)) {
        if (writable && ((struct tensor *)object)->readonly) {
            PyErr_SetString(PyExc_BufferError, "it is read-only");
            return false;
        }
        return from_tensor(borrowed, tensor, (struct tensor *)object, stream);
    }
    if (PyObject_CheckBuffer(object)) {
        if (PyObject_GetBuffer(object, &borrowed->view, PyBUF_STRIDES | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0)) == 0) {
            if (writable)
                borrowed->pin = pin_owner(object);
            return from_buffer(borrowed, tensor, writable);
        }
        borrowed->view.obj = NULL;
        if (!is_numpy_name(object, writable))
            return false;
        PyErr_Clear();
        return from_numpy_name(borrowed, tensor, object, writable);
    }
    if (!torch_tensor_type) { /* it may be the first tensor of torch that this process passes to a call */
        PyObject *kind = PyObject_CallOneArg(kind_of, object);

        if (!kind)
            return false;
        Py_DECREF(kind);
    }
    if (torch_tensor_type && PyObject_TypeCheck(object, (PyTypeObject *)torch_tensor_type))
        return torch_take(borrowed, tensor, object, writable, stream);
    if (PyObject_HasAttrString(object, "__dlpack__"))
        return from_dlpack(borrowed, tensor, object, writable, stream);
    if (PyObject_HasAttrString(object, "__cuda_array_interface__"))
        return gpu_array_interface(borrowed, tensor, object, writable, stream);
    PyErr_Format(PyExc_TypeError, "a %.100s has neither a buffer nor __dlpack__", Py_TYPE(object)->tp_name);
    return false;
}

/* ---- many ---- */

/* Prefixes the current exception with the index of the tensor. What is read-only or strided is a wrong value. */
static void name_it(const char *what, size_t i)
{
    PyObject *type, *value, *traceback, *said;

    PyErr_Fetch(&type, &value, &traceback);
    if (type == PyExc_RuntimeError || type == PyExc_NotImplementedError) { /* torch's, of a tensor without memory of its own */
        Py_INCREF(PyExc_TypeError);
        Py_SETREF(type, PyExc_TypeError);
    } else if (type == PyExc_BufferError) {
        Py_INCREF(PyExc_ValueError);
        Py_SETREF(type, PyExc_ValueError);
    }
    said = value ? PyUnicode_FromFormat("%s tensor %zu: %S", what, i, value) : NULL;
    if (said) {
        Py_XDECREF(value);
        value = said;
    }
    PyErr_Restore(type, value, traceback);
}

struct borrowed_set *borrowed_set_from(PyObject *list, bool writable, PyObject *stream, const char *what)
{
    PyObject *items = PySequence_Fast(list, "expected a list of tensors");
    struct borrowed_set *set = items ? PyMem_Calloc(1, sizeof *set) : NULL;
    size_t count = items ? (size_t)PySequence_Fast_GET_SIZE(items) : 0;

    if (set) {
        set->tensors = PyMem_Calloc(count + 1, sizeof *set->tensors);
        set->borrowed = PyMem_Calloc(count + 1, sizeof *set->borrowed);
    }
    if (!set || !set->tensors || !set->borrowed) {
        if (items)
            PyErr_NoMemory();
        goto failed;
    }
    for (size_t i = 0; i < count; i++) {
        set->count = i + 1;
        if (!take(&set->borrowed[i], &set->tensors[i], PySequence_Fast_GET_ITEM(items, (Py_ssize_t)i), writable, stream)) {
            name_it(what, i);
            goto failed;
        }
        set->on_gpus += set->borrowed[i].on_gpu;
    }
    Py_DECREF(items);
    return set;
failed:
    Py_XDECREF(items);
    borrowed_set_free(set);
    return NULL;
}

void borrowed_set_free(struct borrowed_set *set)
{
    if (!set)
        return;
    gpu_take_back(set);
    for (size_t i = 0; i < set->count; i++) {
        if (set->borrowed[i].view.obj)
            PyBuffer_Release(&set->borrowed[i].view);
        Py_XDECREF(set->borrowed[i].alive);
        Py_XDECREF(set->borrowed[i].pin);
        PyMem_Free(set->borrowed[i].dims);
    }
    PyMem_Free(set->tensors);
    PyMem_Free(set->borrowed);
    PyMem_Free(set);
}
