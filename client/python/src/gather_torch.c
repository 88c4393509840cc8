/* SPDX-License-Identifier: Apache-2.0 */
/* Borrows torch tensors. A torch with DLPack's C exchange interface describes a tensor in one C call, which takes a sixth of
 * the time of reading its attributes. Older torches, and tensors that the interface does not describe fully, are read by
 * their attributes. */
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
    PyObject *is_cpu, *is_conj, *is_neg, *dtype, *shape, *stride, *data_ptr;
} names; /* interned once, which makes look-ups faster */

static bool make_names(void)
{
    return names.data_ptr ||
           ((names.is_cpu = PyUnicode_InternFromString("is_cpu")) && (names.is_conj = PyUnicode_InternFromString("is_conj")) &&
            (names.is_neg = PyUnicode_InternFromString("is_neg")) && (names.dtype = PyUnicode_InternFromString("dtype")) &&
            (names.shape = PyUnicode_InternFromString("shape")) && (names.stride = PyUnicode_InternFromString("stride")) &&
            (names.data_ptr = PyUnicode_InternFromString("data_ptr")));
}

/* Whether the tensor is a lazily conjugated or negated view, whose stored bits differ from its values. -1: an exception is
 * set. */
static int is_lazy(PyObject *torch, enum rdt_dtype dtype)
{
    bool is_complex = dtype == RDT_C32 || dtype == RDT_C64 || dtype == RDT_C128;
    int lazy = is_complex ? is_true(torch, names.is_conj) : 0;

    /* The imaginary part of a complex tensor may be a negated view, which has a real dtype. */
    if (lazy == 0 && (is_complex || dtype == RDT_F16 || dtype == RDT_F32 || dtype == RDT_F64))
        lazy = is_true(torch, names.is_neg);
    return lazy;
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
    if (is_lazy(torch, tensor->dtype) != 0 || !tensor_from_dl(borrowed, tensor, &dl)) {
        PyErr_Clear();
        return false;
    }
    Py_INCREF(torch);
    borrowed->alive = torch;
    return true;
}

bool torch_take(struct borrowed *borrowed, struct rdt_tensor *tensor, PyObject *torch, bool writable, PyObject *stream)
{
    return make_names() && (by_exchange(borrowed, tensor, torch) || by_attributes(borrowed, tensor, torch, writable, stream));
}
