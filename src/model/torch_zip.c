/* SPDX-License-Identifier: Apache-2.0
 *
 * A ZIP archive ends with a record that says where its directory is; the directory has a record
 * for each member, and each member begins with a header of its own. Source: APPNOTE.TXT of PKWARE.
 * PyTorch (1.6 and later) writes, without compression,
 *
 *   NAME/data.pkl      the pickle: a dictionary from names to tensors
 *   NAME/data/0 ...    the storages, which the pickle names by number
 *   NAME/byteorder     "little" (newer versions)
 *
 * A tensor is a call in the pickle:
 *
 *   _rebuild_tensor_v2(storage, first element, shape, strides, ...)
 *   storage: ("storage", torch.FloatStorage, "0", "cpu", number of elements) */
#include "model/torch_zip.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/pickle.h"

#define END_BYTES     22    /* of the last record, without its comment */
#define COMMENT_MAX   65535 /* bytes that may follow it */
#define LOCATOR_BYTES 20    /* of the record before it in large archives */
#define END64_BYTES   56
#define ENTRY_BYTES   46 /* of a directory's record, without its name */
#define HEADER_BYTES  30 /* of a member's header, without its name */
#define MEMBERS_MAX   1000000
#define FOLDER_MAX    256 /* of NAME/, which is a file's name: NAME_MAX of Linux, and the slash */
#define DIGITS_MAX    20  /* of a storage's number */
#define BESIDE_MAX    32  /* of a name beside the pickle: "byteorder", "data/", a number */

#define CONVERT                                                        \
    "; convert it: python3 -c 'import torch, safetensors.torch as s; " \
    "s.save_file({k: v.contiguous() for k, v in "                      \
    "torch.load(\"pytorch_model.bin\", weights_only=True).items()}, "  \
    "\"model.safetensors\")'"

struct member {
    const char *name; /* in the file, not NUL-terminated */
    size_t name_len;
    const uint8_t *data;
    size_t bytes;
};

struct archive {
    struct arena *arena;
    const uint8_t *bytes;
    size_t len;
    struct member *members; /* [n], sorted by name */
    size_t n;
    char *why;
    size_t why_cap;
};

/* Write the reason for an error. Returns rc. */
__attribute__((format(printf, 3, 4))) static int torch_zip_refuse(const struct archive *a, int rc,
                                                                  const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vsnprintf(a->why, a->why_cap, format, args); /* cut is fine */
    va_end(args);
    return rc;
}

static uint64_t torch_zip_number(const uint8_t *at, size_t n)
{
    uint64_t value = 0;

    for (size_t i = 0; i < n; i++)
        value |= (uint64_t)at[i] << (8 * i);
    return value;
}

/* n bytes at an offset of the file; NULL if they are not there. */
static const uint8_t *torch_zip_at(const struct archive *a, uint64_t at, size_t n)
{
    if (at > a->len || n > a->len - at)
        return NULL;
    return a->bytes + at;
}

static bool torch_zip_is(const uint8_t *at, const char *signature)
{
    return at != NULL && memcmp(at, signature, 4) == 0;
}

/* --- the directory ---------------------------------------------------------------------- */

struct directory {
    uint64_t n, bytes, at;
};

/* The record at the end, which a comment may follow, or the larger one that it points to. */
static int torch_zip_find_directory(const struct archive *a, struct directory *d)
{
    size_t back = END_BYTES;
    const uint8_t *end, *locator, *large;

    while (back <= a->len && back <= END_BYTES + COMMENT_MAX &&
           !torch_zip_is(a->bytes + a->len - back, "PK\5\6"))
        back++;
    if (back > a->len || back > END_BYTES + COMMENT_MAX)
        return torch_zip_refuse(a, ERR_CORRUPT, "the archive has no end: is it cut short?");
    end = a->bytes + a->len - back;
    *d = (struct directory){torch_zip_number(end + 10, 2), torch_zip_number(end + 12, 4),
                            torch_zip_number(end + 16, 4)};
    if (a->len - back < LOCATOR_BYTES)
        return ERR_OK;
    locator = end - LOCATOR_BYTES;
    if (!torch_zip_is(locator, "PK\6\7"))
        return ERR_OK;
    large = torch_zip_at(a, torch_zip_number(locator + 8, 8), END64_BYTES);
    if (!torch_zip_is(large, "PK\6\6"))
        return torch_zip_refuse(a, ERR_CORRUPT, "the archive's end points to nothing");
    *d = (struct directory){torch_zip_number(large + 32, 8), torch_zip_number(large + 40, 8),
                            torch_zip_number(large + 48, 8)};
    return ERR_OK;
}

/* Numbers of an entry that do not fit 32 bits are in its field with id 1, in this order. */
static int torch_zip_read_large(const struct archive *a, const uint8_t *fields, size_t len,
                                uint64_t *const (*numbers)[3])
{
    while (len >= 4) {
        uint64_t id = torch_zip_number(fields, 2), n = torch_zip_number(fields + 2, 2);
        size_t at = 0;

        if (n > len - 4)
            break;
        for (int i = 0; i < 3 && id == 1; i++) {
            if (*(*numbers)[i] != UINT32_MAX)
                continue;
            if (n - at < 8)
                return torch_zip_refuse(a, ERR_CORRUPT, "a member's sizes are cut short");
            *(*numbers)[i] = torch_zip_number(fields + 4 + at, 8);
            at += 8;
        }
        fields += 4 + n;
        len -= 4 + (size_t)n;
    }
    return ERR_OK;
}

/* Read the directory's record at *at, and advance *at. */
static int torch_zip_read_member(const struct archive *a, struct member *m, uint64_t *at)
{
    const uint8_t *entry = torch_zip_at(a, *at, ENTRY_BYTES), *header;
    uint64_t packed, bytes, offset;
    uint64_t *const large[3] = {&bytes, &packed, &offset};
    size_t name_len, fields_len, comment_len;
    int rc;

    if (!torch_zip_is(entry, "PK\1\2"))
        return torch_zip_refuse(a, ERR_CORRUPT, "the archive's directory is damaged");
    packed = torch_zip_number(entry + 20, 4);
    bytes = torch_zip_number(entry + 24, 4);
    offset = torch_zip_number(entry + 42, 4);
    name_len = (size_t)torch_zip_number(entry + 28, 2);
    fields_len = (size_t)torch_zip_number(entry + 30, 2);
    comment_len = (size_t)torch_zip_number(entry + 32, 2);
    if (torch_zip_at(a, *at, ENTRY_BYTES + name_len + fields_len + comment_len) == NULL)
        return torch_zip_refuse(a, ERR_CORRUPT, "the archive's directory is cut short");
    *at += ENTRY_BYTES + name_len + fields_len + comment_len;
    rc = torch_zip_read_large(a, entry + ENTRY_BYTES + name_len, fields_len, &large);
    if (rc != ERR_OK)
        return rc;
    m->name = (const char *)entry + ENTRY_BYTES;
    m->name_len = name_len;
    if (torch_zip_number(entry + 10, 2) != 0 || packed != bytes || (entry[8] & 1) != 0)
        return torch_zip_refuse(a, ERR_CORRUPT, "member %.*s is compressed or encrypted",
                                (int)(name_len < 100 ? name_len : 100), m->name);
    header = torch_zip_at(a, offset, HEADER_BYTES);
    if (!torch_zip_is(header, "PK\3\4"))
        return torch_zip_refuse(a, ERR_CORRUPT, "member %.*s has no header",
                                (int)(name_len < 100 ? name_len : 100), m->name);
    offset += HEADER_BYTES + torch_zip_number(header + 26, 2) + torch_zip_number(header + 28, 2);
    m->bytes = (size_t)bytes;
    if ((m->data = torch_zip_at(a, offset, m->bytes)) == NULL)
        return torch_zip_refuse(a, ERR_CORRUPT, "member %.*s lies outside the file",
                                (int)(name_len < 100 ? name_len : 100), m->name);
    return ERR_OK;
}

static int torch_zip_by_name(const void *a, const void *b)
{
    const struct member *first = a, *second = b;
    size_t n = first->name_len < second->name_len ? first->name_len : second->name_len;
    int order = memcmp(first->name, second->name, n);

    if (order != 0)
        return order;
    return (first->name_len > second->name_len) - (first->name_len < second->name_len);
}

static int torch_zip_read_directory(struct archive *a)
{
    struct directory d = {0, 0, 0};
    uint64_t at;
    int rc = torch_zip_find_directory(a, &d);

    if (rc != ERR_OK)
        return rc;
    if (d.n > MEMBERS_MAX || d.n > a->len / ENTRY_BYTES)
        return torch_zip_refuse(a, ERR_CORRUPT, "the archive claims %llu members",
                                (unsigned long long)d.n);
    a->members = arena_zalloc(a->arena, ((size_t)d.n + 1) * sizeof *a->members);
    if (a->members == NULL)
        return torch_zip_refuse(a, ERR_NO_MEMORY, "no memory for the archive's directory");
    at = d.at;
    for (a->n = 0; a->n < d.n; a->n++) {
        if ((rc = torch_zip_read_member(a, &a->members[a->n], &at)) != ERR_OK)
            return rc;
    }
    qsort(a->members, a->n, sizeof *a->members, torch_zip_by_name);
    for (size_t i = 1; i < a->n; i++) {
        const struct member *m = &a->members[i];

        if (torch_zip_by_name(m - 1, m) == 0)
            return torch_zip_refuse(a, ERR_CORRUPT, "the archive has two members %.*s",
                                    (int)(m->name_len < 100 ? m->name_len : 100), m->name);
    }
    return ERR_OK;
}

/* --- members ---------------------------------------------------------------------------- */

static const struct member *torch_zip_find(const struct archive *a, const char *name, size_t len)
{
    struct member key = {.name = name, .name_len = len};

    return bsearch(&key, a->members, a->n, sizeof key, torch_zip_by_name);
}

/* The member NAME/data.pkl, of which there must be one. */
static int torch_zip_find_pickle(const struct archive *a, const struct member **out)
{
    static const char name[] = "/data.pkl";
    const struct member *found = NULL;
    int n = 0;

    for (size_t i = 0; i < a->n; i++) {
        const struct member *m = &a->members[i];

        if (m->name_len < sizeof name ||
            memcmp(m->name + m->name_len - (sizeof name - 1), name, sizeof name - 1) != 0)
            continue;
        found = m;
        n++;
    }
    if (n != 1)
        return torch_zip_refuse(a, ERR_CORRUPT, "the archive does not have one data.pkl");
    if (found->name_len - strlen("data.pkl") > FOLDER_MAX)
        return torch_zip_refuse(a, ERR_CORRUPT, "the archive's folder has a name of %zu bytes",
                                found->name_len - strlen("/data.pkl"));
    *out = found;
    return ERR_OK;
}

/* The member `name`, of less than BESIDE_MAX bytes, in the pickle's folder. */
static const struct member *torch_zip_find_beside(const struct archive *a,
                                                  const struct member *pickle, const char *name)
{
    size_t folder = pickle->name_len - strlen("data.pkl"), len = strlen(name);
    char whole[FOLDER_MAX + BESIDE_MAX];

    memcpy(whole, pickle->name, folder);
    memcpy(whole + folder, name, len);
    return torch_zip_find(a, whole, folder + len);
}

/* --- tensors ---------------------------------------------------------------------------- */

static const struct {
    const char *storage, *dtype;
    size_t bytes;
} types[] = {{"torch.FloatStorage", "F32", 4},     {"torch.HalfStorage", "F16", 2},
             {"torch.BFloat16Storage", "BF16", 2}, {"torch.DoubleStorage", "F64", 8},
             {"torch.LongStorage", "I64", 8},      {"torch.IntStorage", "I32", 4},
             {"torch.ShortStorage", "I16", 2},     {"torch.CharStorage", "I8", 1},
             {"torch.ByteStorage", "U8", 1},       {"torch.BoolStorage", "BOOL", 1}};

static bool torch_zip_is_kind(const struct pickle *list, uint32_t idx, enum pickle_kind kind)
{
    return idx < list->n && list->items[idx]->kind == kind;
}

/* Set type, data and the number of elements of a tensor's storage. */
static int torch_zip_read_storage(const struct archive *a, const struct member *pickle,
                                  struct tensor *t, const struct pickle *id, size_t *elem_bytes,
                                  uint64_t *n_elems)
{
    char name[BESIDE_MAX];
    const struct member *data = NULL;

    if (id->kind != PICKLE_ID || !torch_zip_is_kind(id, 1, PICKLE_NAME) ||
        !torch_zip_is_kind(id, 2, PICKLE_TEXT) || !torch_zip_is_kind(id, 4, PICKLE_INT) ||
        id->items[4]->whole < 0)
        return torch_zip_refuse(a, ERR_CORRUPT, "tensor %.100s has no storage", t->name);
    *elem_bytes = 0;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (strcmp(types[i].storage, id->items[1]->text) != 0)
            continue;
        t->dtype = types[i].dtype;
        *elem_bytes = types[i].bytes;
    }
    if (*elem_bytes == 0)
        return torch_zip_refuse(a, ERR_CORRUPT, "tensor %.100s has no storage", t->name);
    (void)snprintf(name, sizeof name, "data/%.*s", DIGITS_MAX, id->items[2]->text);
    if (strlen(id->items[2]->text) <= DIGITS_MAX)
        data = torch_zip_find_beside(a, pickle, name);
    *n_elems = (uint64_t)id->items[4]->whole;
    if (data == NULL || *n_elems > data->bytes / *elem_bytes)
        return torch_zip_refuse(a, ERR_CORRUPT, "the storage of tensor %.100s is %s", t->name,
                                data == NULL ? "missing" : "cut short");
    t->data = data->data;
    return ERR_OK;
}

/* Read the shape, and check that the strides are those of rows one after another. *n gets the
 * number of elements. */
static int torch_zip_read_shape(const struct archive *a, struct tensor *t,
                                const struct pickle *shape, const struct pickle *strides,
                                uint64_t *n)
{
    if (shape->n > TENSOR_DIMS_MAX)
        return torch_zip_refuse(a, ERR_UNSUPPORTED, "tensor %.100s has %u dimensions", t->name,
                                shape->n);
    t->n_dims = (int)shape->n;
    *n = 1;
    for (uint32_t i = shape->n; i-- > 0;) {
        if (!torch_zip_is_kind(shape, i, PICKLE_INT) ||
            !torch_zip_is_kind(strides, i, PICKLE_INT) || shape->items[i]->whole < 0)
            return torch_zip_refuse(a, ERR_CORRUPT, "tensor %.100s has no shape", t->name);
        t->dims[i] = shape->items[i]->whole;
        if (t->dims[i] > 1 && strides->items[i]->whole != (int64_t)*n && *n > 0)
            return torch_zip_refuse(a, ERR_UNSUPPORTED, "tensor %.100s is not contiguous" CONVERT,
                                    t->name);
        if (__builtin_mul_overflow(*n, (uint64_t)t->dims[i], n) || *n > INT64_MAX)
            return torch_zip_refuse(a, ERR_CORRUPT,
                                    "tensor %.100s: the product of its shape overflows", t->name);
    }
    return ERR_OK;
}

/* One entry of the dictionary. */
static int torch_zip_read_tensor(const struct archive *a, const struct member *pickle,
                                 struct tensor *t, const struct pickle *call)
{
    uint64_t n_stored = 0, n = 0, first;
    size_t elem_bytes = 0;
    int rc;

    if (call->kind == PICKLE_CALL && strcmp(call->text, "torch._utils._rebuild_parameter") == 0 &&
        call->n > 0)
        call = call->items[0];
    if (call->kind != PICKLE_CALL || strcmp(call->text, "torch._utils._rebuild_tensor_v2") != 0)
        return torch_zip_refuse(a, ERR_UNSUPPORTED,
                                "%.100s is no tensor: is this a checkpoint of a training?",
                                t->name);
    if (call->n < 4 || !torch_zip_is_kind(call, 1, PICKLE_INT) || call->items[1]->whole < 0 ||
        !torch_zip_is_kind(call, 2, PICKLE_LIST) || !torch_zip_is_kind(call, 3, PICKLE_LIST))
        return torch_zip_refuse(a, ERR_CORRUPT, "tensor %.100s has no shape", t->name);
    rc = torch_zip_read_storage(a, pickle, t, call->items[0], &elem_bytes, &n_stored);
    if (rc == ERR_OK)
        rc = torch_zip_read_shape(a, t, call->items[2], call->items[3], &n);
    if (rc != ERR_OK)
        return rc;
    first = (uint64_t)call->items[1]->whole;
    if (first > n_stored || n > n_stored - first)
        return torch_zip_refuse(a, ERR_CORRUPT, "tensor %.100s lies outside its storage", t->name);
    t->data += (size_t)first * elem_bytes;
    t->bytes = (size_t)n * elem_bytes;
    return ERR_OK;
}

/* --- the file --------------------------------------------------------------------------- */

static int torch_zip_list(const struct archive *a, struct tensor_list *out,
                          const struct member *pickle, const struct pickle *dict)
{
    struct tensor *tensors = arena_zalloc(a->arena, (dict->n / 2 + 1) * sizeof *tensors);
    int rc;

    if (tensors == NULL)
        return torch_zip_refuse(a, ERR_NO_MEMORY, "no memory for %u tensors", dict->n / 2);
    for (uint32_t i = 0; i + 1 < dict->n; i += 2) {
        if (dict->items[i]->kind != PICKLE_TEXT)
            return torch_zip_refuse(a, ERR_CORRUPT, "a tensor's name is no text");
        tensors[i / 2].name = dict->items[i]->text;
        rc = torch_zip_read_tensor(a, pickle, &tensors[i / 2], dict->items[i + 1]);
        if (rc != ERR_OK)
            return rc;
    }
    *out = (struct tensor_list){tensors, dict->n / 2};
    return ERR_OK;
}

int torch_zip_parse(struct tensor_list *out, struct arena *arena, const uint8_t *bytes, size_t len,
                    char *why, size_t why_cap)
{
    struct archive a = {.arena = arena, .bytes = bytes, .len = len, .why = why, .why_cap = why_cap};
    const struct member *pickle = NULL, *order;
    const struct pickle *dict = NULL;
    char reason[200] = "";
    int rc;

    if (len < 4 || !torch_zip_is(bytes, "PK\3\4"))
        return torch_zip_refuse(&a, ERR_UNSUPPORTED,
                                "it is cut short, or in the format of PyTorch before 1.6" CONVERT);
    if ((rc = torch_zip_read_directory(&a)) != ERR_OK ||
        (rc = torch_zip_find_pickle(&a, &pickle)) != ERR_OK)
        return rc;
    order = torch_zip_find_beside(&a, pickle, "byteorder");
    if (order != NULL && (order->bytes != 6 || memcmp(order->data, "little", 6) != 0))
        return torch_zip_refuse(&a, ERR_UNSUPPORTED, "its numbers are not little-endian" CONVERT);
    rc = pickle_parse(&dict, arena, pickle->data, pickle->bytes, reason, sizeof reason);
    if (rc != ERR_OK)
        return torch_zip_refuse(&a, rc, "its pickle: %s", reason);
    if (dict->kind != PICKLE_DICT)
        return torch_zip_refuse(&a, ERR_UNSUPPORTED, "its pickle is no dictionary of tensors");
    return torch_zip_list(&a, out, pickle, dict);
}
