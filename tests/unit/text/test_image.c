/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: a compiled tokenizer is the tokenizer, or it is not used. Method: it is opened from its
 * files, written, mapped; every 97th bit of the file is turned, the file is cut, taken by others,
 * made for other files; each table's checks meet what they guard against under a right checksum;
 * folders that cannot be written; no memory at every allocation. */
#include "text/tokenizer/image_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/mem.h"
#include "tests/tap.h"
#include "text/file.h"
#include "text/tokenizer/tokenizer.h"

static char cache[200];
static char folder[4200];
static char other[400];
static const char sample[] =
    "Hello, it's 1234 wide <|end|>\n\n caf\xc3\xa9 \xe4\xb8\xad\xe6\x96\x87 keep";

/* Open with the cache; the ids of the sample in *ids. */
static int open_and_encode(const char *dir, const char *cache_dir, struct tokenizer_opening *how,
                           struct token_list *ids)
{
    struct tokenizer *t = NULL;
    char why[600] = "";
    int rc = tokenizer_open_cached(&t, dir, cache_dir, how, why, sizeof why);

    ids->len = 0;
    if (rc != ERR_OK)
        return rc;
    rc = tokenizer_encode(t, sample, sizeof sample - 1, true, ids);
    tokenizer_close(t);
    return rc;
}

static bool same(const struct token_list *a, const struct token_list *b)
{
    return a->len == b->len && a->len > 0 && memcmp(a->ids, b->ids, a->len * sizeof *a->ids) == 0;
}

/* The one file of the cache folder. */
static void image_path(char *path, size_t cap)
{
    char command[700];
    FILE *f;

    path[0] = '\0';
    (void)snprintf(command, sizeof command, "ls %s/*.image", cache);
    f = popen(command, "r");
    if (f != NULL && fgets(path, (int)cap, f) != NULL)
        path[strcspn(path, "\n")] = '\0';
    if (f != NULL)
        (void)pclose(f);
}

static void write_bytes(const char *path, const char *bytes, size_t len)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

    if (fd == -1 || write(fd, bytes, len) != (ssize_t)len || close(fd) != 0)
        tap_skip_all("the temporary folder cannot be written");
}

static void test_round(struct token_list *want)
{
    struct tokenizer_opening how;
    struct token_list ids = {0};

    is_int(open_and_encode(folder, "", &how, want), ERR_OK, "opens from its files");
    ok(!how.mapped && !how.written, "in memory");
    is_int(open_and_encode(folder, cache, &how, &ids), ERR_OK, "opens with an empty cache folder");
    ok(how.mapped && how.written && same(&ids, want), "written, mapped, the same ids");
    is_int(open_and_encode(folder, cache, &how, &ids), ERR_OK, "opens again");
    ok(how.mapped && !how.written && same(&ids, want), "mapped, not written, the same ids");
    is_int(open_and_encode(folder, "/nonexistent/folder", &how, &ids), ERR_OK, "no cache folder");
    ok(!how.mapped && !how.written && how.cache_why[0] != '\0' && same(&ids, want),
       "built in memory, and why: %s", how.cache_why);
    token_list_fini(&ids);
}

/* A file that is not as it was written is not believed. */
static void test_damage(const struct token_list *want)
{
    struct tokenizer_opening how;
    struct token_list ids = {0};
    struct buf file = {0};
    char path[600];
    char why[300];
    size_t bit;
    int trusted = 0;
    int wrong = 0;
    int n = 0;

    image_path(path, sizeof path);
    if (file_read(&file, NULL, path, (size_t)1 << 28, why, sizeof why) != ERR_OK)
        tap_skip_all("no image");
    for (bit = 0; bit < file.len * 8; bit += bit < 20000 ? 97 : file.len / 8 * 8 / 61 + 1) {
        file.bytes[bit / 8] ^= (char)(1 << bit % 8);
        write_bytes(path, file.bytes, file.len);
        file.bytes[bit / 8] ^= (char)(1 << bit % 8);
        if (open_and_encode(folder, cache, &how, &ids) != ERR_OK || !same(&ids, want))
            wrong++;
        trusted += !how.written;
        n++;
    }
    is_int(wrong, 0, "%d images with a wrong bit: the same ids", n);
    is_int(trusted, 0, "each was built and written again (%s)", how.cache_why);
    for (bit = 0, n = 0, trusted = 0; bit < file.len; bit += file.len / 17 + 1, n++) {
        write_bytes(path, file.bytes, bit);
        if (open_and_encode(folder, cache, &how, &ids) != ERR_OK || !same(&ids, want))
            wrong++;
        trusted += !how.written;
    }
    ok(wrong == 0 && trusted == 0, "%d images cut short: built again", n);
    (void)chmod(path, 0666);
    ok(open_and_encode(folder, cache, &how, &ids) == ERR_OK && how.written && same(&ids, want),
       "one that others may write: built again (%s)", how.cache_why);
    buf_fini(&file);
    token_list_fini(&ids);
}

/* Another tokenizer_config.json makes another tokenizer. */
static void test_stale(const struct token_list *want)
{
    static const char config[] = "{\"bos_token\": null}";
    struct tokenizer_opening how;
    struct token_list ids = {0};
    struct buf file = {0};
    char path[500];
    char why[300];

    if (file_read(&file, folder, "tokenizer.json", (size_t)1 << 28, why, sizeof why) != ERR_OK)
        tap_skip_all("no golden");
    (void)snprintf(path, sizeof path, "%s/tokenizer.json", other);
    write_bytes(path, file.bytes, file.len);
    ok(open_and_encode(other, cache, &how, &ids) == ERR_OK && how.written && same(&ids, want),
       "the same file without its neighbour: another image");
    (void)snprintf(path, sizeof path, "%s/tokenizer_config.json", other);
    write_bytes(path, config, sizeof config - 1);
    ok(open_and_encode(other, cache, &how, &ids) == ERR_OK && how.written,
       "with a neighbour: a third");
    ok(open_and_encode(other, cache, &how, &ids) == ERR_OK && !how.written && how.mapped,
       "which is found again");
    buf_fini(&file);
    token_list_fini(&ids);
}

/* Damage under a right checksum: what is not seen by it must be seen by the checks. */
static void test_checks(void)
{
    static const struct {
        enum image_section section;
        size_t at; /* bytes into the table */
        uint32_t value;
        const char *what;
    } damages[] = {
        {IMAGE_TOKENS, offsetof(struct image_token, text.at), 0x7fffffff, "a token's text"},
        {IMAGE_TOKENS, offsetof(struct image_token, bytes.len), 0xffffffff, "a token's bytes"},
        {IMAGE_TOKENS, offsetof(struct image_token, piece.len), 0x00ffffff, "a token's piece"},
        {IMAGE_BY_TEXT, 0, 0x00ffffff, "an id by text"},
        {IMAGE_LONG_PIECES, 0, 0x00ffffff, "an id by piece"},
        {IMAGE_PIECES, offsetof(struct image_piece, id), 0x00ffffff, "a piece's id"},
        {IMAGE_PIECES, offsetof(struct image_piece, id), 0x80000000, "a negative id"},
        {IMAGE_RAW, offsetof(struct image_added, text.len), 0, "an empty added token"},
        {IMAGE_RAW, offsetof(struct image_added, id), 0xfffffff0, "an added token's id"},
        {IMAGE_CUTS, offsetof(struct image_step, pattern.at), 0x7ffffff0, "a step's pattern"},
        {IMAGE_BEFORE, 0, 0x00ffffff, "an id in front"},
        {IMAGE_SPECIAL, 0, 0x00ffffff, "a special id"},
        {IMAGE_ENDS, 0, 0x00ffffff, "an id that ends"},
        {IMAGE_BYTE_PAIRS, offsetof(struct image_pair, rank), 0, "a pair of bytes"},
    };
    struct buf file = {0};
    struct image_header *image;
    struct image_header kept;
    const char *reason = "";
    char path[600];
    char why[300];
    size_t i;

    image_path(path, sizeof path);
    if (file_read(&file, NULL, path, (size_t)1 << 28, why, sizeof why) != ERR_OK)
        tap_skip_all("no image");
    image = mem_alloc(file.len);
    if (image == NULL)
        tap_skip_all("no memory");
    memcpy(image, file.bytes, file.len);
    kept = *image;
    for (i = 0; i < sizeof damages / sizeof damages[0]; i++) {
        char *place = (char *)image_table_open(image, damages[i].section) + damages[i].at;
        uint32_t old;

        if (image_count(image, damages[i].section) == 0)
            continue;
        memcpy(&old, place, 4);
        memcpy(place, &damages[i].value, 4);
        if (damages[i].section == IMAGE_BYTE_PAIRS) /* a rank makes the id count */
            memcpy(place + 4, &(uint32_t){0x00ffffff}, 4);
        image_seal(image);
        ok(image_check(image, file.len, &kept.sources, &reason) == ERR_CORRUPT, "%s: %s",
           damages[i].what, reason);
        memcpy(image, file.bytes, file.len);
    }
    for (i = 0; i < IMAGE_SECTIONS; i++) {
        image->tables[i].at = kept.bytes - 64;
        image->tables[i].n = 1 << 20;
        image_seal(image);
        ok(image_check(image, file.len, &kept.sources, &reason) == ERR_CORRUPT,
           "table %zu outside: %s", i, reason);
        *image = kept;
    }
    image->layout++;
    image_seal(image);
    is_int(image_check(image, file.len, &kept.sources, &reason), ERR_VERSION, "layout: %s", reason);
    *image = kept;
    image->sources.bytes[0] ^= 1;
    image_seal(image);
    is_int(image_check(image, file.len, &kept.sources, &reason), ERR_VERSION, "files: %s", reason);
    *image = kept;
    is_int(image_check(image, file.len, &kept.sources, &reason), ERR_OK, "as it was: good");
    mem_free(image);
    buf_fini(&file);
}

static void test_faults(const struct token_list *want)
{
    struct tokenizer_opening how;
    struct token_list ids = {0};
    char path[600];
    int n;
    int rc = ERR_NO_MEMORY;

    image_path(path, sizeof path);
    (void)unlink(path);
    fault_arm(FAULT_image_write, 1, false);
    ok(open_and_encode(folder, cache, &how, &ids) == ERR_OK && !how.written && same(&ids, want),
       "a full disk: in memory (%s)", how.cache_why);
    fault_arm(FAULT_image_write, 1000000, false);
    for (n = 1; n < 5000; n++) {
        fault_arm(FAULT_mem_alloc, n, false);
        rc = open_and_encode(folder, "", &how, &ids);
        if (fault_fired(FAULT_mem_alloc) == 0)
            break;
        if (rc != ERR_NO_MEMORY && !(rc == ERR_OK && same(&ids, want)))
            break;
    }
    fault_arm(FAULT_mem_alloc, 1000000000, false);
    ok(rc == ERR_OK && same(&ids, want) && n > 20, "each of %d allocations fails once: refused", n);
    token_list_fini(&ids);
}

int main(void)
{
    struct token_list want = {0};
    char command[700];

    (void)snprintf(cache, sizeof cache, "/tmp/quire-image-%ld", (long)getpid());
    (void)snprintf(folder, sizeof folder, "%s", tap_path("tests/golden/text/llama3"));
    (void)snprintf(other, sizeof other, "%s/other", cache);
    if (mkdir(cache, 0700) != 0 || mkdir(other, 0700) != 0)
        tap_skip_all("no temporary folder");
    test_round(&want);
    test_damage(&want);
    test_checks();
    test_stale(&want);
    test_faults(&want);
    token_list_fini(&want);
    (void)snprintf(command, sizeof command, "rm -rf %s", cache);
    if (system(command) != 0)
        printf("# %s is left\n", cache);
    return tap_done();
}
