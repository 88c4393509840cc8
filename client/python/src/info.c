/* SPDX-License-Identifier: Apache-2.0 */
/* Conn's calls that describe: an object and its holders, the lists of objects, names and nodes, and the daemon's state. */
#include "rdtpy.h"

#include <rdt_info.h>

static const char *const visibility[] = {"owner", "tenant", "all"};

/* ---- rows: librdt calls a function for each, in this thread, without the GIL ---- */

struct rows {
    struct conn *conn;
    PyObject *list; /* NULL: an exception is set, and no more rows are wanted */
    PyThreadState *thread;
};

/* Releases the GIL. Returns false with an exception set. */
static bool rows_begin(struct rows *rows, struct conn *conn)
{
    rows->conn = conn;
    rows->list = PyList_New(0);
    if (!rows->list || !conn_enter(conn)) {
        Py_CLEAR(rows->list);
        return false;
    }
    rows->thread = PyEval_SaveThread();
    return true;
}

/* Takes the GIL again. Returns the list as a new reference, or NULL with an exception set. */
static PyObject *rows_end(struct rows *rows, enum rdt_status status, const struct rdt_error *err)
{
    PyEval_RestoreThread(rows->thread);
    if (rows->list && status != RDT_OK) {
        Py_CLEAR(rows->list);
        (void)raise_error(err);
    }
    conn_leave(rows->conn);
    return rows->list;
}

static void row_begin(struct rows *rows)
{
    PyEval_RestoreThread(rows->thread);
}

/* Appends the row and releases the GIL; take_row NULL: an exception is set. Returns whether more rows are wanted. */
static bool row_end(struct rows *rows, PyObject *take_row)
{
    if (!take_row || PyList_Append(rows->list, take_row) < 0)
        Py_CLEAR(rows->list);
    Py_XDECREF(take_row);
    rows->thread = PyEval_SaveThread();
    return rows->list != NULL;
}

/* Converts text for O& of Py_BuildValue. Another program may have chosen it, so it need not be UTF-8. */
static PyObject *text(void *chars)
{
    return PyUnicode_DecodeUTF8(chars, (Py_ssize_t)strlen(chars), "replace");
}

/* ---- one object ---- */

static double seconds(int64_t ns)
{
    return ns < 0 ? -1.0 : (double)ns / 1e9;
}

static PyObject *truth(bool value)
{
    return value ? Py_True : Py_False; /* borrowed, for O of Py_BuildValue */
}

static PyObject *stat_dict(const struct rdt_stat *stat)
{
    return Py_BuildValue("{s:N,s:s,s:K,s:n,s:n,s:I,s:I,s:I,s:d,s:O,s:O,s:d}", "ref", ref_new(&stat->ref, NULL), "state",
                         stat->state, "bytes", (unsigned long long)stat->bytes, "tensors", (Py_ssize_t)stat->tensors,
                         "metadata_bytes", (Py_ssize_t)stat->metadata_bytes, "holds", stat->holds, "pins", stat->pins,
                         "waiters", stat->waiters, "age", seconds(stat->age_ns), "snapshot", truth(stat->snapshot), "detached",
                         truth(stat->detached), "ttl_left", seconds(stat->ttl_left_ns));
}

static bool add_holder(void *arg, const struct rdt_holder *holder)
{
    struct rows *rows = arg;
    PyObject *row;

    row_begin(rows);
    row =
        Py_BuildValue("{s:s,s:I,s:K,s:O&,s:i,s:I,s:O&,s:s,s:s,s:K,s:O&}", "kind", holder->kind, "count", holder->count,
                      "client", (unsigned long long)holder->client, "client_name", text, holder->client_name, "pid",
                      (int)holder->pid, "uid", holder->uid, "node", text, holder->node, "node_uuid", holder->node_uuid, "name",
                      holder->name, "version", (unsigned long long)holder->version, "sentence", text, holder->sentence);
    return row_end(rows, row);
}

PyObject *conn_stat(PyObject *self, PyObject *ref)
{
    struct rdt_ref value;
    struct rdt_stat stat;
    struct rdt_error err;
    enum rdt_status status;
    PyObject *dict, *holders;
    struct rows rows;

    if (!ref_read(ref, &value) || !rows_begin(&rows, (struct conn *)self))
        return NULL;
    status = rdt_holders(rows.conn->rdt, &value, &stat, add_holder, &rows, &err);
    holders = rows_end(&rows, status, &err);
    dict = holders ? stat_dict(&stat) : NULL;
    if (dict && PyDict_SetItemString(dict, "holders", holders) < 0)
        Py_CLEAR(dict);
    Py_XDECREF(holders);
    return dict;
}

/* ---- lists ---- */

static bool add_object(void *arg, const struct rdt_object_row *row)
{
    struct rows *rows = arg;
    PyObject *dict, *more;

    row_begin(rows);
    dict = stat_dict(&row->stat);
    more = Py_BuildValue("{s:s,s:(Is),s:s,s:s,s:K}", "id", row->id, "owner", (unsigned)row->stat.ref.uid, row->stat.ref.tenant,
                         "visible", visibility[row->visibility], "transport", row->transport, "producer",
                         (unsigned long long)row->producer);
    if (!dict || !more || PyDict_Update(dict, more) < 0)
        Py_CLEAR(dict);
    Py_XDECREF(more);
    return row_end(rows, dict);
}

/* _objects(prefix or None, state or None, client, limit): a list of dicts. */
PyObject *conn_objects(PyObject *self, PyObject *args)
{
    struct rdt_list_options options = RDT_INIT(options);
    unsigned long long client, limit;
    struct rdt_error err;
    struct rows rows;

    if (!PyArg_ParseTuple(args, "zzKK:_objects", &options.prefix, &options.state, &client, &limit) ||
        !rows_begin(&rows, (struct conn *)self))
        return NULL;
    options.client = client;
    options.limit = limit;
    return rows_end(&rows, rdt_each_object(rows.conn->rdt, &options, add_object, &rows, &err), &err);
}

static bool add_name(void *arg, const struct rdt_name_row *row)
{
    struct rows *rows = arg;
    PyObject *object = Py_None, *dict;

    row_begin(rows);
    if (row->object.id_bytes > 0)
        object = ref_new(&row->object, NULL);
    else
        Py_INCREF(object);
    dict = Py_BuildValue("{s:s,s:K,s:N,s:K,s:I,s:(Is),s:s,s:d,s:K,s:d}", "name", row->name, "version",
                         (unsigned long long)row->version, "object", object, "bytes", (unsigned long long)row->bytes, "waiters",
                         row->waiters, "owner", row->uid, row->tenant, "visible", visibility[row->visibility], "age",
                         seconds(row->age_ns), "lease", (unsigned long long)row->lease_client, "ttl_left",
                         seconds(row->ttl_left_ns));
    return row_end(rows, dict);
}

/* _names(prefix or None, limit): a list of dicts. */
PyObject *conn_names(PyObject *self, PyObject *args)
{
    struct rdt_list_options options = RDT_INIT(options);
    unsigned long long limit;
    struct rdt_error err;
    struct rows rows;

    if (!PyArg_ParseTuple(args, "zK:_names", &options.prefix, &limit) || !rows_begin(&rows, (struct conn *)self))
        return NULL;
    options.limit = limit;
    return rows_end(&rows, rdt_each_name(rows.conn->rdt, &options, add_name, &rows, &err), &err);
}

static PyObject *transport_list(const struct rdt_node_row *row)
{
    PyObject *list = PyList_New((Py_ssize_t)row->n_transports);

    for (size_t i = 0; list && i < row->n_transports; i++) {
        const struct rdt_node_transport *from = &row->transports[i];
        PyObject *one = Py_BuildValue("{s:O&,s:O,s:O&,s:O&}", "name", text, from->name, "usable", truth(from->usable), "path",
                                      text, from->path, "why", text, from->why);

        if (one)
            PyList_SET_ITEM(list, (Py_ssize_t)i, one);
        else
            Py_CLEAR(list);
    }
    return list;
}

static bool add_node(void *arg, const struct rdt_node_row *row)
{
    struct rows *rows = arg;
    PyObject *dict;

    row_begin(rows);
    dict = Py_BuildValue("{s:s,s:s,s:O&,s:O&,s:s,s:O&,s:d,s:d,s:d,s:I,s:I,s:K,s:K,s:K,s:O&,s:O&,s:N}", "uuid", row->uuid,
                         "boot_id", row->boot_id, "name", text, row->name, "address", text, row->address, "state", row->state,
                         "version", text, row->version, "rtt", seconds(row->rtt_ns), "since", seconds(row->since_ns),
                         "retry_in", seconds(row->retry_in_ns), "transfers_in", row->transfers_in, "transfers_out",
                         row->transfers_out, "bytes_in", (unsigned long long)row->bytes_in, "bytes_out",
                         (unsigned long long)row->bytes_out, "fell_back", (unsigned long long)row->fell_back, "last_error",
                         text, row->last_error, "identity", text, row->identity, "transports", transport_list(row));
    return row_end(rows, dict);
}

PyObject *conn_nodes(PyObject *self, PyObject *ignored)
{
    struct rdt_error err;
    struct rows rows;

    if (!rows_begin(&rows, (struct conn *)self))
        return NULL;
    return rows_end(&rows, rdt_each_node(rows.conn->rdt, add_node, &rows, &err), &err);
}

/* ---- the daemon ---- */

static bool set_number(PyObject *dict, const char *key, unsigned long long value)
{
    PyObject *number = PyLong_FromUnsignedLongLong(value);
    bool set = number && PyDict_SetItemString(dict, key, number) == 0;

    Py_XDECREF(number);
    return set;
}

static PyObject *words(const char *chars)
{
    PyObject *joined = PyUnicode_FromString(chars), *list = joined ? PyUnicode_Split(joined, NULL, -1) : NULL;

    Py_XDECREF(joined);
    return list;
}

/* The numbers of struct rdt_daemon_status, which a dict has under the names of the members. */
/* clang-format off */
#define STATUS_NUMBERS(X) \
    X(clients) X(objects) X(regions) X(memory_bytes) X(memory_limit_bytes) X(pool_bytes) X(pool_hits) X(pool_misses) \
    X(cached_bytes) X(cache_hits) X(orphaned_bytes) X(replicas) X(replica_bytes) X(nodes_up) X(nodes_known) \
    X(transfers_active) X(transfers_done) X(transfers_failed) X(transfers_cancelled) X(transfers_timed_out) \
    X(bytes_in) X(bytes_out) X(bytes_local) X(fetches_joined) X(fetches_from_replicas) X(redirected) \
    X(redirected_again) X(slow_readers) X(fell_back) X(busy_polls) X(busy_polls_missed) X(kept_objects) X(kept_names) \
    X(kept_bytes) X(restored_objects) X(unkept_objects) X(kept_sessions) X(kept_holds) X(restored_sessions) \
    X(resumed_sessions) X(waiting_sessions) X(certificate_expires_s) X(crl_expires_s) X(stored_objects) \
    X(stored_names) X(stored_bytes) X(stores_done) X(stores_bytes) X(stores_failed) X(storage_restored) \
    X(storage_bad_files) X(spilled_objects) X(spilled_bytes) X(shard_versions) X(shard_failures) X(shard_pending)
/* clang-format on */

static PyObject *status_dict(const struct rdt_daemon_status *s)
{
    PyObject *dict = Py_BuildValue("{s:s,s:s,s:s,s:s,s:s,s:s,s:i,s:d,s:N,s:O,s:s}", "version", s->version, "node", s->node,
                                   "boot_id", s->boot_id, "state", s->state, "address", s->address, "socket", s->socket, "pid",
                                   (int)s->pid, "uptime", seconds(s->uptime_ns), "backends", words(s->backends), "keeper_up",
                                   s->keeper_up ? Py_True : Py_False, "storage_dir", s->storage_dir);

#define X(member)                                                          \
    if (dict && !set_number(dict, #member, (unsigned long long)s->member)) \
        Py_CLEAR(dict);
    STATUS_NUMBERS(X)
#undef X
    return dict;
}

PyObject *conn_status(PyObject *self, PyObject *ignored)
{
    struct conn *conn = (struct conn *)self;
    struct rdt_daemon_status daemon = RDT_INIT(daemon);
    struct rdt_error err;
    enum rdt_status status;

    if (!conn_enter(conn))
        return NULL;
    CONN_CALL(conn, status = rdt_daemon_status(conn->rdt, &daemon, &err));
    return status == RDT_OK ? status_dict(&daemon) : raise_error(&err);
}
