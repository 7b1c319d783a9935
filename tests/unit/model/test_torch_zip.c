/* SPDX-License-Identifier: Apache-2.0
 *
 * PyTorch's files of weights (tests/golden/make_torch.py): read, or refused with the reason; a
 * pickle that names os.system is refused and runs nothing; then random flips and cuts, which must
 * be refused or read, never crash. */
#include <math.h>
#include <unistd.h>

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

int main(void)
{
    srand(tap_seed(7));
    (void)unlink("/tmp/executed");
    test_read();
    test_refused();
    test_damage();
    arena_reset(&arena);
    return tap_done();
}
