/* SPDX-License-Identifier: Apache-2.0 */
/* Exports Tensors as DLPack capsules. The consumer calls the deleter, on any thread, to release the Tensor. */
#include "rdtpy.h"

struct exported {
    union {
        struct dl_managed plain;
        struct dl_managed_versioned versioned;
    } managed;
    PyObject *tensor; /* owned */
};

static void give_back(struct exported *exported)
{
    PyGILState_STATE state;

    if (!Py_IsInitialized()) { /* the interpreter has ended: neither the GIL nor the Tensor exists */
        return;
    }
    state = PyGILState_Ensure();
    Py_DECREF(exported->tensor);
    PyMem_Free(exported);
    PyGILState_Release(state);
}

static void delete_plain(struct dl_managed *managed)
{
    give_back(managed->context);
}

static void delete_versioned(struct dl_managed_versioned *managed)
{
    give_back(managed->context);
}

/* Destructor of a capsule that was never consumed. */
static void drop_capsule(PyObject *capsule)
{
    const char *name = PyCapsule_GetName(capsule);

    if (name && strcmp(name, "dltensor") == 0)
        delete_plain(PyCapsule_GetPointer(capsule, name));
    else if (name && strcmp(name, "dltensor_versioned") == 0)
        delete_versioned(PyCapsule_GetPointer(capsule, name));
}

static PyObject *export(struct tensor *tensor, bool versioned, uint8_t code)
{
    struct exported *exported = PyMem_Calloc(1, sizeof *exported);
    struct dl_tensor *dl;
    PyObject *capsule;

    if (!exported)
        return PyErr_NoMemory();
    dl = versioned ? &exported->managed.versioned.tensor : &exported->managed.plain.tensor;
    if (versioned) {
        exported->managed.versioned.version.major = 1;
        exported->managed.versioned.context = exported;
        exported->managed.versioned.deleter = delete_versioned;
        exported->managed.versioned.flags = tensor->readonly ? DL_READ_ONLY : 0;
    } else {
        exported->managed.plain.context = exported;
        exported->managed.plain.deleter = delete_plain;
    }
    dl->data = tensor->data;
    dl->device.type = tensor->gpu == HOST ? DL_CPU : DL_CUDA;
    dl->device.id = tensor->gpu == HOST ? 0 : tensor->gpu;
    dl->ndim = tensor->ndim;
    dl->dtype.code = code;
    dl->dtype.bits = (uint8_t)(8 * rdt_dtype_bytes(tensor->dtype));
    dl->dtype.lanes = 1;
    dl->shape = (int64_t *)tensor->dims;
    dl->strides = (int64_t *)tensor->dims + tensor->ndim;
    capsule = PyCapsule_New(exported, versioned ? "dltensor_versioned" : "dltensor", drop_capsule);
    if (!capsule) {
        PyMem_Free(exported);
        return NULL;
    }
    Py_INCREF(tensor);
    exported->tensor = (PyObject *)tensor;
    return capsule;
}

static void add_stream(struct used_streams *used, void *stream)
{
    for (unsigned i = 0; i < used->n; i++)
        if (used->at[i] == stream)
            return;
    if (used->n < MAX_USED_STREAMS)
        used->at[used->n++] = stream;
    else
        used->unknown = true;
}

/* The consumer's stream does not have to wait: a fetch has completed, and new memory is zeroed, before Python sees the
 * Tensor. Writes through other views are ordered by their own streams, as with any tensor. The stream is noted, because it may
 * still read the tensor when Python drops it. */
static bool take_stream(struct tensor *tensor, PyObject *stream)
{
    long long number;

    if (stream == Py_None)
        return true;
    number = PyLong_AsLongLong(stream);
    if (number == -1 && PyErr_Occurred())
        return false;
    if (tensor->gpu == HOST && number != -1) {
        PyErr_SetString(PyExc_BufferError, "the tensor is in host memory, where there are no streams: stream=None");
        return false;
    }
    if (number == 0) {
        PyErr_SetString(PyExc_ValueError, "stream 0 is ambiguous: 1 is the legacy default stream, 2 the one of each thread");
        return false;
    }
    if (tensor->gpu != HOST && number == -1)
        tensor_streams(tensor)->unknown = true;
    else if (tensor->gpu != HOST)
        add_stream(tensor_streams(tensor), (void *)(uintptr_t)number);
    return true;
}

PyObject *tensor_dlpack(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"stream", "max_version", "dl_device", "copy", NULL};
    PyObject *stream = Py_None, *max_version = Py_None, *device = Py_None, *copy = Py_None;
    struct tensor *tensor = (struct tensor *)self;
    bool versioned = false;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$OOOO:__dlpack__", names, &stream, &max_version, &device, &copy))
        return NULL;
    if (max_version != Py_None) {
        unsigned major, minor;

        if (!PyArg_ParseTuple(max_version, "II", &major, &minor))
            return NULL;
        versioned = major >= 1;
    }
    if (!take_stream(tensor, stream))
        return NULL;
    if (device != Py_None) {
        int type, id;

        if (!PyArg_ParseTuple(device, "ii", &type, &id))
            return NULL;
        if (tensor->gpu == HOST ? type != DL_CPU : type != DL_CUDA || id != tensor->gpu) {
            if (tensor->gpu == HOST)
                PyErr_SetString(PyExc_BufferError, "the tensor is in host memory: fetch with device=\"cuda\"");
            else
                PyErr_Format(PyExc_BufferError, "the tensor is on GPU %d: fetch with device= for another place", tensor->gpu);
            return NULL;
        }
    }
    if (copy == Py_True) {
        PyErr_SetString(PyExc_BufferError, "the tensor is passed on as it is and never copied: copy=True is not supported");
        return NULL;
    }
    if (tensor->readonly && !versioned && tensor->gpu == HOST) { /* on a GPU a write is no fault, and everybody may do it */
        PyErr_SetString(PyExc_BufferError,
                        "the tensor is read-only, which DLPack before 1.0 cannot say: fetch with mode=\"cow\" or \"copy\"");
        return NULL;
    }
    return export(tensor, versioned, rdt_dtype_row(tensor->dtype)->dlpack);
}

PyObject *tensor_dlpack_device(PyObject *self, PyObject *ignored)
{
    int gpu = ((struct tensor *)self)->gpu;

    return gpu == HOST ? Py_BuildValue("(ii)", DL_CPU, 0) : Py_BuildValue("(ii)", DL_CUDA, gpu);
}

bool torch_takes(enum rdt_dtype dtype)
{
    const struct rdt_dtype_row *row = rdt_dtype_row(dtype);

    switch (row->dlpack) {
    case DL_UINT:
        return row->bytes == 1;
    case DL_COMPLEX:
        return row->bytes > 4;
    default:
        return row->dlpack == DL_INT || row->dlpack == DL_FLOAT || row->dlpack == DL_BFLOAT;
    }
}

/* A capsule for torch: unversioned, also for read-only memory. Dtypes that old torches refuse are exported as integers of the
 * same size: every torch has uint8 and signed integers of each size. */
PyObject *tensor_capsule(PyObject *self, PyObject *ignored)
{
    struct tensor *tensor = (struct tensor *)self;
    const struct rdt_dtype_row *row = rdt_dtype_row(tensor->dtype);

    return export(tensor, false, torch_takes(tensor->dtype) ? row->dlpack : row->bytes == 1 ? DL_UINT : DL_INT);
}
