/* SPDX-License-Identifier: Apache-2.0 */
/* Refs: plain values that may carry a hold, which ends with the Ref. A Ref that put returned has the producer's hold; any other
 * Ref may take a hold later. */
#include "rdtpy.h"

static PyObject *make(PyTypeObject *type, const struct rdt_ref *value)
{
    struct ref *ref = (struct ref *)type->tp_alloc(type, 0);

    if (!ref)
        return NULL;
    ref->ref = *value;
    ref->copied = -1;
    ref->grace_ns = GRACE_NS;
    link_init(&ref->link);
    return (PyObject *)ref;
}

PyObject *ref_new(const struct rdt_ref *value, struct conn *conn)
{
    struct ref *ref = (struct ref *)make(made_ref_type ? (PyTypeObject *)made_ref_type : &ref_type, value);

    if (ref && conn) {
        Py_INCREF(conn);
        ref->conn = conn;
        link_add(&conn->holds, &ref->link);
    }
    return (PyObject *)ref;
}

bool ref_read(PyObject *object, struct rdt_ref *value_p)
{
    if (!PyObject_TypeCheck(object, &ref_type)) {
        PyErr_Format(PyExc_TypeError, "expected a Ref, not a %.100s", Py_TYPE(object)->tp_name);
        return false;
    }
    *value_p = ((struct ref *)object)->ref;
    return true;
}

/* Drops the Ref's hold, or hands it to the connection if the Ref is retained. Does not block. */
static void let_go(struct ref *ref)
{
    struct conn *conn = ref->conn;

    if (!conn)
        return;
    link_remove(&ref->link);
    ref->conn = NULL;
    Py_DECREF(conn);
}

static void ref_dealloc(PyObject *self)
{
    struct ref *ref = (struct ref *)self;
    bool keeps = ref->retained && (ref->conn || ref->hold);
    struct retained_hold *retained = keeps ? PyMem_Malloc(sizeof *retained) : NULL;
    struct conn *conn = ref->conn;

    if (retained)
        *retained = (struct retained_hold){.ref = ref->ref, .hold = conn ? NULL : request_take_hold(ref->hold, &conn)};
    if (retained && conn) {
        link_add(&conn->retained, &retained->link);
    } else if (ref->conn && ref->conn->rdt) { /* rdt_drop waits for no answer: the garbage collector may run this anywhere */
        (void)rdt_drop(ref->conn->rdt, &ref->ref, NULL);
    }
    if (retained && !conn)
        PyMem_Free(retained);
    let_go(ref);
    Py_CLEAR(ref->hold); /* does not block either */
    Py_TYPE(self)->tp_free(self);
}

/* ---- construction ---- */

/* Ref(text): a ref as text, or a bare id. */
static PyObject *ref_make(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"text", NULL};
    const char *text;
    struct rdt_ref value;
    struct rdt_error err;
    enum rdt_status status;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "s:Ref", names, &text))
        return NULL;
    status = rdt_ref_from_text(text, &value, &err);
    return status == RDT_OK ? make(type, &value) : raise_error(&err);
}

static PyObject *ref_unpack(PyObject *type, PyObject *args)
{
    const char *bytes;
    Py_ssize_t count;
    int hint = 0;
    struct rdt_ref value;
    struct rdt_error err;
    enum rdt_status status;
    PyObject *made;

    if (!PyArg_ParseTuple(args, "y#|i:_unpack", &bytes, &count, &hint))
        return NULL;
    status = rdt_ref_unpack(bytes, (size_t)count, &value, &err);
    if (status != RDT_OK)
        return raise_error(&err);
    made = make((PyTypeObject *)type, &value);
    if (made)
        ((struct ref *)made)->hint = hint;
    return made;
}

static PyObject *ref_from_id(PyObject *type, PyObject *id)
{
    struct rdt_ref value;
    struct rdt_error err;
    const char *bytes;
    Py_ssize_t count;

    if (PyBytes_Check(id)) {
        bytes = PyBytes_AS_STRING(id);
        count = PyBytes_GET_SIZE(id);
    } else {
        bytes = PyUnicode_AsUTF8AndSize(id, &count);
        if (!bytes)
            return NULL;
    }
    if (rdt_ref_from_id(bytes, (size_t)count, &value, &err) != RDT_OK)
        return raise_error(&err);
    return make((PyTypeObject *)type, &value);
}

static PyObject *ref_from_name(PyObject *type, PyObject *args)
{
    const char *name;
    unsigned long long after;
    PyObject *near;
    struct rdt_ref value;
    struct rdt_error err;

    if (!PyArg_ParseTuple(args, "sKO:_from_name", &name, &after, &near))
        return NULL;
    if (near != Py_None && !PyObject_TypeCheck(near, &ref_type)) {
        PyErr_SetString(PyExc_TypeError, "near must be a Ref or None");
        return NULL;
    }
    if (rdt_ref_from_name(name, after, near == Py_None ? NULL : &((struct ref *)near)->ref, &value, &err) != RDT_OK)
        return raise_error(&err);
    return make((PyTypeObject *)type, &value);
}

static PyObject *ref_at(PyObject *self, PyObject *address)
{
    const char *text = PyUnicode_AsUTF8(address);
    struct rdt_ref value = ((struct ref *)self)->ref;
    struct rdt_error err;

    if (!text)
        return NULL;
    if (rdt_ref_set_address(&value, text, &err) != RDT_OK)
        return raise_error(&err);
    return make(Py_TYPE(self), &value);
}

/* ---- methods ---- */

static PyObject *ref_pack(PyObject *self, PyObject *ignored)
{
    uint8_t packed[RDT_REF_PACKED_BYTES];
    size_t bytes = rdt_ref_pack(&((struct ref *)self)->ref, packed);

    return PyBytes_FromStringAndSize((const char *)packed, (Py_ssize_t)bytes);
}

/* The pickle is for another process, and nobody knows whether this Ref is still there when it arrives: `return put(x)`
 * deletes it at once. So the daemon holds the object until the other process does (Ref._take), or until the grace period is
 * over. */
static bool hand_on(struct ref *ref)
{
    struct conn *conn = ref->conn ? ref->conn : ref->hold ? ((struct request *)ref->hold)->conn : NULL;
    struct rdt_ref value = ref->ref;
    enum rdt_status status;
    struct rdt_error err;

    if (ref->end == REF_ENDED &&
        PyErr_WarnFormat(PyExc_RuntimeWarning, 1,
                         "pickling the Ref of an object that ended when its connection was closed, unless somebody "
                         "else holds it: pickle it earlier, keep the connection open, or put with detached=True"))
        return false;
    if (!conn || conn->closed || ref->grace_ns <= 0 || value.is_name || value.generation == 0)
        return true;
    if (!conn_enter(conn))
        return false;
    CONN_CALL(conn, status, rdt_hand_on(conn->rdt, &value, ref->grace_ns, &err));
    return status == RDT_OK || !waits_raise(); /* the receiver's fetch says what is wrong */
}

static PyObject *ref_reduce(PyObject *self, PyObject *ignored)
{
    PyObject *packed, *unpack, *reduced = NULL;

    if (!hand_on((struct ref *)self))
        return NULL;
    packed = ref_pack(self, NULL);
    unpack = PyObject_GetAttrString((PyObject *)Py_TYPE(self), "_unpickle");
    if (packed && unpack)
        reduced = Py_BuildValue("O(Oi)", unpack, packed, ((struct ref *)self)->hint);
    Py_XDECREF(packed);
    Py_XDECREF(unpack);
    return reduced;
}

/* For a Ref inside a value that is put. */
static PyObject *ref_hand_on(PyObject *self, PyObject *ignored)
{
    if (!hand_on((struct ref *)self))
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *ref_free(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"force", NULL};
    struct ref *ref = (struct ref *)self;
    struct conn *conn = ref->conn;
    struct rdt_ref value = ref->ref;
    struct rdt_error err;
    enum rdt_status status = RDT_OK;
    int force = 0;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$p:free", names, &force))
        return NULL;
    ref->wanting = 0;
    if (!conn && ref->hold && force)
        conn = ((struct request *)ref->hold)->conn;
    if (!conn) {
        Py_CLEAR(ref->hold); /* not the producer's */
        Py_RETURN_NONE;      /* the Ref has no hold */
    }
    if (!conn_enter(conn))
        return NULL;
    let_go(ref);
    Py_CLEAR(ref->hold);
    CONN_CALL(conn, status, rdt_free(conn->rdt, &value, force != 0, &err));
    return none_or_raise(status, &err);
}

static PyObject *ref_drop(PyObject *self, PyObject *ignored)
{
    struct ref *ref = (struct ref *)self;
    struct conn *conn = ref->conn;
    struct rdt_error err;
    enum rdt_status status;

    ref->wanting = 0;
    Py_CLEAR(ref->hold);
    if (!conn)
        Py_RETURN_NONE; /* the Ref has no hold */
    if (!conn_enter(conn))
        return NULL;
    Py_INCREF(conn);
    let_go(ref);
    status = rdt_drop(conn->rdt, &ref->ref, &err); /* does not block */
    conn_leave(conn);
    Py_DECREF(conn);
    return none_or_raise(status, &err);
}

static PyObject *ref_keep(PyObject *self, PyObject *ignored)
{
    ((struct ref *)self)->retained = true;
    Py_INCREF(self);
    return self;
}

static PyObject *ref_str(PyObject *self)
{
    char text[RDT_REF_TEXT_BYTES];

    rdt_ref_to_text(&((struct ref *)self)->ref, text);
    return PyUnicode_FromString(text);
}

static PyObject *ref_repr(PyObject *self)
{
    PyObject *text = ref_str(self), *repr = text ? PyUnicode_FromFormat("Ref(%R)", text) : NULL;

    Py_XDECREF(text);
    return repr;
}

static PyObject *ref_compare(PyObject *self, PyObject *other, int op)
{
    bool equal;

    if ((op != Py_EQ && op != Py_NE) || !PyObject_TypeCheck(other, &ref_type))
        Py_RETURN_NOTIMPLEMENTED;
    equal = rdt_ref_equal(&((struct ref *)self)->ref, &((struct ref *)other)->ref);
    return PyBool_FromLong(equal == (op == Py_EQ));
}

static Py_hash_t ref_hash(PyObject *self) /* of the fields that equal refs share */
{
    const struct rdt_ref *ref = &((struct ref *)self)->ref;
    uint64_t hash = 14695981039346656037u;

    for (size_t i = 0; i < ref->id_bytes; i++)
        hash = (hash ^ (uint8_t)ref->id[i]) * 1099511628211u;
    hash = (hash ^ ref->generation) * 1099511628211u;
    return hash == (uint64_t)-1 ? -2 : (Py_hash_t)hash;
}

/* ---- attributes ---- */

static PyObject *get_id(PyObject *self, void *ignored)
{
    const struct rdt_ref *ref = &((struct ref *)self)->ref;

    return PyBytes_FromStringAndSize(ref->id, ref->id_bytes);
}

static PyObject *get_owner(PyObject *self, void *ignored)
{
    const struct rdt_ref *ref = &((struct ref *)self)->ref;

    if (ref->any_owner)
        Py_RETURN_NONE;
    /* What is no UTF-8 is like no tenant. */
    return Py_BuildValue("(IN)", (unsigned)ref->uid,
                         PyUnicode_DecodeUTF8(ref->tenant, (Py_ssize_t)strlen(ref->tenant), "surrogateescape"));
}

static PyObject *get_address(PyObject *self, void *ignored)
{
    const char *address = ((struct ref *)self)->ref.address;

    return PyUnicode_DecodeUTF8(address, (Py_ssize_t)strlen(address), "backslashreplace");
}

static PyObject *get_holds(PyObject *self, void *ignored)
{
    struct ref *ref = (struct ref *)self;

    return PyBool_FromLong(ref->conn || (ref->hold && request_holds(ref->hold)));
}

static PyObject *get_hold(PyObject *self, void *ignored)
{
    PyObject *hold = ((struct ref *)self)->hold;

    if (!hold)
        hold = Py_None;
    Py_INCREF(hold);
    return hold;
}

static int set_hold(PyObject *self, PyObject *value, void *ignored)
{
    if (!value || !PyObject_TypeCheck(value, &request_type)) {
        PyErr_SetString(PyExc_TypeError, "_hold is a Request");
        return -1;
    }
    Py_INCREF(value);
    Py_XSETREF(((struct ref *)self)->hold, value);
    return 0;
}

static PyObject *get_copied(PyObject *self, void *ignored)
{
    struct ref *ref = (struct ref *)self;

    if (ref->copied < 0)
        Py_RETURN_NONE;
    return PyLong_FromSsize_t(ref->copied);
}

static PyObject *get_grace(PyObject *self, void *ignored)
{
    return PyFloat_FromDouble((double)((struct ref *)self)->grace_ns / 1e9);
}

static int set_grace(PyObject *self, PyObject *value, void *ignored)
{
    return value && timeout_from(value, GRACE_NS, &((struct ref *)self)->grace_ns) ? 0 : -1;
}

static PyObject *get_node(PyObject *self, void *ignored)
{
    return PyBytes_FromStringAndSize((const char *)((struct ref *)self)->ref.node, sizeof(((struct ref *)self)->ref.node));
}

static PyGetSetDef getset[] = {
    {"node", get_node, NULL, "The uuid of the node, 16 bytes; all zero: that of whoever asks, or the one at the address.",
     NULL},
    {"id", get_id, NULL, "The object's id, or a published name: 1 to 128 bytes.", NULL},
    {"owner", get_owner, NULL, "(uid, tenant) of whom it belongs to; None: of whoever asks.", NULL},
    {"address", get_address, NULL, "\"host:port\" of the node's peer link; \"\" if it has none.", NULL},
    {"holds", get_holds, NULL,
     "Whether this Ref holds the object: put returned it, or it took a hold later. A hold that was refused or that ended with "
     "its connection does not count.",
     NULL},
    {"copied", get_copied, NULL,
     "The number of tensors that put copied into the daemon's memory; None if this Ref did not come from put.", NULL},
    {"_hold", get_hold, set_hold, NULL, NULL},
    {"_grace", get_grace, set_grace, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef members[] = {
    {"generation", T_ULONGLONG, offsetof(struct ref, ref.generation), READONLY,
     "Distinguishes successive objects with the same id; 0 means whichever object has the id."},
    {"after", T_ULONGLONG, offsetof(struct ref, ref.after), READONLY,
     "For a name: the last version that was read, so a fetch waits for a newer one; 0 accepts any version."},
    {"is_name", T_BOOL, offsetof(struct ref, ref.is_name), READONLY,
     "Whether this means the newest version of a published name."},
    {"_wanting", T_INT, offsetof(struct ref, wanting), 0, NULL},
    {"_hint", T_INT, offsetof(struct ref, hint), 0, NULL},
    {"_live", T_BOOL, offsetof(struct ref, live), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef methods[] = {
    {"_unpack", ref_unpack, METH_VARARGS | METH_CLASS, NULL},
    {"_from_id", ref_from_id, METH_O | METH_CLASS, NULL},
    {"_from_name", ref_from_name, METH_VARARGS | METH_CLASS, NULL},
    {"at", ref_at, METH_O, "The same on the node at that address (\"host:port\", or its name in the nodes file)."},
    {"pack", ref_pack, METH_NOARGS, "As bytes, the same on every machine."},
    {"__reduce__", ref_reduce, METH_NOARGS, NULL},
    {"_hand_on", ref_hand_on, METH_NOARGS, NULL},
    {"free", (PyCFunction)(void (*)(void))ref_free, METH_VARARGS | METH_KEYWORDS,
     "Drops the hold now. The object ends when its last holder has released it. With force=True no process on any node can "
     "fetch it any more. Does nothing if this Ref has no hold (Connection.free takes any ref). Errors: PeerLost, "
     "Disconnected."},
    {"drop", ref_drop, METH_NOARGS,
     "Like free(), but does not wait for the answer. The daemon handles it before the next request of this connection. Use it "
     "also for objects that were put under an explicit id: deleting their Ref does not drop the hold. Error: Disconnected, "
     "which has ended the hold as well."},
    {"keep", ref_keep, METH_NOARGS,
     "Passes the hold to the connection: the object outlives this Ref, until a process frees it or the connection ends. "
     "Returns the Ref."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject ref_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "rdtd._rdt.Ref",
    .tp_basicsize = sizeof(struct ref),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = ref_make,
    .tp_dealloc = ref_dealloc,
    .tp_str = ref_str,
    .tp_repr = ref_repr,
    .tp_richcompare = ref_compare,
    .tp_hash = ref_hash,
    .tp_methods = methods,
    .tp_members = members,
    .tp_getset = getset,
};
