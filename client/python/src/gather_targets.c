/* SPDX-License-Identifier: Apache-2.0 */
/* Targets: tensors that will be written, which must have their memory then, and share none of it. */
#include <stdlib.h>
#include <string.h>

#include "rdtpy.h"

/* ---- memory that stays ---- */

PyObject *pin_owner(PyObject *object)
{
    PyObject *owner = object, *next;

    Py_INCREF(owner);
    for (unsigned i = 0; i < 64; i++) {
        next = PyObject_GetAttrString(owner, PyMemoryView_Check(owner) ? "obj" : "base");
        if (!next)
            PyErr_Clear();
        if (!next || next == Py_None) {
            Py_XDECREF(next);
            break;
        }
        Py_SETREF(owner, next);
    }
    next = PyType_SUPPORTS_WEAKREFS(Py_TYPE(owner)) ? PyWeakref_NewRef(owner, NULL) : NULL;
    PyErr_Clear();
    Py_DECREF(owner);
    return next;
}

static bool has_elements(const struct rdt_tensor *tensor)
{
    for (uint32_t d = 0; d < tensor->ndim; d++)
        if (tensor->shape[d] == 0)
            return false;
    return true;
}

static bool same_dims(const struct rdt_tensor *a, const struct rdt_tensor *b)
{
    size_t bytes = a->ndim * sizeof *a->shape;

    return a->ndim == b->ndim && (a->ndim == 0 || memcmp(a->shape, b->shape, bytes) == 0) && (!a->strides == !b->strides) &&
           (a->ndim == 0 || !a->strides || memcmp(a->strides, b->strides, bytes) == 0);
}

bool borrowed_set_is_unmoved(const struct borrowed_set *before, PyObject *list, const char *what, struct borrowed_set **now_p)
{
    struct borrowed_set *now = borrowed_set_from(list, true, Py_None, what);
    bool same = now != NULL;

    for (size_t i = 0; same && i < before->count; i++) {
        const struct rdt_tensor *a = &before->tensors[i], *b = &now->tensors[i];

        same = a->dtype == b->dtype && same_dims(a, b) && (a->data == b->data || !has_elements(a));
        if (!same)
            PyErr_Format(
                PyExc_ValueError,
                "%s tensor %zu: its memory has been freed or moved, or it has another shape, since the plan was made: make a "
                "new plan",
                what, i);
    }
    if (same && now_p)
        *now_p = now;
    else
        borrowed_set_free(now);
    return same;
}

/* ---- memory of its own ---- */

struct target {
    const struct rdt_tensor *tensor;
    uintptr_t from, to;
    size_t index;
};

static int by_address(const void *a, const void *b)
{
    const struct target *one = a, *other = b;

    if (one->from != other->from)
        return one->from < other->from ? -1 : 1;
    return one->index < other->index ? -1 : one->index > other->index;
}

static bool is_row_major(const struct rdt_tensor *tensor)
{
    int64_t stride = 1;

    for (uint32_t d = tensor->ndim; tensor->strides && d-- > 0; stride *= tensor->shape[d])
        if (tensor->shape[d] > 1 && tensor->strides[d] != stride)
            return false;
    return true;
}

static bool are_twins(const struct target *a, const struct target *b)
{
    return a->from == b->from && a->tensor->dtype == b->tensor->dtype && a->tensor->ndim == b->tensor->ndim &&
           (a->tensor->ndim == 0 ||
            memcmp(a->tensor->shape, b->tensor->shape, a->tensor->ndim * sizeof *a->tensor->shape) == 0);
}

/* Lists those that have bytes. Strided ones are left out: a fetch refuses them. */
static size_t list_targets(const struct borrowed_set *set, struct target *targets)
{
    size_t n = 0, bytes;

    for (size_t i = 0; i < set->count; i++) {
        const struct rdt_tensor *tensor = &set->tensors[i];

        if (tensor->data && rdt_tensor_bytes(tensor, &bytes, NULL) == RDT_OK && bytes > 0 && is_row_major(tensor))
            targets[n++] = (struct target){tensor, (uintptr_t)tensor->data, (uintptr_t)tensor->data + bytes, i};
    }
    if (n > 1)
        qsort(targets, n, sizeof *targets, by_address);
    return n;
}

PyObject *target_twins(PyObject *module, PyObject *list)
{
    struct borrowed_set *set = borrowed_set_from(list, true, Py_None, "fetch: target");
    struct target *targets = set ? PyMem_Calloc(set->count + 1, sizeof *targets) : NULL;
    PyObject *twins = targets ? PyDict_New() : NULL, *answer = NULL;
    const struct target *last = targets, *clash = NULL, *with = NULL;
    size_t n = targets ? list_targets(set, targets) : 0;

    if (set && !targets)
        PyErr_NoMemory();
    for (size_t i = 1; twins && i < n && !clash; i++) {
        if (targets[i].from >= last->to) {
            last = &targets[i];
        } else if (are_twins(last, &targets[i])) {
            PyObject *index = PyLong_FromSize_t(targets[i].index), *first = PyLong_FromSize_t(last->index);

            if (!index || !first || PyDict_SetItem(twins, index, first) < 0)
                Py_CLEAR(twins);
            Py_XDECREF(index);
            Py_XDECREF(first);
        } else {
            clash = &targets[i];
            with = last;
        }
    }
    if (clash)
        answer = Py_BuildValue("(O(nn))", twins, (Py_ssize_t)(with->index < clash->index ? with : clash)->index,
                               (Py_ssize_t)(with->index < clash->index ? clash : with)->index);
    else if (twins)
        answer = Py_BuildValue("(OO)", twins, Py_None);
    Py_XDECREF(twins);
    PyMem_Free(targets);
    borrowed_set_free(set);
    return answer;
}
