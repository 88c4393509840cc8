/* The extension module _rdt: librdt's calls as Python objects, nothing more; what is convenient is written in Python above it.
 *
 *   conn.c      Conn: a connection; who may still use it, and when it is really closed
 *   calls.c     Conn's calls that are one answer: stat, publish, waits
 *   transfer.c  Conn's put and fetch
 *   ref.c       Ref: a name, and maybe the hold on what it names
 *   request.c   Request and Object: what was started, what it brought
 *   tensor.c    Tensor and Memory: memory of the daemon's as numpy, torch and the buffer protocol see it;  dlpack.c: DLPack
 *   gather.c    anybody's tensors as struct rdt_tensor, borrowed
 *   module.c    the module, errors
 *
 * Everything here is under the GIL, which is released around every call of librdt that can block. Conn outlives what was made from
 * it: Request, Object, Memory and a holding Ref own a reference.
 */
#ifndef RDTPY_H
#define RDTPY_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <rdt.h>
#include <stdbool.h>
#include <stdint.h>

struct link { /* in one of Conn's lists */
    struct link *next, *prev;
};

struct conn {
    PyObject_HEAD
    rdt *rdt; /* NULL: closed for good */
    bool closed;    /* close() was called: no further calls, but memory that somebody still sees stays */
    size_t calls;   /* threads that are in librdt with this connection */
    size_t keepers; /* Objects and Memories: as long as there is one the session goes on */
    struct link requests, holds;
    struct link kept; /* struct kept: what the connection holds for Refs that are gone */
    struct link memories;
    PyObject *weakrefs;
};

struct ref {
    PyObject_HEAD
    struct rdt_ref ref;
    struct conn *conn; /* owned; NULL: it holds nothing */
    struct link link;  /* conn->holds, if conn */
    Py_ssize_t copied; /* of put: tensors that had to be copied in; -1: not from put */
    bool kept;         /* the connection goes on holding it when this is gone */
    int hint;          /* for the reader: 1 if the tensors were torch's */
};

struct request {
    PyObject_HEAD
    struct conn *conn;
    rdt_request *request; /* NULL: its connection is closed */
    struct link link;
    struct held_set *targets; /* NULL: none */
    PyObject *how;            /* what the Python side wants to know when it has ended */
};

struct object {
    PyObject_HEAD
    struct conn *conn;
    rdt_object *object;
};

struct memory {
    PyObject_HEAD
    struct conn *conn;
    struct link link; /* conn->memories, if conn */
    void *addr;
    size_t bytes;
};

struct tensor {
    PyObject_VAR_HEAD
    PyObject *owner; /* Object or Memory */
    PyObject *weakrefs;
    uint8_t *data;
    enum rdt_dtype dtype;
    int ndim;
    bool readonly;
    Py_ssize_t bytes; /* of the elements */
    Py_ssize_t dims[]; /* [3 * ndim]: shape, strides in elements, strides in bytes */
};

extern PyTypeObject conn_type, ref_type, request_type, object_type, memory_type, tensor_type;

/* What Python's side told: see module.c. Borrowed by nobody, NULL until then. */
extern PyObject *made_ref_type, *made_request_type;
extern PyObject *torch_tensor_type, *torch_dtypes; /* type; dict of torch.dtype to number */
extern PyObject *numpy_names;                      /* dict of numpy's dtype names to numbers */

/* ---- errors ---- */

/* Raises what mirrors err; NULL. */
PyObject *raise_error(const struct rdt_error *err);
PyObject *raise_status(enum rdt_status status, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Seconds or None as librdt's time; *_p is `none` for None. False: an exception. */
bool timeout_from(PyObject *seconds, int64_t none, int64_t *ns_p);

/* ---- conn ---- */

/* Around every use of conn->rdt. False: an exception (it was closed). */
bool conn_enter(struct conn *conn);
void conn_leave(struct conn *conn);
void conn_keep(struct conn *conn);   /* one more keeper, with a reference */
void conn_unkeep(struct conn *conn); /* gives both back */

#define CONN_CALL(conn, call)         \
    do {                              \
        Py_BEGIN_ALLOW_THREADS        \
        (call);                       \
        Py_END_ALLOW_THREADS          \
        conn_leave(conn);             \
    } while (0)

void link_init(struct link *link);
void link_add(struct link *list, struct link *link);
void link_remove(struct link *link);
#define LINK_OWNER(at, type, member) ((type *)(void *)((char *)(at)-offsetof(type, member)))

/* ---- ref ---- */

struct kept {
    struct link link;
    struct rdt_ref ref;
};

/* The connection holds it no more, if it did. */
void conn_forget(struct conn *conn, const struct rdt_ref *ref);

/* A new Ref of Python's class; conn NULL: it holds nothing. */
PyObject *ref_new(const struct rdt_ref *ref, struct conn *conn);

/* ---- request, object ---- */

PyObject *request_new(struct conn *conn, rdt_request *take_request);
PyObject *object_new(struct conn *conn, rdt_object *take_object);

/* ---- tensor ---- */

PyObject *tensor_new(PyObject *owner, const struct rdt_tensor *view, bool readonly);
bool memory_has_one_of(const struct conn *conn, const struct rdt_tensor *tensors, size_t count); /* whether one lies in a Memory of conn */
const char *tensor_format(enum rdt_dtype dtype); /* of struct's module; NULL: it has no letter */
PyObject *tensor_dlpack(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *tensor_dlpack_device(PyObject *self, PyObject *ignored);
PyObject *tensor_capsule(PyObject *self, PyObject *ignored);

/* ---- gather ---- */

struct held {
    Py_buffer view;  /* obj NULL: none */
    PyObject *alive; /* what else has to stay; NULL */
    int64_t *dims;   /* [2 * ndim] on the heap, or NULL */
    int64_t few[8];  /* instead */
};

struct held_set {
    size_t count;
    struct rdt_tensor *tensors; /* [count] */
    struct held *held;          /* [count] */
};

/* Borrows the memory of a list's or tuple's tensors until held_set_free. `writable`: and they must be. NULL: an exception that says which
 * one is wrong; `what` begins the sentence. */
struct held_set *held_set_from(PyObject *list, bool writable, const char *what);
void held_set_free(struct held_set *set); /* NULL is fine */

/* Struct's letters or DLPack's codes. 0: there is no such thing here. */
enum rdt_dtype dtype_of_format(const char *format, Py_ssize_t itemsize);
enum rdt_dtype dtype_of_dlpack(uint8_t code, uint8_t bits, uint16_t lanes);
bool dlpack_of_dtype(enum rdt_dtype dtype, uint8_t *code_p, uint8_t *bits_p);

/* DLPack, as its header has it. */
struct dl_tensor {
    void *data;
    struct { int32_t type, id; } device;
    int32_t ndim;
    struct { uint8_t code, bits; uint16_t lanes; } dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
};
struct dl_managed {
    struct dl_tensor tensor;
    void *context;
    void (*deleter)(struct dl_managed *self);
};
struct dl_managed_versioned {
    struct { uint32_t major, minor; } version;
    void *context;
    void (*deleter)(struct dl_managed_versioned *self);
    uint64_t flags; /* 1: read-only, 2: a copy */
    struct dl_tensor tensor;
};
#define DL_CPU 1
#define DL_READ_ONLY ((uint64_t)1)

/* ---- Conn's methods ---- */

extern PyMethodDef conn_methods[];
PyObject *conn_close(PyObject *self, PyObject *ignored);
PyObject *conn_put(PyObject *self, PyObject *args);
PyObject *conn_fetch(PyObject *self, PyObject *args);
PyObject *conn_get(PyObject *self, PyObject *args);
PyObject *conn_wait(PyObject *self, PyObject *args);

#endif
