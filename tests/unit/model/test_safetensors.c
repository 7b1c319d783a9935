/* SPDX-License-Identifier: Apache-2.0
 *
 * Safetensors headers, true and false: every rule broken once, then thousands of random cuts and
 * flips, which must be refused or read, never crash. */
#include "model/safetensors.h"
#include "tests/tap.h"

static uint8_t file[4096];
static char why[300];
static size_t n_read;

/* A file of this header and n bytes of data. */
static size_t make(const char *header, size_t n_data)
{
    size_t n = strlen(header);

    memset(file, 0, sizeof file);
    for (int i = 0; i < 8; i++)
        file[i] = (uint8_t)((uint64_t)n >> (8 * i));
    memcpy(file + 8, header, n);
    return 8 + n + n_data;
}

static int parse(size_t len)
{
    struct arena arena = {.limit_bytes = 1 << 20};
    struct tensor_list list = {NULL, 0};
    int rc;

    why[0] = '\0';
    rc = safetensors_parse(&list, &arena, file, len, why, sizeof why);
    n_read = list.n;
    if (rc == ERR_OK) {
        for (size_t i = 0; i < list.n; i++) {
            if (list.tensors[i].data < file ||
                list.tensors[i].data + list.tensors[i].bytes > file + len)
                rc = ERR_INTERNAL;
        }
    }
    arena_reset(&arena);
    return rc;
}

#define T(name, dtype, shape, offsets) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static const struct {
    const char *what, *header;
    size_t n_data;
    int rc;
} rows[] = {
    {"one tensor", "{" T("a", "F32", "[2,3]", "[0,24]") "}", 24, ERR_OK},
    {"metadata and spaces",
     "{\"__metadata__\":{\"format\":\"pt\"}," T("a", "BF16", "[4]", "[0,8]") "}   ", 8, ERR_OK},
    {"two, out of order", "{" T("b", "F16", "[2]", "[4,8]") "," T("a", "U8", "[4]", "[0,4]") "}", 8,
     ERR_OK},
    {"a scalar and an empty one",
     "{" T("s", "I64", "[]", "[0,8]") "," T("e", "F32", "[0,5]", "[8,8]") "}", 8, ERR_OK},
    {"no tensors", "{}", 0, ERR_OK},
    {"a hole", "{" T("a", "U8", "[2]", "[0,2]") "," T("b", "U8", "[2]", "[4,6]") "}", 6,
     ERR_CORRUPT},
    {"a hole in front", "{" T("a", "U8", "[2]", "[2,4]") "}", 4, ERR_CORRUPT},
    {"an overlap", "{" T("a", "U8", "[4]", "[0,4]") "," T("b", "U8", "[4]", "[2,6]") "}", 6,
     ERR_CORRUPT},
    {"bytes behind", "{" T("a", "U8", "[2]", "[0,2]") "}", 3, ERR_CORRUPT},
    {"cut short", "{" T("a", "U8", "[2]", "[0,2]") "}", 1, ERR_CORRUPT},
    {"a size that lies", "{" T("a", "F32", "[2]", "[0,4]") "}", 4, ERR_CORRUPT},
    {"offsets turned", "{" T("a", "U8", "[2]", "[2,0]") "}", 2, ERR_CORRUPT},
    {"negative offsets", "{" T("a", "U8", "[2]", "[-2,0]") "}", 2, ERR_CORRUPT},
    {"offsets beyond 2^63", "{" T("a", "U8", "[2]", "[0,18446744073709551615]") "}", 2,
     ERR_CORRUPT},
    {"a negative shape", "{" T("a", "U8", "[-2]", "[0,2]") "}", 2, ERR_CORRUPT},
    {"a broken number", "{" T("a", "U8", "[2.0]", "[0,2]") "}", 2, ERR_CORRUPT},
    {"a product that overflows", "{" T("a", "F32", "[4294967296,4294967296,4]", "[0,0]") "}", 0,
     ERR_CORRUPT},
    {"a product that overflows to its size",
     "{" T("a", "F32", "[4611686018427387904,4]", "[0,0]") "}", 0, ERR_CORRUPT},
    {"an unknown type", "{" T("a", "F4", "[2]", "[0,1]") "}", 1, ERR_UNSUPPORTED},
    {"nine dimensions", "{" T("a", "U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}", 1, ERR_UNSUPPORTED},
    {"three offsets", "{" T("a", "U8", "[2]", "[0,2,2]") "}", 2, ERR_CORRUPT},
    {"no type", "{\"a\":{\"shape\":[2],\"data_offsets\":[0,2]}}", 2, ERR_CORRUPT},
    {"a tensor that is a list", "{\"a\":[1,2]}", 0, ERR_CORRUPT},
    {"a list", "[]", 0, ERR_CORRUPT},
    {"a leading space", " {}", 0, ERR_CORRUPT},
    {"broken JSON", "{\"a\":", 0, ERR_CORRUPT},
};

static void check_rows(void)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        is_int(parse(make(rows[i].header, rows[i].n_data)), rows[i].rc, "%s: %s", rows[i].what,
               why);
        if (rows[i].rc != ERR_OK)
            ok(why[0] != '\0', "%s: says why", rows[i].what);
    }
}

static void check_lengths(void)
{
    size_t len = make("{}", 0);

    is_int(parse(0), ERR_CORRUPT, "an empty file");
    is_int(parse(7), ERR_CORRUPT, "seven bytes");
    is_int(parse(9), ERR_CORRUPT, "a header that is cut: %s", why);
    memset(file, 0xff, 8);
    is_int(parse(len), ERR_CORRUPT, "a header of 2^64 - 1 bytes: %s", why);
    memset(file, 0, 8);
    is_int(parse(len), ERR_CORRUPT, "a header of no bytes: %s", why);
    file[0] = 100;
    is_int(parse(len), ERR_CORRUPT, "a header longer than the file: %s", why);
}

static void check_noise(void)
{
    static const char header[] = "{\"__metadata__\":{\"x\":\"y\"}," T(
        "a", "F32", "[2,2]", "[0,16]") "," T("b", "BF16", "[3]", "[16,22]") "}";
    int n_ok = 0, n_bad = 0;

    srand(tap_seed(1));
    for (int i = 0; i < 20000; i++) {
        size_t len = make(header, 22);
        int rc;

        for (int j = rand() % 3; j >= 0; j--)
            file[(size_t)rand() % len] = (uint8_t)rand();
        if (rand() % 4 == 0)
            len = (size_t)rand() % (len + 1);
        rc = parse(len);
        if (rc == ERR_OK)
            n_ok++;
        else if (rc == ERR_CORRUPT || rc == ERR_UNSUPPORTED)
            n_bad++;
    }
    is_int(n_ok + n_bad, 20000, "noise is read (%d) or refused (%d)", n_ok, n_bad);
    ok(n_bad > 10000, "most noise is refused");
}

int main(void)
{
    check_rows();
    check_lengths();
    check_noise();
    return tap_done();
}
