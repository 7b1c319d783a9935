/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of schemas: $id, $anchor, JSON pointers, and the resolution of $ref.
 *
 * One pass over the document records each $id and $anchor under its absolute URI and, for every
 * object below an $id, its base URI. Nothing is ever fetched from the network. */
#include <stdio.h>
#include <string.h>

#include "base/hex.h"
#include "base/must.h"
#include "grammar/schema_parts.h"

/* An element of the stack of the pass. */
struct visit {
    const struct json *node;
    const char *base;
};

/* Resolve `ref` against `base`, without fragment. Enough of RFC 3986 for names that are never
 * fetched. */
static const char *schema_uri_join(struct schema *schema, const char *base, const char *ref,
                                   size_t ref_len)
{
    size_t keep = 0;
    const char *scheme = strstr(base, "://");
    const char *host = scheme == NULL ? NULL : strchr(scheme + 3, '/');
    const char *slash = strrchr(base, '/');
    const char *colon = memchr(ref, ':', ref_len);
    const char *stop = memchr(ref, '/', ref_len);
    char *out = compile_alloc(schema->c, strlen(base) + ref_len + 2);

    if (out == NULL)
        return "";
    if (ref_len == 0)
        keep = strlen(base);
    else if (colon != NULL && (stop == NULL || colon < stop))
        keep = 0; /* absolute */
    else if (ref[0] == '/') {
        if (host != NULL)
            keep = (size_t)(host - base);
        else if (scheme != NULL)
            keep = strlen(base);
        else
            keep = 0;
    } else if (slash != NULL && (scheme == NULL || slash > scheme + 2))
        keep = (size_t)(slash - base) + 1;
    memcpy(out, base, keep);
    memcpy(out + keep, ref, ref_len);
    return out;
}

/* Record a name of a schema. */
static void schema_place_add(struct schema *schema, const char *uri, size_t len,
                             const struct json *node)
{
    if (LIST_ADD(schema->c, &schema->places))
        schema->places.items[schema->places.n - 1] = (struct schema_place){uri, len, node};
}

/* Record the names of one object, and return its base URI: a new one if it has an $id. */
static const char *schema_note_names(struct schema *schema, const struct json *node,
                                     const char *base)
{
    const struct json *id = json_get_kind(node, "$id", JSON_TEXT);
    const struct json *anchor = json_get_kind(node, "$anchor", JSON_TEXT);
    const struct json *dynamic = json_get_kind(node, "$dynamicAnchor", JSON_TEXT);
    const struct json *names[2] = {anchor, dynamic};
    int i;

    if (id == NULL && schema->ref_alone)
        id = json_get_kind(node, "id", JSON_TEXT); /* draft-04 */
    if (id != NULL && !(schema->ref_alone && json_get(node, "$ref") != NULL)) {
        const char *hash = memchr(id->text, '#', id->text_len);
        size_t len = hash == NULL ? id->text_len : (size_t)(hash - id->text);

        if (len > 0) {
            base = schema_uri_join(schema, base, id->text, len);
            schema_place_add(schema, base, strlen(base), node);
        }
        if (hash != NULL && hash[1] != '\0') { /* an anchor, as draft-07 writes it */
            char *uri = compile_alloc(schema->c, strlen(base) + strlen(hash) + 1);

            if (uri != NULL) {
                (void)snprintf(uri, strlen(base) + strlen(hash) + 1, "%s%s", base, hash);
                schema_place_add(schema, uri, strlen(uri), node);
            }
        }
    }
    for (i = 0; i < 2; i++)
        if (names[i] != NULL) {
            size_t cap = strlen(base) + names[i]->text_len + 2;
            char *uri = compile_alloc(schema->c, cap);

            if (uri == NULL)
                return base;
            (void)snprintf(uri, cap, "%s#%s", base, names[i]->text);
            schema_place_add(schema, uri, strlen(uri), node);
        }
    return base;
}

/* Check "$schema". The metaschema defines the meaning of keywords, and one that is not known may
 * omit half of them. It applies to the root and to schemas with a name of their own. */
static void schema_check_dialect(struct schema *schema, const struct json *node)
{
    const struct json *dialect = json_get_kind(node, "$schema", JSON_TEXT);

    if (dialect == NULL ||
        (node != schema->root && json_get_kind(node, "$id", JSON_TEXT) == NULL) ||
        strstr(dialect->text, "json-schema.org") != NULL ||
        strstr(dialect->text, "spec.openapis.org/oas/3.1/") != NULL)
        return;
    schema->c->at = dialect;
    compile_fail(schema->c, ERR_UNSUPPORTED, "this \"$schema\" is not supported");
}

/* Keywords whose values are data, not schemas: names in them do not count. */
static bool schema_holds_values(const char *key)
{
    return strcmp(key, "enum") == 0 || strcmp(key, "const") == 0 || strcmp(key, "default") == 0 ||
           strcmp(key, "examples") == 0 || strcmp(key, "example") == 0;
}

/* Refuse NUL in keywords whose value is compared as a C string. */
static void schema_check_name(struct schema *schema, const struct json *value)
{
    static const char *const names[] = {"$ref",           "$id",     "id",    "$anchor",
                                        "$dynamicAnchor", "$schema", "format"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(value->key, names[i]) == 0 && json_has_nul(value)) {
            schema->c->at = value;
            compile_fail(schema->c, ERR_INVALID, "\"%s\" must not hold \\u0000", names[i]);
        }
}

void schema_index_add(struct schema *schema)
{
    LIST(struct visit) stack = {0};
    const struct json *draft = json_get_kind(schema->root, "$schema", JSON_TEXT);

    /* The draft decides how a $ref is read. Without $schema the latest draft is assumed. */
    schema->ref_alone =
        draft != NULL &&
        (strstr(draft->text, "draft-07") != NULL || strstr(draft->text, "draft-06") != NULL ||
         strstr(draft->text, "draft-04") != NULL || strstr(draft->text, "draft-03") != NULL);
    schema_place_add(schema, "", 0, schema->root);
    if (LIST_ADD(schema->c, &stack))
        stack.items[0] = (struct visit){schema->root, ""};
    while (stack.n > 0 && compile_tick(schema->c)) { /* each node is pushed once */
        struct visit v = stack.items[--stack.n];
        uint32_t i;

        if (v.node->kind == JSON_OBJECT) {
            schema_check_dialect(schema, v.node);
            v.base = schema_note_names(schema, v.node, v.base);
            if (v.base[0] != '\0' && LIST_ADD(schema->c, &schema->bases))
                schema->bases.items[schema->bases.n - 1] = (struct based){v.node, v.base};
        } else if (v.node->kind != JSON_LIST) {
            continue;
        }
        /* Children are pushed in reverse order, so they are visited in the order of the
         * document. */
        for (i = v.node->n; i-- > 0;) {
            const struct json *child = &v.node->items[i];

            /* Values of "enum", "const" and the like are data. An "$id" in them is no name of a
             * schema. */
            if (v.node->kind == JSON_OBJECT && schema_holds_values(child->key))
                continue;
            if (v.node->kind == JSON_OBJECT && child->kind == JSON_TEXT)
                schema_check_name(schema, child);
            if ((child->kind == JSON_OBJECT || child->kind == JSON_LIST) &&
                LIST_ADD(schema->c, &stack))
                stack.items[stack.n - 1] = (struct visit){child, v.base};
        }
    }
}

/* The base URI of references in an object. */
static const char *schema_base_of(const struct schema *schema, const struct json *node)
{
    uint32_t i;

    for (i = 0; i < schema->bases.n; i++)
        if (schema->bases.items[i].node == node)
            return schema->bases.items[i].base;
    return "";
}

/* The schema with an absolute name; NULL: none. */
static const struct json *schema_place_find(const struct schema *schema, const char *uri,
                                            size_t len)
{
    uint32_t i;

    for (i = 0; i < schema->places.n; i++)
        if (schema->places.items[i].len == len &&
            memcmp(schema->places.items[i].uri, uri, len) == 0)
            return schema->places.items[i].node;
    return NULL;
}

/* Decode one token of a pointer: ~0, ~1 and %XX. Returns its length. out has room for len bytes. */
static size_t schema_token_read(const char *text, size_t len, char *out)
{
    size_t n = 0;
    size_t i;

    /* First pass: "%7E1" is the URI form of "~1". */
    for (i = 0; i < len; i++) {
        char ch = text[i];

        int64_t code = ch == '%' ? hex_number(text + i + 1, len - i - 1, 2) : -1;

        if (code >= 0) {
            ch = (char)code;
            i += 2;
        }
        out[n++] = ch;
    }
    /* Second pass, because the result of %XX may be part of a ~0 or ~1. "~01" is "~1" and not
     * "/". */
    for (i = 0, len = n, n = 0; i < len; i++) {
        if (out[i] == '~' && i + 1 < len && (out[i + 1] == '0' || out[i + 1] == '1'))
            out[n++] = out[++i] == '0' ? '~' : '/';
        else
            out[n++] = out[i];
    }
    return n;
}

/* Follow a JSON pointer, such as /properties/a/items/0. NULL when it leads nowhere. */
static const struct json *schema_pointer_follow(struct schema *schema, const struct json *node,
                                                const char *at)
{
    while (node != NULL && *at == '/' && compile_tick(schema->c)) {
        const char *end = strchr(++at, '/');
        size_t len = end == NULL ? strlen(at) : (size_t)(end - at);
        char *name = compile_alloc(schema->c, len + 1);
        size_t n, i;
        uint32_t number = 0;

        if (name == NULL)
            return NULL;
        n = schema_token_read(at, len, name);
        at += len;
        if (node->kind == JSON_OBJECT) {
            node = json_get_n(node, name, n);
            continue;
        }
        /* At most nine digits, so the number cannot overflow; a longer one leads nowhere. */
        for (i = 0; i < n && i < 9 && name[i] >= '0' && name[i] <= '9'; i++)
            number = number * 10 + (uint32_t)(name[i] - '0');
        if (node->kind == JSON_LIST && i == n && n > 0 && number < node->n)
            node = &node->items[number];
        else
            node = NULL;
    }
    if (*at == '\0')
        return node;
    return NULL;
}

/* Resolve the URI before '#', then the fragment: a pointer or an anchor. */
const struct json *schema_index_find(struct schema *schema, const struct json *from,
                                     const struct json *ref)
{
    const char *hash = memchr(ref->text, '#', ref->text_len);
    size_t len = hash == NULL ? ref->text_len : (size_t)(hash - ref->text);
    const char *uri = schema_uri_join(schema, schema_base_of(schema, from), ref->text, len);
    const struct json *node = schema_place_find(schema, uri, strlen(uri));
    char *whole;

    must(ref->kind == JSON_TEXT);
    /* A reference without a URI, "#/...", is one within the document, even if its base is
     * unknown. */
    if (node == NULL && len == 0)
        node = schema->root;
    /* The whole document, or no such document. */
    if (hash == NULL || hash[1] == '\0' || node == NULL || !compile_ok(schema->c))
        return node;
    /* "#/$defs/name" is a pointer: steps from the root of the document. */
    if (hash[1] == '/')
        return schema_pointer_follow(schema, node, hash + 1);
    /* "#name" is an anchor, which is entered in the table under its full URI. */
    whole = compile_alloc(schema->c, strlen(uri) + strlen(hash) + 1);
    if (whole == NULL)
        return NULL;
    (void)snprintf(whole, strlen(uri) + strlen(hash) + 1, "%s%s", uri, hash);
    return schema_place_find(schema, whole, strlen(whole));
}

/* --- the place of a node, for errors ------------------------------------------------------ */

/* Append a token of a pointer, with ~ and / escaped. */

/* Append a step of a JSON pointer: an index, or a name with '~' as ~0 and '/' as ~1 (RFC 6901). */
static size_t schema_add_token(char *out, size_t at, size_t cap, const struct json *node,
                               uint32_t i)
{
    size_t k;

    /* An item of a list has its index as the step. */
    if (node->kind == JSON_LIST)
        return at + (size_t)snprintf(out + at, cap - at, "/%u", i);
    if (at + 1 < cap)
        out[at++] = '/';
    /* The loop stops two bytes before the end: a character may become two, and the NUL needs
     * one. */
    for (k = 0; k < node->items[i].key_len && at + 2 < cap; k++) {
        char ch = node->items[i].key[k];

        /* ~ becomes ~0, and / becomes ~1. */
        if (ch == '~' || ch == '/') {
            out[at++] = '~';
            if (ch == '~')
                ch = '0';
            else
                ch = '1';
        }
        out[at++] = ch;
    }
    out[at] = '\0';
    return at;
}

/* Search depth first, at most JSON_DEPTH_MAX deep, and write the path to the node. */
void schema_index_pointer(const struct json *root, const void *node, char *out, size_t cap)
{
    const struct json *path[JSON_DEPTH_MAX + 2];
    uint32_t next[JSON_DEPTH_MAX + 2];
    int depth = 0;
    size_t at = 0;
    int i;

    must(out != NULL && cap > 0);
    out[0] = '\0';
    path[0] = root;
    next[0] = 0;
    /* path[] is the way from the root to the current node, and next[] the child to visit next at
     * each level. */
    while (depth >= 0 && path[depth] != node) {
        const struct json *here = path[depth];

        if ((here->kind == JSON_OBJECT || here->kind == JSON_LIST) && next[depth] < here->n) {
            path[depth + 1] = &here->items[next[depth]++];
            next[++depth] = 0;
        } else {
            depth--;
        }
    }
    /* next[i] is one more than the child that was taken. The path is cut where the room ends,
     * since it is for an error text only. */
    for (i = 0; i < depth && at + 16 < cap; i++)
        at = schema_add_token(out, at, cap, path[i], next[i] - 1);
}
