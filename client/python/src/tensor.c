/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's memory as Python sees it. Memory is an allocation; Tensor is a view that keeps its Memory or Object alive. */
#include "rdtpy.h"

static char empty[64]; /* the address of tensors without elements */

PyObject *tensor_new(PyObject *owner, const struct rdt_tensor *view, bool readonly, int gpu)
{
    Py_ssize_t ndim = (Py_ssize_t)view->ndim, itemsize = (Py_ssize_t)rdt_dtype_bytes(view->dtype), count = 1;
    struct tensor *tensor = (struct tensor *)tensor_type.tp_alloc(&tensor_type, 3 * ndim);

    if (!tensor)
        return NULL;
    Py_INCREF(owner);
    tensor->owner = owner;
    tensor->dtype = view->dtype;
    tensor->ndim = (int)ndim;
    tensor->readonly = readonly;
    tensor->gpu = gpu;
    tensor->data = view->data ? view->data : empty;
    for (Py_ssize_t i = ndim; i-- > 0;) {
        int64_t stride = view->strides ? view->strides[i] : count;

        tensor->dims[i] = (Py_ssize_t)view->shape[i];
        tensor->dims[ndim + i] = (Py_ssize_t)stride;
        tensor->dims[2 * ndim + i] = (Py_ssize_t)stride * itemsize;
        count *= (Py_ssize_t)view->shape[i];
    }
    tensor->bytes = count * itemsize;
    return (PyObject *)tensor;
}

static void tensor_dealloc(PyObject *self)
{
    struct tensor *tensor = (struct tensor *)self;

    if (tensor->weakrefs)
        PyObject_ClearWeakRefs(self);
    Py_DECREF(tensor->owner);
    Py_TYPE(self)->tp_free(self);
}

static bool is_contiguous(const struct tensor *tensor, bool fortran)
{
    Py_ssize_t expected = 1;

    if (tensor->bytes == 0)
        return true;
    for (int n = 0; n < tensor->ndim; n++) {
        int i = fortran ? n : tensor->ndim - 1 - n;

        if (tensor->dims[i] != 1 && tensor->dims[tensor->ndim + i] != expected)
            return false;
        expected *= tensor->dims[i];
    }
    return true;
}

static int tensor_getbuffer(PyObject *self, Py_buffer *view, int flags)
{
    struct tensor *tensor = (struct tensor *)self;
    const char *format = rdt_dtype_row(tensor->dtype)->format;
    bool c = is_contiguous(tensor, false);

    view->obj = NULL;
    if (tensor->gpu != HOST) {
        PyErr_Format(PyExc_BufferError, "the tensor is on GPU %d: use torch or DLPack there, or fetch it with device=\"host\"",
                     tensor->gpu);
        return -1;
    }
    if ((flags & PyBUF_WRITABLE) && tensor->readonly) {
        PyErr_SetString(PyExc_BufferError, "the tensor is read-only: fetch with mode=\"cow\" or \"copy\" to write");
        return -1;
    }
    if ((flags & PyBUF_FORMAT) && !format) {
        PyErr_Format(PyExc_BufferError,
                     "the buffer protocol cannot express %s: install ml_dtypes for numpy, use torch, or take bits()",
                     rdt_dtype_name(tensor->dtype));
        return -1;
    }
    if ((!(flags & PyBUF_ND) || (flags & PyBUF_C_CONTIGUOUS) == PyBUF_C_CONTIGUOUS ||
         (flags & PyBUF_STRIDES) != PyBUF_STRIDES) &&
        !c) {
        PyErr_SetString(PyExc_BufferError, "the tensor is not contiguous");
        return -1;
    }
    if (((flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS && !is_contiguous(tensor, true)) ||
        ((flags & PyBUF_ANY_CONTIGUOUS) == PyBUF_ANY_CONTIGUOUS && !c && !is_contiguous(tensor, true))) {
        PyErr_SetString(PyExc_BufferError, "the tensor is not contiguous");
        return -1;
    }
    view->buf = tensor->data;
    view->len = tensor->bytes;
    view->itemsize = (flags & PyBUF_FORMAT) || format ? (Py_ssize_t)rdt_dtype_bytes(tensor->dtype) : 1;
    view->readonly = tensor->readonly;
    view->ndim = (flags & PyBUF_ND) ? tensor->ndim : 1;
    view->format = (flags & PyBUF_FORMAT) ? (char *)format : NULL;
    view->shape = (flags & PyBUF_ND) ? tensor->dims : NULL;
    view->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? tensor->dims + 2 * tensor->ndim : NULL;
    view->suboffsets = NULL;
    view->internal = NULL;
    Py_INCREF(self);
    view->obj = self;
    return 0;
}

/* ---- attributes ---- */

PyObject *tuple_of(const Py_ssize_t *numbers, uint32_t count)
{
    PyObject *tuple = PyTuple_New((Py_ssize_t)count);

    for (uint32_t i = 0; tuple && i < count; i++) {
        PyObject *number = PyLong_FromSsize_t(numbers[i]);

        if (!number)
            Py_CLEAR(tuple);
        else
            PyTuple_SET_ITEM(tuple, i, number);
    }
    return tuple;
}

static PyObject *get_shape(PyObject *self, void *ignored)
{
    struct tensor *tensor = (struct tensor *)self;

    return tuple_of(tensor->dims, (uint32_t)tensor->ndim);
}

static PyObject *get_strides(PyObject *self, void *ignored)
{
    struct tensor *tensor = (struct tensor *)self;

    return tuple_of(tensor->dims + tensor->ndim, (uint32_t)tensor->ndim);
}

static PyObject *get_dtype(PyObject *self, void *ignored)
{
    static PyObject *names[32];
    enum rdt_dtype dtype = ((struct tensor *)self)->dtype;
    PyObject *name;

    if ((size_t)dtype >= sizeof names / sizeof *names)
        return PyUnicode_FromString(rdt_dtype_name(dtype));
    name = names[dtype];
    if (!name)
        name = names[dtype] = PyUnicode_InternFromString(rdt_dtype_name(dtype));
    Py_XINCREF(name);
    return name;
}

static PyObject *get_contiguous(PyObject *self, void *ignored)
{
    return PyBool_FromLong(is_contiguous((struct tensor *)self, false));
}

static PyObject *get_device(PyObject *self, void *ignored)
{
    static PyObject *cpu;
    int gpu = ((struct tensor *)self)->gpu;

    if (gpu != HOST)
        return PyUnicode_FromFormat("cuda:%d", gpu);
    if (!cpu)
        cpu = PyUnicode_InternFromString("cpu");
    Py_XINCREF(cpu);
    return cpu;
}

static struct conn *tensor_conn(const struct tensor *tensor)
{
    if (PyObject_TypeCheck(tensor->owner, &memory_type))
        return ((struct memory *)tensor->owner)->conn;
    return ((struct object *)tensor->owner)->conn;
}

struct used_streams *tensor_streams(struct tensor *tensor)
{
    if (PyObject_TypeCheck(tensor->owner, &memory_type))
        return &((struct memory *)tensor->owner)->used;
    return &((struct object *)tensor->owner)->used;
}

/* __array_interface__, and __cuda_array_interface__ version 3 with the same fields. It names no stream, since the data is
 * already valid. */
static PyObject *interface_of(struct tensor *tensor, bool on_gpu)
{
    const struct rdt_dtype_row *row = rdt_dtype_row(tensor->dtype);
    bool readonly = tensor->readonly && !on_gpu; /* torch takes no read-only tensor of a GPU */
    char typestr[8];

    if ((tensor->gpu != HOST) != on_gpu) {
        PyErr_Format(PyExc_AttributeError, on_gpu ? "the tensor is in host memory" : "the tensor is on GPU %d", tensor->gpu);
        return NULL;
    }
    if (!row->kind) {
        PyErr_Format(PyExc_AttributeError, "numpy has no typestr for %s", row->name);
        return NULL;
    }
    (void)PyOS_snprintf(typestr, sizeof typestr, "%c%c%d", row->bytes == 1 ? '|' : '<', row->kind, row->bytes);
    return Py_BuildValue("{s:i,s:s,s:N,s:N,s:(NO)}", "version", 3, "typestr", typestr, "shape",
                         tuple_of(tensor->dims, (uint32_t)tensor->ndim), "strides",
                         tuple_of(tensor->dims + 2 * tensor->ndim, (uint32_t)tensor->ndim), "data",
                         PyLong_FromVoidPtr(tensor->data), readonly ? Py_True : Py_False);
}

static PyObject *get_interface(PyObject *self, void *ignored)
{
    return interface_of((struct tensor *)self, false);
}

static PyObject *get_cuda_interface(PyObject *self, void *ignored)
{
    tensor_streams((struct tensor *)self)->unknown = true; /* the interface does not say which streams will use it */
    return interface_of((struct tensor *)self, true);
}

/* A Tensor of unsigned integers of the same element size over the same memory. */
static PyObject *tensor_bits(PyObject *self, PyObject *ignored)
{
    struct tensor *tensor = (struct tensor *)self;
    size_t itemsize = rdt_dtype_bytes(tensor->dtype);
    struct rdt_tensor view = {.ndim = (uint32_t)tensor->ndim,
                              .shape = (const int64_t *)tensor->dims,
                              .strides = (const int64_t *)tensor->dims + tensor->ndim,
                              .data = tensor->data};

    view.dtype = itemsize == 1 ? RDT_U8 : itemsize == 2 ? RDT_U16 : itemsize == 4 ? RDT_U32 : RDT_U64;
    if (itemsize == 16) {
        PyErr_SetString(PyExc_TypeError, "there is no integer type of 16 bytes");
        return NULL;
    }
    return tensor_new(tensor->owner, &view, tensor->readonly, tensor->gpu);
}

static PyObject *tensor_tobytes(PyObject *self, PyObject *ignored)
{
    struct tensor *tensor = (struct tensor *)self;

    if (tensor->gpu != HOST && is_contiguous(tensor, false)) {
        PyObject *bytes = PyBytes_FromStringAndSize(NULL, tensor->bytes);
        struct conn *conn = tensor_conn(tensor);
        enum rdt_status status = RDT_OK;
        struct rdt_error err;

        if (!bytes || tensor->bytes == 0)
            return bytes;
        Py_BEGIN_ALLOW_THREADS status = gpu_read(conn, tensor->data, PyBytes_AS_STRING(bytes), (size_t)tensor->bytes, &err);
        Py_END_ALLOW_THREADS if (status == RDT_OK) return bytes;
        Py_DECREF(bytes);
        return raise_error(&err);
    }
    if (is_contiguous(tensor, false))
        return PyBytes_FromStringAndSize((const char *)tensor->data, tensor->bytes);
    PyErr_SetString(PyExc_BufferError, "the tensor is not contiguous");
    return NULL;
}

static Py_ssize_t tensor_len(PyObject *self)
{
    struct tensor *tensor = (struct tensor *)self;

    if (tensor->ndim == 0) {
        PyErr_SetString(PyExc_TypeError, "a scalar has no length");
        return -1;
    }
    return tensor->dims[0];
}

static PyObject *tensor_repr(PyObject *self)
{
    struct tensor *tensor = (struct tensor *)self;
    PyObject *shape = tuple_of(tensor->dims, (uint32_t)tensor->ndim), *repr;

    if (!shape)
        return NULL;
    if (tensor->gpu == HOST)
        repr = PyUnicode_FromFormat("<rdtd.Tensor %s %R%s>", rdt_dtype_name(tensor->dtype), shape,
                                    tensor->readonly ? ", read-only" : "");
    else
        repr = PyUnicode_FromFormat("<rdtd.Tensor %s %R on GPU %d%s>", rdt_dtype_name(tensor->dtype), shape, tensor->gpu,
                                    tensor->readonly ? ", read-only" : "");
    Py_DECREF(shape);
    return repr;
}

static PyGetSetDef tensor_getset[] = {
    {"shape", get_shape, NULL, "Number of elements in each dimension.", NULL},
    {"strides", get_strides, NULL, "Stride of each dimension, in elements.", NULL},
    {"dtype", get_dtype, NULL, "\"f32\", \"bf16\", ...", NULL},
    {"contiguous", get_contiguous, NULL, "Row-major.", NULL},
    {"device", get_device, NULL, "\"cpu\", or \"cuda:1\": the GPU's number in this process.", NULL},
    {"__array_interface__", get_interface, NULL, NULL, NULL},
    {"__cuda_array_interface__", get_cuda_interface, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef tensor_members[] = {
    {"ndim", T_INT, offsetof(struct tensor, ndim), READONLY, NULL},
    {"nbytes", T_PYSSIZET, offsetof(struct tensor, bytes), READONLY, "Number of bytes of all elements."},
    {"readonly", T_BOOL, offsetof(struct tensor, readonly), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef tensor_methods[] = {
    {"bits", tensor_bits, METH_NOARGS,
     "The same memory as unsigned integers of the element size, for dtypes that the caller's library lacks."},
    {"tobytes", tensor_tobytes, METH_NOARGS,
     "A copy of the elements as bytes, from a GPU too. Raises BufferError if the tensor is not contiguous."},
    {"__dlpack__", (PyCFunction)(void (*)(void))tensor_dlpack, METH_VARARGS | METH_KEYWORDS, NULL},
    {"__dlpack_device__", tensor_dlpack_device, METH_NOARGS, NULL},
    {"_capsule", tensor_capsule, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyBufferProcs tensor_buffer = {.bf_getbuffer = tensor_getbuffer};
static PySequenceMethods tensor_sequence = {.sq_length = tensor_len};

PyTypeObject tensor_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "rdtd.Tensor",
    .tp_doc = "A view of a tensor in the daemon's memory, which it keeps alive. numpy, torch, memoryview and every DLPack "
              "consumer see the same memory: numpy.asarray(t), torch.from_dlpack(t), memoryview(t).",
    .tp_basicsize = sizeof(struct tensor),
    .tp_itemsize = sizeof(Py_ssize_t),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = tensor_dealloc,
    .tp_repr = tensor_repr,
    .tp_weaklistoffset = offsetof(struct tensor, weakrefs),
    .tp_as_buffer = &tensor_buffer,
    .tp_as_sequence = &tensor_sequence,
    .tp_methods = tensor_methods,
    .tp_members = tensor_members,
    .tp_getset = tensor_getset,
};

/* ---- memory ---- */

#define ANSWER_NS INT64_C(10000000) /* kept back from the wait for room, so that the daemon's answer arrives in time */

/* Memory(conn, bytes, timeout, place): the call ends after `timeout`, also if the daemon does not answer. */
static PyObject *memory_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    struct rdt_alloc_options options = RDT_INIT(options);
    PyObject *place = Py_None;
    struct conn *conn;
    struct memory *memory;
    Py_ssize_t bytes;
    enum rdt_status status;
    struct rdt_error err;
    void *addr = NULL;
    bool host_stays; /* there are no other tensors */

    if (kwargs ||
        !PyArg_ParseTuple(args, "O!nO&|O:Memory", &conn_type, &conn, &bytes, timeout_or_none, &options.timeout_ns, &place) ||
        !gpu_place(place, &options.memory, &options.device, &host_stays))
        return NULL;
    if (options.timeout_ns > 0) {
        options.call_timeout_ns = options.timeout_ns;
        options.timeout_ns -= options.timeout_ns / 8 < ANSWER_NS ? options.timeout_ns / 8 : ANSWER_NS;
    }
    memory = (struct memory *)type->tp_alloc(type, 0);
    if (!memory)
        return NULL;
    if (!conn_enter(conn)) {
        Py_DECREF(memory);
        return NULL;
    }
    conn_hold_session(conn); /* also keeps the session open during the call */
    CONN_CALL(conn, status, rdt_alloc_with(conn->rdt, (size_t)bytes, &options, &addr, &err));
    if (status != RDT_OK) {
        conn_release_session(conn);
        Py_DECREF(memory);
        return raise_error(&err);
    }
    memory->conn = conn;
    memory->addr = addr;
    memory->bytes = (size_t)bytes;
    memory->gpu = gpu_ordinal(conn, options.memory, options.device);
    link_init(&memory->link);
    link_add(&conn->memories, &memory->link);
    return (PyObject *)memory;
}

static void memory_dealloc(PyObject *self)
{
    struct memory *memory = (struct memory *)self;
    struct conn *conn = memory->conn;
    void *addr = memory->addr;

    if (conn) {
        link_remove(&memory->link);
        struct waits waits;

        waits_begin(&waits, NULL);
        gpu_release(conn, memory->gpu == HOST ? 0 : UINT64_C(1) << memory->gpu, &memory->used, NULL, addr);
        waits_end(&waits, RDT_OK);
        conn_release_session(conn);
    }
    Py_TYPE(self)->tp_free(self);
}

bool memory_has_one_of(const struct conn *conn, const struct rdt_tensor *tensors, size_t count)
{
    for (const struct link *at = conn->memories.next; at != &conn->memories; at = at->next) {
        const struct memory *memory = container_of(at, struct memory, link);
        uintptr_t lo = (uintptr_t)memory->addr;

        for (size_t i = 0; i < count; i++) {
            if ((uintptr_t)tensors[i].data >= lo && (uintptr_t)tensors[i].data - lo < memory->bytes)
                return true;
        }
    }
    return false;
}

/* Memory.tensor(dtype number, shape, offset in bytes) */
static PyObject *memory_tensor(PyObject *self, PyObject *args)
{
    struct memory *memory = (struct memory *)self;
    PyObject *shape;
    Py_ssize_t offset;
    int dtype;
    int64_t dims[32];
    size_t bytes;
    struct rdt_tensor view;
    struct rdt_error err;

    if (!PyArg_ParseTuple(args, "iO!n", &dtype, &PyTuple_Type, &shape, &offset))
        return NULL;
    if (PyTuple_GET_SIZE(shape) > 32) {
        PyErr_SetString(PyExc_ValueError, "a tensor has at most 32 dimensions");
        return NULL;
    }
    view = (struct rdt_tensor){.dtype = (enum rdt_dtype)dtype, .ndim = (uint32_t)PyTuple_GET_SIZE(shape), .shape = dims};
    for (uint32_t i = 0; i < view.ndim; i++) {
        dims[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(shape, i));
        if (dims[i] == -1 && PyErr_Occurred())
            return NULL;
    }
    view.data = (uint8_t *)memory->addr + offset;
    if (rdt_tensor_bytes(&view, &bytes, &err) != RDT_OK)
        return raise_error(&err);
    if (offset < 0 || (size_t)offset > memory->bytes || bytes > memory->bytes - (size_t)offset) {
        PyErr_SetString(PyExc_ValueError, "the tensor does not lie in the memory");
        return NULL;
    }
    return tensor_new(self, &view, false, memory->gpu);
}

static PyMethodDef memory_methods[] = {
    {"tensor", memory_tensor, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

PyTypeObject memory_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "rdtd._rdt.Memory",
    .tp_basicsize = sizeof(struct memory),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = memory_new,
    .tp_dealloc = memory_dealloc,
    .tp_methods = memory_methods,
};
