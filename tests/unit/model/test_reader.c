/* SPDX-License-Identifier: Apache-2.0
 *
 * The reader over a checkpoint of three files with tensors of odd sizes, the largest larger than
 * all pipes together: every byte is placed once, in steps, and summed, by one thread and by many;
 * and every way in which it can fail, with nothing left behind. QUIRE_TEST_DEVICE=cuda places
 * into a GPU's memory. */
#include "config.h"

#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/hash.h"
#include "model/reader.h"
#include "tests/tap.h"

#define N_FILES   3
#define N_TENSORS 120
#define LARGEST   ((size_t)70 << 20)

static char dir[] = "/tmp/quire-reader-XXXXXX";

/* What is placed where. */
struct target {
    struct device *d;
    struct reader_item *items;
    char *memory;              /* of the device: all tensors, one behind the other */
    size_t starts[N_TENSORS];  /* in memory */
    atomic_size_t n_bytes;     /* placed */
    atomic_int n_broken_steps; /* pieces that are no multiple of the step */
    int rc;                    /* to be answered for the item below */
    size_t fails;
};

static size_t size_of(int i)
{
    static const size_t odd[] = {1, 0, 7, 4095, 4097, 65536, 1000003, ((size_t)4 << 20) + 13};

    return i == 5 ? LARGEST + 9 : odd[i % 8];
}

static uint32_t noise(uint32_t x)
{
    x = (x ^ x >> 16) * 0x7feb352dU;
    x = (x ^ x >> 15) * 0x846ca68bU;
    return x ^ x >> 16;
}

static void check(bool good, const char *what)
{
    if (good)
        return;
    printf("Bail out! %s\n", what);
    exit(1);
}

/* File k holds tensors k, k + N_FILES, ... */
static void write_file(int k)
{
    char path[100], header[N_TENSORS * 80] = "{";
    size_t at = 0, len = 1, most = LARGEST + 64;
    uint32_t *bytes = malloc(most);
    uint64_t n;
    FILE *f;

    snprintf(path, sizeof path, "%s/%d.safetensors", dir, k);
    check(bytes != NULL && (f = fopen(path, "wb")) != NULL, path);
    for (int i = k; i < N_TENSORS; i += N_FILES) {
        len += (size_t)snprintf(header + len, sizeof header - len,
                                "%s\"t%03d\":{\"dtype\":\"U8\",\"shape\":[%zu],"
                                "\"data_offsets\":[%zu,%zu]}",
                                i == k ? "" : ",", i, size_of(i), at, at + size_of(i));
        at += size_of(i);
    }
    header[len++] = '}';
    n = len;
    check(fwrite(&n, 8, 1, f) == 1 && fwrite(header, len, 1, f) == 1, path);
    for (int i = k; i < N_TENSORS; i += N_FILES) {
        for (size_t j = 0; j < size_of(i) / 4 + 1; j++)
            bytes[j] = noise((uint32_t)(j + (size_t)i * 1000003));
        check(fwrite(bytes, 1, size_of(i), f) == size_of(i), path);
    }
    check(fclose(f) == 0, path);
    free(bytes);
}

static void write_index(void)
{
    char path[100];
    FILE *f;

    snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir);
    check((f = fopen(path, "w")) != NULL, path);
    fprintf(f, "{\"weight_map\":{");
    for (int i = 0; i < N_TENSORS; i++)
        fprintf(f, "%s\"t%03d\":\"%d.safetensors\"", i == 0 ? "" : ",", i, i % N_FILES);
    fprintf(f, "}}");
    check(fclose(f) == 0, path);
}

static int place(void *context, size_t idx, struct device_pipe *pipe, size_t at, size_t bytes)
{
    struct target *to = context;
    const struct reader_item *it = &to->items[idx];

    if (at % it->step != 0 || (bytes % it->step != 0 && at + bytes != it->t->bytes))
        atomic_fetch_add(&to->n_broken_steps, 1);
    atomic_fetch_add(&to->n_bytes, bytes);
    if (to->rc != ERR_OK && idx == to->fails)
        return to->rc;
    return to->d->ops->pipe_bytes(to->d, pipe, to->memory + to->starts[idx] + at, bytes);
}

static struct reader reader_of(const struct checkpoint *files, struct target *to, int n_threads)
{
    return (struct reader){.files = files,
                           .device = to->d,
                           .items = to->items,
                           .n_items = N_TENSORS,
                           .place = place,
                           .context = to,
                           .n_threads = n_threads};
}

/* All bytes of the device's memory, and all sums, are the files'. */
static void compare(const struct target *to, size_t n_bytes)
{
    char *got = malloc(n_bytes);
    int n_wrong = 0, n_wrong_sums = 0;

    check(got != NULL && to->d->ops->download(to->d, got, to->memory, n_bytes) == ERR_OK,
          "copying");
    for (int i = 0; i < N_TENSORS; i++) {
        const struct tensor *t = to->items[i].t;

        n_wrong += memcmp(got + to->starts[i], t->data, t->bytes) != 0;
        n_wrong_sums += to->items[i].xxh3 != hash_xxh3(t->data, t->bytes);
    }
    is_int(n_wrong, 0, "every tensor is in its place");
    is_int(n_wrong_sums, 0, "every sum is that of the whole tensor");
    free(got);
}

static void read_well(const struct checkpoint *files, struct target *to, size_t n_bytes,
                      int n_threads)
{
    struct reader r = reader_of(files, to, n_threads);

    atomic_store(&to->n_bytes, 0);
    atomic_store(&to->n_broken_steps, 0);
    for (int i = 0; i < N_TENSORS; i++)
        to->items[i].xxh3 = 0;
    is_int(reader_run(&r), ERR_OK, "all are read");
    is_int((long)atomic_load(&to->n_bytes), (long)n_bytes, "every byte once");
    is_int(atomic_load(&to->n_broken_steps), 0, "in whole steps");
    compare(to, n_bytes);
}

static void read_badly(const struct checkpoint *files, struct target *to, int n_threads)
{
    struct reader r = reader_of(files, to, n_threads);
    int rc = ERR_NO_MEMORY;

    to->rc = ERR_GPU;
    to->fails = 77;
    is_int(reader_run(&r), ERR_GPU, "placing fails");
    to->rc = ERR_OK;
    for (int n = 1; n <= 50; n += 7) {
        fault_arm(FAULT_model_read, n, false);
        is_int(reader_run(&r), ERR_IO, "a read fails");
    }
    fault_arm(FAULT_model_read, 1, true);
    is_int(reader_run(&r), ERR_IO, "every read fails");
    fault_arm(FAULT_model_read, 1000000, false);
    for (int n = 1; n < 100 && rc != ERR_OK; n++) {
        fault_arm(FAULT_mem_alloc, n, false);
        rc = reader_run(&r);
        if (rc != ERR_OK && rc != ERR_NO_MEMORY)
            break;
    }
    fault_arm(FAULT_mem_alloc, 1000000, false);
    is_int(rc, ERR_OK, "without memory, until there is");
}

static void read_cut(const struct checkpoint *files, struct target *to)
{
    struct reader r = reader_of(files, to, 2);
    char path[100];

    snprintf(path, sizeof path, "%s/1.safetensors", dir);
    check(truncate(path, 30000) == 0, path);
    is_int(reader_run(&r), ERR_CORRUPT, "a file is cut while it is read");
}

int main(void)
{
    const char *kind = getenv("QUIRE_TEST_DEVICE");
    struct reader_item items[N_TENSORS];
    struct target to = {.items = items};
    struct checkpoint *files = NULL;
    size_t n_bytes = 0;
    char command[100];

    fault_init();
    check(mkdtemp(dir) != NULL, dir);
    for (int k = 0; k < N_FILES; k++)
        write_file(k);
    write_index();
    check(device_open(&to.d, kind == NULL ? "cpu" : kind, 0, 1) == ERR_OK, "device");
    check(checkpoint_open(&files, dir) == ERR_OK, dir);
    for (int i = 0; i < N_TENSORS; i++) {
        char name[8];

        snprintf(name, sizeof name, "t%03d", i);
        items[i] = (struct reader_item){.t = checkpoint_find(files, name), .step = 1};
        check(items[i].t != NULL, name);
        if (items[i].t->bytes > 4095 && i % 3 == 0)
            items[i].step = 4095;
        to.starts[i] = n_bytes;
        n_bytes += items[i].t->bytes;
    }
    to.memory = to.d->ops->alloc(to.d, n_bytes);
    check(to.memory != NULL, "memory");
    for (int n = 0; n <= 9; n += n == 1 ? 2 : n == 3 ? 5 : 1)
        read_well(files, &to, n_bytes, n);
    read_badly(files, &to, 1);
    read_badly(files, &to, 4);
    read_cut(files, &to);
    checkpoint_close(files);
    device_close(to.d);
    snprintf(command, sizeof command, "rm -r %s", dir);
    check(system(command) == 0, command);
    return tap_done();
}
