/* SPDX-License-Identifier: Apache-2.0 */
/* Conn's calls about many objects or names. */

#include "rdtpy.h"

/* Reads a list of Refs and of names, which are text. NULL with an exception that names the item. */
static struct rdt_ref *refs_of(PyObject *list, Py_ssize_t count)
{
    struct rdt_ref *refs = PyMem_Calloc((size_t)count + 1, sizeof *refs);
    struct rdt_error err;

    if (!refs)
        return (struct rdt_ref *)PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PyList_GET_ITEM(list, i);
        const char *name = NULL;
        Py_ssize_t bytes;

        if (PyObject_TypeCheck(item, &ref_type)) {
            refs[i] = ((struct ref *)item)->ref;
            continue;
        }
        if (PyUnicode_Check(item))
            name = PyUnicode_AsUTF8AndSize(item, &bytes);
        if (name && strlen(name) != (size_t)bytes) {
            PyErr_Format(PyExc_ValueError, "item %zd is a name with a null character", i);
            name = NULL;
        }
        if (!PyUnicode_Check(item))
            PyErr_Format(PyExc_TypeError, "item %zd must be a Ref or a name, not a %.100s", i, Py_TYPE(item)->tp_name);
        if (name && rdt_ref_from_name(name, 0, NULL, &refs[i], &err) == RDT_OK)
            continue;
        if (name) {
            rdt_error_prefix(&err, "item %zd", i);
            (void)raise_error(&err);
        }
        PyMem_Free(refs);
        return NULL;
    }
    return refs;
}

/* ---- put ---- */

struct putting { /* everything that rdt_put_many borrows */
    Py_ssize_t count;
    struct borrowed_set *set;
    struct rdt_value *values;
    struct rdt_ref *refs;
    enum rdt_status *statuses;
};

static void putting_fini(struct putting *putting)
{
    borrowed_set_free(putting->set);
    PyMem_Free(putting->values);
    PyMem_Free(putting->refs);
    PyMem_Free(putting->statuses);
}

/* Item i of a list of bytes and None, or of None. */
static bool bytes_at(PyObject *list, Py_ssize_t i, const void **data_p, size_t *bytes_p)
{
    PyObject *item = list == Py_None ? Py_None : PyList_GET_ITEM(list, i);

    if (item != Py_None && !PyBytes_Check(item)) {
        PyErr_Format(PyExc_TypeError, "item %zd must be bytes or None, not a %.100s", i, Py_TYPE(item)->tp_name);
        return false;
    }
    *data_p = item == Py_None ? NULL : PyBytes_AS_STRING(item);
    *bytes_p = item == Py_None ? 0 : (size_t)PyBytes_GET_SIZE(item);
    return true;
}

static bool putting_init(struct putting *putting, PyObject *tensors, PyObject *counts, PyObject *ids, PyObject *metadata)
{
    size_t at = 0, n = 0;

    putting->set = borrowed_set_from(tensors, false, Py_None, "put_many:");
    if (!putting->set)
        return false;
    putting->count = counts == Py_None ? (Py_ssize_t)putting->set->count : PyList_GET_SIZE(counts);
    if ((ids != Py_None && PyList_GET_SIZE(ids) != putting->count) ||
        (metadata != Py_None && PyList_GET_SIZE(metadata) != putting->count)) {
        PyErr_SetString(PyExc_ValueError, "there must be an id for each value");
        return false;
    }
    putting->values = PyMem_Calloc((size_t)putting->count + 1, sizeof *putting->values);
    putting->refs = PyMem_Calloc((size_t)putting->count + 1, sizeof *putting->refs);
    putting->statuses = PyMem_Calloc((size_t)putting->count + 1, sizeof *putting->statuses);
    if (!putting->values || !putting->refs || !putting->statuses) {
        PyErr_NoMemory();
        return false;
    }
    for (Py_ssize_t i = 0; i < putting->count; i++, at += n) {
        struct rdt_value *value = &putting->values[i];

        n = counts == Py_None ? 1 : PyLong_AsSize_t(PyList_GET_ITEM(counts, i));
        if (PyErr_Occurred() || !bytes_at(ids, i, &value->id, &value->id_bytes) ||
            !bytes_at(metadata, i, &value->metadata, &value->metadata_bytes))
            return false;
        if (n > putting->set->count - at) {
            PyErr_SetString(PyExc_ValueError, "the values have more tensors than there are");
            return false;
        }
        value->tensors = putting->set->tensors + at;
        value->count = n;
    }
    return true;
}

/* An interrupted call is CANCELLED, whatever the first value that was not put met. */
static enum rdt_status put_values(struct conn *conn, const struct putting *putting, struct rdt_put_options *options,
                                  struct rdt_error *err)
{
    size_t count = (size_t)putting->count;
    enum rdt_status status;

    if (putting->set->on_gpus > 0)
        status = gpu_put_many(conn, putting->set, putting->values, count, options, putting->refs, putting->statuses, err);
    else
        status = rdt_put_many(conn->rdt, putting->values, count, options, putting->refs, putting->statuses, err);

    for (Py_ssize_t i = 0; status != RDT_OK && status != RDT_CANCELLED && i < putting->count; i++)
        if (putting->statuses[i] == RDT_CANCELLED)
            status = rdt_error_set(err, RDT_CANCELLED, "the put was interrupted");
    return status;
}

/* A Ref, or the number of the status of a value that was not put. */
static PyObject *result_at(struct conn *conn, const struct putting *putting, Py_ssize_t i, bool detached)
{
    PyObject *made;

    if (putting->statuses[i] != RDT_OK)
        return PyLong_FromLong(putting->statuses[i]);
    made = ref_new(&putting->refs[i], detached || conn->closed ? NULL : conn);
    if (made) {
        ((struct ref *)made)->retained = putting->values[i].id;
        ((struct ref *)made)->copied = (Py_ssize_t)putting->values[i].count;
    } else {
        (void)rdt_drop(conn->rdt, &putting->refs[i], NULL);
    }
    return made;
}

/* _put_many(tensors of all values, number of each (None: one), ids, metadata (None, or lists of bytes and None), visibility,
 * transport, flags, timeout, ttl, priority): (a list with a Ref for each value, or with the number of its status; the sentence
 * of the first that was not put, or None). None: a tensor is on a GPU, the flags do not have PUT_TO_HOST, and nothing was
 * put. */
PyObject *conn_put_many(PyObject *self, PyObject *args)
{
    struct conn *conn = (struct conn *)self;
    struct rdt_put_options options = RDT_INIT(options);
    struct putting putting = {0};
    PyObject *tensors, *counts, *ids, *metadata, *list = NULL;
    struct rdt_error err = {0};
    enum rdt_status status;
    bool raised, to_host;
    int visibility;

    if (!PyArg_ParseTuple(args, "OOOOizIO&O&I:_put_many", &tensors, &counts, &ids, &metadata, &visibility, &options.transport,
                          &options.flags, timeout_or_none, &options.timeout_ns, timeout_or_none, &options.ttl_ns,
                          &options.priority))
        return NULL;
    if ((counts != Py_None && !PyList_Check(counts)) || (ids != Py_None && !PyList_Check(ids)) ||
        (metadata != Py_None && !PyList_Check(metadata)))
        return PyErr_Format(PyExc_TypeError, "expected lists");
    options.visibility = (enum rdt_visibility)visibility;
    to_host = options.flags & PUT_TO_HOST;
    options.flags &= ~(uint32_t)PUT_TO_HOST;
    if (!putting_init(&putting, tensors, counts, ids, metadata) || (putting.set->on_gpus > 0 && !(to_host && gpu_open(conn))) ||
        !conn_enter(conn)) {
        bool on_gpus = putting.set && putting.set->on_gpus > 0 && !PyErr_Occurred();
        putting_fini(&putting);
        if (!on_gpus)
            return NULL;
        Py_RETURN_NONE;
    }
    for (Py_ssize_t i = 0; i < putting.count; i++)
        putting.statuses[i] = RDT_AGAIN;
    WAITS(conn, status, put_values(conn, &putting, &options, &err));
    raised = status != RDT_OK && waits_raise();
    if (raised || status == RDT_CANCELLED || (putting.count > 0 && putting.statuses[0] == RDT_AGAIN)) { /* nothing was put */
        for (Py_ssize_t i = 0; i < putting.count && !(options.flags & RDT_PUT_REPLACE); i++) /* what it replaced has gone */
            if (putting.statuses[i] == RDT_OK)
                (void)rdt_drop(conn->rdt, &putting.refs[i], NULL);
        if (!raised)
            (void)raise_error(&err);
    } else {
        list = PyList_New(putting.count);
    }
    for (Py_ssize_t i = 0; list && i < putting.count; i++) {
        PyObject *item = result_at(conn, &putting, i, options.flags & (RDT_PUT_DETACHED | RDT_PUT_EVICTABLE));
        if (item)
            PyList_SET_ITEM(list, i, item);
        else
            Py_CLEAR(list);
    }
    conn_leave(conn);
    putting_fini(&putting);
    return list ? Py_BuildValue("(Nz)", list, status == RDT_OK ? NULL : err.msg) : NULL;
}

/* ---- names ---- */

/* _publish_many([name], [ref], visibility, lease, ttl_ns): a list of versions. */
PyObject *conn_publish_many(PyObject *self, PyObject *args)
{
    struct conn *conn = (struct conn *)self;
    struct rdt_publish_options options = RDT_INIT(options);
    PyObject *names, *list, *made = NULL;
    const char **texts = NULL;
    uint64_t *versions = NULL;
    struct rdt_ref *refs = NULL;
    enum rdt_status status;
    struct rdt_error err;
    Py_ssize_t count;
    int visibility, lease;
    long long ttl_ns;

    if (!PyArg_ParseTuple(args, "O!O!ipL:_publish_many", &PyList_Type, &names, &PyList_Type, &list, &visibility, &lease,
                          &ttl_ns))
        return NULL;
    count = PyList_GET_SIZE(names);
    if (PyList_GET_SIZE(list) != count)
        return PyErr_Format(PyExc_ValueError, "there are %zd names and %zd refs", count, PyList_GET_SIZE(list));
    options.visibility = (enum rdt_visibility)visibility;
    options.lease = lease;
    options.ttl_ns = ttl_ns;
    texts = PyMem_Calloc((size_t)count + 1, sizeof *texts);
    versions = PyMem_Calloc((size_t)count + 1, sizeof *versions);
    refs = refs_of(list, count);
    if (refs && (!texts || !versions))
        (void)PyErr_NoMemory();
    for (Py_ssize_t i = 0; refs && texts && versions && i < count; i++)
        if (!(texts[i] = PyUnicode_AsUTF8(PyList_GET_ITEM(names, i))))
            break;
    if (!PyErr_Occurred() && conn_enter(conn)) {
        CONN_CALL(conn, status, rdt_publish_many(conn->rdt, texts, refs, (size_t)count, &options, versions, &err));
        made = status == RDT_OK ? PyList_New(count) : raise_error(&err);
        for (Py_ssize_t i = 0; made && i < count; i++)
            PyList_SET_ITEM(made, i, PyLong_FromUnsignedLongLong(versions[i]));
        for (Py_ssize_t i = 0; made && i < count; i++)
            if (PyObject_TypeCheck(PyList_GET_ITEM(list, i), &ref_type))
                ((struct ref *)PyList_GET_ITEM(list, i))->end = REF_OUTLIVES;
    }
    PyMem_Free((void *)texts);
    PyMem_Free(versions);
    PyMem_Free(refs);
    return made;
}

/* _end_prefix(prefix, names, force): how many objects, or names, have ended. */
PyObject *conn_end_prefix(PyObject *self, PyObject *args)
{
    struct conn *conn = (struct conn *)self;
    enum rdt_status status;
    struct rdt_error err;
    const char *prefix;
    size_t n = 0;
    int names, force;

    if (!PyArg_ParseTuple(args, "spp:_end_prefix", &prefix, &names, &force) || !conn_enter(conn))
        return NULL;
    CONN_CALL(conn, status,
              names ? rdt_unpublish_prefix(conn->rdt, prefix, &n, &err) : rdt_free_prefix(conn->rdt, prefix, force, &n, &err));
    return status == RDT_OK ? PyLong_FromSize_t(n) : raise_error(&err);
}

/* ---- exists ---- */

/* _exists([ref or name]): a list of bools. */
PyObject *conn_exists(PyObject *self, PyObject *list)
{
    struct conn *conn = (struct conn *)self;
    Py_ssize_t count = PyList_Check(list) ? PyList_GET_SIZE(list) : -1;
    struct rdt_ref *refs;
    enum rdt_status *statuses, status;
    struct rdt_error err;
    PyObject *made = NULL;

    if (count < 0)
        return PyErr_Format(PyExc_TypeError, "expected a list");
    refs = refs_of(list, count);
    statuses = refs ? PyMem_Calloc((size_t)count + 1, sizeof *statuses) : NULL;
    if (refs && !statuses)
        PyErr_NoMemory();
    if (statuses && conn_enter(conn)) {
        CONN_CALL(conn, status, rdt_exists(conn->rdt, refs, (size_t)count, statuses, &err));
        made = status == RDT_OK ? PyList_New(count) : raise_error(&err);
        for (Py_ssize_t i = 0; made && i < count; i++)
            PyList_SET_ITEM(made, i, PyBool_FromLong(statuses[i] == RDT_OK));
    }
    PyMem_Free(refs);
    PyMem_Free(statuses);
    return made;
}

/* ---- look-up ---- */

static PyObject *text_of(const char *text)
{
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

static void on_unasked(void *arg, const char *node, const struct rdt_error *why)
{
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *one = Py_BuildValue("(NiN)", text_of(node), (int)why->status, text_of(why->msg));

    if (one)
        (void)PyList_Append(arg, one);
    Py_XDECREF(one);
    PyGILState_Release(state);
}

/* _lookup(ids, prefix, lease_ns, nodes_ns): (a list with a Ref or None for each, [(node, status, why)] of the nodes that were
 * not asked) */
PyObject *conn_lookup(PyObject *self, PyObject *args)
{
    struct conn *conn = (struct conn *)self;
    struct rdt_lookup_options options = RDT_INIT(options);
    PyObject *list, *made = NULL, *unasked = NULL;
    struct rdt_key *keys = NULL;
    struct rdt_ref *refs = NULL;
    enum rdt_status status = RDT_INVALID;
    struct rdt_error err;
    Py_ssize_t count;
    long long lease_ns, nodes_ns;
    int prefix;

    if (!PyArg_ParseTuple(args, "O!pLL:_lookup", &PyList_Type, &list, &prefix, &lease_ns, &nodes_ns))
        return NULL;
    count = PyList_GET_SIZE(list);
    keys = PyMem_Calloc((size_t)count + 1, sizeof *keys);
    refs = PyMem_Calloc((size_t)count + 1, sizeof *refs);
    unasked = PyList_New(0);
    if (!keys || !refs)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; !PyErr_Occurred() && i < count; i++)
        (void)bytes_at(list, i, &keys[i].id, &keys[i].id_bytes);
    options.prefix = prefix;
    options.lease_ns = lease_ns;
    options.nodes_ns = nodes_ns;
    options.on_unasked = on_unasked;
    options.arg = unasked;
    if (!PyErr_Occurred() && conn_enter(conn)) {
        CONN_CALL(conn, status, rdt_lookup(conn->rdt, keys, (size_t)count, &options, refs, NULL, &err));
        if (!PyErr_Occurred())
            made = status == RDT_OK ? PyList_New(count) : raise_error(&err);
    }
    for (Py_ssize_t i = 0; made && i < count; i++) {
        PyObject *one = refs[i].generation ? ref_new(&refs[i], NULL) : Py_None;
        if (one == Py_None)
            Py_INCREF(one);
        if (one)
            PyList_SET_ITEM(made, i, one);
        else
            Py_CLEAR(made);
    }
    PyMem_Free(keys);
    PyMem_Free(refs);
    if (made)
        return Py_BuildValue("(NN)", made, unasked);
    Py_XDECREF(unasked);
    return NULL;
}

struct loading { /* everything that rdt_load_many borrows */
    struct borrowed_set *set;
    struct rdt_ref *refs;
    const struct rdt_tensor **targets;
    size_t *counts;
    enum rdt_status *statuses;
};

static void loading_fini(struct loading *loading)
{
    borrowed_set_free(loading->set);
    PyMem_Free(loading->refs);
    PyMem_Free((void *)loading->targets);
    PyMem_Free(loading->counts);
    PyMem_Free(loading->statuses);
}

static bool loading_init(struct loading *loading, PyObject *refs, PyObject *tensors, PyObject *counts)
{
    Py_ssize_t count = PyList_GET_SIZE(refs);
    size_t at = 0;

    loading->set = borrowed_set_from(tensors, true, Py_None, "into:");
    loading->refs = loading->set ? refs_of(refs, count) : NULL;
    if (!loading->refs)
        return false;
    loading->targets = PyMem_Calloc((size_t)count + 1, sizeof(const struct rdt_tensor *));
    loading->counts = PyMem_Calloc((size_t)count + 1, sizeof *loading->counts);
    loading->statuses = PyMem_Calloc((size_t)count + 1, sizeof *loading->statuses);
    if (!loading->targets || !loading->counts || !loading->statuses) {
        PyErr_NoMemory();
        return false;
    }
    for (Py_ssize_t i = 0; i < count; at += loading->counts[i++]) {
        loading->counts[i] = counts == Py_None ? 1 : PyLong_AsSize_t(PyList_GET_ITEM(counts, i));
        if (!PyErr_Occurred() && loading->counts[i] > loading->set->count - at)
            PyErr_SetString(PyExc_ValueError, "there are fewer targets than counted");
        if (PyErr_Occurred())
            return false;
        loading->targets[i] = loading->set->tensors + at;
    }
    return true;
}

/* Loads, also into targets on GPUs. What was not loaded is not delivered to a target that the daemon cannot write. */
static enum rdt_status load_values(struct conn *conn, struct loading *loading, size_t count, int64_t timeout_ns,
                                   struct rdt_error *err)
{
    struct borrowed_set *set = loading->set;
    enum rdt_status status = set->on_gpus > 0 ? gpu_offer(conn, set, &timeout_ns, err) : RDT_OK, delivered;
    size_t at = 0;

    if (status != RDT_OK)
        return status;
    status =
        rdt_load_many(conn->rdt, loading->refs, count, loading->targets, loading->counts, timeout_ns, loading->statuses, err);
    set->fetched = status == RDT_OK;
    if (!set->landings)
        return status;
    for (size_t i = 0; i < count; at += loading->counts[i++])
        for (size_t t = at; loading->statuses[i] != RDT_OK && t < at + loading->counts[i]; t++)
            set->landings[t].target = NULL;
    delivered = gpu_deliver(conn, set, status == RDT_OK ? err : NULL);
    for (size_t i = 0; delivered != RDT_OK && i < count; i++)
        if (loading->statuses[i] == RDT_OK)
            loading->statuses[i] = delivered;
    return status == RDT_OK ? delivered : status;
}

/* _load_many([ref], targets of all, number of each (None: one), timeout): (the number of the status of each, the sentence of
 * the first that was not loaded, or None). */
PyObject *conn_load_many(PyObject *self, PyObject *args)
{
    struct conn *conn = (struct conn *)self;
    PyObject *refs, *tensors, *counts, *made = NULL, *list;
    struct loading loading = {0};
    struct rdt_error err = {0};
    enum rdt_status status;
    int64_t timeout_ns;

    if (!PyArg_ParseTuple(args, "O!OOO&:_load_many", &PyList_Type, &refs, &tensors, &counts, timeout_or_none, &timeout_ns))
        return NULL;
    if (counts != Py_None && (!PyList_Check(counts) || PyList_GET_SIZE(counts) != PyList_GET_SIZE(refs)))
        return PyErr_Format(PyExc_TypeError, "expected a count for each ref");
    if (!loading_init(&loading, refs, tensors, counts)) {
        loading_fini(&loading);
        return NULL;
    }
    if ((loading.set->on_gpus == 0 || gpu_open(conn)) && conn_enter(conn)) {
        size_t count = (size_t)PyList_GET_SIZE(refs);

        for (size_t i = 0; i < count; i++)
            loading.statuses[i] = RDT_AGAIN;
        WAITS(conn, status, load_values(conn, &loading, count, timeout_ns, &err));
        if (status != RDT_OK && !waits_raise() && (status == RDT_CANCELLED || (count > 0 && loading.statuses[0] == RDT_AGAIN)))
            (void)raise_error(&err);
        list = PyErr_Occurred() ? NULL : PyList_New((Py_ssize_t)count);
        for (size_t i = 0; list && i < count; i++)
            PyList_SET_ITEM(list, (Py_ssize_t)i, PyLong_FromLong(loading.statuses[i]));
        made = list ? Py_BuildValue("(Nz)", list, status == RDT_OK ? NULL : err.msg) : NULL;
        conn_leave(conn);
    }
    loading_fini(&loading);
    return made;
}

/* _lease_end([ref]) */
PyObject *conn_lease_end(PyObject *self, PyObject *list)
{
    struct conn *conn = (struct conn *)self;
    struct rdt_error err = {0};
    enum rdt_status status;
    struct rdt_ref *refs;

    if (!PyList_Check(list)) {
        PyErr_SetString(PyExc_TypeError, "_lease_end takes a list");
        return NULL;
    }
    refs = refs_of(list, PyList_GET_SIZE(list));
    if (!refs)
        return NULL;
    if (!conn_enter(conn)) {
        PyMem_Free(refs);
        return NULL;
    }
    CONN_CALL(conn, status, rdt_lease_end(conn->rdt, refs, (size_t)PyList_GET_SIZE(list), &err));
    PyMem_Free(refs);
    return none_or_raise(status, &err);
}
