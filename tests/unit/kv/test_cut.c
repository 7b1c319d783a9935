/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: after a power cut at any moment of its life the store opens, gives no wrong page, still has
 * what it said was written, and goes on. Method: this program stands between the store (and LMDB)
 * and the kernel: every write, sync, rename and unlink is recorded. Then a moment is drawn, and the
 * files are built as a disk may hold them then: all of a file that was synced, of later writes any
 * subset, each whole or with any of its sectors of 512 bytes; of the folder's changes since its own
 * sync only the first few, perhaps. 300 moments are drawn (1000 in a long run), or CUTS of them;
 * SEED draws others. */
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/must.h"
#include "kv/store.h"
#include "tests/tap.h"

#define BLOCK      16
#define PAGE_BYTES 6000 /* not a multiple of anything */
#define SLOT_BYTES 12288
#define N_SLOTS    24
#define N_CHAINS   6
#define N_DEEP     10
#define N_PAGES    (N_CHAINS * N_DEEP)
#define N_BATCHES  40
#define EVENTS_MAX 65536
#define BYTES_MAX  ((size_t)256 << 20)
#define FILES_MAX  64
#define NAME_CAP   64

#include "tests/unit/kv/chains.h" /* wants these */

/* --- the record ---------------------------------------------------------------------------- */

enum event_kind {
    EV_WRITE,
    EV_SYNC,
    EV_RESIZE,
    EV_CREATE,
    EV_RENAME,
    EV_UNLINK,
    EV_DIR_SYNC,
    EV_MARK
};

struct event {
    enum event_kind kind;
    bool durable; /* a write that is its own sync: O_DSYNC */
    int file;
    uint64_t at, len; /* of a write; len of a new size */
    size_t bytes_at;
    char name[NAME_CAP]; /* below the store's folder */
    char to[NAME_CAP];
    uint64_t has, saved; /* of a mark: pages that are there, pages saved since the mark before */
};

struct file {
    bool live;
    dev_t dev;
    ino_t ino;
};

/* Shared with the child in which the store looks at an old index. */
struct record {
    pthread_mutex_t lock;
    bool on;
    char dir[PATH_MAX + 32]; /* with a slash */
    int n_events, n_files;
    size_t n_bytes;
    struct event events[EVENTS_MAX];
    struct file files[FILES_MAX];
    unsigned char bytes[BYTES_MAX];
};

static struct record *record;

static struct event *record_event(enum event_kind kind)
{
    struct event *e = &record->events[record->n_events++];

    must(record->n_events < EVENTS_MAX);
    *e = (struct event){.kind = kind};
    return e;
}

/* The name below the store's folder, or NULL when it is elsewhere. */
static const char *record_below(const char *path)
{
    size_t n = strlen(record->dir);

    return strncmp(path, record->dir, n) == 0 ? path + n : NULL;
}

static int record_find(const struct stat *st)
{
    for (int i = 0; i < record->n_files; i++) {
        const struct file *f = &record->files[i];

        if (f->live && f->dev == st->st_dev && f->ino == st->st_ino)
            return i;
    }
    return -1;
}

/* The number of an open file of the store's, made when it is new; -1: it is none of these. */
static int record_file(int fd)
{
    char link[64];
    char path[256];
    const char *name;
    struct stat st;
    struct event *e;
    ssize_t n;

    if (fstat(fd, &st) == -1 || !S_ISREG(st.st_mode))
        return -1;
    if (record_find(&st) != -1)
        return record_find(&st);
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    n = readlink(link, path, sizeof path - 1);
    if (n < 0)
        return -1;
    path[n] = '\0';
    name = record_below(path);
    if (name == NULL || strstr(name, "lock") != NULL)
        return -1;
    must(record->n_files < FILES_MAX);
    record->files[record->n_files] =
        (struct file){.live = true, .dev = st.st_dev, .ino = st.st_ino};
    e = record_event(EV_CREATE);
    e->file = record->n_files++;
    (void)snprintf(e->name, sizeof e->name, "%s", name);
    return e->file;
}

static void record_write(int fd, const void *bytes, size_t len, off_t at)
{
    int file;

    if (record == NULL || !record->on)
        return;
    (void)pthread_mutex_lock(&record->lock);
    file = record_file(fd);
    if (file != -1) {
        struct event *e = record_event(EV_WRITE);

        must(record->n_bytes + len <= BYTES_MAX);
        e->file = file;
        e->durable = (fcntl(fd, F_GETFL) & O_DSYNC) != 0;
        e->at = (uint64_t)at;
        e->len = len;
        e->bytes_at = record->n_bytes;
        memcpy(record->bytes + record->n_bytes, bytes, len);
        record->n_bytes += len;
    }
    (void)pthread_mutex_unlock(&record->lock);
}

/* A file that was made and not written to yet has its name too. */
static void record_dir_sync(void)
{
    char path[PATH_MAX + 64];
    int fd;

    (void)snprintf(path, sizeof path, "%spages.kv", record->dir);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd != -1) {
        (void)record_file(fd);
        (void)close(fd);
    }
    record_event(EV_DIR_SYNC);
}

static int record_sync(int fd)
{
    struct stat st;
    int file;

    if (record == NULL || !record->on)
        return 0; /* the images need not survive anything */
    (void)pthread_mutex_lock(&record->lock);
    file = record_file(fd);
    if (file != -1)
        record_event(EV_SYNC)->file = file;
    else if (fstat(fd, &st) == 0 && S_ISDIR(st.st_mode))
        record_dir_sync();
    (void)pthread_mutex_unlock(&record->lock);
    return 0;
}

/* Whatever this name stood for is gone; its number in the file system may come again. */
static void record_forget(const char *path)
{
    struct stat st;

    if (stat(path, &st) == 0 && record_find(&st) != -1)
        record->files[record_find(&st)].live = false;
}

static void record_name(enum event_kind kind, const char *from, const char *to)
{
    struct event *e;

    if (record == NULL || !record->on || record_below(from) == NULL || strstr(from, "lock") != NULL)
        return;
    (void)pthread_mutex_lock(&record->lock);
    record_forget(kind == EV_RENAME ? to : from);
    e = record_event(kind);
    (void)snprintf(e->name, sizeof e->name, "%s", record_below(from));
    if (kind == EV_RENAME)
        (void)snprintf(e->to, sizeof e->to, "%s", record_below(to));
    (void)pthread_mutex_unlock(&record->lock);
}

/* --- between the store and the kernel: these names win over those of the C library ----------- */

ssize_t pwrite(int fd, const void *bytes, size_t len, off_t at)
{
    ssize_t n = syscall(SYS_pwrite64, fd, bytes, len, at);

    if (n > 0)
        record_write(fd, bytes, (size_t)n, at);
    return n;
}

ssize_t pwrite64(int fd, const void *bytes, size_t len, off_t at)
{
    return pwrite(fd, bytes, len, at);
}

ssize_t write(int fd, const void *bytes, size_t len)
{
    off_t at = record != NULL && record->on ? lseek(fd, 0, SEEK_CUR) : 0;
    ssize_t n = syscall(SYS_write, fd, bytes, len);

    if (n > 0)
        record_write(fd, bytes, (size_t)n, at);
    return n;
}

/* What the kernel took is one prefix of all parts. */
ssize_t writev(int fd, const struct iovec *parts, int n_parts)
{
    off_t at = record != NULL && record->on ? lseek(fd, 0, SEEK_CUR) : 0;
    ssize_t n = syscall(SYS_writev, fd, parts, n_parts);
    ssize_t left = n;

    for (int i = 0; i < n_parts && left > 0; i++) {
        size_t len = parts[i].iov_len < (size_t)left ? parts[i].iov_len : (size_t)left;

        record_write(fd, parts[i].iov_base, len, at);
        at += (off_t)len;
        left -= (ssize_t)len;
    }
    return n;
}

int fdatasync(int fd)
{
    return record_sync(fd);
}

int fsync(int fd)
{
    return record_sync(fd);
}

/* LMDB's way when its map is written to: not ours, and what it would do is not recorded. */
int msync(void *memory, size_t len, int flags)
{
    (void)memory, (void)len, (void)flags;
    must(record == NULL || !record->on);
    return 0;
}

int ftruncate(int fd, off_t len)
{
    int rc = (int)syscall(SYS_ftruncate, fd, len);

    if (rc == 0 && record != NULL && record->on) {
        (void)pthread_mutex_lock(&record->lock);
        int file = record_file(fd);

        if (file != -1) {
            struct event *e = record_event(EV_RESIZE);

            e->file = file;
            e->len = (uint64_t)len;
        }
        (void)pthread_mutex_unlock(&record->lock);
    }
    return rc;
}

int rename(const char *from, const char *to)
{
    struct stat st;

    if (stat(from, &st) == 0)
        record_name(EV_RENAME, from, to);
    return (int)syscall(SYS_rename, from, to);
}

int unlink(const char *path)
{
    struct stat st;

    if (stat(path, &st) == 0)
        record_name(EV_UNLINK, path, NULL);
    return (int)syscall(SYS_unlink, path);
}

/* --- pages --------------------------------------------------------------------------------- */

static struct page_of pages[N_PAGES + N_DEEP]; /* the last chain is written to images only */

static int open_at(struct store **st, const char *dir, size_t page_bytes)
{
    struct store_options o = {.dir = dir,
                              .max_bytes = (size_t)N_SLOTS * SLOT_BYTES,
                              .page_bytes = page_bytes,
                              .page_tokens = BLOCK,
                              .n_buffers = 6,
                              .namespace_id = {{1}},
                              .namespace_name = "test"};

    return store_open(st, &o);
}

static void save(struct store *st, int k, size_t page_bytes)
{
    const struct page_of *p = &pages[k];
    struct page_label label = {.name = p->name, .parent = p->parent, .tokens = p->tokens};
    void *buffer;

    while ((buffer = store_buffer(st)) == NULL)
        store_flush(st);
    memcpy(buffer, p->payload, page_bytes);
    store_save(st, buffer, &label);
}

/* 1: came back right; 0: a miss; -1: came back wrong, or not at all. */
static int load(struct store *st, int k)
{
    const struct page_of *p = &pages[k];
    struct pollfd f = {.fd = store_event_fd(st), .events = POLLIN};
    struct store_done done;
    int rc = store_load(st, &p->name, p->tokens, 42);
    int good;

    if (rc != ERR_OK)
        return rc == ERR_NOT_FOUND ? 0 : -1;
    while (!store_poll(st, &done)) {
        if (poll(&f, 1, 10000) != 1)
            return -1;
    }
    if (done.rc != ERR_OK)
        return 0;
    good = memcmp(done.payload, p->payload, PAGE_BYTES) == 0 ? 1 : -1;
    store_release(st, done.payload);
    return good;
}

/* --- the lives that are recorded ------------------------------------------------------------- */

/* The pages that the store says it has. */
static uint64_t has_now(const struct store *st)
{
    uint64_t has = 0;

    for (int k = 0; k < N_PAGES; k++)
        has |= (uint64_t)store_has(st, &pages[k].name) << k;
    return has;
}

static void mark(uint64_t has, uint64_t saved)
{
    struct event *e;

    (void)pthread_mutex_lock(&record->lock);
    e = record_event(EV_MARK);
    e->has = has;
    e->saved = saved;
    (void)pthread_mutex_unlock(&record->lock);
}

/* Pages are saved in batches of any length, read, and evicted: there is room for less than half. */
static void live(const char *dir, size_t page_bytes, unsigned *seed)
{
    struct store *st;
    bool usual = page_bytes == PAGE_BYTES; /* else nothing of it is there for the usual one */

    must_ok(open_at(&st, dir, page_bytes));
    mark(usual ? has_now(st) : 0, 0);
    for (int batch = 0; batch < N_BATCHES; batch++) {
        int n = 1 + (int)(random_next(seed) % 5);
        uint64_t saved = 0;

        for (int i = 0; i < n; i++) {
            int k = (int)(random_next(seed) % N_PAGES);

            save(st, k, page_bytes);
            saved |= (uint64_t)1 << k;
        }
        store_flush(st);
        mark(usual ? has_now(st) : 0, saved);
        for (int i = 0; usual && i < 3; i++)
            (void)load(st, (int)(random_next(seed) % N_PAGES));
    }
    store_close(st);
}

/* --- a disk after the cut -------------------------------------------------------------------- */

struct image {
    unsigned char *bytes;
    uint64_t len, cap;
};

static void image_put(struct image *m, const struct event *e, uint64_t from, uint64_t len)
{
    must(e->at + e->len <= m->cap);
    memcpy(m->bytes + e->at + from, record->bytes + e->bytes_at + from, len);
}

/* Any of its sectors; the length may have grown without them. */
static void image_tear(struct image *m, const struct event *e, unsigned *seed)
{
    uint64_t from = 0;

    while (from < e->len) {
        uint64_t len = CHAINS_SECTOR - (e->at + from) % CHAINS_SECTOR;

        len = len < e->len - from ? len : e->len - from;
        if (random_next(seed) % 2 == 0)
            image_put(m, e, from, len);
        from += len;
    }
}

static int last_sync(int cut, int file)
{
    for (int i = cut - 1; i >= 0; i--) {
        if (record->events[i].kind == EV_SYNC && record->events[i].file == file)
            return i;
    }
    return -1;
}

/* What a file holds when the event at cut was under way. How: 0, all there but that one torn; 1,
 * nothing that was not synced; else each by chance. */
static void image_build(struct image *m, int cut, int file, int how, unsigned *seed)
{
    int synced = last_sync(cut, file);

    m->len = 0;
    memset(m->bytes, 0, m->cap);
    for (int i = 0; i <= cut; i++) {
        const struct event *e = &record->events[i];
        bool certain = i < synced || (e->durable && i < cut) || (how == 0 && i < cut);
        unsigned draw = certain || how == 0 ? 0 : how == 1 ? 1 : random_next(seed) % 3;

        if (e->file != file || (e->kind != EV_WRITE && e->kind != EV_RESIZE) || draw == 1)
            continue;
        if (e->kind == EV_RESIZE) {
            m->len = e->len;
            continue;
        }
        if (certain || draw == 0)
            image_put(m, e, 0, e->len);
        else
            image_tear(m, e, seed);
        m->len = m->len > e->at + e->len ? m->len : e->at + e->len;
    }
}

struct folder {
    struct {
        char name[NAME_CAP];
        int file; /* -1: it is no more */
    } names[FILES_MAX];
    int n;
};

static int *folder_at(struct folder *f, const char *name)
{
    for (int i = 0; i < f->n; i++) {
        if (strcmp(f->names[i].name, name) == 0)
            return &f->names[i].file;
    }
    must(f->n < FILES_MAX);
    (void)snprintf(f->names[f->n].name, NAME_CAP, "%s", name);
    f->names[f->n].file = -1;
    return &f->names[f->n++].file;
}

/* The names after the changes before `end`. */
static void folder_build(struct folder *f, int end)
{
    f->n = 0;
    for (int i = 0; i < end; i++) {
        const struct event *e = &record->events[i];

        if (e->kind == EV_CREATE)
            *folder_at(f, e->name) = e->file;
        if (e->kind == EV_RENAME) {
            int file = *folder_at(f, e->name);

            *folder_at(f, e->name) = -1;
            *folder_at(f, e->to) = file;
        }
        if (e->kind == EV_UNLINK)
            *folder_at(f, e->name) = -1;
    }
}

/* Changes of names since the folder's sync come in order, and may come late. */
static int folder_end(int cut, unsigned *seed)
{
    int synced = cut;

    if (random_next(seed) % 2 == 0)
        return cut;
    while (synced > 0 && record->events[synced - 1].kind != EV_DIR_SYNC)
        synced--;
    return synced + (int)(random_next(seed) % (unsigned)(cut - synced + 1));
}

static void write_file(const char *dir, const char *name, const void *bytes, size_t len)
{
    char path[PATH_MAX + 96];
    int fd;

    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0640);
    must(fd != -1 && write(fd, bytes, len) == (ssize_t)len);
    (void)close(fd);
}

static void wipe(const char *dir)
{
    char command[2 * PATH_MAX + 64];

    (void)snprintf(command, sizeof command, "rm -rf %s && mkdir -p %s", dir, dir);
    must_ok(system(command));
}

static void disk_build(const char *dir, int cut, struct image *m, unsigned *seed)
{
    static struct folder f;
    int how = (int)(random_next(seed) % 5);
    unsigned char noise[8192];

    wipe(dir);
    folder_build(&f, folder_end(cut, seed));
    for (int i = 0; i < f.n; i++) {
        char sub[PATH_MAX + 64];

        if (f.names[i].file == -1)
            continue;
        (void)snprintf(sub, sizeof sub, "%s/rebuild", dir);
        if (strncmp(f.names[i].name, "rebuild/", 8) == 0)
            (void)mkdir(sub, 0750); /* may be there already */
        image_build(m, cut, f.names[i].file, how, seed);
        write_file(dir, f.names[i].name, m->bytes, m->len);
    }
    for (size_t i = 0; i < sizeof noise; i++) /* LMDB's readers: never synced, so anything */
        noise[i] = (unsigned char)random_next(seed);
    if (random_next(seed) % 2 == 0)
        write_file(dir, "lock.mdb", noise, sizeof noise);
}

/* --- the next engine ------------------------------------------------------------------------- */

struct tally {
    int opened, wrong, lost, stuck;
    int good, promised;
};

/* Pages that were there at the marks on both sides of the cut, and not saved anew between them. */
static uint64_t promised_at(int cut)
{
    int before = cut;
    int after = cut;

    while (before > 0 && record->events[before].kind != EV_MARK)
        before--;
    while (after < record->n_events - 1 &&
           (after == before || record->events[after].kind != EV_MARK))
        after++;
    if (record->events[before].kind != EV_MARK || record->events[after].kind != EV_MARK)
        return 0;
    return record->events[before].has & record->events[after].has & ~record->events[after].saved;
}

static void check_disk(const char *dir, uint64_t promised, struct tally *t)
{
    struct store *st;

    (void)alarm(180); /* a store that hangs ends the test */
    if (open_at(&st, dir, PAGE_BYTES) != ERR_OK)
        return;
    t->opened++;
    for (int k = 0; k < N_PAGES; k++) {
        int is = load(st, k);

        t->good += is == 1;
        t->wrong += is == -1;
        t->promised += (promised >> k & 1) != 0;
        t->lost += (promised >> k & 1) != 0 && is != 1;
    }
    for (int k = N_PAGES; k < N_PAGES + N_DEEP; k++)
        save(st, k, PAGE_BYTES);
    store_flush(st);
    for (int life = 0; life < 2; life++) {
        for (int k = 0; k < N_PAGES + N_DEEP; k++) {
            int is = load(st, k);

            t->wrong += is == -1;
            t->stuck += k >= N_PAGES && is != 1;
        }
        store_close(st);
        st = NULL;
        if (life == 0 && open_at(&st, dir, PAGE_BYTES) != ERR_OK) {
            t->stuck++;
            return;
        }
    }
}

static int n_cuts(void)
{
    const char *text = getenv("CUTS");

    if (text != NULL)
        return atoi(text);
    return tap_is_long() ? 1000 : 300;
}

static void record_lives(const char *dir, unsigned *seed)
{
    pthread_mutexattr_t shared;

    record = mmap(NULL, sizeof *record, PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    must(record != MAP_FAILED);
    (void)pthread_mutexattr_init(&shared);
    (void)pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    (void)pthread_mutex_init(&record->lock, &shared);
    (void)snprintf(record->dir, sizeof record->dir, "%s/", dir);
    record->on = true;
    live(dir, PAGE_BYTES, seed);
    live(dir, PAGE_BYTES, seed);
    live(dir, PAGE_BYTES / 2, seed); /* a model of other pages: all is begun anew */
    live(dir, PAGE_BYTES, seed);
    live(dir, PAGE_BYTES, seed);
    record->on = false;
}

int main(void)
{
    unsigned seed = tap_seed(7);
    char root[] = "/tmp/quire-cut-XXXXXX";
    char real[PATH_MAX];
    char dir[PATH_MAX + 16];
    char disk[PATH_MAX + 16];
    char command[128];
    struct tally t = {0};
    struct image m = {0};
    int n = n_cuts();

    if (mkdtemp(root) == NULL)
        tap_skip_all("no temporary folder");
    must(realpath(root, real) != NULL);
    (void)snprintf(dir, sizeof dir, "%s/store", real);
    (void)snprintf(disk, sizeof disk, "%s/disk", root);
    log_set_level(0);
    make_pages(pages, N_PAGES + N_DEEP);
    must_ok(mkdir(dir, 0750));
    record_lives(dir, &seed);
    for (int i = 0; i < record->n_events; i++) {
        const struct event *e = &record->events[i];

        m.cap = m.cap > e->at + e->len ? m.cap : e->at + e->len;
    }
    m.bytes = malloc(m.cap);
    must(m.bytes != NULL);
    for (int i = 0; i < n; i++) {
        int cut = (int)(random_next(&seed) % (unsigned)record->n_events);

        disk_build(disk, cut, &m, &seed);
        check_disk(disk, promised_at(cut), &t);
    }
    free(m.bytes);
    ok(record->n_events > 1000, "%d writes, syncs and names were recorded", record->n_events);
    is_int(t.opened, n, "the store opens after each of %d cuts", n);
    is_int(t.wrong, 0, "no wrong page (%d right ones)", t.good);
    is_int(t.lost, 0, "nothing is lost of %d pages that were written and kept", t.promised);
    is_int(t.stuck, 0, "new pages are kept, and still there after one more start");
    ok(t.promised > n && t.good >= t.promised, "and most cuts left something");
    (void)snprintf(command, sizeof command, "rm -rf %s", root);
    (void)!system(command);
    return tap_done();
}
