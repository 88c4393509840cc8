/* SPDX-License-Identifier: Apache-2.0 */
/* Borrows torch tensors, and tells what a tensor has besides its elements. A torch with DLPack's C exchange interface describes
 * a tensor in one C call, which takes a sixth of the time of reading its attributes. Older torches, and tensors that the
 * interface does not describe fully, are read by their attributes. */
#include <stdlib.h>

#include "rdtpy.h"

/* Returns -1 with an exception set. */
static int is_true(PyObject *object, PyObject *method)
{
    PyObject *answer = PyObject_CallMethodNoArgs(object, method);
    int truth = answer ? PyObject_IsTrue(answer) : -1;

    Py_XDECREF(answer);
    return truth;
}

static void *address_from(PyObject *number)
{
    void *address = number ? PyLong_AsVoidPtr(number) : NULL;

    Py_XDECREF(number);
    return address;
}

static struct {
    PyObject *is_cpu, *is_conj, *is_neg, *dtype, *shape, *stride, *nbytes, *untyped_storage, *data_ptr;
} names; /* interned once, which makes look-ups faster */

static bool make_names(void)
{
    return names.data_ptr ||
           ((names.is_cpu = PyUnicode_InternFromString("is_cpu")) && (names.is_conj = PyUnicode_InternFromString("is_conj")) &&
            (names.is_neg = PyUnicode_InternFromString("is_neg")) && (names.dtype = PyUnicode_InternFromString("dtype")) &&
            (names.shape = PyUnicode_InternFromString("shape")) && (names.stride = PyUnicode_InternFromString("stride")) &&
            (names.nbytes = PyUnicode_InternFromString("nbytes")) &&
            (names.untyped_storage = PyUnicode_InternFromString("untyped_storage")) &&
            (names.data_ptr = PyUnicode_InternFromString("data_ptr")));
}

/* Whether the tensor is a lazily conjugated or negated view, whose stored bits differ from its values. -1: an exception is
 * set. */
static int is_lazy(PyObject *torch, enum rdt_dtype dtype)
{
    int lazy = rdt_dtype_row(dtype)->dlpack == DL_COMPLEX ? is_true(torch, names.is_conj) : 0;

    return lazy == 0 ? is_true(torch, names.is_neg) : lazy; /* negated views have any dtype */
}

/* Reads a tensor by the attributes that every torch has. */
static bool by_attributes(struct borrowed *borrowed, struct rdt_tensor *tensor, PyObject *torch, bool writable,
                          PyObject *stream)
{
    PyObject *on_cpu, *dtype = NULL, *shape = NULL, *strides = NULL, *number;
    int lazy;
    bool ok = false;

    on_cpu = PyObject_GetAttr(torch, names.is_cpu);
    if (!on_cpu)
        return false;
    Py_DECREF(on_cpu);
    if (on_cpu != Py_True && !gpu_torch_stream(borrowed, torch, stream))
        return false;
    dtype = PyObject_GetAttr(torch, names.dtype);
    number = dtype ? PyDict_GetItemWithError(torch_dtypes, dtype) : NULL;
    if (!number) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_TypeError, "no rdtd dtype matches its dtype %S", dtype);
        goto end;
    }
    tensor->dtype = (enum rdt_dtype)PyLong_AsLong(number);
    lazy = is_lazy(torch, tensor->dtype);
    if (lazy < 0)
        goto end;
    Py_INCREF(torch);
    borrowed->alive = torch;
    if (lazy) {
        if (writable) {
            PyErr_SetString(PyExc_TypeError, "it is a lazily conjugated or negated view, which cannot be written");
            goto end;
        }
        borrowed->alive = PyObject_CallMethod(torch, "resolve_conj", NULL);
        Py_DECREF(torch);
        torch = borrowed->alive;
        borrowed->alive = torch ? PyObject_CallMethod(torch, "resolve_neg", NULL) : NULL;
        Py_XDECREF(torch);
        if (!borrowed->alive)
            goto end;
        torch = borrowed->alive;
    }
    shape = PyObject_GetAttr(torch, names.shape);
    strides = PyObject_CallMethodNoArgs(torch, names.stride);
    if (!shape || !strides || !PyTuple_Check(shape) || !dims_from_tuples(borrowed, tensor, shape, strides, 0))
        goto end;
    tensor->data = address_from(PyObject_CallMethodNoArgs(torch, names.data_ptr));
    ok = !PyErr_Occurred();
end:
    Py_XDECREF(dtype);
    Py_XDECREF(shape);
    Py_XDECREF(strides);
    return ok;
}

/* ---- the exchange interface of dlpack.h ---- */

struct exchange {
    struct {
        uint32_t major, minor;
    } version;
    const struct exchange *older;
    void *allocate, *managed_from, *managed_to;
    int (*borrow)(void *object, struct dl_tensor *tensor_p); /* NULL: not provided. Shape and strides belong to the object */
    void *current_stream;
};

static const struct exchange *exchange;

bool torch_find_exchange(PyObject *type)
{
    PyObject *capsule = PyObject_GetAttrString(type, "__dlpack_c_exchange_api__");

    exchange = NULL;
    if (!capsule) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError))
            return false;
        PyErr_Clear();
        return true;
    }
    if (PyCapsule_IsValid(capsule, "dlpack_exchange_api"))
        exchange = PyCapsule_GetPointer(capsule, "dlpack_exchange_api"); /* lives as long as the process */
    Py_DECREF(capsule);
    while (exchange && (exchange->version.major != 1 || !exchange->borrow))
        exchange = exchange->older;
    return true;
}

static bool has_known_dtype(PyObject *torch)
{
    PyObject *dtype = PyObject_GetAttr(torch, names.dtype);
    int known = dtype ? PyDict_Contains(torch_dtypes, dtype) : -1;

    Py_XDECREF(dtype);
    if (known < 0)
        PyErr_Clear();
    return known == 1;
}

/* Reads a plain tensor in host memory. Returns false without an exception if the attributes must be read instead. */
static bool by_exchange(struct borrowed *borrowed, struct rdt_tensor *tensor, PyObject *torch)
{
    struct dl_tensor dl;

    if (!exchange)
        return false;
    if (exchange->borrow(torch, &dl) != 0) {
        PyErr_Clear(); /* reading the attributes reports the error in our words */
        return false;
    }
    tensor->dtype = dtype_of_dlpack(dl.dtype.code, dl.dtype.bits, dl.dtype.lanes);
    if (dl.device.type != DL_CPU || !tensor->dtype || (dl.ndim > 0 && !dl.strides))
        return false;
    if ((tensor->dtype == RDT_I8 || tensor->dtype == RDT_U8) && !has_known_dtype(torch))
        return false; /* int1 to int7 and uint1 to uint7 say that they have eight bits, too */
    if (is_lazy(torch, tensor->dtype) != 0 || !tensor_from_dl(borrowed, tensor, &dl)) {
        PyErr_Clear();
        return false;
    }
    Py_INCREF(torch);
    borrowed->alive = torch;
    return true;
}

/* Returns false if the object has no such number. */
static bool number_of(PyObject *object, PyObject *method, uintptr_t *number_p)
{
    PyObject *number = PyObject_CallMethodNoArgs(object, method);

    *number_p = (uintptr_t)address_from(number);
    return !PyErr_Occurred();
}

/* Whether all elements lie in the tensor's storage, which may have been resized, as FSDP does. */
static bool lies_in_storage(const struct rdt_tensor *tensor, PyObject *torch)
{
    PyObject *storage = PyObject_CallMethodNoArgs(torch, names.untyped_storage);
    int64_t low = 0, high = 1, row = 1, bytes = (int64_t)rdt_dtype_bytes(tensor->dtype);
    uintptr_t data = (uintptr_t)tensor->data, from = 0, room = 0;
    bool known = storage && number_of(storage, names.data_ptr, &from) && number_of(storage, names.nbytes, &room), empty = false;

    Py_XDECREF(storage);
    if (!known)
        PyErr_Clear(); /* an old torch */
    for (uint32_t d = tensor->ndim; d-- > 0; row *= tensor->shape[d]) {
        int64_t reach = (tensor->shape[d] - 1) * (tensor->strides ? tensor->strides[d] : row);

        empty = empty || tensor->shape[d] == 0;
        *(reach < 0 ? &low : &high) += reach;
    }
    if (!known || empty || (data + (uintptr_t)(low * bytes) >= from && data - from + (uintptr_t)(high * bytes) <= room))
        return true;
    PyErr_SetString(PyExc_ValueError, "its storage has been resized or freed, and does not have all its elements");
    return false;
}

bool torch_take(struct borrowed *borrowed, struct rdt_tensor *tensor, PyObject *torch, bool writable, PyObject *stream)
{
    return make_names() && (by_exchange(borrowed, tensor, torch) || by_attributes(borrowed, tensor, torch, writable, stream)) &&
           (!writable || borrowed->on_gpu || lies_in_storage(tensor, torch));
}

/* ---- what a tensor has besides its elements ---- */

static PyObject *parameter_type, *requires_grad, *has_names; /* parameter_type, has_names NULL: torch has none */
static bool learnt;

/* A letter: "." a torch.Tensor with nothing but its elements; "g" one that requires grad; "p" a Parameter that requires grad,
 * "f" one that does not; "?" any other tensor: of a subclass, with attributes or with named dimensions. 0: an exception is
 * set. */
static char note_of(PyObject *torch)
{
    bool is_parameter = parameter_type && (PyObject *)Py_TYPE(torch) == parameter_type;
    PyObject **attributes, *value;
    int grad, named;

    if (!is_parameter && (PyObject *)Py_TYPE(torch) != torch_tensor_type)
        return '?';
    if (!parameter_type) /* the tensors of a test */
        return '.';
    attributes = _PyObject_GetDictPtr(torch);
    if (attributes && *attributes && PyDict_GET_SIZE(*attributes) > 0)
        return '?';
    named = has_names ? is_true(torch, has_names) : 0;
    if (named != 0)
        return named < 0 ? 0 : '?';
    value = PyObject_GetAttr(torch, requires_grad);
    grad = value ? PyObject_IsTrue(value) : -1;
    Py_XDECREF(value);
    if (grad < 0)
        return 0;
    return is_parameter ? grad ? 'p' : 'f' : grad ? 'g' : '.';
}

static bool learn_parameter(void)
{
    PyObject *module = PyImport_ImportModule("torch"), *nn = module ? PyObject_GetAttrString(module, "nn") : NULL;

    PyErr_Clear();
    parameter_type = nn ? PyObject_GetAttrString(nn, "Parameter") : NULL;
    PyErr_Clear();
    Py_XDECREF(nn);
    Py_XDECREF(module);
    learnt = make_names() && (requires_grad = PyUnicode_InternFromString("requires_grad"));
    if (learnt && torch_tensor_type && PyObject_HasAttrString(torch_tensor_type, "has_names"))
        has_names = PyUnicode_InternFromString("has_names");
    return learnt;
}

PyObject *torch_notes(PyObject *module, PyObject *tensors)
{
    PyObject *notes;
    Py_ssize_t n;

    if (!PyList_Check(tensors)) {
        PyErr_SetString(PyExc_TypeError, "torch_notes takes a list");
        return NULL;
    }
    if (!learnt && !learn_parameter())
        return NULL;
    n = PyList_GET_SIZE(tensors);
    notes = PyUnicode_New(n, 127);
    for (Py_ssize_t i = 0; notes && i < n; i++) {
        PyObject *tensor = PyList_GET_ITEM(tensors, i);
        char note = torch_tensor_type && PyObject_TypeCheck(tensor, (PyTypeObject *)torch_tensor_type) ? note_of(tensor) : '.';

        if (note)
            PyUnicode_1BYTE_DATA(notes)[i] = (Py_UCS1)note;
        else
            Py_CLEAR(notes);
    }
    return notes;
}

struct span { /* of addresses: [from, to) */
    uintptr_t from, to;
};

static int by_address(const void *a, const void *b)
{
    const struct span *x = a, *y = b;

    return x->from < y->from ? -1 : x->from > y->from;
}

/* The addresses between the first and the last byte of a tensor. false: it has none that can be told quickly. */
static bool span_of(PyObject *torch, struct span *span_p)
{
    struct dl_tensor dl;
    int64_t from = 0, to = 0, bytes;

    if (!exchange || exchange->borrow(torch, &dl) != 0) {
        PyErr_Clear();
        return false;
    }
    for (int32_t d = 0; d < dl.ndim; d++) {
        if (dl.shape[d] == 0)
            return false;
        if (dl.strides)
            *(dl.strides[d] < 0 ? &from : &to) += (dl.shape[d] - 1) * dl.strides[d];
        else
            to = (to + 1) * dl.shape[d] - 1;
    }
    bytes = (dl.dtype.bits * dl.dtype.lanes + 7) / 8;
    span_p->from = (uintptr_t)dl.data + dl.byte_offset + (uintptr_t)(from * bytes);
    span_p->to = (uintptr_t)dl.data + dl.byte_offset + (uintptr_t)((to + 1) * bytes);
    return dl.data != NULL;
}

/* The same by the attributes, for tensors that the exchange interface does not describe. */
static bool slow_span_of(PyObject *torch, struct span *span_p)
{
    PyObject *bytes = PyObject_GetAttrString(torch, "nbytes");
    size_t n = bytes ? PyLong_AsSize_t(bytes) : 0;

    Py_XDECREF(bytes);
    span_p->from = PyErr_Occurred() ? 0 : (uintptr_t)address_from(PyObject_CallMethodNoArgs(torch, names.data_ptr));
    span_p->to = span_p->from + n;
    PyErr_Clear(); /* the put reports it */
    return span_p->from != 0 && n > 0;
}

PyObject *torch_overlap(PyObject *module, PyObject *tensors)
{
    struct span *spans;
    bool overlap = false;
    size_t n = 0;

    if (!PyList_Check(tensors) || !make_names()) {
        PyErr_SetString(PyExc_TypeError, "torch_overlap takes a list");
        return NULL;
    }
    spans = PyMem_Calloc((size_t)PyList_GET_SIZE(tensors) + 1, sizeof *spans);
    if (!spans)
        return PyErr_NoMemory();
    for (Py_ssize_t i = 0; torch_tensor_type && i < PyList_GET_SIZE(tensors); i++) {
        PyObject *tensor = PyList_GET_ITEM(tensors, i);

        if (PyObject_TypeCheck(tensor, (PyTypeObject *)torch_tensor_type) &&
            (span_of(tensor, &spans[n]) || slow_span_of(tensor, &spans[n])))
            n++;
    }
    qsort(spans, n, sizeof *spans, by_address);
    for (size_t i = 1; i < n && !overlap; i++) {
        overlap = spans[i].from < spans[i - 1].to;
        spans[i].to = spans[i].to < spans[i - 1].to ? spans[i - 1].to : spans[i].to;
    }
    PyMem_Free(spans);
    return PyBool_FromLong(overlap);
}
