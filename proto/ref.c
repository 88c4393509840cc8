/* SPDX-License-Identifier: Apache-2.0 */
/* The portable name of an object: creating it, and writing it as text or bytes and reading it back. Who
 * may use it is decided elsewhere.
 *
 * Input from elsewhere is checked completely. A struct from the caller is only read within its arrays. */
#include "rdt_ref.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "frame.h"

#define TEXT_SCHEME "rdt:"
#define PACKED_VERSION 1u      /* of an object */
#define PACKED_VERSION_NAME 2u /* of a name: the same, with `after` instead of the generation */
#define PACKED_FIXED_BYTES 33u /* version, node, generation, uid, any_owner, three lengths */

#define ID_MAX_BYTES ((size_t)RDT_ID_MAX_BYTES)
_Static_assert(sizeof(((struct rdt_ref *)0)->id) == RDT_ID_MAX_BYTES + 1, "an id and its zero");
#define ADDRESS_MAX_BYTES (sizeof(((struct rdt_ref *)0)->address) - 1)
#define TENANT_MAX_BYTES (sizeof(((struct rdt_ref *)0)->tenant) - 1)

/* Everything but the escaped fields: scheme, node, names and digits of the parameters, the final 0. */
#define TEXT_FIXED_BYTES (sizeof TEXT_SCHEME - 1 + 32 + 1 + 3 + 20 + 3 + 3 + 10 + 3 + 1)
_Static_assert(TEXT_FIXED_BYTES + 3 * (RDT_ID_MAX_BYTES + 64 + 32) <= RDT_REF_TEXT_BYTES, "the longest ref fits as text");
_Static_assert(PACKED_FIXED_BYTES + RDT_ID_MAX_BYTES + 64 + 32 <= RDT_REF_PACKED_BYTES, "the longest ref fits as bytes");

static size_t id_length(const struct rdt_ref *ref)
{
    return ref->id_bytes < ID_MAX_BYTES ? ref->id_bytes : ID_MAX_BYTES;
}

static size_t address_length(const struct rdt_ref *ref)
{
    return strnlen(ref->address, ADDRESS_MAX_BYTES);
}

static size_t tenant_length(const struct rdt_ref *ref)
{
    return ref->any_owner ? 0 : strnlen(ref->tenant, TENANT_MAX_BYTES);
}

static enum rdt_status no_place(struct rdt_error *err)
{
    return rdt_error_set(err, RDT_INVALID, "ref_p is NULL, so there is no place for the ref");
}

enum rdt_status rdt_ref_from_id(const void *id, size_t id_bytes, struct rdt_ref *ref_p, struct rdt_error *err)
{
    if (!ref_p)
        return no_place(err);
    if (id_bytes == 0)
        return rdt_error_set(err, RDT_INVALID, "the object id is empty");
    if (id_bytes > ID_MAX_BYTES)
        return rdt_error_set(err, RDT_INVALID, "the object id has %zu bytes, the most is %zu", id_bytes, ID_MAX_BYTES);
    memset(ref_p, 0, sizeof *ref_p);
    ref_p->any_owner = 1;
    ref_p->id_bytes = (uint8_t)id_bytes;
    memcpy(ref_p->id, id, id_bytes);
    return RDT_OK;
}

enum rdt_status rdt_ref_from_name(const char *name, uint64_t after, const struct rdt_ref *near, struct rdt_ref *ref_p,
                                  struct rdt_error *err)
{
    size_t bytes = name ? strnlen(name, ID_MAX_BYTES + 1) : 0;
    struct rdt_ref ref = {.any_owner = 1, .is_name = 1, .after = after};

    if (!ref_p)
        return no_place(err);
    if (bytes == 0)
        return rdt_error_set(err, RDT_INVALID, "the name is empty");
    if (bytes > ID_MAX_BYTES)
        return rdt_error_set(err, RDT_INVALID, "the name has more than %zu bytes", ID_MAX_BYTES);
    if (near) {
        memcpy(ref.node, near->node, sizeof ref.node);
        memcpy(ref.address, near->address, address_length(near));
        memcpy(ref.tenant, near->tenant, tenant_length(near));
        ref.uid = near->any_owner ? 0 : near->uid;
        ref.any_owner = near->any_owner;
    }
    ref.id_bytes = (uint8_t)bytes;
    memcpy(ref.id, name, bytes);
    *ref_p = ref;
    return RDT_OK;
}

enum rdt_status rdt_ref_set_address(struct rdt_ref *ref, const char *address, struct rdt_error *err)
{
    size_t bytes = address ? strnlen(address, ADDRESS_MAX_BYTES + 1) : 0;

    if (bytes == 0)
        return rdt_error_set(err, RDT_INVALID, "the node's address is empty");
    if (bytes > ADDRESS_MAX_BYTES)
        return rdt_error_set(err, RDT_INVALID, "the node's address has more than %zu bytes", ADDRESS_MAX_BYTES);
    memset(ref->node, 0, sizeof ref->node);
    memset(ref->address, 0, sizeof ref->address);
    memcpy(ref->address, address, bytes);
    return RDT_OK;
}

static bool has_node(const struct rdt_ref *ref)
{
    static const uint8_t none[sizeof ref->node];

    return memcmp(ref->node, none, sizeof none) != 0;
}

bool rdt_ref_equal(const struct rdt_ref *a, const struct rdt_ref *b)
{
    size_t id_bytes = id_length(a), tenant_bytes = tenant_length(a);

    /* The address says where to ask for the object, so two refs of one object may have different ones. Only without a node
     * does it identify the object. */
    if (!has_node(a) && strncmp(a->address, b->address, sizeof a->address) != 0)
        return false;
    return memcmp(a->node, b->node, sizeof a->node) == 0 && !a->is_name == !b->is_name &&
           (a->is_name ? a->after == b->after : a->generation == b->generation) && !a->any_owner == !b->any_owner &&
           (a->any_owner || a->uid == b->uid) && tenant_bytes == tenant_length(b) &&
           memcmp(a->tenant, b->tenant, tenant_bytes) == 0 && id_bytes == id_length(b) && memcmp(a->id, b->id, id_bytes) == 0;
}

/* ---- as text ---- */

static const char hex_digits[] = "0123456789abcdef";

/* Not isalnum: the set must not depend on the locale. */
static bool is_plain(unsigned char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '~' ||
           c == '-';
}

/* Returns the end of the text. `also` lists further bytes that are not escaped. */
static char *put_escaped(char *out, const char *bytes, size_t n, const char *also)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)bytes[i];

        if (is_plain(c) || (c != '\0' && strchr(also, c))) {
            *out++ = (char)c;
        } else {
            *out++ = '%';
            *out++ = hex_digits[c >> 4];
            *out++ = hex_digits[c & 15];
        }
    }
    return out;
}

static char *put_number(char *out, const char *name, uint64_t number)
{
    return out + sprintf(out, "%s%" PRIu64, name, number);
}

static char *put_text(char *out, const char *text)
{
    size_t n = strlen(text);

    memcpy(out, text, n);
    return out + n;
}

void rdt_ref_to_text(const struct rdt_ref *ref, char *text_p)
{
    char *out = put_text(text_p, TEXT_SCHEME), *id_end;

    for (size_t i = 0; i < sizeof ref->node; i++) {
        *out++ = hex_digits[ref->node[i] >> 4];
        *out++ = hex_digits[ref->node[i] & 15];
    }
    *out++ = '/';
    out = id_end = put_escaped(out, ref->id, id_length(ref), "");
    if (ref->is_name)
        out = put_number(out, "&v=", ref->after);
    else if (ref->generation != 0)
        out = put_number(out, "&g=", ref->generation);
    if (ref->address[0] != '\0') {
        out = put_text(out, "&a=");
        out = put_escaped(out, ref->address, address_length(ref), ":[]"); /* so that host and port can be read */
    }
    if (!ref->any_owner) {
        out = put_number(out, "&u=", ref->uid);
        if (ref->tenant[0] != '\0') {
            out = put_text(out, "&t=");
            out = put_escaped(out, ref->tenant, tenant_length(ref), "");
        }
    }
    *out = '\0';
    if (*id_end == '&')
        *id_end = '?';
}

static int hex_value(char c)
{
    const char *at;

    if (c >= 'A' && c <= 'F')
        c = (char)(c - 'A' + 'a');
    at = c ? strchr(hex_digits, c) : NULL;
    return at ? (int)(at - hex_digits) : -1;
}

/* Decodes the text up to `end` into at most `most` bytes and a final 0. `what` names the field in errors. */
static enum rdt_status get_escaped(const char *text, const char *end, char *out, size_t most, size_t *n_p, const char *what,
                                   struct rdt_error *err)
{
    size_t n = 0;

    while (text < end) {
        char c = *text++;

        if (c == '%') {
            int high = text < end ? hex_value(text[0]) : -1;
            int low = high >= 0 && text + 1 < end ? hex_value(text[1]) : -1;

            if (low < 0)
                return rdt_error_set(err, RDT_INVALID, "the ref's %s has a %% without two hex digits", what);
            c = (char)(high << 4 | low);
            text += 2;
        }
        if (n == most)
            return rdt_error_set(err, RDT_INVALID, "the ref's %s is longer than %zu bytes", what, most);
        out[n++] = c;
    }
    if (n == 0)
        return rdt_error_set(err, RDT_INVALID, "the ref's %s is empty", what);
    out[n] = '\0';
    *n_p = n;
    return RDT_OK;
}

static enum rdt_status get_string(const char *text, const char *end, char *out, size_t most, const char *what,
                                  struct rdt_error *err)
{
    size_t n;
    enum rdt_status status = get_escaped(text, end, out, most, &n, what, err);

    if (status == RDT_OK && strlen(out) != n)
        status = rdt_error_set(err, RDT_INVALID, "the ref's %s has a zero byte in it", what);
    return status;
}

static enum rdt_status get_number(const char *text, const char *end, uint64_t most, uint64_t *number_p, const char *what,
                                  struct rdt_error *err)
{
    uint64_t number = 0;
    bool good = text < end;

    for (; good && text < end; text++) {
        good = *text >= '0' && *text <= '9' && !__builtin_mul_overflow(number, 10u, &number) &&
               !__builtin_add_overflow(number, (unsigned)(*text - '0'), &number);
    }
    if (!good || number > most)
        return rdt_error_set(err, RDT_INVALID, "the ref's %s is not a number up to %" PRIu64, what, most);
    *number_p = number;
    return RDT_OK;
}

/* Reads one NAME=VALUE after the id. `seen` collects a bit for each name. */
static enum rdt_status get_parameter(const char *text, const char *end, struct rdt_ref *ref, unsigned *seen,
                                     struct rdt_error *err)
{
    static const char names[] = "gautv";
    const char *value = text + 2;
    const char *name = end - text >= 2 && text[0] != '\0' && text[1] == '=' ? strchr(names, text[0]) : NULL;
    enum rdt_status status = RDT_OK;
    uint64_t number = 0;
    unsigned bit;

    if (!name)
        return rdt_error_set(err, RDT_INVALID, "the ref has an unknown field \"%.*s\"",
                             end - text < 32 ? (int)(end - text) : 32, text);
    bit = 1u << (name - names);
    if (*seen & bit)
        return rdt_error_set(err, RDT_INVALID, "the ref has \"%c=\" twice", *name);
    *seen |= bit;
    switch (*name) {
    case 'g':
        status = get_number(value, end, UINT64_MAX, &ref->generation, "generation", err);
        break;
    case 'a':
        status = get_string(value, end, ref->address, ADDRESS_MAX_BYTES, "address", err);
        break;
    case 'u':
        status = get_number(value, end, UINT32_MAX, &number, "uid", err);
        ref->uid = (uint32_t)number;
        ref->any_owner = 0;
        break;
    case 'v':
        status = get_number(value, end, UINT64_MAX, &ref->after, "version", err);
        ref->is_name = 1;
        break;
    case 't':
        status = get_string(value, end, ref->tenant, TENANT_MAX_BYTES, "tenant", err);
        break;
    }
    return status;
}

enum rdt_status rdt_ref_from_text(const char *text, struct rdt_ref *ref_p, struct rdt_error *err)
{
    struct rdt_ref ref = {.any_owner = 1};
    const char *at = text + sizeof TEXT_SCHEME - 1, *end;
    enum rdt_status status;
    unsigned seen = 0;
    size_t n;

    if (!ref_p)
        return no_place(err);
    if (strncmp(text, TEXT_SCHEME, sizeof TEXT_SCHEME - 1) != 0)
        return rdt_ref_from_id(text, strlen(text), ref_p, err);

    for (size_t i = 0; i < sizeof ref.node; i++, at += 2) {
        int high = hex_value(at[0]);
        int low = high >= 0 ? hex_value(at[1]) : -1;

        if (low < 0)
            return rdt_error_set(err, RDT_INVALID, "the ref's node is not 32 hex digits");
        ref.node[i] = (uint8_t)(high << 4 | low);
    }
    if (*at++ != '/')
        return rdt_error_set(err, RDT_INVALID, "the ref's node is not followed by a /");
    end = at + strcspn(at, "?");
    status = get_escaped(at, end, ref.id, ID_MAX_BYTES, &n, "id", err);
    if (status != RDT_OK)
        return status;
    ref.id_bytes = (uint8_t)n;
    while (*end != '\0') {
        at = end + 1;
        end = at + strcspn(at, "&");
        status = get_parameter(at, end, &ref, &seen, err);
        if (status != RDT_OK)
            return status;
    }
    if (ref.any_owner && ref.tenant[0] != '\0')
        return rdt_error_set(err, RDT_INVALID, "the ref has a tenant but no uid");
    if (ref.is_name && ref.generation != 0)
        return rdt_error_set(err, RDT_INVALID, "the ref has both the generation of an object and the version of a name");
    *ref_p = ref;
    return RDT_OK;
}

/* ---- as bytes ----
 *
 *   | version 1 | node 16 | generation, or after 8 | uid 4 | any_owner 1 | lengths: id 1, address 1, tenant 1 |
 *   | id | address | tenant |
 *
 * Numbers are little-endian. The version says whether the ref is of an object or of a name.
 */

size_t rdt_ref_pack(const struct rdt_ref *ref, uint8_t *packed_p)
{
    size_t id = id_length(ref), address = address_length(ref), tenant = tenant_length(ref);
    uint8_t *out = packed_p + PACKED_FIXED_BYTES;

    packed_p[0] = ref->is_name ? PACKED_VERSION_NAME : PACKED_VERSION;
    memcpy(packed_p + 1, ref->node, sizeof ref->node);
    put_le(packed_p + 17, ref->is_name ? ref->after : ref->generation, 8);
    put_le(packed_p + 25, ref->any_owner ? 0 : ref->uid, 4);
    packed_p[29] = ref->any_owner ? 1 : 0;
    packed_p[30] = (uint8_t)id;
    packed_p[31] = (uint8_t)address;
    packed_p[32] = (uint8_t)tenant;
    memcpy(out, ref->id, id);
    memcpy(out + id, ref->address, address);
    memcpy(out + id + address, ref->tenant, tenant);
    return PACKED_FIXED_BYTES + id + address + tenant;
}

enum rdt_status rdt_ref_unpack(const void *packed, size_t bytes, struct rdt_ref *ref_p, struct rdt_error *err)
{
    const uint8_t *in = packed, *fields = in + PACKED_FIXED_BYTES;
    struct rdt_ref ref = {0};
    size_t id, address, tenant;

    if (!ref_p)
        return no_place(err);
    if (bytes < PACKED_FIXED_BYTES)
        return rdt_error_set(err, RDT_INVALID, "%zu bytes are too few for a ref", bytes);
    if (in[0] != PACKED_VERSION && in[0] != PACKED_VERSION_NAME)
        return rdt_error_set(err, RDT_INVALID, "the ref has version %u, which this version of rdtd does not know", in[0]);
    id = in[30];
    address = in[31];
    tenant = in[32];
    if (id == 0 || id > ID_MAX_BYTES)
        return rdt_error_set(err, RDT_INVALID, "the ref's id has %zu bytes: it must have 1 to %zu", id, ID_MAX_BYTES);
    if (address > ADDRESS_MAX_BYTES)
        return rdt_error_set(err, RDT_INVALID, "the ref's address has %zu bytes: at most %zu are allowed", address,
                             ADDRESS_MAX_BYTES);
    if (tenant > TENANT_MAX_BYTES)
        return rdt_error_set(err, RDT_INVALID, "the ref's tenant has %zu bytes: at most %zu are allowed", tenant,
                             TENANT_MAX_BYTES);
    if (bytes != PACKED_FIXED_BYTES + id + address + tenant)
        return rdt_error_set(err, RDT_INVALID, "the ref has %zu bytes, but its fields have %zu", bytes,
                             PACKED_FIXED_BYTES + id + address + tenant);
    if (memchr(fields + id, 0, address + tenant))
        return rdt_error_set(err, RDT_INVALID, "the ref's address or tenant has a zero byte in it");
    if (in[29] > 1 || (in[29] == 1 && (tenant > 0 || get_le(in + 25, 4) != 0)))
        return rdt_error_set(err, RDT_INVALID, "the ref has an owner, and also says that its owner may be any");

    memcpy(ref.node, in + 1, sizeof ref.node);
    ref.is_name = in[0] == PACKED_VERSION_NAME;
    *(ref.is_name ? &ref.after : &ref.generation) = get_le(in + 17, 8);
    ref.uid = (uint32_t)get_le(in + 25, 4);
    ref.any_owner = in[29];
    ref.id_bytes = (uint8_t)id;
    memcpy(ref.id, fields, id);
    memcpy(ref.address, fields + id, address);
    memcpy(ref.tenant, fields + id + address, tenant);
    *ref_p = ref;
    return RDT_OK;
}
