/* SPDX-License-Identifier: Apache-2.0 */
/* The module, and how statuses become exceptions. */
#include <rdt_plan.h>

#include "rdtpy.h"

PyObject *made_ref_type, *made_request_type;
PyObject *torch_tensor_type, *torch_dtypes, *torch_stream, *numpy_names, *kind_of;
static PyObject *errors;     /* dict of status to exception class */
static PyObject *error_type; /* for statuses that are not in `errors` */

PyObject *raise_error(const struct rdt_error *err)
{
    PyObject *status, *type, *message, *error = NULL, *sys_errno;
    const char *text = err->msg;

    if (waits_raise())
        return NULL;
    status = PyLong_FromLong(err->status);
    if (!status)
        return NULL;
    type = errors ? PyDict_GetItemWithError(errors, status) : NULL;
    if (!type)
        type = error_type ? error_type : PyExc_RuntimeError;
    if (err->status == RDT_CANCELLED && waits_were_closed()) /* librdt does not know why the call was to end */
        text = "this connection was closed while the call waited";
    message = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
    if (message)
        error = PyObject_CallOneArg(type, message);
    Py_XDECREF(message);
    if (error) {
        sys_errno = PyLong_FromLong(err->sys_errno);
        if (PyObject_SetAttrString(error, "status", status) < 0 || !sys_errno ||
            (err->sys_errno && PyObject_SetAttrString(error, "errno", sys_errno) < 0))
            PyErr_Clear();
        Py_XDECREF(sys_errno);
        PyErr_SetObject(type, error);
        Py_DECREF(error);
    }
    Py_DECREF(status);
    return NULL;
}

PyObject *raise_status(enum rdt_status status, const char *fmt, ...)
{
    struct rdt_error err = {.status = status};
    va_list args;

    va_start(args, fmt);
    (void)PyOS_vsnprintf(err.msg, sizeof err.msg, fmt, args);
    va_end(args);
    return raise_error(&err);
}

PyObject *none_or_raise(enum rdt_status status, const struct rdt_error *err)
{
    if (status != RDT_OK)
        return raise_error(err);
    Py_RETURN_NONE;
}

bool timeout_from(PyObject *seconds, int64_t none, int64_t *ns_p)
{
    double s;

    if (seconds == Py_None) {
        *ns_p = none;
        return true;
    }
    s = PyFloat_AsDouble(seconds);
    if (s == -1.0 && PyErr_Occurred())
        return false;
    if (!(s >= 0)) {
        PyErr_SetString(PyExc_ValueError, "a timeout must be None or a number of seconds that is not negative");
        return false;
    }
    *ns_p = s >= 9.2e9 ? INT64_MAX : (int64_t)(s * 1e9);
    return true;
}

int timeout_or_forever(PyObject *seconds, void *ns_p)
{
    return timeout_from(seconds, -1, ns_p);
}

int timeout_or_none(PyObject *seconds, void *ns_p)
{
    return timeout_from(seconds, 0, ns_p);
}

int timeout_option(PyObject *seconds, void *ns_p)
{
    if (!timeout_from(seconds, 0, ns_p))
        return false;
    if (seconds != Py_None && *(int64_t *)ns_p == 0)
        *(int64_t *)ns_p = RDT_NO_WAIT;
    return true;
}

/* setup(errors, error, Ref, Request, numpy_names, kind_of): registers the classes and a function of the Python side. */
static PyObject *setup(PyObject *module, PyObject *args)
{
    Py_CLEAR(errors);
    if (!PyArg_ParseTuple(args, "O!OOOO!O", &PyDict_Type, &errors, &error_type, &made_ref_type, &made_request_type,
                          &PyDict_Type, &numpy_names, &kind_of))
        return NULL;
    Py_INCREF(errors);
    Py_INCREF(error_type);
    Py_INCREF(made_ref_type);
    Py_INCREF(made_request_type);
    Py_INCREF(numpy_names);
    Py_INCREF(kind_of);
    Py_RETURN_NONE;
}

/* set_torch(Tensor, dtypes, stream): called once, after torch was imported. */
static PyObject *set_torch(PyObject *module, PyObject *args)
{
    PyObject *type, *dtypes, *stream;

    if (!PyArg_ParseTuple(args, "O!O!O", &PyType_Type, &type, &PyDict_Type, &dtypes, &stream) || !torch_find_exchange(type))
        return NULL;
    Py_INCREF(type);
    Py_INCREF(dtypes);
    Py_INCREF(stream);
    Py_XSETREF(torch_stream, stream);
    Py_XSETREF(torch_tensor_type, type);
    Py_XSETREF(torch_dtypes, dtypes);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"setup", setup, METH_VARARGS, NULL},
    {"set_torch", set_torch, METH_VARARGS, NULL},
    {"torch_notes", torch_notes, METH_O, NULL},
    {"torch_overlap", torch_overlap, METH_O, NULL},
    {"target_twins", target_twins, METH_O, NULL},
    {"header_names", header_names, METH_O, NULL},
    {"delta_encode", delta_encode, METH_VARARGS, NULL},
    {"delta_apply", delta_apply, METH_VARARGS, NULL},
    {"pool_info", gpu_pool_info, METH_NOARGS, NULL},
    {"give_up_by", waits_give_up_by, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "rdtd._rdt",
                                        .m_doc = "librdt for Python: used by the package rdtd.", .m_size = -1,
                                        .m_methods = functions};

/* Numbers that the Python side passes on by name. */
/* clang-format off */
#define NUMBERS(X) \
    X(RDT_PUT_SNAPSHOT) X(RDT_PUT_DETACHED) X(RDT_PUT_IMMUTABLE) X(RDT_PUT_UNSEALED) X(RDT_PUT_SUM) X(RDT_PUT_REPLACE) \
    X(RDT_PUT_EVICTABLE) \
    X(PUT_SNAPSHOT_UNLESS_OURS) X(PUT_MAY_SHARE) X(PUT_TO_HOST) \
    X(RDT_FETCH_AUTO) X(RDT_FETCH_SHARE) X(RDT_FETCH_COPY) X(RDT_FETCH_COW) \
    X(RDT_VISIBLE_TO_OWNER) X(RDT_VISIBLE_TO_TENANT) X(RDT_VISIBLE_TO_ALL) \
    X(RDT_PLAN_AUTO) X(RDT_PLAN_WHOLE) X(RDT_PLAN_SLICES) \
    X(WAIT_PUT) X(WAIT_FREED) X(WAIT_FREED_RANGE) X(WAIT_HOLD) X(WAIT_TAKE_OVER)
/* clang-format on */

static bool add_constants(PyObject *module)
{
    PyObject *names = PyDict_New(), *statuses = PyDict_New(), *item;
    const struct rdt_dtype_row *row;
    bool ok = names && statuses;

    for (int number = 1; ok && (row = rdt_dtype_row((enum rdt_dtype)number)); number++) {
        item = Py_BuildValue("(iissO)", number, row->bytes, row->array_name, (char[]){row->kind, 0},
                             torch_takes((enum rdt_dtype)number) ? Py_True : Py_False);
        ok = item && PyDict_SetItemString(names, row->name, item) == 0;
        Py_XDECREF(item);
    }
#define X(number, name, sentence)                                        \
    item = ok ? PyLong_FromLong(number) : NULL;                          \
    ok = ok && item && PyDict_SetItemString(statuses, #name, item) == 0; \
    Py_XDECREF(item);
    RDT_STATUS_MAP(X)
#undef X
    ok = ok && PyModule_AddObjectRef(module, "DTYPES", names) == 0 && PyModule_AddObjectRef(module, "STATUSES", statuses) == 0;
    Py_XDECREF(names);
    Py_XDECREF(statuses);
#define X(name) ok = ok && PyModule_AddIntMacro(module, name) == 0;
    NUMBERS(X)
#undef X
    return ok && PyModule_AddStringConstant(module, "VERSION", RDT_VERSION) == 0;
}

PyMODINIT_FUNC PyInit__rdt(void);
PyMODINIT_FUNC PyInit__rdt(void)
{
    static PyTypeObject *const types[] = {&conn_type,   &ref_type,  &request_type,    &object_type,  &memory_type,
                                          &tensor_type, &plan_type, &publishing_type, &follower_type};
    PyObject *module = PyModule_Create(&definition);

    if (!module)
        return NULL;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (PyModule_AddType(module, types[i]) < 0) {
            Py_DECREF(module);
            return NULL;
        }
    }
    if (!add_constants(module)) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
