/* SPDX-License-Identifier: Apache-2.0
 *
 * PyTorch's files of weights (tests/golden/make_torch.py): read, or refused with the reason; a
 * pickle that names os.system is refused and runs nothing; then random flips and cuts, which must
 * be refused or read, never crash; then archives made here, which would take much memory or which
 * two readers could read in two ways. */
#include <math.h>
#include <unistd.h>

#include "base/must.h"
#include "model/pickle.h"
#include "model/torch_zip.h"
#include "tests/tap.h"

#define FILE_MAX (64 << 10)

static uint8_t file[FILE_MAX];
static size_t file_len;
static char why[500];

static struct arena arena = {.limit_bytes = (size_t)16 << 20};
static struct tensor_list list;

static void load(const char *name)
{
    char path[5000];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", tap_path("tests/fuzz/corpus/torch_zip"), name);
    f = fopen(path, "rb");
    file_len = f != NULL ? fread(file, 1, sizeof file, f) : 0;
    if (f != NULL)
        fclose(f);
    ok(file_len > 0 && file_len < sizeof file, "%s is there", name);
}

static int parse(void)
{
    arena_reset(&arena);
    list = (struct tensor_list){NULL, 0};
    why[0] = '\0';
    return torch_zip_parse(&list, &arena, file, file_len, why, sizeof why);
}

/* Are all tensors inside the file? */
static bool lie_inside(void)
{
    for (size_t i = 0; i < list.n; i++) {
        const struct tensor *t = &list.tensors[i];

        if (t->data < file || t->bytes > file_len - (size_t)(t->data - file))
            return false;
    }
    return true;
}

static const struct tensor *find(const char *name)
{
    for (size_t i = 0; i < list.n; i++) {
        if (strcmp(list.tensors[i].name, name) == 0)
            return &list.tensors[i];
    }
    return NULL;
}

/* A tensor of float32 with these elements, which count up by one. */
static void check_counts(const char *file_name, const char *name, int rows, int cols, float first)
{
    const struct tensor *t = find(name);
    bool same = t != NULL && strcmp(t->dtype, "F32") == 0 && t->n_dims == 2 && t->dims[0] == rows &&
                t->dims[1] == cols && t->bytes == (size_t)(rows * cols) * 4;

    for (int i = 0; i < rows * cols && same; i++) {
        float value;

        memcpy(&value, t->data + 4 * i, 4);
        same = fabsf(value - first - (float)i) < 1e-6f;
    }
    ok(same, "%s: %s has its shape and elements", file_name, name);
}

static void test_read(void)
{
    static const char *const types[][2] = {
        {"float16", "F16"}, {"bfloat16", "BF16"}, {"float64", "F64"},
        {"int64", "I64"},   {"int32", "I32"},     {"int16", "I16"},
        {"int8", "I8"},     {"uint8", "U8"},      {"bool", "BOOL"}};

    load("linear");
    is_int(parse(), ERR_OK, "linear: %s", why);
    is_int(list.n, 2, "linear: two tensors");
    check_counts("linear", "weight", 3, 4, 0.0f);
    load("types");
    is_int(parse(), ERR_OK, "types: %s", why);
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        const struct tensor *t = find(types[i][0]);

        ok(t != NULL && strcmp(t->dtype, types[i][1]) == 0 && t->n_dims == 2, "types: %s is %s",
           types[i][0], types[i][1]);
    }
    load("tied");
    is_int(parse(), ERR_OK, "tied: %s", why);
    check_counts("tied", "a", 3, 4, 0.0f);
    check_counts("tied", "part", 2, 4, 4.0f);
    ok(find("a") != NULL && find("b") != NULL && find("a")->data == find("b")->data,
       "tied: two names have one storage");
    ok(find("scalar") != NULL && find("scalar")->n_dims == 0 && find("scalar")->bytes == 4,
       "tied: a scalar");
    load("parameter");
    is_int(parse(), ERR_OK, "parameter: %s", why);
    check_counts("parameter", "w", 3, 4, 0.0f);
    load("protocol-4");
    is_int(parse(), ERR_OK, "protocol-4: %s", why);
    check_counts("protocol-4", "w", 3, 4, 0.0f);
}

static const struct {
    const char *name, *reason;
    int rc;
} refused[] = {
    {"turned", "tensor w is not contiguous; convert it: python3 -c", ERR_UNSUPPORTED},
    {"training", "epoch is no tensor", ERR_UNSUPPORTED},
    {"list", "no dictionary of tensors", ERR_UNSUPPORTED},
    {"old", "in the format of PyTorch before 1.6; convert it: python3 -c", ERR_UNSUPPORTED},
    {"evil", "it names posix.system, which is no part of a tensor", ERR_CORRUPT},
    {"short", "the storage of tensor w is cut short", ERR_CORRUPT},
    {"big", "not little-endian", ERR_UNSUPPORTED},
    {"packed", "compressed or encrypted", ERR_CORRUPT},
    {"cut", "the archive has no end: is it cut short?", ERR_CORRUPT},
};

static void test_refused(void)
{
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        load(refused[i].name);
        is_int(parse(), refused[i].rc, "%s is refused", refused[i].name);
        ok(strstr(why, refused[i].reason) != NULL, "%s: %s", refused[i].name, why);
    }
    ok(access("/tmp/executed", F_OK) != 0, "nothing was executed");
}

/* Every cut, and flips of one to four bytes. */
static void test_damage(void)
{
    static const char *const names[] = {"linear", "tied", "protocol-4"};
    static uint8_t whole[FILE_MAX];
    bool inside = true;
    int n_read = 0;

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        size_t len;

        load(names[i]);
        len = file_len;
        memcpy(whole, file, len);
        for (file_len = 0; file_len < len; file_len++)
            inside = inside && (parse() != ERR_OK || lie_inside());
        for (int round = 0; round < 20000; round++) {
            for (int flips = 1 + rand() % 4; flips > 0; flips--)
                file[(size_t)rand() % len] = (uint8_t)rand();
            if (parse() == ERR_OK) {
                inside = inside && lie_inside();
                n_read++;
            }
            memcpy(file, whole, len);
        }
    }
    ok(inside, "damaged files: %d are read, and all their tensors lie inside", n_read);
}

/* --- archives made to take much memory, or to be read in two ways --------------------------- */

/* Pickles of n times one operation, and what they may take of the arena per byte. */
static void test_bombs(void)
{
    static const struct {
        const char *name, *first;
        char op;
        size_t n;
    } bombs[] = {{"tuples in tuples", ")", '\x85', 50000},
                 {"empty lists", "(", ']', 50000},
                 {"nothing", "(", 'N', 50000},
                 {"a mark per byte", "N", '(', 50000}};

    for (size_t i = 0; i < sizeof bombs / sizeof bombs[0]; i++) {
        size_t len = strlen(bombs[i].first);
        const struct pickle *value = NULL;
        int rc;

        memcpy(file, bombs[i].first, len);
        memset(file + len, bombs[i].op, bombs[i].n);
        len += bombs[i].n;
        file[len++] = '.';
        arena_reset(&arena);
        rc = pickle_parse(&value, &arena, file, len, why, sizeof why);
        ok((rc == ERR_OK || rc == ERR_CORRUPT) && arena.used_bytes < 120 * len,
           "%s: %.0f bytes per byte (%d)", bombs[i].name, (double)arena.used_bytes / (double)len,
           rc);
    }
}

/* One value that is named again and again: each reference is a value of the stack. */
static void test_references(void)
{
    size_t len = (size_t)16 << 20;
    uint8_t *bytes = malloc(len);
    struct arena large = {.limit_bytes = (size_t)1 << 30};
    const struct pickle *value = NULL;

    for (size_t i = 0; bytes != NULL && i < len; i += 2) {
        bytes[i] = 'h';
        bytes[i + 1] = 0;
    }
    if (bytes != NULL)
        memcpy(bytes, "]q\0(", 4);
    is_int(bytes == NULL ? 1 : pickle_parse(&value, &large, bytes, len, why, sizeof why),
           ERR_CORRUPT, "8 million references: %s", why);
    ok(strstr(why, "more than") != NULL && large.used_bytes < (size_t)300 << 20,
       "they are refused after %zu MB", large.used_bytes >> 20);
    arena_reset(&large);
    free(bytes);
}

static size_t directory_len;
static int n_members;
static uint8_t directory[FILE_MAX];

static void put_number(uint8_t *at, size_t n, size_t value)
{
    for (size_t i = 0; i < n; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

/* Add a member to the archive in `file`. */
static void add_member(const char *name, const char *data, size_t len)
{
    uint8_t *header = file + file_len, *entry = directory + directory_len;
    size_t name_len = strlen(name);

    memset(header, 0, 30);
    memcpy(header, "PK\3\4", 4);
    put_number(header + 26, 2, name_len);
    memcpy(header + 30, name, name_len);
    memcpy(header + 30 + name_len, data, len);
    memset(entry, 0, 46);
    memcpy(entry, "PK\1\2", 4);
    put_number(entry + 20, 4, len);
    put_number(entry + 24, 4, len);
    put_number(entry + 28, 2, name_len);
    put_number(entry + 42, 4, file_len);
    memcpy(entry + 46, name, name_len);
    file_len += 30 + name_len + len;
    directory_len += 46 + name_len;
    n_members++;
}

static void begin_archive(void)
{
    file_len = directory_len = 0;
    n_members = 0;
}

static void end_archive(void)
{
    uint8_t *end = file + file_len + directory_len;

    memcpy(file + file_len, directory, directory_len);
    memset(end, 0, 22);
    memcpy(end, "PK\5\6", 4);
    put_number(end + 10, 2, (size_t)n_members);
    put_number(end + 12, 4, directory_len);
    put_number(end + 16, 4, file_len);
    file_len += directory_len + 22;
}

/* A dictionary of one tensor, float32 [1], in the storage `key`. */
static size_t write_tensor(char *to, size_t cap, const char *key)
{
    static const char head[] = "}X\1\0\0\0w"
                               "ctorch._utils\n_rebuild_tensor_v2\n(("
                               "X\7\0\0\0storagectorch\nFloatStorage\nX",
                      tail[] = "X\3\0\0\0cpuK\1tQK\0K\1\x85K\1\x85\x89}tRs.";
    size_t n = sizeof head - 1, key_len = strlen(key);

    must(n + 4 + key_len + sizeof tail <= cap);
    memcpy(to, head, n);
    put_number((uint8_t *)to + n, 4, key_len);
    memcpy(to + n + 4, key, key_len);
    n += 4 + key_len;
    memcpy(to + n, tail, sizeof tail - 1);
    return n + sizeof tail - 1;
}

static void test_names(void)
{
    static char folder[20000];
    char pickle[400];
    size_t len = write_tensor(pickle, sizeof pickle, "0");

    begin_archive();
    add_member("a/data.pkl", pickle, len);
    add_member("a/data/0", "\1\2\3\4", 4);
    end_archive();
    is_int(parse(), ERR_OK, "an archive made here is read: %s", why);
    ok(list.n == 1 && list.tensors[0].bytes == 4 &&
           memcmp(list.tensors[0].data, "\1\2\3\4", 4) == 0,
       "with its tensor");

    begin_archive();
    add_member("a/data.pkl", pickle, len);
    add_member("a/data/0", "\1\2\3\4", 4);
    add_member("a/data/0", "\5\6\7\10", 4);
    end_archive();
    is_int(parse(), ERR_CORRUPT, "two members of one name: which one would be read?");
    ok(strstr(why, "two members a/data/0") != NULL, "the reason: %s", why);

    begin_archive();
    memset(folder, 'a', sizeof folder - 1);
    memcpy(folder + sizeof folder - sizeof "/data.pkl", "/data.pkl", sizeof "/data.pkl");
    add_member(folder, pickle, len);
    end_archive();
    is_int(parse(), ERR_CORRUPT, "a folder with a long name would be copied for each tensor");
    ok(strstr(why, "a name of 19990 bytes") != NULL, "the reason: %s", why);

    begin_archive();
    len = write_tensor(pickle, sizeof pickle, "000000000000000000001");
    add_member("a/data.pkl", pickle, len);
    add_member("a/data/00000000000000000000", "\1\2\3\4", 4);
    end_archive();
    is_int(parse(), ERR_CORRUPT, "a storage's number is not cut to that of another");
    ok(strstr(why, "the storage of tensor w is missing") != NULL, "the reason: %s", why);
}

int main(void)
{
    srand(tap_seed(7));
    (void)unlink("/tmp/executed");
    test_read();
    test_refused();
    test_damage();
    test_bombs();
    test_references();
    test_names();
    arena_reset(&arena);
    return tap_done();
}
